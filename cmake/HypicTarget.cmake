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
  set(options
    -ffp-contract=off
    -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wsign-conversion -Wold-style-cast -Wcast-qual -Wundef
    -Wnon-virtual-dtor -Woverloaded-virtual
    $<$<BOOL:${HYPIC_WERROR}>:-Werror>)
  target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:C,CXX>:${options}>)
  # g++ warns of variables that only its sanitizers' own code leaves unset; its other builds keep the warning.
  if(HYPIC_SANITIZE AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    target_compile_options(${target} PRIVATE -Wno-maybe-uninitialized)
  endif()
endfunction()

# What a target with .cu files is compiled with besides. CMake's own way to ask for C++20 gives nvcc 13 C++17, or fails.
function(hypic_configure_cuda target)
  set_target_properties(${target} PROPERTIES
    CUDA_STANDARD_REQUIRED OFF
    CUDA_VISIBILITY_PRESET hidden
    CUDA_RUNTIME_LIBRARY Static)
  # 554: a view's conversion to a constant one is a conversion to itself where it is constant already.
  set(options -std=c++20 -lineinfo -diag-suppress=554 -Xcompiler=-Wall,-Wextra,-Wno-unused-parameter
    $<$<BOOL:${HYPIC_WERROR}>:--Werror=all-warnings>)
  target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CUDA>:${options}>)
endfunction()
