// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "hypic/core/status.hpp"

namespace hypic::inline v0 {

/// Longest processing time first: each job, longest first, goes to the worker that is least loaded so far; ties go to
/// the earlier job and the lower worker. Within 4/3 of the best makespan (Graham, 1969).
/// Returns: for each worker its jobs, in the order in which they run. Errors: invalid_argument (workers < 1, a negative
/// cost), out_of_memory.
HYPIC_API result<std::vector<std::vector<std::int64_t>>> schedule_longest_first(std::span<double const> cost,
                                                                                std::int32_t workers);

}  // namespace hypic::inline v0
