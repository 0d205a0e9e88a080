// SPDX-License-Identifier: Apache-2.0
#include "hypic/algebra/summary.hpp"

#include <algorithm>

#include "algebra/summary_checks.hpp"
#include "core/calls.hpp"
#include "core/decay.hpp"
#include "core/matrix.hpp"
#include "core/parallel.hpp"
#include "core/scratch.hpp"
#include "core/subnormals.hpp"

namespace hypic::inline v0 {
namespace {

/// One head of a summary, its rows contiguous.
template <class T>
struct head_part {
  T* op;
  matrix_view<T> end_state;
  constexpr operator head_part<T const>() const noexcept { return {op, end_state}; }  // NOLINT
};

template <class T>
head_part<T> part_of(basic_summary_view<T> const& summary, std::int64_t head) noexcept {
  auto const& end_states = summary.end_states;
  return {summary.operators.data + head * summary.operators.stride[0],
          {end_states.data + head * end_states.stride[0], end_states.stride[1]}};
}

template <class T>
head_part<T> part_of(basic_summaries_view<T> const& runs, std::int64_t run, std::int64_t head) noexcept {
  auto const& operators = runs.operators;
  auto const& end_states = runs.end_states;
  return {operators.data + run * operators.stride[0] + head * operators.stride[1],
          {end_states.data + run * end_states.stride[0] + head * end_states.stride[1], end_states.stride[2]}};
}

double decay_at(operator_form form, float const* log_decays, std::int64_t d) noexcept {
  return decay_of(static_cast<double>(log_decays[form == operator_form::scalar ? 0 : d]));
}

status expect_form(operator_form form) noexcept {
  switch (form) {
    case operator_form::scalar:
    case operator_form::diagonal:
    case operator_form::dense: return status::ok;
  }
  return {status::invalid_argument, "form", static_cast<std::int64_t>(form), status::relation::at_most,
          static_cast<std::int64_t>(operator_form::dense)};
}

void identity_head(operator_form form, state_dims const& dims, head_part<float> out) noexcept {
  std::int64_t const key_dim = dims.key_dim;
  std::fill_n(out.op, operator_elements(form, key_dim), 0.0f);
  if (form == operator_form::dense) {
    for (std::int64_t d = 0; d < key_dim; ++d) out.op[d * key_dim + d] = 1.0f;
  }
  for (std::int64_t d = 0; d < key_dim; ++d) std::fill_n(out.end_state.row(d), dims.value_dim, 0.0f);
}

void copy_head(operator_form form, state_dims const& dims, head_part<float const> in, head_part<float> out) noexcept {
  std::copy_n(in.op, operator_elements(form, dims.key_dim), out.op);
  for (std::int64_t d = 0; d < dims.key_dim; ++d)
    std::copy_n(in.end_state.row(d), dims.value_dim, out.end_state.row(d));
}

/// Where T is scalar or diagonal, `out` may be `earlier`.
void compose_head(operator_form form, state_dims const& dims, head_part<float const> later,
                  head_part<float const> earlier, head_part<float> out) noexcept {
  std::int64_t const key_dim = dims.key_dim;
  std::int64_t const value_dim = dims.value_dim;
  if (form == operator_form::dense) {
    left_operand const left{later.op, key_dim, 1};
    product(key_dim, key_dim, key_dim, left, {earlier.op, key_dim}, {out.op, key_dim}, store_mode::set);
    for (std::int64_t d = 0; d < key_dim; ++d) std::copy_n(later.end_state.row(d), value_dim, out.end_state.row(d));
    product(key_dim, value_dim, key_dim, left, earlier.end_state, out.end_state, store_mode::add);
  } else {
    for (std::int64_t e = 0; e < operator_elements(form, key_dim); ++e) out.op[e] = later.op[e] + earlier.op[e];
    for (std::int64_t d = 0; d < key_dim; ++d) {
      decay_chain const chain{1, {decay_at(form, later.op, d)}, {later.end_state.row(d)}};
      decayed_sum(value_dim, chain, earlier.end_state.row(d), out.end_state.row(d));
    }
  }
}

/// T in for a dense T. States may have any strides: tiles of them pass through arrays of this function.
void apply_dense(state_dims const& dims, float const* op, tensor_view<float const, 2> in,
                 tensor_view<float, 2> out) noexcept {
  constexpr std::int64_t tile = 32;
  std::int64_t const key_dim = dims.key_dim;
  std::int64_t const value_dim = dims.value_dim;
  float from[tile * tile];
  float sums[tile * tile];
  for (std::int64_t column = 0; column < value_dim; column += tile) {
    auto const columns = std::min(tile, value_dim - column);
    for (std::int64_t row = 0; row < key_dim; row += tile) {
      auto const rows = std::min(tile, key_dim - row);
      for (std::int64_t inner = 0; inner < key_dim; inner += tile) {
        auto const depth = std::min(tile, key_dim - inner);
        for (std::int64_t d = 0; d < depth; ++d) {
          for (std::int64_t c = 0; c < columns; ++c) from[d * tile + c] = in(inner + d, column + c);
        }
        product(rows, columns, depth, {op + row * key_dim + inner, key_dim, 1}, {from, tile}, {sums, tile},
                inner == 0 ? store_mode::set : store_mode::add);
      }
      for (std::int64_t d = 0; d < rows; ++d) {
        for (std::int64_t c = 0; c < columns; ++c) out(row + d, column + c) = sums[d * tile + c];
      }
    }
  }
}

void apply_head(operator_form form, state_dims const& dims, head_part<float const> summary,
                tensor_view<float const, 2> in, tensor_view<float, 2> out) noexcept {
  if (form == operator_form::dense) apply_dense(dims, summary.op, in, out);
  for (std::int64_t d = 0; d < dims.key_dim; ++d) {
    float const* const end_state = summary.end_state.row(d);
    if (form == operator_form::dense) {
      for (std::int64_t c = 0; c < dims.value_dim; ++c) out(d, c) += end_state[c];
    } else {
      double const decay = decay_at(form, summary.op, d);
      for (std::int64_t c = 0; c < dims.value_dim; ++c) {
        out(d, c) = static_cast<float>(decay * static_cast<double>(in(d, c)) + static_cast<double>(end_state[c]));
      }
    }
  }
}

/// Room for one head of a summary.
head_part<float> take_head(operator_form form, state_dims const& dims, scratch& memory) noexcept {
  auto* const op = memory.take<float>(operator_elements(form, dims.key_dim));
  return {op, {memory.take<float>(dims.state_elements()), dims.value_dim}};
}

std::int64_t head_bytes(operator_form form, state_dims const& dims) noexcept {
  return scratch_bytes<float>(operator_elements(form, dims.key_dim)) + scratch_bytes<float>(dims.state_elements());
}

/// out = runs [first, first + chain length) after out, for scalar and diagonal T.
void fold_links(operator_form form, state_dims const& dims, const_summaries_view runs, std::int64_t first,
                std::int64_t head, head_part<float> out) noexcept {
  decay_chain chain{std::min(most_links, runs.operators.extent[0] - first), {}, {}};
  head_part<float const> links[most_links];
  for (std::int64_t i = 0; i < chain.links; ++i) {
    links[i] = part_of(runs, first + i, head);
    for (std::int64_t e = 0; e < operator_elements(form, dims.key_dim); ++e) out.op[e] += links[i].op[e];
  }
  constexpr std::int64_t tile = 32;
  bool const scalar = form == operator_form::scalar;
  double decay[most_links][tile];
  for (std::int64_t d = 0; d < dims.key_dim; ++d) {
    if (d % tile == 0) {
      for (std::int64_t i = 0; i < chain.links; ++i)
        decays(scalar ? 1 : std::min(tile, dims.key_dim - d), links[i].op + (scalar ? 0 : d), decay[i]);
    }
    for (std::int64_t i = 0; i < chain.links; ++i) {
      chain.decay[i] = decay[i][scalar ? 0 : d % tile];
      chain.added[i] = links[i].end_state.row(d);
    }
    decayed_sum(dims.value_dim, chain, out.end_state.row(d), out.end_state.row(d));
  }
}

/// out = the fold of all runs, by way of `room` where T is dense.
void fold_head(operator_form form, state_dims const& dims, const_summaries_view runs, std::int64_t head,
               head_part<float> out, head_part<float> room) noexcept {
  copy_head(form, dims, part_of(runs, 0, head), out);
  if (form == operator_form::dense) {
    for (std::int64_t r = 1; r < runs.operators.extent[0]; ++r) {
      compose_head(form, dims, part_of(runs, r, head), out, room);
      copy_head(form, dims, room, out);
    }
  } else {
    for (std::int64_t r = 1; r < runs.operators.extent[0]; r += most_links) fold_links(form, dims, runs, r, head, out);
  }
}

void fold_prefixes(operator_form form, state_dims const& dims, const_summaries_view runs, std::int64_t head,
                   summaries_view prefixes) noexcept {
  copy_head(form, dims, part_of(runs, 0, head), part_of(prefixes, 0, head));
  for (std::int64_t r = 1; r < runs.operators.extent[0]; ++r) {
    compose_head(form, dims, part_of(runs, r, head), part_of(prefixes, r - 1, head), part_of(prefixes, r, head));
  }
}

template <class T>
status expect_summaries(summary_names const& names, operator_form form, state_dims const& dims, std::int64_t runs,
                        basic_summaries_view<T> const& summaries) noexcept {
  std::int64_t const heads = dims.value_heads;
  return first_failure(
      expect_shape(names.operators, summaries.operators, {runs, heads, operator_elements(form, dims.key_dim)}),
      expect_shape(names.end_states, summaries.end_states, {runs, heads, dims.key_dim, dims.value_dim}));
}

status check_fold(operator_form form, state_dims const& dims, const_summaries_view const& runs, summary_view const& out,
                  summaries_view const& prefixes, host_exec const& ex) noexcept {
  std::int64_t const count = runs.operators.extent[0];
  bool const with_prefixes = !prefixes.empty();
  auto checked = first_failure(expect_form(form), validate(dims),
                               expect_summaries({"runs.operators", "runs.end_states"}, form, dims, count, runs),
                               expect_exec(ex, with_prefixes ? 0 : fold_workspace_bytes(form, dims, ex.threads)));
  if (checked == status::ok && with_prefixes) {
    checked = expect_summaries({"prefixes.operators", "prefixes.end_states"}, form, dims, count, prefixes);
  }
  if (checked == status::ok && !(with_prefixes && out.empty())) {
    checked = expect_summary({"out.operators", "out.end_states"}, form, dims, out);
  }
  return first_failure(checked, expect_apart_summaries("prefixes overlap runs", prefixes, runs),
                       expect_apart_summaries("out overlaps runs", out, runs),
                       expect_apart_summaries("out overlaps prefixes", out, prefixes));
}

}  // namespace

status set_identity(operator_form form, state_dims const& dims, summary_view out, host_exec const& ex) {
  auto const checked =
      first_failure(expect_form(form), validate(dims),
                    expect_summary({"out.operators", "out.end_states"}, form, dims, out), expect_exec(ex, 0));
  if (checked != status::ok) return checked;
  auto const told = tell(ex, "algebra.set_identity");
  parallel_for(ex.threads, dims.value_heads,
               [&](std::int64_t head, int) { identity_head(form, dims, part_of(out, head)); });
  return status::ok;
}

status compose(operator_form form, state_dims const& dims, const_summary_view later, const_summary_view earlier,
               summary_view out, host_exec const& ex) {
  auto const checked = first_failure(expect_form(form), validate(dims),
                                     expect_summary({"later.operators", "later.end_states"}, form, dims, later),
                                     expect_summary({"earlier.operators", "earlier.end_states"}, form, dims, earlier),
                                     expect_summary({"out.operators", "out.end_states"}, form, dims, out),
                                     expect_apart_summaries("out overlaps later", out, later),
                                     expect_apart_summaries("out overlaps earlier", out, earlier), expect_exec(ex, 0));
  if (checked != status::ok) return checked;
  auto const told = tell(ex, "algebra.compose");
  parallel_for(ex.threads, dims.value_heads, [&](std::int64_t head, int) {
    flush_subnormals const guard;
    compose_head(form, dims, part_of(later, head), part_of(earlier, head), part_of(out, head));
  });
  return status::ok;
}

status apply(operator_form form, state_dims const& dims, const_summary_view summary, tensor_view<float const, 3> in,
             tensor_view<float, 3> out, host_exec const& ex) {
  auto const states = std::array<std::int64_t, 3>{dims.value_heads, dims.key_dim, dims.value_dim};
  auto const checked = first_failure(
      expect_form(form), validate(dims),
      expect_summary({"summary.operators", "summary.end_states"}, form, dims, summary),
      expect_shape("in", in, states, last_stride::any), expect_shape("out", out, states, last_stride::any),
      expect_apart("out overlaps in", out, in),
      expect_apart("out overlaps summary", out, summary.operators, summary.end_states), expect_exec(ex, 0));
  if (checked != status::ok) return checked;
  auto const told = tell(ex, "algebra.apply");
  parallel_for(ex.threads, dims.value_heads, [&](std::int64_t head, int) {
    flush_subnormals const guard;
    apply_head(form, dims, part_of(summary, head), in[head], out[head]);
  });
  return status::ok;
}

std::int64_t fold_workspace_bytes(operator_form form, state_dims const& dims, int threads) noexcept {
  return head_bytes(form, dims) * workers_of(threads) + scratch_alignment;
}

status fold(operator_form form, state_dims const& dims, const_summaries_view runs, summary_view out,
            summaries_view prefixes, host_exec const& ex) {
  if (auto const s = check_fold(form, dims, runs, out, prefixes, ex); s != status::ok) return s;
  auto const told = tell(ex, "algebra.fold");
  auto const count = runs.operators.extent[0];
  auto const bytes = static_cast<std::size_t>(head_bytes(form, dims));
  parallel_for(ex.threads, dims.value_heads, [&](std::int64_t head, int worker) {
    flush_subnormals const guard;
    if (count == 0) {
      if (!out.empty()) identity_head(form, dims, part_of(out, head));
    } else if (!prefixes.empty()) {
      fold_prefixes(form, dims, runs, head, prefixes);
      if (!out.empty()) copy_head(form, dims, part_of(prefixes, count - 1, head), part_of(out, head));
    } else {
      scratch memory{ex.workspace.subspan(static_cast<std::size_t>(worker) * bytes)};
      fold_head(form, dims, runs, head, part_of(out, head), take_head(form, dims, memory));
    }
  });
  return status::ok;
}

}  // namespace hypic::inline v0
