// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "hypic/algebra/summary.hpp"
#include "hypic/core/tensor_view.hpp"
#include "hypic/family/family.hpp"
#include "hypic/segment/rows.hpp"
#include "oracle/recurrence_oracle.hpp"

/// What tests of linear layers share: owned tensors with poisoned gaps, seeded inputs, the fp64 oracle of a layer,
/// errors in the norms of the contracts, and scratch with guards.
namespace hypic::test {

constexpr std::size_t to_index(std::int64_t value) noexcept { return static_cast<std::size_t>(value); }

inline constexpr float quiet_nan = std::numeric_limits<float>::quiet_NaN();
inline constexpr float infinity = std::numeric_limits<float>::infinity();

template <int Rank>
using extents = std::array<std::int64_t, static_cast<std::size_t>(Rank)>;

/// Calls fn(element, packed index) for every element, last dimension fastest.
template <class T, int Rank, class Fn>
void for_each_element(tensor_view<T, Rank> view, Fn fn) {
  extents<Rank> at{};
  std::int64_t const size = view.size();
  for (std::int64_t i = 0; i < size; ++i) {
    std::int64_t offset = 0;
    for (std::size_t d = 0; d < Rank; ++d) offset += at[d] * view.stride[d];
    fn(view.data[offset], i);
    for (std::size_t d = Rank; d-- > 0;) {
      if (++at[d] < view.extent[d]) break;
      at[d] = 0;
    }
  }
}

/// The elements of a view, packed.
template <class T, int Rank>
std::vector<float> gather(tensor_view<T, Rank> view) {
  std::vector<float> packed(to_index(view.size()));
  for_each_element(view, [&](float const& x, std::int64_t i) { packed[to_index(i)] = x; });
  return packed;
}

/// Whether two runs of floats are the same bytes: NaN equals NaN here, and -0 differs from 0.
inline bool same_bits(std::vector<float> const& left, std::vector<float> const& right) {
  return left.size() == right.size() &&
         (left.empty() || std::memcmp(left.data(), right.data(), left.size() * sizeof(float)) == 0);
}

inline bool all_finite(std::vector<float> const& values) {
  return std::all_of(values.begin(), values.end(), [](float x) { return std::isfinite(x); });
}

/// How a tensor lies in memory. All space that is not an element is NaN, and stays so.
enum class layout : std::uint8_t {
  dense,       ///< row-major without gaps
  gaps,        ///< row-major, unit last stride, a gap after every row of every dimension
  transposed,  ///< gaps, and the last two dimensions swapped in memory
};

/// An owned fp32 tensor, NaN until it is written.
template <int Rank>
class tensor {
 public:
  tensor() = default;
  explicit tensor(extents<Rank> extent, layout how = layout::dense) : extent_(extent) {
    std::array<std::size_t, static_cast<std::size_t>(Rank)> order{};  // innermost first
    for (std::size_t d = 0; d < Rank; ++d) order[d] = Rank - 1 - d;
    if constexpr (Rank > 1) {
      if (how == layout::transposed) std::swap(order[0], order[1]);
    }
    std::int64_t step = 1;
    std::int64_t gap = how == layout::dense ? 0 : 3;
    for (std::size_t d : order) {
      stride_[d] = step;
      step = step * extent_[d] + gap;
      gap += gap == 0 ? 0 : 2;
    }
    first_ = how == layout::dense ? 0 : 7;
    memory_.assign(to_index(first_ + step + first_), quiet_nan);
  }

  tensor_view<float, Rank> view() { return {memory_.data() + first_, extent_, stride_}; }
  tensor_view<float const, Rank> view() const { return {memory_.data() + first_, extent_, stride_}; }
  std::vector<float> packed() const { return gather(view()); }
  void fill(float value) {
    for_each_element(view(), [&](float& x, std::int64_t) { x = value; });
  }
  /// Whether whatever is not an element is still NaN.
  bool gaps_intact() const {
    auto rest = memory_;
    for_each_element(tensor_view<float, Rank>{rest.data() + first_, extent_, stride_},
                     [](float& x, std::int64_t) { x = quiet_nan; });
    return std::all_of(rest.begin(), rest.end(), [](float x) { return std::isnan(x); });
  }

 private:
  extents<Rank> extent_{};
  extents<Rank> stride_{};
  std::int64_t first_ = 0;
  std::vector<float> memory_;
};

/// An owned summary of one run.
struct summary_data {
  tensor<2> operators;
  tensor<3> end_states;

  summary_data() = default;
  summary_data(operator_form form, state_dims const& dims, layout how = layout::dense)
      : operators({dims.value_heads, operator_elements(form, dims.key_dim)}, how),
        end_states({dims.value_heads, dims.key_dim, dims.value_dim}, how) {}
  summary_view view() { return {operators.view(), end_states.view()}; }
  const_summary_view view() const { return {operators.view(), end_states.view()}; }
  std::vector<float> packed() const;
  bool gaps_intact() const { return operators.gaps_intact() && end_states.gaps_intact(); }
};

/// Owned rows without queries.
struct rows_data {
  tensor<3> k, v, gates;
  tensor<2> beta;
  bool has_beta = false;

  rows_data() = default;
  rows_data(family_id family, state_dims const& dims, std::int64_t rows, layout how = layout::dense);
  rows_view view() { return {k.view(), v.view(), gates.view(), has_beta ? beta.view() : tensor_view<float, 2>{}}; }
  const_rows_view view() const {
    return {k.view(), v.view(), gates.view(), has_beta ? beta.view() : tensor_view<float const, 2>{}};
  }
  std::vector<float> packed() const;
  bool gaps_intact() const;
};

enum class key_kind : std::uint8_t { random, correlated, identical };
enum class gate_kind : std::uint8_t {
  zero,    ///< no decay
  slow,    ///< around -1e-3
  mixed,   ///< log sigmoid of N(4, 1)
  fast,    ///< -8 .. -0.5
  steep,   ///< -1000 at every token
  resets,  ///< mixed, with -inf and -1000 at some places
};
enum class beta_kind : std::uint8_t { uniform, two, one, zero };

char const* name(family_id family);
char const* name(key_kind kind);
char const* name(gate_kind kind);
char const* name(beta_kind kind);

struct input_spec {
  family_id family{};
  state_dims dims{};
  std::int64_t rows = 0;
  key_kind keys = key_kind::random;
  gate_kind gates = gate_kind::mixed;
  beta_kind betas = beta_kind::uniform;
  std::uint64_t seed = 1;
  gate_space space = gate_space::natural_log;
  layout how = layout::dense;

  std::string text() const;
};

/// Seeded rows with queries. Keys have unit length.
struct layer_inputs {
  input_spec spec;
  tensor<3> q;
  rows_data rows;

  layer_inputs() = default;
  explicit layer_inputs(input_spec const& made_of);
  /// The same shapes, NaN throughout.
  static layer_inputs blank(input_spec const& like);
  query_rows_view view() const { return {q.view(), rows.view(), spec.space}; }
};

/// Copies element by element.
template <class T, int Rank>
void copy_elements(tensor_view<T, Rank> from, tensor_view<float, Rank> to) {
  auto const packed = gather(from);
  for_each_element(to, [&](float& x, std::int64_t i) { x = packed[to_index(i)]; });
}

/// Copies `count` rows of `from` into `to`, element by element.
void copy_rows(const_rows_view from, std::int64_t first, std::int64_t count, rows_view to, std::int64_t at);
void copy_rows(query_rows_view const& from, std::int64_t first, std::int64_t count, layer_inputs& to, std::int64_t at);

/// Normally distributed states, [value_heads, Dk, Dv] packed.
std::vector<float> random_states(state_dims const& dims, std::uint64_t seed);

/// The turn of cached keys, for the oracle. No frequencies: none.
struct oracle_turn {
  std::vector<double> frequencies;
  bool interleaved = false;
  double position = 0.0;
};

/// The fp64 recurrence of all value heads of a layer, fed from fp32 rows.
class layer_oracle {
 public:
  layer_oracle(family_id family, state_dims const& dims, row_options const& options);

  void start();
  /// [value_heads, Dk, Dv], packed.
  void start(std::vector<float> const& states);
  void step(const_rows_view rows, std::int64_t token, oracle_turn const& turn = {});
  /// The outputs after the last step, [value_heads, Dv]; `token` chooses the query.
  std::vector<double> output(tensor_view<float const, 3> q, std::int64_t token) const;

  oracle::head const& head(std::int64_t value_head) const { return heads_[to_index(value_head)]; }
  /// All states, [value_heads, Dk, Dv].
  std::vector<double> states() const;
  /// Rounds (T, S) into a summary.
  void round_into(summary_view out) const;

 private:
  family_id family_;
  state_dims dims_;
  row_options options_;
  std::vector<oracle::head> heads_;
};

/// |found - wanted|_F / |wanted|_F; 0 where both vanish. NaN or infinity if anything found is not finite.
double relative_error(std::vector<float> const& found, std::vector<double> const& wanted);

/// The largest relative error of a head's state (or end state). Shapes: [value_heads, Dk, Dv].
double state_error(tensor_view<float const, 3> found, layer_oracle const& wanted);

/// The largest |T^ - T|_F / (1e-5 |T|_F + 1e-7 sqrt(Dk)) of a head: at most 1 keeps the contract.
double operator_excess(operator_form form, std::int64_t key_dim, tensor_view<float const, 2> found,
                       layer_oracle const& wanted);

/// The same for one head's operator against a dense T in fp64.
double operator_excess(operator_form form, std::int64_t key_dim, std::vector<float> const& found,
                       std::vector<double> const& wanted);

/// A run of outputs [rows, value_heads, Dv] against fp64 ones, packed alike: the largest relative error of a head.
double output_error(tensor_view<float const, 3> found, std::vector<double> const& wanted);

/// Scratch of exactly the size asked for, at an odd address, full of NaN, between guards.
class lent_scratch {
 public:
  explicit lent_scratch(std::int64_t bytes, std::size_t misalignment = 1);
  std::span<std::byte> span() { return {memory_.data() + first_, size_}; }
  bool guards_intact() const;

 private:
  static constexpr std::size_t guard = 128;
  std::vector<std::byte> memory_;
  std::size_t first_;
  std::size_t size_;
};

}  // namespace hypic::test
