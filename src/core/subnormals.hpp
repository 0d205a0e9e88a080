// SPDX-License-Identifier: Apache-2.0
#pragma once

#ifdef __SSE__
#include <xmmintrin.h>
#endif

namespace hypic::inline v0 {

/// While it lives, the calling thread takes subnormal numbers for zero. A decayed operator shrinks through their range,
/// where an x86 processor takes a hundred times as long for each product.
class flush_subnormals {
 public:
#ifdef __SSE__
  flush_subnormals() noexcept : before_(_mm_getcsr()) { _mm_setcsr(before_ | flush_to_zero | denormals_are_zero); }
  ~flush_subnormals() { _mm_setcsr(before_); }
#else
  flush_subnormals() noexcept {}
  ~flush_subnormals() {}
#endif
  flush_subnormals(flush_subnormals const&) = delete;
  flush_subnormals& operator=(flush_subnormals const&) = delete;

#ifdef __SSE__
 private:
  static constexpr unsigned flush_to_zero = 0x8000u;
  static constexpr unsigned denormals_are_zero = 0x0040u;
  unsigned before_;
#endif
};

}  // namespace hypic::inline v0
