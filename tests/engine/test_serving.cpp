// SPDX-License-Identifier: Apache-2.0
// The laws of the running engine, on every model of this program.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <random>

#include "engine/engine_test.hpp"
#include "engine/prefix_cache.hpp"
#include "engine/serving_test.hpp"
#include "hypic/store/memory_store.hpp"

namespace {

using engine_test::difference;
using engine_test::joined;
using engine_test::keys_of;
using engine_test::models_under_test;
using engine_test::named_model;
using engine_test::refusal;
using engine_test::relative_difference;
using engine_test::row_of;
using engine_test::same_bits;
using engine_test::state_of;
using engine_test::text_tokens;
using engine_test::tokens;
using hypic_engine::engine;
using hypic_engine::request_memory;
using hypic_engine::serve;
using hypic_engine::served_prompt;

using span_list = std::vector<hypic::prompt_span>;

constexpr std::int64_t ample = std::int64_t{1} << 30;
constexpr double split_bound = 2e-4;  // logits of the same rows, computed in other blocks

std::vector<tokens> documents() {
  return {text_tokens("ruth.txt", 0, 90), text_tokens("jonah.txt", 0, 64), text_tokens("esther.txt", 0, 71),
          text_tokens("james.txt", 0, 83)};
}
tokens query() { return text_tokens("ruth.txt", 300, 33); }

span_list fresh_spans(engine const& with, std::vector<tokens> const& pieces) {
  span_list spans;
  for (auto const& piece : pieces) spans.push_back(with.fresh(piece));
  return spans;
}

/// Cached documents in the given order, then a fresh query.
span_list prompt_of(engine const& with, std::vector<tokens> const& cached, tokens const& fresh) {
  span_list spans;
  for (auto const& piece : cached) spans.push_back(with.cached(piece));
  spans.push_back(with.fresh(fresh));
  return spans;
}

served_prompt full_recompute(named_model const& at, std::vector<tokens> const& pieces) {
  hypic::memory_store nothing(0);
  engine serving(at.runs, nothing, {});
  return serve(serving, {serving.fresh(joined(pieces))});
}

/// Everything that a request leaves: logits, states and tails, keys and values.
bool same_result(named_model const& at, served_prompt& left, served_prompt& right) {
  auto const positions = left.result.plan.prompt_tokens;
  return same_bits(left.result.logits, right.result.logits) &&
         same_bits(state_of(at.runs, left.memory), state_of(at.runs, right.memory)) &&
         same_bits(keys_of(at.runs, left.memory, positions), keys_of(at.runs, right.memory, positions));
}

// ---- Full recompute, splits, prefixes, decoding ----

TEST_CASE("all spans fresh, in any split, give full recompute's logits and states") {
  auto const text = joined(documents());
  std::mt19937_64 random(1);
  for (auto const& at : models_under_test()) {
    CAPTURE(at.name);
    auto full = full_recompute(at, {text});
    for (int round = 0; round < 3; ++round) {
      std::vector<tokens> pieces;
      for (std::size_t first = 0; first < text.size();) {
        auto const most = round % 2 == 0 ? 150U : 30U;
        auto const length = std::min<std::size_t>(random() % most, text.size() - first);  // empty ones too
        auto const begin = text.begin() + static_cast<std::ptrdiff_t>(first);
        pieces.emplace_back(begin, begin + static_cast<std::ptrdiff_t>(length));
        first += length;
      }
      hypic::memory_store nothing(0);
      engine serving(at.runs, nothing, {});
      auto split = serve(serving, fresh_spans(serving, pieces));
      CHECK(split.result.plan.rows() == static_cast<std::int64_t>(text.size()));
      CHECK(difference(split.result.logits, full.result.logits) < split_bound);
      CHECK(relative_difference(state_of(at.runs, split.memory), state_of(at.runs, full.memory)) < split_bound);
    }
  }
}

TEST_CASE("decoding step by step equals forwarding the whole sequence") {
  auto const text = text_tokens("esther.txt", 50, 120);
  constexpr std::size_t prompt_length = 85;
  for (auto const& at : models_under_test()) {
    CAPTURE(at.name);
    auto const full = full_recompute(at, {text});
    hypic::memory_store nothing(0);
    engine serving(at.runs, nothing, {});
    auto stepped = serve(serving, {serving.fresh({text.begin(), text.begin() + prompt_length})}, 64);
    for (std::size_t i = prompt_length; i < text.size(); ++i) {
      auto const logits = serving.extend(stepped.memory, static_cast<std::int64_t>(i), {text[i]});
      CHECK(difference(logits, row_of(full.result.logits, static_cast<std::int64_t>(i))) < split_bound);
    }
  }
}

TEST_CASE("greedy decoding goes on from an assembled all-fresh prompt as from full recompute") {
  constexpr std::int64_t steps = 20;
  for (auto const& at : models_under_test()) {
    CAPTURE(at.name);
    hypic::memory_store nothing(0);
    engine serving(at.runs, nothing, {});
    auto const decode = [&](std::vector<tokens> const& pieces) {
      auto served = serve(serving, fresh_spans(serving, pieces), steps);
      auto const& logits = served.result.logits.data();
      auto const width = served.result.logits.width();
      return serving.generate(served.memory, served.result.plan.prompt_tokens, {logits.end() - width, logits.end()},
                              steps);
    };
    auto const generated = decode({joined(documents()), query()});
    REQUIRE(generated.size() == steps);
    // Other splits round differently, so that a token counts as the same where its logit is that of the best.
    auto const other = decode({documents()[0], {}, joined({documents()[1], documents()[2], documents()[3]}), query()});
    auto const whole = full_recompute(at, {joined(documents()), query(), other});
    auto const first = static_cast<std::int64_t>(joined(documents()).size() + query().size()) - 1;
    for (std::int64_t i = 0; i < steps; ++i) {
      auto const row = row_of(whole.result.logits, first + i);
      auto const best = *std::max_element(row.begin(), row.end());
      CHECK(row[static_cast<std::size_t>(other[static_cast<std::size_t>(i)])] > best - 2 * split_bound);
    }
    CHECK(generated.front() == other.front());
  }
}

TEST_CASE("prefix caching forwards what follows the common spans and gives full recompute's logits") {
  auto const docs = documents();
  for (auto const& at : models_under_test()) {
    CAPTURE(at.name);
    hypic::memory_store nothing(0);
    engine const serving(at.runs, nothing, {});
    hypic_engine::prefix_cache cache(serving, 400);
    cache.fill(docs);
    auto const serve_prefix = [&](std::vector<tokens> spans, std::size_t common) {
      auto served = cache.serve(spans);
      auto const full = full_recompute(at, {joined(spans)});
      CHECK(difference(served.logits, full.result.logits) < 1e-4);
      std::vector<tokens> const after(spans.begin() + static_cast<std::ptrdiff_t>(common), spans.end());
      CHECK(served.tokens_forwarded == static_cast<std::int64_t>(joined(after).size()));
      return served;
    };
    serve_prefix({docs[0], docs[1], docs[2], docs[3], query()}, 4);
    serve_prefix({docs[0], docs[1], docs[3], docs[2], query()}, 2);
    serve_prefix({docs[1], docs[0], docs[2], docs[3], query()}, 0);
    CHECK(serve_prefix({docs[0], docs[1], {}}, 2).logits.rows() == 0);
    auto again = serve_prefix({docs[0], docs[1], docs[2], docs[3], query()}, 4);  // snapshots are as they were
    auto once = serve_prefix({docs[0], docs[1], docs[2], docs[3], query()}, 4);
    CHECK(same_bits(again.logits, once.logits));
  }
}

// ---- Cold equals warm ----

TEST_CASE("a request's bits depend neither on what was cached nor on the threads") {
  auto const docs = documents();
  for (auto const& at : models_under_test()) {
    CAPTURE(at.name);
    hypic::memory_store first_store(ample);
    engine first(at.runs, first_store, {.threads = 1});
    auto expected = serve(first, prompt_of(first, docs, query()));
    for (unsigned cached = 0; cached<16; cached += at.runs.config().hidden_size> 64 ? 5U : 1U) {
      for (int const threads : {1, 2}) {
        CAPTURE(cached, threads);
        hypic::memory_store store(ample);
        engine serving(at.runs, store, {.threads = threads});
        std::vector<tokens> warm;
        for (std::size_t i = 0; i < docs.size(); ++i)
          if ((cached >> i & 1U) != 0) warm.push_back(docs[i]);
        if (!warm.empty()) serve(serving, prompt_of(serving, warm, {}));
        auto served = serve(serving, prompt_of(serving, docs, query()));
        for (std::size_t i = 0; i < docs.size(); ++i) CHECK(served.spans[i].lookup->hit == ((cached >> i & 1U) != 0));
        CHECK(same_result(at, served, expected));
      }
    }
  }
}

TEST_CASE("a request has the same bits in a batch of three as alone") {
  auto const docs = documents();
  for (auto const& at : models_under_test()) {
    CAPTURE(at.name);
    hypic::memory_store store(ample);
    engine serving(at.runs, store, {.threads = 2});
    std::vector<span_list> const prompts = {
        prompt_of(serving, {docs[0], docs[1]}, query()),
        prompt_of(serving, {docs[1], docs[1], docs[3]}, text_tokens("james.txt", 90, 5)),
        prompt_of(serving, {}, docs[2])};
    std::vector<hypic::request_plan> plans;
    for (auto const& prompt : prompts) plans.push_back(serving.plan(prompt));
    auto const batch = hypic_engine::batch_of(plans);
    auto const records = serving.fetch(batch, prompts);
    request_memory memory(at.runs.layout(), 3, 400);
    auto const served = serving.assemble(batch, records->views(), memory, {0, 1, 2});
    REQUIRE(served.size() == 3);
    for (std::size_t r = 0; r < 3; ++r) {
      auto alone = serve(serving, prompts[r]);
      auto const slot = static_cast<std::int64_t>(r);
      CHECK(same_bits(served[r].logits, alone.result.logits));
      CHECK(same_bits(state_of(at.runs, memory, slot), state_of(at.runs, alone.memory)));
      CHECK(same_bits(keys_of(at.runs, memory, served[r].plan.prompt_tokens, slot),
                      keys_of(at.runs, alone.memory, alone.result.plan.prompt_tokens)));
    }
  }
}

TEST_CASE("seams as long as their segments give full recompute's logits") {
  auto const docs = documents();
  for (auto const& at : models_under_test()) {
    CAPTURE(at.name);
    hypic_engine::model const long_headed(at.weights, 90);
    hypic::memory_store store(ample);
    engine serving(long_headed, store, {.seam_rows = 90});
    auto const served = serve(serving, prompt_of(serving, docs, query()));
    CHECK(served.result.plan.spans[0].decision == hypic::span_decision::reuse);  // nothing precedes it: no seam
    auto const full = full_recompute(at, {joined(docs), query()});
    CHECK(difference(served.result.logits, full.result.logits) < split_bound);
  }
}

TEST_CASE("one cached span with nothing before it is exact, fresh spans after it too") {
  auto const docs = documents();
  for (auto const& at : models_under_test()) {
    CAPTURE(at.name);
    hypic::memory_store store(ample);
    engine serving(at.runs, store, {});
    auto served = serve(serving, prompt_of(serving, {docs[0]}, query()));
    auto full = full_recompute(at, {docs[0], query()});
    CHECK(difference(served.result.logits, full.result.logits) < split_bound);
    CHECK(relative_difference(state_of(at.runs, served.memory), state_of(at.runs, full.memory)) < split_bound);
  }
}

// ---- Odd prompts ----

TEST_CASE("empty, one-token and duplicate segments, and fresh spans between cached ones, are served") {
  auto const docs = documents();
  tokens const one = {65};
  for (auto const& at : models_under_test()) {
    CAPTURE(at.name);
    hypic::memory_store store(ample);
    engine serving(at.runs, store, {});
    span_list const spans = {serving.cached({}),      serving.cached(one),     serving.cached(docs[0]),
                             serving.fresh(docs[1]),  serving.cached(one),     serving.fresh({}),
                             serving.cached(docs[0]), serving.cached(docs[0]), serving.fresh(query())};
    auto cold = serve(serving, spans);
    auto warm = serve(serving, spans);
    CHECK(same_result(at, cold, warm));
    auto const& plan = cold.result.plan;
    CHECK(plan.prompt_tokens == static_cast<std::int64_t>(3 * docs[0].size() + docs[1].size() + 2 + query().size()));
    CHECK(plan.rows() == static_cast<std::int64_t>(3 * 8 + docs[1].size() + 1 + query().size()));
    for (auto const value : cold.result.logits.data()) REQUIRE(std::isfinite(value));
    // Without what is empty the prompt is the same.
    auto dense = serve(serving, {spans[1], spans[2], spans[3], spans[4], spans[6], spans[7], spans[8]});
    CHECK(same_result(at, cold, dense));
  }
}

TEST_CASE("a prompt of cached spans alone gives state and keys but no logits, and can be gone on from") {
  auto const docs = documents();
  for (auto const& at : models_under_test()) {
    CAPTURE(at.name);
    hypic::memory_store store(ample);
    engine serving(at.runs, store, {});
    auto cached = serve(serving, {serving.cached(docs[0]), serving.cached(docs[1]), serving.fresh({})}, 64);
    CHECK(cached.result.logits.rows() == 0);
    auto const end = cached.result.plan.prompt_tokens;
    auto const logits = serving.extend(cached.memory, end, query());
    auto whole = serve(serving, prompt_of(serving, {docs[0], docs[1]}, query()), 64);
    CHECK(difference(logits, row_of(whole.result.logits, whole.result.logits.rows() - 1)) < split_bound);
    CHECK(relative_difference(state_of(at.runs, cached.memory), state_of(at.runs, whole.memory)) < split_bound);
  }
}

TEST_CASE("an empty prompt, one longer than the context and an unknown token are refused in one line") {
  auto const& at = models_under_test().front();
  hypic::memory_store store(ample);
  engine serving(at.runs, store, {});
  auto const limit = at.runs.config().max_position_embeddings;
  CHECK_THAT(refusal([&] { serve(serving, {}); }), Catch::Contains("prompt tokens is 0, expected at least 1"));
  CHECK_THAT(refusal([&] {
               serve(serving, {serving.cached({}), serving.fresh({})});
             }),
             Catch::Contains("prompt tokens is 0, expected at least 1"));
  tokens const long_text(static_cast<std::size_t>(limit), 65);
  CHECK_THAT(refusal([&] { serve(serving, {serving.fresh(long_text)}, 1); }),
             Catch::Contains("is " + std::to_string(limit + 1) + ", expected at most " + std::to_string(limit)));
  CHECK_THAT(refusal([&] {
               serve(serving, {serving.fresh({1, 256})});
             }),
             Catch::Contains("token 256 at row 1, expected 0 to 255"));
  CHECK_THAT(refusal([&] { serve(serving, {serving.cached({-1})}); }), Catch::Contains("token -1 at row 0"));
  engine eager(at.runs, store, {.seam_rows = 9});
  CHECK_THAT(refusal([&] { serve(eager, {eager.fresh({1})}); }), Catch::Contains("seam_rows is 9, expected at most 8"));
}

TEST_CASE("decoding fills the context to its last position and no further") {
  auto const& at = models_under_test().front();
  auto const limit = at.runs.config().max_position_embeddings;
  hypic::memory_store store(ample);
  engine serving(at.runs, store, {});
  request_memory memory(at.runs.layout(), 1, limit);
  CHECK(serving.extend(memory, limit - 1, {65}).size() == 256);
  CHECK_THAT(refusal([&] { serving.extend(memory, limit, {65}); }),
             Catch::Contains("expected at most " + std::to_string(limit)));
}

// ---- Field cases ----

/// Fills every float that a slot has with NaN.
void poison(hypic_engine::model const& with, request_memory& memory) {
  auto const spoil = [](auto const& view) {
    std::fill_n(view.data, view.size(), std::numeric_limits<float>::quiet_NaN());
  };
  for (std::size_t l = 0; l < with.layout().layers.size(); ++l) {
    auto const layer = static_cast<std::int32_t>(l);
    if (auto const* linear = std::get_if<hypic::linear_layer>(&with.layout().layers[l])) {
      spoil(memory.states(layer));
      if (linear->tail_rows > 0) spoil(memory.tails(layer));
      continue;
    }
    for (std::int64_t slot = 0; slot < memory.slots(); ++slot) {
      spoil(memory.cache(layer, slot).keys);
      spoil(memory.cache(layer, slot).values);
    }
  }
}

TEST_CASE("[case-17] results from a poisoned or used pool are equal bit by bit") {
  auto const docs = documents();
  for (auto const& at : models_under_test()) {
    CAPTURE(at.name);
    hypic::memory_store store(ample);
    engine serving(at.runs, store, {});
    std::vector<span_list> const prompts = {prompt_of(serving, docs, query())};
    auto expected = serve(serving, prompts[0]);
    auto const batch = hypic_engine::batch_of({serving.plan(prompts[0])});
    auto const records = serving.fetch(batch, prompts);

    request_memory memory(at.runs.layout(), 2, 512);
    poison(at.runs, memory);
    auto const serve_there = [&] { return serving.assemble(batch, records->views(), memory, {0}); };
    auto const check = [&](std::vector<hypic_engine::served_request> const& served) {
      CHECK(same_bits(served.front().logits, expected.result.logits));
      CHECK(same_bits(state_of(at.runs, memory), state_of(at.runs, expected.memory)));
      auto const positions = expected.result.plan.prompt_tokens;
      CHECK(same_bits(keys_of(at.runs, memory, positions), keys_of(at.runs, expected.memory, positions)));
    };
    check(serve_there());
    serving.extend(memory, expected.result.plan.prompt_tokens, docs[0]);  // the slot goes to another request
    check(serve_there());
    poison(at.runs, memory);
    auto fresh = serve(serving, {serving.fresh(docs[1])});
    auto const other = hypic_engine::batch_of({serving.plan(span_list{serving.fresh(docs[1])})});
    CHECK(same_bits(serving.assemble(other, {}, memory, {0}).front().logits, fresh.result.logits));
  }
}

TEST_CASE("[case-22] tokens skipped are reported, and a reason for each miss") {
  auto const docs = documents();
  auto const& at = models_under_test().front();
  hypic::memory_store store(ample);
  engine serving(at.runs, store, {});
  span_list const spans = {serving.cached(docs[0]), serving.cached(docs[1]), serving.cached(docs[0]),
                           serving.cached({65}), serving.fresh(query())};
  auto const first = static_cast<std::int64_t>(docs[0].size());
  auto const second = static_cast<std::int64_t>(docs[1].size());

  auto const cold = serve(serving, spans);
  for (std::size_t i : {0U, 1U, 2U}) {
    REQUIRE(cold.spans[i].lookup);
    CHECK_FALSE(cold.spans[i].lookup->hit);
    CHECK(cold.spans[i].lookup->reason == hypic::miss_reason::absent);
  }
  CHECK_FALSE(cold.spans[3].lookup);  // no longer than its seam: nothing to ask for
  CHECK_FALSE(cold.spans[4].lookup);
  CHECK(cold.tokens_prefilled() == first + second);
  CHECK(cold.tokens_skipped() == first - 8);  // the second time that it stands in the prompt

  auto const warm = serve(serving, spans);
  for (std::size_t i : {0U, 1U, 2U}) CHECK(warm.spans[i].lookup->hit);
  CHECK(warm.tokens_prefilled() == 0);
  CHECK(warm.tokens_skipped() == first + (second - 8) + (first - 8));
  for (auto const* served : {&cold, &warm}) {
    std::int64_t length = 0;
    std::int64_t forwarded = 0;
    for (auto const& span : served->spans) {
      length += span.tokens;
      forwarded += span.tokens_forwarded;
    }
    CHECK(length == served->result.plan.prompt_tokens);
    CHECK(forwarded == served->result.plan.rows());
  }
  CHECK(warm.tokens_skipped() + warm.result.plan.rows() == warm.result.plan.prompt_tokens);
}

/// A store's own bytes of one segment, as a look-up gives them.
std::vector<std::byte> stored_block(hypic_engine::model const& with, hypic::cache_store& store,
                                    hypic::prompt_span const& span) {
  auto const layout = hypic::record_layout::make(with.layout(), static_cast<std::int64_t>(span.tokens.size()));
  REQUIRE(layout);
  hypic::lookup_request const request{span.key, span.tokens, &*layout, {}};
  auto const ticket = store.begin({&request, 1});
  REQUIRE(ticket);
  hypic::lookup_result found;
  REQUIRE(store.poll(*ticket, {&found, 1}) == hypic::status::ok);
  REQUIRE(found.state == hypic::lookup_state::hit);
  std::vector<std::byte> block(found.block.begin(), found.block.end());
  CHECK(store.release(*ticket) == hypic::status::ok);
  return block;
}

TEST_CASE("[case-23] the canonical record of A is the same after B A as alone") {
  auto const docs = documents();
  for (auto const& at : models_under_test()) {
    CAPTURE(at.name);
    hypic::memory_store store(ample);
    engine serving(at.runs, store, {.threads = 2});
    serve(serving, prompt_of(serving, {docs[1], docs[0]}, query()));
    hypic::memory_store lonely(ample);
    engine alone(at.runs, lonely, {});
    serve(alone, {alone.cached(docs[0])});
    auto const expected = hypic_engine::compute_records(at.runs, {&docs[0], 1}, 1).front();
    CHECK(stored_block(at.runs, store, serving.cached(docs[0])) == expected.block);
    CHECK(stored_block(at.runs, lonely, alone.cached(docs[0])) == expected.block);
    auto const both = hypic_engine::compute_records(at.runs, std::vector<tokens>{docs[1], docs[0]}, 2);
    CHECK(both[1].digests == expected.digests);
  }
}

TEST_CASE("[case-24] hits alone, an empty query, repeats, other orders, and misses that become hits") {
  auto const docs = documents();
  for (auto const& at : models_under_test()) {
    CAPTURE(at.name);
    hypic::memory_store store(ample);
    engine serving(at.runs, store, {});
    auto const hits = [](served_prompt const& served) {
      std::vector<bool> all;
      for (auto const& span : served.spans)
        if (span.lookup) all.push_back(span.lookup->hit);
      return all;
    };
    using flags = std::vector<bool>;
    auto const some = prompt_of(serving, {docs[0], docs[1]}, query());
    auto first = serve(serving, some);
    auto second = serve(serving, some);
    auto third = serve(serving, some);
    CHECK(hits(first) == flags{false, false});
    CHECK(hits(second) == flags{true, true});
    CHECK(hits(third) == flags{true, true});
    CHECK(same_result(at, first, second));
    CHECK(same_result(at, first, third));

    auto reordered = serve(serving, prompt_of(serving, {docs[1], docs[0]}, query()));
    CHECK(hits(reordered) == flags{true, true});
    hypic::memory_store empty(ample);
    engine elsewhere(at.runs, empty, {});
    auto cold = serve(elsewhere, prompt_of(elsewhere, {docs[1], docs[0]}, query()));
    CHECK(same_result(at, reordered, cold));

    auto const mixed = prompt_of(serving, {docs[0], docs[2], docs[1], docs[3]}, query());
    CHECK(hits(serve(serving, mixed)) == flags{true, false, true, false});
    CHECK(hits(serve(serving, mixed)) == flags{true, true, true, true});
    auto const nothing_asked = serve(serving, prompt_of(serving, docs, {}));
    CHECK(hits(nothing_asked) == flags{true, true, true, true});
    CHECK(nothing_asked.result.logits.rows() == 0);
    CHECK(nothing_asked.tokens_skipped() == nothing_asked.result.plan.prompt_tokens - 3 * 8);
  }
}

TEST_CASE("[case-25] packed rows and records unlike the declared count are refused") {
  auto const& at = models_under_test().front();
  auto const short_text = text_tokens("ruth.txt", 0, 54);
  auto const long_text = text_tokens("ruth.txt", 0, 374);
  hypic::memory_store store(ample);
  engine serving(at.runs, store, {});
  auto const batch = hypic_engine::batch_of({serving.plan(prompt_of(serving, {long_text}, query()))});
  auto const records = hypic_engine::compute_records(at.runs, {&short_text, 1}, 1);
  request_memory memory(at.runs.layout(), 1, 512);
  auto const assemble = [&](hypic_engine::segment_record const& record) {
    auto const view = record.view();
    return serving.assemble(batch, {&view, 1}, memory, {0});
  };
  CHECK_THAT(refusal([&] { assemble(records.front()); }), Catch::Contains("is 54, expected equal to 374"));
  CHECK_THAT(refusal([&] { serving.assemble(batch, {}, memory, {0}); }),
             Catch::Contains("records is 0, expected equal to 1"));

  // Fewer rows than the plan declares.
  auto const right = hypic_engine::compute_records(at.runs, {&long_text, 1}, 1);
  auto const view = right.front().view();
  auto const assembler = hypic::assembler::make(at.runs.layout(), batch, {&view, 1}, 1);
  REQUIRE(assembler);
  hypic_engine::assembly_mixer mixer(*assembler, memory, {0}, 1);
  std::vector<std::int64_t> positions(10);
  tokens const ten(10, 65);
  CHECK_THAT(refusal([&] {
               at.runs.forward({ten, positions, {{0, 10}}}, mixer, 1);
             }),
             Catch::Contains("is 10, expected equal to " + std::to_string(query().size())));
  // A memory with too few positions.
  request_memory small(at.runs.layout(), 1, 100);
  CHECK_THAT(refusal([&] {
               serving.assemble(batch, {&view, 1}, small, {0});
             }),
             Catch::Contains("is 100, expected at least 407"));
}

}  // namespace
