// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <catch2/catch.hpp>

#include <algorithm>
#include <optional>
#include <vector>

#include "hypic/algebra/rotation.hpp"
#include "hypic/segment/seam_repair.hpp"
#include "segment/prefill_run.hpp"

/// What tests of seam repair share, on whichever back end: requests of spans in any mix, the sequential fp64 run over the
/// same rows, and a call's inputs and outputs.
namespace hypic::test {

inline status repair(family_id family, repair_plan const& plan, query_rows_view const& in,
                     std::span<cached_span const> records, repair_outputs const& out, host_exec const& ex) {
  return with_family(family, [&]<class F>(F) { return seam_repair<F>(plan, in, records, out, ex); });
}

/// What the chains of one test have in common.
struct setting {
  family_id family{};
  state_dims dims{1, 2, 16, 24};
  std::int32_t head_rows = 8;  // W
  gate_kind gates = gate_kind::mixed;
  key_kind keys = key_kind::random;
  row_options options{};
  std::vector<double> frequencies{};  // of a layer whose q and k are rotary
  rotary_pairing pairing = rotary_pairing::rotate_half;
  bool prefilled = false;  // records made by segment_prefill, not by the oracle
  layout how = layout::dense;
};

/// One span of a request: what is cached of it, and the rows that are forwarded.
struct span_data {
  std::int64_t tokens = 0;
  std::int64_t forwarded = 0;
  std::int64_t start = 0;
  bool cached = false;
  layer_inputs fresh;      // [forwarded]
  layer_inputs canonical;  // [tokens], of a cached span
  rows_data head;
  summary_data body;
  std::optional<rotation> turn;

  std::int32_t head_rows(std::int32_t most) const {
    return cached ? static_cast<std::int32_t>(std::min<std::int64_t>(most, tokens)) : 0;
  }
  bool has_body(std::int32_t most) const { return cached && tokens > most; }
};

struct chain_data {
  std::vector<span_data> spans;
  std::vector<float> initial;  // empty: zero
};

inline input_spec spec_of(setting const& of, std::int64_t rows, std::uint64_t seed) {
  return {.family = of.family,
          .dims = of.dims,
          .rows = rows,
          .keys = of.keys,
          .gates = of.gates,
          .seed = seed,
          .space = of.options.gates,
          .how = of.how};
}

/// A cached span of `tokens` tokens at `start`, of which `seam` are forwarded (all of a shorter one).
inline span_data cached_data(setting const& of, std::int64_t tokens, std::int64_t seam, std::int64_t start,
                             std::uint64_t seed) {
  span_data span;
  span.tokens = tokens;
  span.forwarded = std::min(tokens, seam);
  span.start = start;
  span.cached = true;
  span.fresh = layer_inputs(spec_of(of, span.forwarded, seed + 500000));
  span.canonical = layer_inputs(spec_of(of, tokens, seed));
  span.head = rows_data(of.family, of.dims, span.head_rows(of.head_rows), of.how);
  span.body = summary_data(form_of(of.family), of.dims, of.how);
  if (of.prefilled) {
    auto const plan = planned(span.canonical.spec, of.options, of.head_rows, 0, {{.rows = tokens}});
    prefill_run run(plan, of.how);
    REQUIRE(run.go(span.canonical.view()) == status::ok);
    REQUIRE(run.flags[0] == 0);
    span.head = run.heads[0];
    span.body = run.bodies[0];
  } else {
    copy_rows(span.canonical.rows.view(), 0, span.head_rows(of.head_rows), span.head.view(), 0);
    layer_oracle body(of.family, of.dims, of.options);
    for (std::int64_t t = of.head_rows; t < tokens; ++t) body.step(span.canonical.rows.view(), t);
    body.round_into(span.body.view());
  }
  // The seam replaces these rows: nobody may read them.
  auto const replaced = span.head.view().slice(0, span.forwarded);
  for_each_element(replaced.k, [](float& x, std::int64_t) { x = quiet_nan; });
  for_each_element(replaced.v, [](float& x, std::int64_t) { x = quiet_nan; });
  for_each_element(replaced.gates, [](float& x, std::int64_t) { x = quiet_nan; });
  if (!replaced.beta.empty()) for_each_element(replaced.beta, [](float& x, std::int64_t) { x = quiet_nan; });
  if (!of.frequencies.empty()) {
    span.turn = make_rotation({.frequencies = of.frequencies, .pairing = of.pairing}, start);
  }
  return span;
}

inline span_data fresh_data(setting const& of, std::int64_t tokens, std::int64_t start, std::uint64_t seed) {
  span_data span;
  span.tokens = tokens;
  span.forwarded = tokens;
  span.start = start;
  span.fresh = layer_inputs(spec_of(of, tokens, seed));
  return span;
}

/// A request of cached and fresh spans in any mix, lengths around W and around a chunk.
inline chain_data random_chain(setting const& of, std::int64_t count, std::uint64_t seed, bool with_initial = false) {
  std::mt19937_64 random(seed);
  std::int64_t const w = of.head_rows;
  std::int64_t const cached_lengths[] = {0, 1, 3, w - 1, w, w + 1, w + 5, 70, 100};
  std::int64_t const fresh_lengths[] = {0, 1, 5, 20, 70};
  chain_data chain;
  std::int64_t start = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    auto const own = 1000 * seed + static_cast<std::uint64_t>(i);
    if (random() % 3 != 0) {
      auto const seam = i == 0 && !with_initial ? 0 : static_cast<std::int64_t>(random() % to_index(w + 1));
      chain.spans.push_back(cached_data(of, cached_lengths[random() % 9], seam, start, own));
    } else {
      chain.spans.push_back(fresh_data(of, fresh_lengths[random() % 5], start, own));
    }
    start += chain.spans.back().tokens;
    if (!of.frequencies.empty()) start += static_cast<std::int64_t>(random() % 3000);
  }
  if (with_initial) chain.initial = random_states(of.dims, seed);
  return chain;
}

/// The sequential run over the same rows: forwarded ones, then the cached ones after them, turned into place.
struct reference {
  layer_oracle state;
  std::vector<std::vector<double>> outputs;  // of each span's forwarded rows
};

inline reference sequential(setting const& of, chain_data const& chain) {
  reference out{layer_oracle(of.family, of.dims, of.options), {}};
  if (!chain.initial.empty()) out.state.start(chain.initial);
  for (auto const& span : chain.spans) {
    std::vector<double> outputs;
    for (std::int64_t t = 0; t < span.forwarded; ++t) {
      out.state.step(span.fresh.rows.view(), t);
      auto const o = out.state.output(span.fresh.q.view(), t);
      outputs.insert(outputs.end(), o.begin(), o.end());
    }
    out.outputs.push_back(std::move(outputs));
    if (!span.cached) continue;
    oracle_turn const turn{of.frequencies, of.pairing == rotary_pairing::interleaved, static_cast<double>(span.start)};
    for (std::int64_t t = span.forwarded; t < span.tokens; ++t) out.state.step(span.canonical.rows.view(), t, turn);
  }
  return out;
}

/// Several chains as one call sees them. Their forwarded rows lie in the inputs from last to first, with poisoned rows
/// between; chain i ends in slot 2i and starts from slot 2i + 1, if it has a state to start from.
struct repair_run {
  setting of;
  std::vector<chain_data> const* chains;
  layer_inputs in;
  repair_plan plan;
  std::vector<cached_span> records;
  tensor<3> o;
  tensor<4> states;
  std::vector<std::uint32_t> flags;

  repair_run(setting const& what, std::vector<chain_data> const& requests, layout pool = layout::dense)
      : of(what), chains(&requests) {
    std::int64_t rows = 2;
    for (auto const& chain : requests) {
      for (auto const& span : chain.spans) rows += span.forwarded + 3;
    }
    in = layer_inputs::blank(spec_of(of, rows, 0));
    std::vector<seam_span> spans;
    std::vector<seam_chain> walks;
    std::int64_t end = rows - 2;
    for (std::size_t c = 0; c < requests.size(); ++c) {
      auto const slot = static_cast<std::int32_t>(2 * c);
      walks.push_back({.first_span = static_cast<std::int64_t>(spans.size()),
                       .spans = static_cast<std::int64_t>(requests[c].spans.size()),
                       .initial_slot = requests[c].initial.empty() ? -1 : slot + 1,
                       .final_slot = slot});
      for (auto const& span : requests[c].spans) {
        end -= span.forwarded;
        copy_rows(span.fresh.view(), 0, span.forwarded, in, end);
        spans.push_back({.first_row = end,
                         .rows = span.forwarded,
                         .cached = span.cached ? static_cast<std::int32_t>(records.size()) : -1,
                         .head_rows = span.head_rows(of.head_rows),
                         .has_body = span.has_body(of.head_rows)});
        if (span.cached) {
          cached_span record{.head = span.head.view(), .turn = span.turn ? &*span.turn : nullptr};
          if (span.has_body(of.head_rows)) record.body = span.body.view();
          records.push_back(record);
        }
        end -= 3;
      }
    }
    auto const slots = static_cast<std::int64_t>(2 * requests.size());
    auto made = plan_seam_repair(of.family, of.dims, of.options, rows, slots, static_cast<std::int64_t>(records.size()),
                                 spans, walks);
    INFO((made ? "" : made.error().argument()));
    REQUIRE(made);
    plan = *made;
    o = tensor<3>({rows, of.dims.value_heads, of.dims.value_dim}, of.how);
    states = tensor<4>({slots, of.dims.value_heads, of.dims.key_dim, of.dims.value_dim}, pool);
    for (std::size_t c = 0; c < requests.size(); ++c) {
      if (requests[c].initial.empty()) continue;
      for_each_element(states.view()[static_cast<std::int64_t>(2 * c + 1)],
                       [&](float& x, std::int64_t i) { x = requests[c].initial[to_index(i)]; });
    }
    flags.assign(requests.size(), 0);
  }

  status go(int threads = 1, std::size_t misalignment = 1) {
    lent_scratch memory(plan.workspace_bytes(threads), misalignment);
    auto const outcome =
        repair(of.family, plan, in.view(), records, {.o = o.view(), .states = states.view(), .flags = flags},
               {.workspace = memory.span(), .threads = threads});
    CHECK(memory.guards_intact());
    return outcome;
  }

  std::int64_t first_span(std::size_t chain) const {
    std::int64_t first = 0;
    for (std::size_t c = 0; c < chain; ++c) first += static_cast<std::int64_t>((*chains)[c].spans.size());
    return first;
  }
  // Outputs, span after span, and the final state of a chain.
  std::vector<float> all_of(std::size_t chain) const {
    auto all = gather(states.view()[static_cast<std::int64_t>(2 * chain)]);
    for (std::size_t s = 0; s < (*chains)[chain].spans.size(); ++s) {
      auto const& span = plan.spans[to_index(first_span(chain)) + s];
      auto const rows = gather(o.view().rows(span.first_row, span.rows));
      all.insert(all.end(), rows.begin(), rows.end());
    }
    return all;
  }

  void check() const {
    std::vector<bool> written(to_index(plan.total_rows), false);
    for (std::size_t c = 0; c < chains->size(); ++c) {
      CAPTURE(c);
      auto const wanted = sequential(of, (*chains)[c]);
      CHECK(state_error(states.view()[static_cast<std::int64_t>(2 * c)], wanted.state) <= 1e-5);
      std::vector<float> found;
      std::vector<double> expected;
      for (std::size_t s = 0; s < (*chains)[c].spans.size(); ++s) {
        auto const& span = plan.spans[to_index(first_span(c)) + s];
        auto const rows = gather(o.view().rows(span.first_row, span.rows));
        found.insert(found.end(), rows.begin(), rows.end());
        expected.insert(expected.end(), wanted.outputs[s].begin(), wanted.outputs[s].end());
        for (std::int64_t t = 0; t < span.rows; ++t) written[to_index(span.first_row + t)] = true;
      }
      CHECK(relative_error(found, expected) <= 1e-5);
    }
    for (std::int64_t t = 0; t < plan.total_rows; ++t) {
      if (written[to_index(t)]) continue;
      for (float const x : gather(o.view()[t])) REQUIRE(std::isnan(x));
    }
    for (auto const flag : flags) CHECK(flag == 0);
  }
};

inline std::vector<double> frequencies_of(std::int64_t rotary_dim) {
  std::vector<double> out;
  for (std::int64_t i = 0; i < rotary_dim; i += 2) {
    out.push_back(std::pow(10000.0, -static_cast<double>(i) / static_cast<double>(rotary_dim)));
  }
  return out;
}

}  // namespace hypic::test
