// SPDX-License-Identifier: Apache-2.0
#include "engine/engine.hpp"

#include <algorithm>
#include <map>

#include "engine/status.hpp"

namespace hypic_engine {

engine::engine(model const& with, hypic::cache_store& store, engine_options options)
    : model_(with), store_(store), options_(std::move(options)) {}

hypic::prompt_span engine::cached(std::vector<std::int32_t> tokens) const {
  auto const key =
      take(hypic::make_record_key({.tokens = tokens, .model = model_.fingerprint(), .tenant = options_.tenant}),
           "the key of a segment");
  return {hypic::span_kind::cached, std::move(tokens), key};
}

hypic::prompt_span engine::fresh(std::vector<std::int32_t> tokens) const {
  return {hypic::span_kind::fresh, std::move(tokens), {}};
}

hypic::request_plan engine::plan(std::span<hypic::prompt_span const> spans, std::int64_t generated_tokens) const {
  return take(
      plan_request(model_.layout(), spans,
                   {.seam_rows = options_.seam_rows, .generated_tokens = generated_tokens, .costs = options_.costs}),
      "the prompt");
}

std::unique_ptr<fetched_records> engine::fetch(hypic::batch_plan const& batch,
                                               std::span<std::vector<hypic::prompt_span> const> prompts) {
  std::map<hypic::record_key, std::vector<std::int32_t> const*> tokens_of;
  for (auto const& spans : prompts)
    for (auto const& span : spans)
      if (span.kind == hypic::span_kind::cached) tokens_of[span.key] = &span.tokens;
  std::vector<named_segment> segments;
  for (auto const& key : batch.records) segments.push_back({key, *tokens_of.at(key)});
  hypic::watched_range const range(options_.watch, "engine.fetch");
  return std::make_unique<fetched_records>(model_, store_, std::move(segments), options_.threads, failures_,
                                           options_.tell, options_.watch);
}

std::vector<served_request> engine::assemble(hypic::batch_plan const& batch,
                                             std::span<hypic::record_view const> records, request_memory& memory,
                                             std::vector<std::int64_t> slots) const {
  auto const assembler = take(hypic::assembler::make(model_.layout(), batch, records, memory.slots()), "the batch");
  hypic::watched_range const range(options_.watch, "engine.assemble");
  assembly_mixer mixer(assembler, memory, std::move(slots), options_.threads, options_.watch);
  std::vector<std::int32_t> tokens;
  std::vector<std::int64_t> positions;
  auto const rows = rows_of(batch, tokens, positions);
  auto const hidden = model_.forward(rows, mixer, options_.threads, options_.watch);

  std::vector<served_request> served;
  std::size_t end_run = 0;
  for (auto const& request : batch.requests) {
    end_run += request.plan.spans.size();
    auto const last = request.plan.spans.empty() ? row_block{} : rows.runs[end_run - 1];
    served.push_back({request.plan, model_.logits(hidden, last, options_.threads)});
  }
  return served;
}

std::vector<float> engine::extend(request_memory& memory, std::int64_t position,
                                  std::vector<std::int32_t> tokens) const {
  auto const span = fresh(std::move(tokens));
  auto plan = take(plan_request(model_.layout(), {&span, 1}, {.preceding_tokens = position}), "the next tokens");
  auto const batch = take(hypic::plan_batch({{std::move(plan), 0, 0}}), "the batch");
  auto const served = assemble(batch, {}, memory, {0});
  auto const& logits = served.front().logits;
  return {logits.data().end() - logits.width(), logits.data().end()};
}

std::vector<std::int32_t> engine::generate(request_memory& memory, std::int64_t position, std::vector<float> logits,
                                           std::int64_t tokens, progress const& tell) const {
  std::vector<std::int32_t> generated;
  while (static_cast<std::int64_t>(generated.size()) < tokens) {
    generated.push_back(greedy(logits));
    if (tell) tell(static_cast<std::int64_t>(generated.size()), tokens);
    if (static_cast<std::int64_t>(generated.size()) < tokens) logits = extend(memory, position++, {generated.back()});
  }
  return generated;
}

std::int32_t greedy(std::span<float const> logits) {
  return static_cast<std::int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

hypic::batch_plan batch_of(std::vector<hypic::request_plan> plans) {
  std::vector<hypic::batch_request> requests;
  for (auto& plan : plans) {
    auto const slot = static_cast<std::int32_t>(requests.size());
    requests.push_back({std::move(plan), -1, slot});
  }
  return take(hypic::plan_batch(std::move(requests)), "the batch");
}

}  // namespace hypic_engine
