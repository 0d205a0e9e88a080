# SPDX-License-Identifier: Apache-2.0
# What a project that takes hypic in may rely on: hypic brings its features, and leaves everything else alone.

macro(remember_flags)
  set(flags_before "${CMAKE_BUILD_TYPE}|${CMAKE_CXX_FLAGS}|${CMAKE_CXX_STANDARD}|${CMAKE_MODULE_PATH}")
endmacro()

# expect_features(<option>...): of hypic's options exactly these are on, all have its prefix, and the parent's flags and
# tests are as they were.
function(expect_features)
  if(NOT flags_before STREQUAL "${CMAKE_BUILD_TYPE}|${CMAKE_CXX_FLAGS}|${CMAKE_CXX_STANDARD}|${CMAKE_MODULE_PATH}")
    message(FATAL_ERROR "hypic changed its parent's flags")
  endif()

  set(options_on "")
  get_cmake_property(names CACHE_VARIABLES)
  foreach(name IN LISTS names)
    get_property(type CACHE ${name} PROPERTY TYPE)
    if(type STREQUAL "BOOL" AND NOT name MATCHES "^(HYPIC|CMAKE|FETCHCONTENT)_")
      message(FATAL_ERROR "the option ${name} lacks hypic's prefix")
    endif()
    if(type STREQUAL "BOOL" AND name MATCHES "^HYPIC_" AND ${name})
      list(APPEND options_on ${name})
    endif()
  endforeach()
  list(SORT options_on)
  if(NOT options_on STREQUAL "${ARGN}")
    message(FATAL_ERROR "options of hypic that are on inside of another project: ${options_on}; expected: ${ARGN}")
  endif()

  get_property(folders DIRECTORY ${HYPIC_SOURCE} PROPERTY SUBDIRECTORIES)
  if(NOT folders STREQUAL "${HYPIC_SOURCE}/src")
    message(FATAL_ERROR "hypic brought more than its sources: ${folders}")
  endif()
endfunction()
