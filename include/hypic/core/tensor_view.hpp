// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <type_traits>

namespace hypic::inline v0 {

/// Memory that the host's processors address.
struct host_space {};

/// A strided window on memory that somebody else owns: `Rank` extents and strides, in elements, all 64-bit.
/// The last dimension of an operand has unit stride unless its contract says otherwise; the others may have any
/// stride, zero included (one row seen as many) where the view is read. A view without data is empty and stands for
/// "not given".
template <class T, int Rank, class Space = host_space>
struct tensor_view {
  using element_type = T;
  using space = Space;
  static constexpr int rank = Rank;

  T* data = nullptr;
  std::array<std::int64_t, static_cast<std::size_t>(Rank)> extent{};
  std::array<std::int64_t, static_cast<std::size_t>(Rank)> stride{};

  constexpr bool empty() const noexcept { return data == nullptr; }

  constexpr std::int64_t size() const noexcept {
    std::int64_t elements = 1;
    for (auto const e : extent) elements *= e;
    return elements;
  }

  /// The element at the given indices; the caller keeps them in bounds.
  template <class... Index>
    requires(sizeof...(Index) == Rank)
  constexpr T& operator()(Index... index) const noexcept {
    std::int64_t offset = 0;
    int dimension = 0;
    ((offset += static_cast<std::int64_t>(index) * stride[static_cast<std::size_t>(dimension++)]), ...);
    return data[offset];
  }

  /// The window at `index` of the first dimension.
  constexpr tensor_view<T, Rank - 1, Space> operator[](std::int64_t index) const noexcept
    requires(Rank > 1)
  {
    tensor_view<T, Rank - 1, Space> inner;
    inner.data = data == nullptr ? nullptr : data + index * stride[0];
    for (std::size_t d = 1; d < static_cast<std::size_t>(Rank); ++d) {
      inner.extent[d - 1] = extent[d];
      inner.stride[d - 1] = stride[d];
    }
    return inner;
  }

  /// Rows [first, first + count) of the first dimension.
  constexpr tensor_view rows(std::int64_t first, std::int64_t count) const noexcept {
    tensor_view part = *this;
    if (part.data != nullptr) part.data += first * stride[0];
    part.extent[0] = count;
    return part;
  }

  /// A view of mutable elements is a view of constant ones.
  constexpr operator tensor_view<T const, Rank, Space>() const noexcept  // NOLINT
    requires(!std::is_const_v<T>)
  {
    return {data, extent, stride};
  }
};

/// A dense row-major view: the last extent varies fastest.
template <class T, class... Extent>
constexpr auto dense_view(T* data, Extent... extents) noexcept {
  constexpr int rank = sizeof...(Extent);
  tensor_view<T, rank> view{data, {static_cast<std::int64_t>(extents)...}, {}};
  std::int64_t step = 1;
  for (int d = rank - 1; d >= 0; --d) {
    view.stride[static_cast<std::size_t>(d)] = step;
    step *= view.extent[static_cast<std::size_t>(d)];
  }
  return view;
}

}  // namespace hypic::inline v0
