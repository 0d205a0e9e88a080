// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <exception>
#include <mutex>

namespace hypic_engine {

/// Runs fn(task) for every task in [0, tasks) on `threads` threads; tasks are independent. Inside of it OpenBLAS runs on
/// one thread. The first exception of a task is thrown again once all are over.
template <class Fn>
void for_each_task(int threads, std::int64_t tasks, Fn&& fn) {
  std::exception_ptr failure;
  std::mutex guard;
  auto const run = [&](std::int64_t task) {
    try {
      fn(task);
    } catch (...) {
      std::lock_guard const lock(guard);
      if (!failure) failure = std::current_exception();
    }
  };
#ifdef _OPENMP
#pragma omp parallel for num_threads(threads) schedule(dynamic, 1)
#else
  static_cast<void>(threads);
#endif
  for (std::int64_t task = 0; task < tasks; ++task) run(task);
  if (failure) std::rethrow_exception(failure);
}

}  // namespace hypic_engine
