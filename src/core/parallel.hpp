// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>

#ifdef HYPIC_OPENMP
#include <omp.h>
#endif

namespace hypic::inline v0 {

/// Runs fn(task, worker) for every task in [0, tasks) on at most `threads` workers, worker in [0, threads).
/// Tasks are independent: which worker takes which is not fixed, so a task's bits may depend on nothing but the task.
template <class Fn>
void parallel_for(int threads, std::int64_t tasks, Fn&& fn) {
#ifdef HYPIC_OPENMP
  int const workers = static_cast<int>(std::min<std::int64_t>(std::max(threads, 1), tasks));
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
