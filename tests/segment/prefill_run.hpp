// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <catch2/catch.hpp>

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "hypic/segment/segment_prefill.hpp"
#include "support/layer_data.hpp"

namespace hypic::test {

/// All families, for GENERATE: the families of a segment's tests are values, so that each test is compiled once.
inline std::vector<family_id> const all_families = {family_id::retnet, family_id::gla, family_id::gated_deltanet,
                                                    family_id::kda};

inline operator_form form_of(family_id family) {
  return with_family(family, [](auto f) { return decltype(f)::form; });
}
inline bool is_delta_rule(family_id family) {
  return with_family(family, [](auto f) { return decltype(f)::delta_rule; });
}
inline std::int64_t gate_width(family_id family, std::int64_t key_dim) {
  return with_family(family, [&]<class F>(F) { return gate_elements<F>(key_dim); });
}

inline status prefill(family_id family, prefill_plan const& plan, query_rows_view const& in, prefill_outputs const& out,
                      host_exec const& ex) {
  return with_family(family, [&]<class F>(F) { return segment_prefill<F>(plan, in, out, ex); });
}

/// The summary of no tokens.
inline summary_data neutral_summary(family_id family, state_dims const& dims) {
  summary_data out(form_of(family), dims);
  REQUIRE(with_family(family, [&]<class F>(F) { return set_identity<F>(dims, out.view(), {}); }) == status::ok);
  return out;
}

/// A plan that has to be right.
inline prefill_plan planned(input_spec const& spec, row_options const& options, std::int32_t head_rows,
                            std::int64_t slots, std::vector<prefill_sequence> sequences) {
  auto plan = plan_segment_prefill(spec.family, spec.dims, options, head_rows, spec.rows, slots, std::move(sequences));
  INFO((plan ? "" : plan.error().argument()));
  REQUIRE(plan);
  return *plan;
}

/// All outputs of one prefill, NaN until they are written, and the call on exactly sized, dirty, misaligned scratch.
struct prefill_run {
  prefill_plan plan;
  tensor<3> o;
  tensor<4> states;
  std::vector<summary_data> bodies;
  std::vector<rows_data> heads;
  std::vector<std::uint32_t> flags;

  explicit prefill_run(prefill_plan const& of, layout how = layout::dense, layout pool = layout::dense)
      : plan(of),
        o({of.total_rows, of.dims.value_heads, of.dims.value_dim}, how),
        states({of.slots, of.dims.value_heads, of.dims.key_dim, of.dims.value_dim}, pool),
        flags(of.sequences.size(), 0) {
    for (auto const& sequence : of.sequences) {
      bodies.emplace_back(form_of(of.family), of.dims, how);
      heads.emplace_back(of.family, of.dims, std::min<std::int64_t>(of.head_rows, sequence.position + sequence.rows),
                         how);
    }
  }

  status go(query_rows_view const& in, int threads = 1, std::size_t misalignment = 1) {
    return go_as(plan.family, in, threads, misalignment);
  }
  status go_as(family_id family, query_rows_view const& in, int threads = 1, std::size_t misalignment = 1) {
    std::vector<summary_view> body_views;
    std::vector<rows_view> head_views;
    for (auto& body : bodies) body_views.push_back(body.view());
    for (auto& head : heads) head_views.push_back(head.view());
    lent_scratch memory(plan.workspace_bytes(threads), misalignment);
    auto const outcome =
        prefill(family, plan, in,
                {.o = o.view(), .states = states.view(), .bodies = body_views, .heads = head_views, .flags = flags},
                {.workspace = memory.span(), .threads = threads});
    CHECK(memory.guards_intact());
    return outcome;
  }

  std::vector<float> outputs_of(std::size_t sequence) const {
    return gather(o.view().rows(plan.sequences[sequence].first_row, plan.sequences[sequence].rows));
  }
  std::vector<float> state(std::int64_t slot) const { return gather(states.view()[slot]); }
  void set_state(std::int64_t slot, std::vector<float> const& values) {
    for_each_element(states.view()[slot], [&](float& x, std::int64_t i) { x = values[to_index(i)]; });
  }

  /// Everything that the call gave for one sequence.
  std::vector<float> all_of(std::size_t sequence) const {
    auto all = outputs_of(sequence);
    auto const add = [&](std::vector<float> const& more) { all.insert(all.end(), more.begin(), more.end()); };
    add(bodies[sequence].packed());
    add(heads[sequence].packed());
    if (plan.sequences[sequence].final_slot >= 0) add(state(plan.sequences[sequence].final_slot));
    all.push_back(static_cast<float>(flags[sequence]));
    return all;
  }
};

/// What the oracle says of one sequence of a plan: its body, its state and its outputs. The state before it is
/// `initial`, or zero.
struct sequence_reference {
  prefill_plan plan;
  prefill_sequence sequence;
  layer_oracle whole, body;
  std::vector<double> outputs;
  std::vector<float> head;  // packed

  sequence_reference(prefill_plan const& of, std::size_t which, query_rows_view const& in,
                     std::vector<float> const& initial = {})
      : plan(of),
        sequence(of.sequences[which]),
        whole(of.family, of.dims, of.options),
        body(of.family, of.dims, of.options) {
    if (!initial.empty()) whole.start(initial);
    for (std::int64_t t = 0; t < sequence.rows; ++t) {
      whole.step(in.rows, sequence.first_row + t);
      if (t >= plan.head_rows) body.step(in.rows, sequence.first_row + t);
      auto const o = whole.output(in.q, sequence.first_row + t);
      outputs.insert(outputs.end(), o.begin(), o.end());
    }
    auto const head_rows = std::min<std::int64_t>(plan.head_rows, sequence.rows);
    rows_data copied(plan.family, plan.dims, head_rows);
    copy_rows(in.rows, sequence.first_row, head_rows, copied.view(), 0);
    head = copied.packed();
  }

  void check(prefill_run const& run, std::size_t which) const {
    auto const form = form_of(plan.family);
    CHECK(output_error(run.o.view().rows(sequence.first_row, sequence.rows), outputs) <= 1e-5);
    CHECK(operator_excess(form, plan.dims.key_dim, run.bodies[which].view().operators, body) <= 1.0);
    CHECK(state_error(run.bodies[which].view().end_states, body) <= 1e-5);
    if (sequence.final_slot >= 0) CHECK(state_error(run.states.view()[sequence.final_slot], whole) <= 1e-5);
    CHECK(same_bits(run.heads[which].packed(), head));
  }
};

inline void check_sequence(prefill_run const& run, std::size_t which, query_rows_view const& in,
                           std::vector<float> const& initial = {}) {
  sequence_reference(run.plan, which, in, initial).check(run, which);
}

/// Runs every length 1 .. spec.rows, with NaN after the last row, and checks T, S0 and the state of each against one
/// pass of the oracle. The outputs of the longest are checked too; those of the others are the same bits.
inline void check_all_lengths(input_spec const& spec, std::int32_t head_rows) {
  layer_inputs const in(spec);
  auto grown = layer_inputs::blank(spec);
  prefill_run longest(planned(spec, {}, head_rows, 1, {{.rows = spec.rows, .final_slot = 0}}));
  REQUIRE(longest.go(in.view()) == status::ok);

  INFO(spec.text() << ", W " << head_rows);
  layer_oracle whole(spec.family, spec.dims, {}), body(spec.family, spec.dims, {});
  std::vector<double> outputs;
  for (std::int64_t n = 1; n <= spec.rows; ++n) {
    whole.step(in.rows.view(), n - 1);
    if (n > head_rows) body.step(in.rows.view(), n - 1);
    auto const o = whole.output(in.q.view(), n - 1);
    outputs.insert(outputs.end(), o.begin(), o.end());

    copy_rows(in.view(), n - 1, 1, grown, n - 1);
    prefill_run run(planned(spec, {}, head_rows, 1, {{.rows = n, .final_slot = 0}}));
    REQUIRE(run.go(grown.view()) == status::ok);
    CAPTURE(n);
    REQUIRE(operator_excess(form_of(spec.family), spec.dims.key_dim, std::as_const(run.bodies[0]).view().operators,
                            body) <= 1.0);
    REQUIRE(state_error(std::as_const(run.bodies[0]).view().end_states, body) <= 1e-5);
    REQUIRE(state_error(std::as_const(run.states).view()[0], whole) <= 1e-5);
    REQUIRE(same_bits(run.outputs_of(0), gather(longest.o.view().rows(0, n))));
    REQUIRE(run.flags[0] == 0);
  }
  CHECK(output_error(std::as_const(longest.o).view(), outputs) <= 1e-5);
}

/// Positions in [0, last] that matter to a run with W head rows: all near its start, near W and near the first points
/// where a run may be broken, and some between.
inline std::vector<std::int64_t> telling_positions(std::int64_t head_rows, std::int64_t chunk, std::int64_t last) {
  std::vector<std::int64_t> out;
  for (std::int64_t t = 0; t <= last; ++t) {
    std::int64_t const off = (t - head_rows + chunk + 3) % chunk;
    if (t < head_rows + 40 || off <= 6 || t % 61 == 0 || t == last) out.push_back(t);
  }
  return out;
}

/// The same inputs with other values in some rows.
template <class Change>
layer_inputs changed(layer_inputs const& in, Change change) {
  auto copy = in;
  change(copy.q.view(), copy.rows.view());
  return copy;
}

}  // namespace hypic::test
