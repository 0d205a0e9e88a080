// SPDX-License-Identifier: Apache-2.0
#include "tables/exactness.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>

#include "engine/assembly.hpp"
#include "engine/engine.hpp"
#include "engine/status.hpp"
#include "engine/workers.hpp"
#include "hypic/store/memory_store.hpp"
#include "tables/prompts.hpp"
#include "tables/reference.hpp"

namespace hypic_tables {
namespace {

using hypic_engine::check;
using hypic_engine::take;

constexpr double state_bound = 1e-5;
constexpr double logit_bound = 2e-4;
constexpr std::int32_t head_rows = 8;

/// What assembling one prompt leaves.
struct assembled {
  hypic_engine::request_memory memory;
  std::vector<layer_rows> rows;  // forwarded ones, of each layer
  hypic_engine::buffer logits;   // of the last span
};

/// Fills a slot's memory with NaN: nothing may depend on what was there.
void poison(hypic_engine::request_memory& memory, hypic::model_layout const& layout) {
  constexpr auto nan = std::numeric_limits<float>::quiet_NaN();
  for (std::int32_t l = 0; l < static_cast<std::int32_t>(layout.layers.size()); ++l) {
    if (std::holds_alternative<hypic::linear_layer>(layout.layers[static_cast<std::size_t>(l)])) {
      std::fill_n(memory.states(l).data, memory.states(l).size(), nan);
      std::fill_n(memory.tails(l).data, memory.tails(l).size(), nan);
    } else {
      auto const cache = memory.cache(l, 0);
      std::fill_n(cache.keys.data, cache.keys.size(), nan);
      std::fill_n(cache.values.data, cache.values.size(), nan);
    }
  }
}

assembled assemble(hypic_engine::model const& with, hypic::request_plan const& plan, canonical_segments const& segments,
                   int threads) {
  auto const batch = hypic_engine::batch_of({plan});
  std::vector<hypic::record_view> records;
  for (auto const& key : batch.records) records.push_back(segments.at(key).record.view());
  auto const assembler = take(hypic::assembler::make(with.layout(), batch, records, 1), "the batch");
  hypic_engine::request_memory memory(with.layout(), 1, plan.prompt_tokens);
  poison(memory, with.layout());
  hypic_engine::assembly_mixer inner(assembler, memory, {0}, threads);
  recording_mixer mixer(inner, with.layout());
  std::vector<std::int32_t> tokens;
  std::vector<std::int64_t> positions;
  auto const rows = hypic_engine::rows_of(batch, tokens, positions);
  auto const hidden = with.forward(rows, mixer, threads);
  return {std::move(memory), mixer.take(), with.logits(hidden, rows.runs.back(), threads)};
}

/// The whole prompt, or the first `spans` of it, forwarded as one fresh span; the query, if it is there, as another.
assembled recompute(exactness_case const& of, std::size_t spans, int threads) {
  std::vector<hypic::prompt_span> fresh(1, fresh_span_of({}));
  for (std::size_t i = 0; i < spans; ++i) {
    if (i + 1 == of.spans.size()) fresh.push_back(fresh_span_of({}));
    auto const& tokens = of.spans[i].tokens;
    fresh.back().tokens.insert(fresh.back().tokens.end(), tokens.begin(), tokens.end());
  }
  auto const plan = take(hypic::plan_request(of.with->layout(), fresh, {}), "the prompt");
  return assemble(*of.with, plan, {}, threads);
}

/// The plan of all but the query.
hypic::request_plan context_of(hypic::request_plan const& plan) {
  return take(hypic::slice(plan, 0, static_cast<std::int64_t>(plan.spans.size()) - 1), "the prompt before the query");
}

template <int Rank>
std::span<float const> values_of(hypic::tensor_view<float, Rank> pool) {
  return {pool.data, static_cast<std::size_t>(pool.size())};
}

/// Where the rows of every position of the context come from, in layer `layer`.
std::vector<row_reference> prompt_rows(exactness_case const& of, hypic::request_plan const& assembled_plan,
                                       std::vector<layer_rows> const& forwarded, std::size_t layer) {
  std::map<std::int64_t, std::int64_t> row_at;
  for (std::size_t row = 0; row < assembled_plan.row_positions.size(); ++row)
    row_at[assembled_plan.row_positions[row]] = static_cast<std::int64_t>(row);
  std::vector<row_reference> rows;
  std::int64_t start = 0;
  for (std::size_t i = 0; i + 1 < of.spans.size(); ++i) {
    auto const& span = of.spans[i];
    auto const tokens = static_cast<std::int64_t>(span.tokens.size());
    auto const seam = start > 0 ? std::min<std::int64_t>(of.seam_rows, tokens) : 0;
    auto const fresh = span.kind == hypic::span_kind::fresh ? tokens : seam;
    for (std::int64_t t = 0; t < fresh; ++t) rows.push_back({&forwarded[layer], row_at.at(start + t), 0});
    for (std::int64_t t = fresh; t < tokens; ++t) rows.push_back({&of.segments.at(span.key).rows[layer], t, start});
    start += tokens;
  }
  return rows;
}

double largest_difference(hypic_engine::buffer const& found, hypic_engine::buffer const& expected) {
  if (found.data().size() != expected.data().size()) return std::numeric_limits<double>::infinity();
  double largest = 0.0;
  for (std::size_t i = 0; i < expected.data().size(); ++i) {
    auto const difference = std::abs(static_cast<double>(found.data()[i]) - static_cast<double>(expected.data()[i]));
    if (std::isnan(difference) || difference > largest) largest = difference;
  }
  return largest;
}

}  // namespace

canonical_segments compute_segments(hypic_engine::model const& with, std::vector<hypic::prompt_span> const& spans,
                                    int threads, mixer_front const& front) {
  canonical_segments segments;
  std::vector<canonical_segment*> missing;
  for (auto const& span : spans) {
    if (span.kind == hypic::span_kind::fresh || segments.contains(span.key)) continue;
    missing.push_back(&segments[span.key]);
    missing.back()->record = hypic_engine::blank_record(with, span.tokens);
  }
  hypic_engine::for_each_task(threads, static_cast<std::int64_t>(missing.size()), [&](std::int64_t i) {
    auto& segment = *missing[static_cast<std::size_t>(i)];
    hypic_engine::canonical_mixer inner(with.layout(), segment.record);
    segment.rows = recorded(inner, with.layout(), front, [&](hypic_engine::token_mixer& mixer) {
      hypic_engine::run_alone(with, segment.record, mixer);
    });
  });
  return segments;
}

exactness_case make_case(hypic_engine::model const& with, std::vector<hypic::prompt_span> spans, std::int32_t seam_rows,
                         canonical_segments segments) {
  auto plan = take(hypic::plan_request(with.layout(), spans, {.seam_rows = seam_rows}), "the prompt");
  return {&with, std::move(spans), seam_rows, std::move(plan), std::move(segments)};
}

exactness_case make_fresh_case(hypic_engine::model const& with, std::vector<hypic::prompt_span> spans) {
  for (auto& span : spans) span.kind = hypic::span_kind::fresh;
  return make_case(with, std::move(spans), 0, {});
}

exactness_case make_recorded_case(hypic_engine::model const& with, std::vector<hypic::prompt_span> spans, int threads) {
  for (auto& span : spans)
    if (span.kind == hypic::span_kind::cached) span = cached_span_of(with, span.tokens);
  auto segments = compute_segments(with, spans, threads);
  auto made = make_case(with, std::move(spans), with.layout().head_rows, std::move(segments));
  for (std::size_t i = 0; i < made.spans.size(); ++i) {
    auto& planned = made.plan.spans[i];
    if (planned.kind == hypic::span_kind::fresh) continue;
    planned.decision = hypic::span_decision::reuse;
    planned.key = made.spans[i].key;
  }
  return made;
}

finding check_first_layer(exactness_case const& of, int threads) {
  auto const& layers = of.with->layout().layers;
  auto const linear = [](auto const& layer) { return std::holds_alternative<hypic::linear_layer>(layer); };
  auto const first = static_cast<std::int32_t>(std::find_if(layers.begin(), layers.end(), linear) - layers.begin());
  auto full = recompute(of, of.spans.size() - 1, threads);
  auto found = assemble(*of.with, context_of(of.plan), of.segments, threads);
  auto const error = [](std::span<float const> of_found, std::span<float const> of_full) {
    return relative_error(of_found, std::vector<double>(of_full.begin(), of_full.end()));
  };
  auto const state = error(values_of(found.memory.states(first)), values_of(full.memory.states(first)));
  auto const tail = error(values_of(found.memory.tails(first)), values_of(full.memory.tails(first)));
  return {"first_layer_state", first, std::isnan(tail) || tail > state ? tail : state, state_bound};
}

std::vector<finding> check_rows(exactness_case const& of, int threads) {
  auto const context = context_of(of.plan);
  auto found = assemble(*of.with, context, of.segments, threads);
  std::vector<finding> findings;
  for (std::size_t l = 0; l < of.with->layout().layers.size(); ++l) {
    auto const layer = static_cast<std::int32_t>(l);
    auto const rows = prompt_rows(of, context, found.rows, l);
    if (auto const* linear = std::get_if<hypic::linear_layer>(&of.with->layout().layers[l])) {
      auto const count = static_cast<std::int64_t>(rows.size());
      auto const expected = sequential_states(*linear, rows, {&count, 1}, threads);
      findings.push_back(
          {"recurrence", layer, relative_error(values_of(found.memory.states(layer)), expected.front()), state_bound});
    } else {
      auto const& attention = std::get<hypic::attention_layer>(of.with->layout().layers[l]);
      auto const expected = causal_attention(attention, found.rows[l], context.row_positions, rows, threads);
      findings.push_back({"attention", layer, relative_error(found.rows[l].o.data(), expected), state_bound});
    }
  }
  return findings;
}

finding check_logits(std::string name, exactness_case const& of, int threads) {
  auto const full = recompute(of, of.spans.size(), threads);
  auto const found = assemble(*of.with, of.plan, of.segments, threads);
  return {std::move(name), -1, largest_difference(found.logits, full.logits), logit_bound};
}

reuse_case make_reuse_case(hypic_engine::model const& with, text const& from, std::uint64_t seed, int threads) {
  random_numbers numbers(seed);
  std::vector<std::int64_t> const lengths{33, 9, 17, 130, 3, 12, 9, 16};
  auto const pieces = cut(from, lengths, numbers);
  reuse_case made{.with = &with, .prompts = {}, .segments = {}, .warm = {}};
  for (std::size_t i = 0; i < 4; ++i) made.segments.push_back(cached_span_of(with, pieces[i]));
  auto const& segments = made.segments;
  made.prompts[0] = {segments[0], fresh_span_of(pieces[4]), segments[1], segments[2],
                     segments[3], fresh_span_of(pieces[7])};
  made.prompts[1] = {fresh_span_of(pieces[5]), segments[3], segments[0], fresh_span_of(pieces[6])};
  made.prompts[2] = {segments[2], segments[1], segments[3], segments[2], fresh_span_of(pieces[4])};
  made.warm = hypic_engine::compute_records(with, std::vector(pieces.begin(), pieces.begin() + 4), threads);
  return made;
}

namespace {

/// Puts the records of the segments in `subset`, a bit each, into a store.
void publish(reuse_case const& of, unsigned subset, hypic::cache_store& store) {
  for (std::size_t i = 0; i < of.segments.size(); ++i) {
    if ((subset >> i & 1u) == 0) continue;
    auto const& record = of.warm[i];
    hypic::publish_request const request{.key = of.segments[i].key,
                                         .tokens = of.segments[i].tokens,
                                         .layout = &record.layout,
                                         .block = record.block,
                                         .digests = record.digests};
    hypic::status outcome;
    check(store.publish({&request, 1}, {&outcome, 1}), "a record");
  }
}

/// Whether exactly the segments in `subset` were hits.
bool hit_exactly(reuse_case const& of, unsigned subset, std::vector<hypic_engine::fetch_report> const& reports) {
  return reports.size() == of.segments.size() &&
         std::all_of(reports.begin(), reports.end(), [&](hypic_engine::fetch_report const& report) {
           auto const named = [&](hypic::prompt_span const& span) { return span.key == report.key; };
           auto const segment = std::find_if(of.segments.begin(), of.segments.end(), named) - of.segments.begin();
           return report.hit == ((subset >> segment & 1u) != 0);
         });
}

/// The first prompt's logits, then its states and tails, layer by layer.
std::vector<float> result_of(hypic_engine::buffer const& logits, hypic_engine::request_memory& memory,
                             hypic::model_layout const& layout) {
  auto values = logits.data();
  for (std::size_t l = 0; l < layout.layers.size(); ++l) {
    if (!std::holds_alternative<hypic::linear_layer>(layout.layers[l])) continue;
    auto const states = memory.states(static_cast<std::int32_t>(l));
    auto const tails = memory.tails(static_cast<std::int32_t>(l));
    values.insert(values.end(), states.data, states.data + states.size() / memory.slots());
    values.insert(values.end(), tails.data, tails.data + tails.size() / memory.slots());
  }
  return values;
}

/// How the first prompt is served: which segments the store has, on how many threads, in a batch of how many.
struct serving {
  unsigned subset = 0;
  int threads = 1;
  std::size_t prompts = 1;
};

/// Nothing where the hits are not those that they should be.
std::optional<std::vector<float>> serve(reuse_case const& of, serving const& how) {
  hypic::memory_store store(std::int64_t{1} << 30);
  publish(of, how.subset, store);
  hypic_engine::engine with(*of.with, store, {.seam_rows = head_rows, .threads = how.threads});
  std::span const prompts(of.prompts.data(), how.prompts);
  std::vector<hypic::request_plan> plans;
  for (auto const& spans : prompts) plans.push_back(with.plan(spans));
  std::int64_t longest = 0;
  for (auto const& plan : plans) longest = std::max(longest, plan.prompt_tokens);
  auto const batch = hypic_engine::batch_of(std::move(plans));
  auto const records = with.fetch(batch, prompts);
  if (!hit_exactly(of, how.subset, records->reports())) return std::nullopt;
  hypic_engine::request_memory memory(of.with->layout(), static_cast<std::int64_t>(prompts.size()), longest);
  std::vector<std::int64_t> slots;
  for (std::size_t r = 0; r < prompts.size(); ++r) slots.push_back(static_cast<std::int64_t>(r));
  auto const served = with.assemble(batch, records->views(), memory, slots);
  return result_of(served.front().logits, memory, of.with->layout());
}

bool same_bits(std::vector<float> const& left, std::vector<float> const& right) {
  return left.size() == right.size() && std::memcmp(left.data(), right.data(), left.size() * sizeof(float)) == 0;
}

}  // namespace

finding check_reuse(reuse_case const& of) {
  finding found{"cold_equals_warm", -1, 0.0, 0.0};
  auto const cold = serve(of, {});
  auto const subsets = 1u << of.segments.size();
  for (unsigned subset = 0; subset < subsets; ++subset) {
    for (auto const threads : {1, 2}) {
      for (auto const prompts : {std::size_t{1}, of.prompts.size()}) {
        auto const served = serve(of, {subset, threads, prompts});
        if (!cold || !served || !same_bits(*cold, *served)) found.error = 1.0;
      }
    }
  }
  return found;
}

std::optional<hypic_engine::checkpoint> slowed_copy(hypic_engine::checkpoint const& loaded) {
  constexpr float by = 6.0f;
  if (loaded.config.family == hypic_engine::model_family::retnet) return std::nullopt;
  auto copy = loaded;
  for (auto& layer : copy.weights.layers) {
    auto* linear = std::get_if<hypic_engine::linear_weights>(&layer.mixer);
    if (linear == nullptr) continue;
    for (auto& value : linear->a_log) value -= by;
    for (auto& value : linear->gk_bias) value += by;
  }
  return copy;
}

namespace {

/// Keeps the larger of two errors for each check and layer, in the order in which they were first found.
class worst_findings {
 public:
  void add(finding const& next) {
    auto const same = std::find_if(all_.begin(), all_.end(), [&](finding const& known) {
      return known.check == next.check && known.layer == next.layer;
    });
    if (same == all_.end()) {
      all_.push_back(next);
    } else if (std::isnan(next.error) || next.error > same->error) {
      same->error = next.error;
    }
  }
  std::vector<finding> take() noexcept { return std::move(all_); }

 private:
  std::vector<finding> all_;
};

}  // namespace

std::vector<finding> run_exactness(hypic_engine::checkpoint const& loaded, std::vector<text> const& texts,
                                   std::uint64_t seed, int threads) {
  hypic_engine::model const with(loaded, head_rows);
  worst_findings findings;
  std::int64_t number = 0;
  for (auto const& from : texts) {
    auto const spans = make_mixed_prompt(with, from, number++, seed);
    auto const segments = compute_segments(with, spans, threads);
    for (auto const seam_rows : {4, 8})
      findings.add(check_first_layer(make_case(with, spans, seam_rows, segments), threads));
    for (auto const seam_rows : {0, 4, 8})
      for (auto const& found : check_rows(make_case(with, spans, seam_rows, segments), threads)) findings.add(found);

    findings.add(check_logits("all_fresh_logits", make_fresh_case(with, spans), threads));
    std::size_t longest = 0;
    for (auto const& span : spans) longest = std::max(longest, span.tokens.size());
    hypic_engine::model const wide(loaded, static_cast<std::int32_t>(longest));
    findings.add(check_logits("whole_segment_logits", make_recorded_case(wide, spans, threads), threads));
  }
  findings.add(check_reuse(make_reuse_case(with, texts.front(), seed, threads)));
  return findings.take();
}

}  // namespace hypic_tables
