// SPDX-License-Identifier: Apache-2.0
#include "hypic/request/schedule.hpp"

#include <algorithm>
#include <numeric>

#include "store/guarded.hpp"

namespace hypic::inline v0 {

result<std::vector<std::vector<std::int64_t>>> schedule_longest_first(std::span<double const> cost,
                                                                      std::int32_t workers) {
  return guarded([&]() -> result<std::vector<std::vector<std::int64_t>>> {
    if (workers < 1) return status{status::invalid_argument, "workers", workers, status::relation::at_least, 1};
    if (!std::all_of(cost.begin(), cost.end(), [](double c) { return c >= 0.0; }))
      return status{status::invalid_argument, "cost: a negative or undefined entry"};

    std::vector<std::int64_t> jobs(cost.size());
    std::iota(jobs.begin(), jobs.end(), 0);
    std::stable_sort(jobs.begin(), jobs.end(), [&](std::int64_t left, std::int64_t right) {
      return cost[static_cast<std::size_t>(left)] > cost[static_cast<std::size_t>(right)];
    });

    std::vector<std::vector<std::int64_t>> assigned(static_cast<std::size_t>(workers));
    std::vector<double> load(assigned.size(), 0.0);
    for (auto const job : jobs) {
      auto const least = std::min_element(load.begin(), load.end());
      *least += cost[static_cast<std::size_t>(job)];
      assigned[static_cast<std::size_t>(least - load.begin())].push_back(job);
    }
    return assigned;
  });
}

}  // namespace hypic::inline v0
