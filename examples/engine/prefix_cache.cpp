// SPDX-License-Identifier: Apache-2.0
#include "engine/prefix_cache.hpp"

#include "engine/status.hpp"

namespace hypic_engine {
namespace {

/// Forwards fresh spans that follow `position` tokens in slot 0.
served_request go_on(engine const& with, request_memory& memory, std::int64_t position,
                     std::span<std::vector<std::int32_t> const> spans) {
  std::vector<hypic::prompt_span> fresh;
  for (auto const& tokens : spans) fresh.push_back(with.fresh(tokens));
  auto plan = take(plan_request(with.served_model().layout(), fresh, {.preceding_tokens = position}), "the prompt");
  auto const batch = take(hypic::plan_batch({{std::move(plan), position > 0 ? 0 : -1, 0}}), "the batch");
  return std::move(with.assemble(batch, {}, memory, {0}).front());
}

}  // namespace

void prefix_cache::fill(std::span<std::vector<std::int32_t> const> spans) {
  request_memory memory(engine_.served_model().layout(), 1, positions_);
  std::vector<std::int32_t> tokens;
  for (auto const& span : spans) {
    if (!span.empty()) go_on(engine_, memory, static_cast<std::int64_t>(tokens.size()), {&span, 1});
    tokens.insert(tokens.end(), span.begin(), span.end());
    snapshots_.insert_or_assign(tokens, memory);
  }
}

prefix_cache::served prefix_cache::serve(std::span<std::vector<std::int32_t> const> spans) const {
  std::vector<std::int32_t> tokens;
  std::vector<std::int32_t> matched;
  request_memory const* snapshot = nullptr;
  std::size_t first = 0;
  for (std::size_t i = 0; i + 1 < spans.size(); ++i) {
    tokens.insert(tokens.end(), spans[i].begin(), spans[i].end());
    auto const found = snapshots_.find(tokens);
    if (found == snapshots_.end()) break;
    snapshot = &found->second;
    matched = tokens;
    first = i + 1;
  }
  served result{
      snapshot == nullptr ? request_memory(engine_.served_model().layout(), 1, positions_) : *snapshot, {}, 0};
  auto went = go_on(engine_, result.memory, static_cast<std::int64_t>(matched.size()), spans.subspan(first));
  result.logits = std::move(went.logits);
  result.tokens_forwarded = went.plan.rows();
  return result;
}

}  // namespace hypic_engine
