// SPDX-License-Identifier: Apache-2.0
// The exactness checks can fail: each mutant of a record or of a plan turns one red. Mutants are made here, outside of
// the library, after a case was prepared and before it is checked.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <functional>
#include <iostream>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "engine/serving_test.hpp"
#include "hypic/algebra/rotation.hpp"
#include "tables/composition.hpp"
#include "tables/exactness.hpp"
#include "tables/prompts.hpp"

namespace {

using namespace hypic_tables;
using engine_test::shipped_checkpoint;
using engine_test::text_tokens;
using hypic_engine::segment_record;

constexpr int threads = 2;
constexpr std::int32_t head_rows = 8;

/// A prompt of three segments, the first and the last of one length, with fresh tokens before and between.
std::vector<hypic::prompt_span> prompt_for(hypic_engine::model const& with) {
  return {
      fresh_span_of(text_tokens("james.txt", 0, 5)),          cached_span_of(with, text_tokens("ruth.txt", 100, 40)),
      cached_span_of(with, text_tokens("jonah.txt", 50, 27)), fresh_span_of(text_tokens("james.txt", 5, 3)),
      cached_span_of(with, text_tokens("esther.txt", 0, 40)), fresh_span_of(text_tokens("james.txt", 40, 9))};
}

/// A model whose records a test spoils, and the checkpoint to make relatives of it from.
struct subject {
  std::string name;
  hypic_engine::checkpoint weights;
  hypic_engine::model runs;

  hypic::model_layout const& layout() const { return runs.layout(); }
  hypic_engine::model_family family() const { return weights.config.family; }
};

subject make_subject(std::string const& name, bool slowed) {
  auto weights = shipped_checkpoint(name);
  if (slowed) weights = slowed_copy(weights).value_or(weights);
  hypic_engine::model runs(weights, head_rows);
  return {name + (slowed ? ", slowed" : ""), std::move(weights), std::move(runs)};
}

/// As the checkpoints are, and slowed: fast decay hides what happened long ago.
std::vector<subject> const& subjects() {
  static auto const made = [] {
    std::vector<subject> all;
    for (auto const* name : {"retnet", "gla", "gdn"}) all.push_back(make_subject(name, false));
    for (auto const* name : {"gla", "gdn"}) all.push_back(make_subject(name, true));
    return all;
  }();
  return made;
}

exactness_case case_of(subject const& of, std::int32_t seam_rows) {
  auto const spans = prompt_for(of.runs);
  return make_case(of.runs, spans, seam_rows, compute_segments(of.runs, spans, threads));
}

std::vector<finding> all_findings(exactness_case const& of) {
  auto findings = check_rows(of, threads);
  findings.insert(findings.begin(), check_first_layer(of, threads));
  return findings;
}

/// The names of the checks that are red, each once.
std::vector<std::string> red(std::vector<finding> const& findings) {
  std::vector<std::string> names;
  for (auto const& found : findings)
    if (!found.met() && std::find(names.begin(), names.end(), found.check) == names.end()) names.push_back(found.check);
  return names;
}

/// A mutant is caught where a check is red. Says so.
void require_caught(std::string const& mutant, subject const& of, std::vector<finding> const& findings) {
  auto const names = red(findings);
  std::cout << mutant << " (" << of.name << "): caught by";
  for (auto const& name : names) std::cout << " " << name;
  std::cout << (names.empty() ? " nothing\n" : "\n");
  INFO(mutant << ", " << of.name);
  CHECK_FALSE(names.empty());
}

/// Calls fn(layer, shape) for each layer of one kind.
template <class Shape, class Fn>
void for_each_layer(hypic::model_layout const& layout, Fn&& fn) {
  for (std::size_t l = 0; l < layout.layers.size(); ++l)
    if (auto const* shape = std::get_if<Shape>(&layout.layers[l])) fn(static_cast<std::int32_t>(l), *shape);
}

/// Calls fn(span, start, record) for each segment of the prompt.
template <class Fn>
void for_each_record(exactness_case& of, Fn&& fn) {
  std::int64_t start = 0;
  for (auto const& span : of.spans) {
    if (span.kind == hypic::span_kind::cached) fn(start, of.segments.at(span.key).record);
    start += static_cast<std::int64_t>(span.tokens.size());
  }
}

hypic::summary_view body_of(segment_record& record, std::int32_t layer) {
  return record.layout.body(layer, record.block.data());
}

template <int Rank>
void copy(hypic::tensor_view<float, Rank> from, hypic::tensor_view<float, Rank> to) {
  if constexpr (Rank == 1) {
    for (std::int64_t i = 0; i < to.extent[0]; ++i) to(i) = from(i);
  } else {
    for (std::int64_t i = 0; i < to.extent[0]; ++i) copy(from[i], to[i]);
  }
}

/// The body of `tokens` as `with` records them takes the place of the record's own, in every linear layer.
void replace_bodies(segment_record& record, hypic_engine::model const& with, std::vector<std::int32_t> tokens) {
  auto other = hypic_engine::blank_record(with, std::move(tokens));
  hypic_engine::canonical_mixer mixer(with.layout(), other);
  hypic_engine::run_alone(with, other, mixer);
  for_each_layer<hypic::linear_layer>(with.layout(), [&](std::int32_t layer, auto const&) {
    copy(body_of(other, layer).operators, body_of(record, layer).operators);
    copy(body_of(other, layer).end_states, body_of(record, layer).end_states);
  });
}

void turn(hypic::rotation const& by, hypic::tensor_view<float, 3> rows) {
  REQUIRE(hypic::rotate_rows(by, rows, rows, {}) == hypic::status::ok);
}

bool is_dense(hypic::linear_layer const& shape) { return shape.family == hypic::family_id::gated_deltanet; }

void zero_operator(exactness_case& of, subject const& with) {
  for_each_record(of, [&](std::int64_t, segment_record& record) {
    for_each_layer<hypic::linear_layer>(with.layout(), [&](std::int32_t layer, hypic::linear_layer const& shape) {
      auto const operators = body_of(record, layer).operators;
      for (std::int64_t head = 0; head < operators.extent[0]; ++head)
        for (std::int64_t i = 0; i < operators.extent[1]; ++i)
          operators(head, i) = is_dense(shape) ? 0.0f : -std::numeric_limits<float>::infinity();
    });
  });
}

void transpose_operator(exactness_case& of, subject const& with) {
  for_each_record(of, [&](std::int64_t, segment_record& record) {
    for_each_layer<hypic::linear_layer>(with.layout(), [&](std::int32_t layer, hypic::linear_layer const& shape) {
      auto const operators = body_of(record, layer).operators;
      auto const dim = std::int64_t{shape.dims.key_dim};
      for (std::int64_t head = 0; head < operators.extent[0]; ++head)
        for (std::int64_t i = 0; i < dim; ++i)
          for (std::int64_t j = 0; j < i; ++j) std::swap(operators(head, i * dim + j), operators(head, j * dim + i));
    });
  });
}

void reverse_spans(exactness_case& of, subject const&) { std::swap(of.plan.spans[1].key, of.plan.spans[4].key); }

void count_seam_twice(exactness_case& of, subject const& with) {
  hypic_engine::model const headless(with.weights, 0);
  for_each_record(of, [&](std::int64_t, segment_record& record) { replace_bodies(record, headless, record.tokens); });
}

/// Each seam is a span of its own, and the record after it is used whole.
void keep_cached_head(exactness_case& of, subject const&) {
  std::vector<hypic::planned_span> spans;
  for (auto const& span : of.plan.spans) {
    auto rest = span;
    if (span.decision == hypic::span_decision::reuse) {
      auto seam = span;
      seam.kind = hypic::span_kind::fresh;
      seam.decision = hypic::span_decision::forward;
      seam.tokens = seam.rows;
      spans.push_back(seam);
      rest.first_row += rest.rows;
      rest.rows = 0;
    }
    spans.push_back(rest);
  }
  of.plan.spans = spans;
}

void leave_head_unrotated(exactness_case& of, subject const& with) {
  for_each_record(of, [&](std::int64_t start, segment_record& record) {
    for_each_layer<hypic::linear_layer>(with.layout(), [&](std::int32_t layer, hypic::linear_layer const& shape) {
      turn(hypic::make_rotation(shape.rotary.value(), -start), record.layout.head(layer, record.block.data()).k);
    });
  });
}

void leave_end_state_unrotated(exactness_case& of, subject const& with) {
  for_each_record(of, [&](std::int64_t start, segment_record& record) {
    for_each_layer<hypic::linear_layer>(with.layout(), [&](std::int32_t layer, hypic::linear_layer const& shape) {
      auto const states = body_of(record, layer).end_states;
      REQUIRE(hypic::rebase(hypic::make_rotation(shape.rotary.value(), -start), states, states, {}) ==
              hypic::status::ok);
    });
  });
}

/// Every record's tail is that of the segment before it.
void keep_stale_tail(exactness_case& of, subject const& with) {
  auto const untouched = of.segments;
  segment_record const* previous = nullptr;
  for_each_record(of, [&](std::int64_t, segment_record& record) {
    for_each_layer<hypic::linear_layer>(with.layout(), [&](std::int32_t layer, auto const&) {
      auto const tail = record.layout.tail(layer, record.block.data());
      if (previous == nullptr) return;
      auto const stale = previous->layout.tail(layer, previous->block.data());
      for (std::int64_t row = 0; row < tail.extent[0]; ++row)
        for (std::int64_t c = 0; c < tail.extent[2]; ++c) tail(row, 0, c) = stale(row, 0, c);
    });
    auto const same = [&](auto const& entry) { return entry.second.record.tokens == record.tokens; };
    previous = &std::find_if(untouched.begin(), untouched.end(), same)->second.record;
  });
}

void forget_tail(exactness_case& of, subject const& with) {
  for_each_record(of, [&](std::int64_t, segment_record& record) {
    for_each_layer<hypic::linear_layer>(with.layout(), [&](std::int32_t layer, auto const&) {
      auto const tail = record.layout.tail(layer, record.block.data());
      for (std::int64_t row = 0; row < tail.extent[0]; ++row) std::fill_n(&tail(row, 0, 0), tail.extent[2], 0.0f);
    });
  });
}

void turn_keys_backwards(exactness_case& of, subject const& with) {
  for_each_record(of, [&](std::int64_t start, segment_record& record) {
    for_each_layer<hypic::attention_layer>(with.layout(), [&](std::int32_t layer, hypic::attention_layer const& shape) {
      turn(hypic::make_rotation(shape.rotary.value(), -2 * start), record.layout.keys(layer, record.block.data()));
    });
  });
}

void plan_backward_turns(exactness_case& of, subject const&) {
  for (auto& span : of.plan.spans) span.turn = -span.turn;
}

void shift_keys_of_one_layer(exactness_case& of, subject const& with) {
  std::optional<std::int32_t> last;
  for_each_layer<hypic::attention_layer>(with.layout(), [&](std::int32_t layer, auto const&) { last = layer; });
  auto const& shape = std::get<hypic::attention_layer>(with.layout().layers.at(static_cast<std::size_t>(last.value())));
  for_each_record(of, [&](std::int64_t, segment_record& record) {
    turn(hypic::make_rotation(shape.rotary.value(), 1), record.layout.keys(*last, record.block.data()));
  });
}

void admit_padding(exactness_case& of, subject const& with) {
  for_each_record(of, [&](std::int64_t, segment_record& record) {
    auto padded = record.tokens;
    padded.insert(padded.end(), 3, 0);
    replace_bodies(record, with.runs, std::move(padded));
  });
}

struct mutant {
  std::string name;
  std::int32_t seam_rows;
  std::function<void(exactness_case&, subject const&)> make;
  std::function<bool(subject const&)> concerns = [](subject const&) { return true; };
};

bool is_retnet(subject const& of) { return of.family() == hypic_engine::model_family::retnet; }
bool is_delta(subject const& of) { return of.family() == hypic_engine::model_family::gated_deltanet; }

std::vector<mutant> mutants() {
  return {{"T = 0", 8, zero_operator},
          {"T transposed", 8, transpose_operator, is_delta},
          {"spans in another order", 8, reverse_spans},
          {"seam counted twice: body sums up the whole segment", 8, count_seam_twice},
          {"seam counted twice: head not replaced", 8, keep_cached_head},
          {"head rows unrotated", 4, leave_head_unrotated, is_retnet},
          {"S0 unrotated", 8, leave_end_state_unrotated, is_retnet},
          {"stale tail", 8, keep_stale_tail, is_delta},
          {"no tail", 8, forget_tail, is_delta},
          {"K rotated the wrong way", 8, turn_keys_backwards},
          {"all turned the wrong way", 8, plan_backward_turns},
          {"K one position off in one layer", 8, shift_keys_of_one_layer},
          {"padding admitted to the state", 8, admit_padding}};
}

TEST_CASE("every check of an unspoilt case is green") {
  for (auto const& of : subjects()) {
    for (auto const seam_rows : {0, 4, 8}) {
      CAPTURE(of.name, seam_rows);
      auto const spoilt = case_of(of, seam_rows);
      for (auto const& found : check_rows(spoilt, threads)) {
        CAPTURE(found.check, found.layer, found.error);
        CHECK(found.met());
      }
      if (seam_rows > 0) CHECK(check_first_layer(spoilt, threads).met());
    }
  }
}

TEST_CASE("every mutant of a record or a plan turns a check red") {
  for (auto const& spoil : mutants()) {
    for (auto const& of : subjects()) {
      if (!spoil.concerns(of)) continue;
      auto spoilt = case_of(of, spoil.seam_rows);
      spoil.make(spoilt, of);
      require_caught(spoil.name, of, all_findings(spoilt));
    }
  }
}

TEST_CASE("a record's path on which cached values are left turns the logits red") {
  for (auto const& of : subjects()) {
    auto const spans = prompt_for(of.runs);
    hypic_engine::model const wide(of.weights, 40);
    auto whole = make_recorded_case(wide, spans, threads);
    CHECK(check_logits("whole_segment_logits", whole, threads).met());
    auto const part = case_of(of, 8);
    require_caught("canonical values are left", of, {check_logits("whole_segment_logits", part, threads)});
  }
}

TEST_CASE("a chain that is folded in reversed order is caught") {
  constexpr double bound = 1e-5;
  std::vector<std::int64_t> const lengths{8};
  for (auto const family :
       {hypic::family_id::retnet, hypic::family_id::gla, hypic::family_id::gated_deltanet, hypic::family_id::kda}) {
    CAPTURE(name_of(family));
    auto const chain = random_chain(family, 8, 24, 3);
    chain_summaries summaries(chain, threads);
    CHECK(check_chain(chain, summaries, lengths, threads).front().operators <= bound);
    auto const runs = summaries.view();
    auto const operators = static_cast<std::size_t>(runs.operators.stride[0]);
    auto const states = static_cast<std::size_t>(runs.end_states.stride[0]);
    for (std::int64_t early = 0, late = 7; early < late; ++early, --late) {
      std::swap_ranges(runs.operators[early].data, runs.operators[early].data + operators, runs.operators[late].data);
      std::swap_ranges(runs.end_states[early].data, runs.end_states[early].data + states, runs.end_states[late].data);
    }
    auto const reversed = check_chain(chain, summaries, lengths, threads).front().operators;
    std::cout << "fold order reversed (" << name_of(family) << "): caught by composition\n";
    CHECK(reversed > bound);
  }
}

TEST_CASE("a warm record that differs from a computed one is caught") {
  for (auto const& of : subjects()) {
    text const from{"ruth", text_tokens("ruth.txt", 0, 4000)};
    auto reuse = make_reuse_case(of.runs, from, 5, threads);
    auto& record = reuse.warm.back();
    for_each_layer<hypic::attention_layer>(of.layout(), [&](std::int32_t layer, auto const&) {
      record.layout.keys(layer, record.block.data())(20, 0, 0) += 0.5f;
    });
    record.digests = part_digests(record.layout, record.block).value();
    require_caught("a warm record with another key", of, {check_reuse(reuse)});
  }
}

}  // namespace
