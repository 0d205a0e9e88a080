# SPDX-License-Identifier: Apache-2.0
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/hypic)

install(TARGETS hypic EXPORT hypicTargets)
install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/hypic DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(EXPORT hypicTargets NAMESPACE hypic:: DESTINATION ${package_dir})

# A static library leaves its own dependencies to whoever links it; the floors that have one name it.
get_target_property(library_type hypic TYPE)
set(find_dependencies "")
if(library_type STREQUAL "STATIC_LIBRARY")
  get_property(dependencies GLOBAL PROPERTY HYPIC_STATIC_DEPENDENCIES)
  list(TRANSFORM dependencies REPLACE "(.+)" "find_dependency(\\1)")
  list(JOIN dependencies "\n" find_dependencies)
endif()
configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/hypicConfig.cmake.in ${PROJECT_BINARY_DIR}/hypicConfig.cmake
  INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/hypicConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/hypicConfig.cmake ${PROJECT_BINARY_DIR}/hypicConfigVersion.cmake
  DESTINATION ${package_dir})
