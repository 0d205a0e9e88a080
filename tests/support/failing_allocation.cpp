// SPDX-License-Identifier: Apache-2.0
#include "support/failing_allocation.hpp"

#include <cstddef>
#include <cstdlib>
#include <new>

namespace {

thread_local int remaining = -1;  // allocations until they fail; negative: never
thread_local bool any_failed = false;

void* allocate(std::size_t bytes, std::size_t alignment) noexcept {
  if (remaining == 0) {
    any_failed = true;
    return nullptr;
  }
  if (remaining > 0) --remaining;
  return std::aligned_alloc(alignment, (bytes + alignment) / alignment * alignment);
}

void* allocate_or_throw(std::size_t bytes, std::size_t alignment) {
  if (void* const memory = allocate(bytes, alignment)) return memory;
  throw std::bad_alloc{};
}

constexpr std::size_t usual = alignof(std::max_align_t);

}  // namespace

namespace hypic::test {

failing_allocation::failing_allocation(int allowed) noexcept {
  any_failed = false;
  remaining = allowed;
}
failing_allocation::~failing_allocation() { remaining = -1; }
bool failing_allocation::failed() const noexcept { return any_failed; }

}  // namespace hypic::test

// In a file of their own, so that no caller inlines one without its counterpart. Those for arrays call these.
void* operator new(std::size_t bytes) { return allocate_or_throw(bytes, usual); }
void* operator new(std::size_t bytes, std::nothrow_t const&) noexcept { return allocate(bytes, usual); }
void* operator new(std::size_t bytes, std::align_val_t alignment) {
  return allocate_or_throw(bytes, static_cast<std::size_t>(alignment));
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }
