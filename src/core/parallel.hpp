// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>

#ifdef HYPIC_OPENMP
#include <omp.h>
#endif

namespace hypic::inline v0 {

/// Workers of a call that was given so many threads. A number that no machine has must not end the process.
constexpr int workers_of(int threads) noexcept { return std::clamp(threads, 1, 1024); }

/// Runs fn(task, worker) for every task in [0, tasks) on at most workers_of(threads) workers, worker in [0, that).
/// Tasks are independent: which worker takes which is not fixed, so a task's bits may depend on nothing but the task.
template <class Fn>
void parallel_for(int threads, std::int64_t tasks, Fn&& fn) {
#ifdef HYPIC_OPENMP
  int const workers = static_cast<int>(std::min<std::int64_t>(workers_of(threads), tasks));
  if (workers > 1) {
#pragma omp parallel for num_threads(workers) schedule(dynamic, 1)
    for (std::int64_t task = 0; task < tasks; ++task) fn(task, omp_get_thread_num());
    return;
  }
#else
  static_cast<void>(threads);
#endif
  for (std::int64_t task = 0; task < tasks; ++task) fn(task, 0);
}

}  // namespace hypic::inline v0
