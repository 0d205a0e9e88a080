// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace hypic::test {

/// While one lives, this thread's allocations through operator new fail after the first `allowed`.
/// A program that uses it links failing_allocation.cpp, which replaces the operators.
class failing_allocation {
 public:
  explicit failing_allocation(int allowed) noexcept;
  failing_allocation(failing_allocation const&) = delete;
  failing_allocation& operator=(failing_allocation const&) = delete;
  ~failing_allocation();

  /// Whether any has failed.
  bool failed() const noexcept;
};

}  // namespace hypic::test
