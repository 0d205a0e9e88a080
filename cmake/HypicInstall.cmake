# SPDX-License-Identifier: Apache-2.0
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/hypic)
set(pkg_config_dir ${CMAKE_INSTALL_LIBDIR}/pkgconfig)

function(install_target target set)
  install(TARGETS ${target} EXPORT ${set} INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
  install(EXPORT ${set} NAMESPACE hypic:: DESTINATION ${package_dir})
  export(EXPORT ${set} NAMESPACE hypic:: FILE ${PROJECT_BINARY_DIR}/${set}.cmake)
endfunction()
install_target(hypic hypicTargets)
if(HYPIC_CUDA)
  install_target(hypic_cuda hypicCudaTargets)
endif()

# Headers of what was not built would compile and then not link.
set(not_built "")
if(NOT HYPIC_STORE)
  list(APPEND not_built PATTERN store EXCLUDE PATTERN request EXCLUDE PATTERN hypic.h EXCLUDE)
endif()
if(NOT HYPIC_CUDA)
  list(APPEND not_built PATTERN cuda EXCLUDE)
endif()
install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/ DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} ${not_built})

# A static library leaves its own dependencies to whoever links it; the floors that have one name it.
get_target_property(library_type hypic TYPE)
if(library_type STREQUAL "STATIC_LIBRARY")
  get_property(find_dependencies GLOBAL PROPERTY HYPIC_CMAKE_DEPENDENCIES)
  get_property(pc_requires GLOBAL PROPERTY HYPIC_PKG_CONFIG_DEPENDENCIES)
  get_property(pc_libraries GLOBAL PROPERTY HYPIC_PKG_CONFIG_LIBRARIES)
endif()
list(TRANSFORM find_dependencies REPLACE "(.+)" "find_dependency(\\1)")
list(JOIN find_dependencies "\n" find_dependencies)
list(JOIN pc_requires " " pc_requires)
list(TRANSFORM pc_libraries PREPEND "-l" REGEX "^[^/]")
list(JOIN pc_libraries " " pc_libraries)

configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/hypicConfig.cmake.in ${PROJECT_BINARY_DIR}/hypicConfig.cmake
  INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/hypicConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/hypicConfig.cmake ${PROJECT_BINARY_DIR}/hypicConfigVersion.cmake
  DESTINATION ${package_dir})

# The prefix is where hypic.pc finds itself, so that an installed tree may be moved.
file(RELATIVE_PATH prefix_from_pc /prefix/${pkg_config_dir} /prefix)
string(REGEX REPLACE "/$" "" prefix_from_pc "${prefix_from_pc}")
set(pc_libdir "\${prefix}")
set(pc_includedir "\${prefix}")
cmake_path(APPEND pc_libdir ${CMAKE_INSTALL_LIBDIR})
cmake_path(APPEND pc_includedir ${CMAKE_INSTALL_INCLUDEDIR})
configure_file(${PROJECT_SOURCE_DIR}/cmake/hypic.pc.in ${PROJECT_BINARY_DIR}/hypic.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/hypic.pc DESTINATION ${pkg_config_dir})
