// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "hypic/request/request_plan.hpp"

namespace hypic::inline v0 {

/// One request of a batch, and the host's slots for it: the same in every layer's pools of states and tails.
struct batch_request {
  request_plan plan;
  std::int32_t initial_slot = -1;  ///< what its first span goes on from; -1: nothing precedes
  std::int32_t final_slot = -1;    ///< where its final state and tail go; -1: nowhere
  friend bool operator==(batch_request const&, batch_request const&) = default;
};

/// The forwarded rows of one span, as the host forwards them: consecutive rows of the batch.
struct forwarded_run {
  std::int64_t first_row = 0;
  std::int64_t rows = 0;
  std::int64_t request = 0;
  std::int64_t span = 0;  ///< in its request's plan
  friend constexpr bool operator==(forwarded_run const&, forwarded_run const&) = default;
};

/// Many requests, their forwarded rows packed one after another. A value.
struct batch_plan {
  std::vector<batch_request> requests;
  std::vector<std::int64_t> first_row;  ///< of each request; one more at the end: all rows
  std::vector<forwarded_run> runs;      ///< one a span, empty ones included, in order of request and span
  std::vector<record_key> records;      ///< the records that are reused, each once, as the assembler takes them
  std::vector<std::int32_t> record_of;  ///< of each run: its entry in `records`, or -1

  std::int64_t rows() const noexcept { return first_row.empty() ? 0 : first_row.back(); }
  friend bool operator==(batch_plan const&, batch_plan const&) = default;
};

/// Packs requests. Errors: out_of_range (a slot below -1, the same final slot twice), out_of_memory.
HYPIC_API result<batch_plan> plan_batch(std::vector<batch_request> requests);

}  // namespace hypic::inline v0
