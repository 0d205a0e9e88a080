// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "hypic/core/status.hpp"
#include "hypic/core/tensor_view.hpp"

namespace hypic::inline v0 {

/// Whether an operand's last dimension has to be contiguous.
enum class last_stride : std::uint8_t { unit, any };

/// ok, or what keeps `view` from being an operand of shape `wanted`. One without elements needs neither data nor strides,
/// and where none are wanted any view without elements will do. A view of mutable elements is an output, and two of its
/// elements may not be one: no stride of 0.
template <class T, int Rank, class Space>
constexpr status expect_shape(char const* argument, tensor_view<T, Rank, Space> const& view,
                              decltype(view.extent) const& wanted, last_stride last = last_stride::unit) noexcept {
  auto const has_zero = [](auto const& extents) { return std::ranges::find(extents, 0) != extents.end(); };
  if (has_zero(wanted) && has_zero(view.extent)) return status::ok;
  for (std::size_t d = 0; d < wanted.size(); ++d) {
    if (view.extent[d] >= 0 && view.extent[d] == wanted[d]) continue;
    bool const negative = view.extent[d] < 0;
    return status{status::invalid_shape, argument, view.extent[d],
                  negative ? status::relation::at_least : status::relation::equal_to, negative ? 0 : wanted[d]}
        .in(status::measure::extent, static_cast<int>(d));
  }
  if (view.empty()) return {status::invalid_shape, argument};
  if (last == last_stride::unit && view.extent.back() > 1 && view.stride.back() != 1) {
    return status{status::invalid_shape, argument, view.stride.back(), status::relation::equal_to, 1}.in(
        status::measure::stride, Rank - 1);
  }
  for (std::size_t d = 0; !std::is_const_v<T> && d < wanted.size(); ++d) {
    if (view.extent[d] > 1 && view.stride[d] == 0)
      return status{status::invalid_shape, argument}.in(status::measure::stride, static_cast<int>(d));
  }
  return status::ok;
}

/// ok, or invalid_shape where dimension `d` of `view` is below `least`.
template <class T, int Rank, class Space>
constexpr status expect_extent(char const* argument, tensor_view<T, Rank, Space> const& view, int d,
                               std::int64_t least) noexcept {
  auto const found = view.extent[static_cast<std::size_t>(d)];
  if (found >= least) return status::ok;
  return status{status::invalid_shape, argument, found, status::relation::at_least, least}.in(status::measure::extent,
                                                                                              d);
}

/// invalid_shape where an output starts where an input does: the overlap that a caller makes by mistake.
template <class Out, class... In>
constexpr status expect_apart(char const* argument, Out const& out, In const&... in) noexcept {
  bool const same = (... || (static_cast<void const*>(out.data) == static_cast<void const*>(in.data)));
  return same && !out.empty() ? status{status::invalid_shape, argument} : status{status::ok};
}

/// Whether no two of `count` ranges of rows share one, range(i) being {first, rows}. Allocates nothing; takes one pass
/// where the ranges ascend, as packed ones do.
template <class Range>
constexpr bool share_no_row(std::int64_t count, Range const& range) noexcept {
  std::int64_t end = 0;  // of the ranges so far, as long as they ascend
  for (std::int64_t i = 0; i < count; ++i) {
    auto const [first, rows] = range(i);
    if (rows == 0) continue;
    for (std::int64_t j = 0; first < end && j < i; ++j) {
      auto const [other_first, other_rows] = range(j);
      if (other_rows > 0 && first < other_first + other_rows && other_first < first + rows) return false;
    }
    end = std::max(end, first + rows);
  }
  return true;
}

/// The first of several outcomes that is not ok.
template <class... Status>
constexpr status first_failure(status const& first, Status const&... rest) noexcept {
  if constexpr (sizeof...(rest) > 0) {
    if (first == status::ok) return first_failure(rest...);
  }
  return first;
}

}  // namespace hypic::inline v0
