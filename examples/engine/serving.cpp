// SPDX-License-Identifier: Apache-2.0
#include "engine/serving.hpp"

#include <set>

namespace hypic_engine {
namespace {

std::int64_t sum_of(std::vector<span_account> const& spans, std::int64_t span_account::*member) {
  std::int64_t sum = 0;
  for (auto const& span : spans) sum += span.*member;
  return sum;
}

}  // namespace

std::vector<span_account> account_for(hypic::batch_plan const& batch, std::int64_t request,
                                      fetched_records const& records) {
  std::vector<span_account> accounts;
  std::set<std::int32_t> seen;  // records that an earlier span of the batch stands for
  for (std::size_t i = 0; i < batch.runs.size(); ++i) {
    auto const& run = batch.runs[i];
    auto const& plan = batch.requests[static_cast<std::size_t>(run.request)].plan;
    auto const& span = plan.spans[static_cast<std::size_t>(run.span)];
    span_account account{.kind = span.kind,
                         .decision = span.decision,
                         .reason = span.reason,
                         .saved = span.saved,
                         .start = span.start,
                         .tokens = span.tokens,
                         .tokens_forwarded = span.rows};
    if (auto const entry = batch.record_of[i]; entry >= 0) {
      account.lookup = records.reports()[static_cast<std::size_t>(entry)];
      bool const computed = !account.lookup->hit && seen.insert(entry).second;
      (computed ? account.tokens_prefilled : account.tokens_skipped) = computed ? span.tokens : span.tokens - span.rows;
    }
    if (run.request == request) accounts.push_back(account);
  }
  return accounts;
}

std::string lookup_text(span_account const& account) {
  if (!account.lookup) return "-";
  return account.lookup->hit ? "hit" : std::string("miss: ") + to_string(account.lookup->reason);
}

std::string decision_text(span_account const& account) {
  std::string const verb = account.tokens == 0                               ? "nothing to do"
                           : account.decision == hypic::span_decision::reuse ? "reuse"
                                                                             : "forward";
  return verb + ": " + to_string(account.reason);
}

std::int64_t served_prompt::tokens_prefilled() const { return sum_of(spans, &span_account::tokens_prefilled); }
std::int64_t served_prompt::tokens_skipped() const { return sum_of(spans, &span_account::tokens_skipped); }

served_prompt serve(engine& with, std::vector<hypic::prompt_span> const& spans, std::int64_t generated_tokens) {
  auto plan = with.plan(spans, generated_tokens);
  request_memory memory(with.served_model().layout(), 1, plan.prompt_tokens + generated_tokens);
  auto const batch = batch_of({std::move(plan)});
  auto const records = with.fetch(batch, std::span(&spans, 1));
  auto served = with.assemble(batch, records->views(), memory, {0});
  return {std::move(served.front()), std::move(memory), account_for(batch, 0, *records)};
}

}  // namespace hypic_engine
