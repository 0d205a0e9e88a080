# SPDX-License-Identifier: Apache-2.0

# What every target of this project is compiled with: C++20, warnings, hidden symbols, and no fused arithmetic.
#
# -ffp-contract=off: g++ fuses a * b + c across statements and clang within one, each where the machine can. A fused
# operation rounds once instead of twice, so one source would give other bits per compiler. The library promises the
# same bits for the same plan; a kernel that wants a fused operation says std::fma.
function(hypic_configure_target target)
  target_compile_features(${target} PUBLIC cxx_std_20)
  set_target_properties(${target} PROPERTIES
    CXX_EXTENSIONS OFF
    CXX_VISIBILITY_PRESET hidden
    VISIBILITY_INLINES_HIDDEN ON
    POSITION_INDEPENDENT_CODE ON)
  target_compile_options(${target} PRIVATE
    -ffp-contract=off
    -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wsign-conversion -Wold-style-cast -Wcast-qual -Wundef
    -Wnon-virtual-dtor -Woverloaded-virtual
    $<$<BOOL:${HYPIC_WERROR}>:-Werror>)
  # g++ warns of variables that only its sanitizers' own code leaves unset; its other builds keep the warning.
  if(HYPIC_SANITIZE AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    target_compile_options(${target} PRIVATE -Wno-maybe-uninitialized)
  endif()
endfunction()
