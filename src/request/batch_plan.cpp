// SPDX-License-Identifier: Apache-2.0
#include "hypic/request/batch_plan.hpp"

#include <unordered_map>
#include <unordered_set>

#include "store/guarded.hpp"

namespace hypic::inline v0 {
namespace {

status check_slots(std::vector<batch_request> const& requests) {
  std::unordered_set<std::int32_t> final_slots;
  for (auto const& request : requests) {
    if (request.initial_slot < -1)
      return {status::out_of_range, "initial_slot", request.initial_slot, status::relation::at_least, -1};
    if (request.final_slot < -1)
      return {status::out_of_range, "final_slot", request.final_slot, status::relation::at_least, -1};
    if (request.final_slot >= 0 && !final_slots.insert(request.final_slot).second)
      return {status::out_of_range, "final_slot of two requests"};
  }
  return status::ok;
}

/// The entry of each reused key among the batch's records, in order of first use.
class record_table {
 public:
  explicit record_table(std::vector<record_key>& records) : records_(records) {}

  std::int32_t entry_of(planned_span const& span) {
    if (span.decision == span_decision::forward) return -1;
    auto const [place, added] = entries_.try_emplace(span.key, static_cast<std::int32_t>(records_.size()));
    if (added) records_.push_back(span.key);
    return place->second;
  }

 private:
  std::vector<record_key>& records_;
  std::unordered_map<record_key, std::int32_t, record_key_hash> entries_;
};

}  // namespace

result<batch_plan> plan_batch(std::vector<batch_request> requests) {
  return guarded([&]() -> result<batch_plan> {
    if (auto const s = check_slots(requests); s != status::ok) return s;
    batch_plan batch;
    batch.requests = std::move(requests);
    batch.first_row.push_back(0);
    record_table table(batch.records);
    for (std::size_t r = 0; r < batch.requests.size(); ++r) {
      auto const& plan = batch.requests[r].plan;
      for (std::size_t s = 0; s < plan.spans.size(); ++s) {
        auto const& span = plan.spans[s];
        batch.runs.push_back(
            {batch.rows() + span.first_row, span.rows, static_cast<std::int64_t>(r), static_cast<std::int64_t>(s)});
        batch.record_of.push_back(table.entry_of(span));
      }
      batch.first_row.push_back(batch.rows() + plan.rows());
    }
    return batch;
  });
}

}  // namespace hypic::inline v0
