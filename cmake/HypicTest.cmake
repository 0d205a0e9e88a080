# SPDX-License-Identifier: Apache-2.0
include_guard()
find_package(Catch2 2.13 REQUIRED)

# Debian's package brings the main function compiled; elsewhere it is compiled once, here.
if(TARGET Catch2::Catch2WithMain)
  set(HYPIC_TEST_MAIN Catch2::Catch2WithMain)
else()
  file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/catch_main.cpp
    CONTENT "#define CATCH_CONFIG_MAIN\n#include <catch2/catch.hpp>\n")
  add_library(hypic_test_main OBJECT ${PROJECT_BINARY_DIR}/catch_main.cpp)
  target_compile_features(hypic_test_main PUBLIC cxx_std_20)
  target_link_libraries(hypic_test_main PUBLIC Catch2::Catch2)
  set(HYPIC_TEST_MAIN hypic_test_main)
endif()

# hypic_add_test(NAME <floor>.<subject> LABELS <label>... SOURCES <file>... [LIBRARIES <target>...] [TIMEOUT <seconds>])
#
# One Catch2 program and one ctest test of that name, linked to hypic::hypic. tests/ is on the include path, for
# "support/...". Labels: fast (seconds, run under the sanitizers too), store (runs under the thread sanitizer too),
# engine, project, packaging (another project takes hypic in), gpu (needs a GPU).
function(hypic_add_test)
  cmake_parse_arguments(PARSE_ARGV 0 arg "" "NAME;TIMEOUT" "LABELS;SOURCES;LIBRARIES")
  foreach(word NAME LABELS SOURCES)
    if(NOT arg_${word})
      message(FATAL_ERROR "hypic_add_test: ${word} is missing")
    endif()
  endforeach()
  if(arg_UNPARSED_ARGUMENTS)
    message(FATAL_ERROR "hypic_add_test(NAME ${arg_NAME}): unknown arguments: ${arg_UNPARSED_ARGUMENTS}")
  endif()
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 300)
  endif()

  add_executable(${arg_NAME} ${arg_SOURCES})
  hypic_configure_target(${arg_NAME})
  target_include_directories(${arg_NAME} PRIVATE ${PROJECT_SOURCE_DIR}/tests)
  target_link_libraries(${arg_NAME} PRIVATE hypic::hypic ${arg_LIBRARIES} ${HYPIC_TEST_MAIN})

  add_test(NAME ${arg_NAME} COMMAND ${arg_NAME})
  # Tests run side by side: a waiting OpenMP thread that spins would take the other test's core.
  set_tests_properties(${arg_NAME} PROPERTIES
    LABELS "${arg_LABELS}" TIMEOUT ${arg_TIMEOUT} ENVIRONMENT OMP_WAIT_POLICY=passive)
endfunction()
