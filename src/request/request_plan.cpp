// SPDX-License-Identifier: Apache-2.0
#include "hypic/request/request_plan.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "store/guarded.hpp"

namespace hypic::inline v0 {
namespace {

constexpr std::int64_t largest = std::numeric_limits<std::int64_t>::max();

/// Decides on a cached span, given its place and tokens.
void value_cached(planned_span& planned, request_options const& options) noexcept {
  std::int64_t const seam = planned.start > 0 ? std::min<std::int64_t>(options.seam_rows, planned.tokens) : 0;
  auto const tokens = static_cast<double>(planned.tokens);
  auto const cost = static_cast<double>(seam) + options.costs.span + options.costs.token * tokens;
  planned.saved = tokens - cost;
  if (seam == planned.tokens) {
    planned.reason = span_reason::within_seam;
  } else if (planned.saved <= 0.0) {
    planned.reason = span_reason::costs_more;
  } else {
    planned.decision = span_decision::reuse;
    planned.reason = planned.start > 0 ? span_reason::seam_forwarded : span_reason::nothing_precedes;
    planned.rows = seam;
  }
}

planned_span plan_span(prompt_span const& span, std::int64_t start, std::int64_t first_row,
                       request_options const& options) noexcept {
  planned_span planned;
  planned.kind = span.kind;
  planned.start = start;
  planned.tokens = static_cast<std::int64_t>(span.tokens.size());
  planned.first_row = first_row;
  planned.turn = start;
  planned.rows = planned.tokens;
  if (planned.tokens > 0) {
    planned.reason = span_reason::fresh;
    if (span.kind == span_kind::cached) value_cached(planned, options);
  }
  if (planned.decision == span_decision::reuse) planned.key = span.key;
  return planned;
}

status check_options(model_layout const& layout, request_options const& options) noexcept {
  if (options.seam_rows < 0)
    return {status::invalid_argument, "options.seam_rows", options.seam_rows, status::relation::at_least, 0};
  if (options.seam_rows > layout.head_rows)
    return {status::invalid_argument, "options.seam_rows", options.seam_rows, status::relation::at_most,
            layout.head_rows};
  if (options.generated_tokens < 0)
    return {status::invalid_argument, "options.generated_tokens", options.generated_tokens, status::relation::at_least,
            0};
  if (options.preceding_tokens < 0)
    return {status::invalid_argument, "options.preceding_tokens", options.preceding_tokens, status::relation::at_least,
            0};
  if (!(std::isfinite(options.costs.span) && std::isfinite(options.costs.token)))
    return {status::invalid_argument, "options.costs"};
  return status::ok;
}

status check_length(model_layout const& layout, std::int64_t prompt, std::int64_t generated) noexcept {
  if (prompt == 0) return {status::invalid_argument, "prompt tokens", 0, status::relation::at_least, 1};
  auto const most = layout.max_positions > 0 ? layout.max_positions : largest;
  if (generated <= most - prompt) return status::ok;
  auto const found = generated <= largest - prompt ? prompt + generated : largest;
  return {status::capacity_exceeded, "prompt plus generated tokens", found, status::relation::at_most, most};
}

}  // namespace

char const* to_string(span_reason reason) noexcept {
  switch (reason) {
    case span_reason::empty: return "it is empty";
    case span_reason::fresh: return "it is fresh";
    case span_reason::within_seam: return "it is no longer than its seam";
    case span_reason::costs_more: return "to reuse it costs more";
    case span_reason::nothing_precedes: return "nothing precedes it";
    case span_reason::seam_forwarded: return "all but its seam";
  }
  return "unknown";
}

result<request_plan> plan_request(model_layout const& layout, std::span<prompt_span const> spans,
                                  request_options const& options) {
  return guarded([&]() -> result<request_plan> {
    if (auto const s = validate(layout); s != status::ok) return s;
    if (auto const s = check_options(layout, options); s != status::ok) return s;
    request_plan plan;
    plan.prompt_tokens = options.preceding_tokens;
    plan.spans.reserve(spans.size());
    for (auto const& span : spans) {
      auto const room = largest - plan.prompt_tokens;
      if (auto const found = static_cast<std::int64_t>(span.tokens.size()); found > room)
        return status{status::capacity_exceeded, "span tokens", found, status::relation::at_most, room};
      auto const planned = plan_span(span, plan.prompt_tokens, plan.rows(), options);
      for (std::int64_t row = 0; row < planned.rows; ++row) {
        plan.row_tokens.push_back(span.tokens[static_cast<std::size_t>(row)]);
        plan.row_positions.push_back(planned.start + row);
      }
      plan.prompt_tokens += planned.tokens;
      plan.spans.push_back(planned);
    }
    if (auto const s = check_length(layout, plan.prompt_tokens, options.generated_tokens); s != status::ok) return s;
    return plan;
  });
}

result<request_plan> slice(request_plan const& plan, std::int64_t first, std::int64_t count) {
  return guarded([&]() -> result<request_plan> {
    auto const all = static_cast<std::int64_t>(plan.spans.size());
    if (first < 0 || first > all) return status{status::out_of_range, "first", first, status::relation::at_most, all};
    if (count < 0 || count > all - first)
      return status{status::out_of_range, "count", count, status::relation::at_most, all - first};
    request_plan part;
    part.spans.assign(plan.spans.begin() + first, plan.spans.begin() + first + count);
    if (part.spans.empty()) return part;
    auto const& last = part.spans.back();
    auto const first_row = part.spans.front().first_row;
    auto const end_row = last.first_row + last.rows;
    part.row_tokens.assign(plan.row_tokens.begin() + first_row, plan.row_tokens.begin() + end_row);
    part.row_positions.assign(plan.row_positions.begin() + first_row, plan.row_positions.begin() + end_row);
    part.prompt_tokens = last.start + last.tokens;
    for (auto& span : part.spans) span.first_row -= first_row;
    return part;
  });
}

}  // namespace hypic::inline v0
