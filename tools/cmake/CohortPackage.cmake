# The packages that CPack makes of the components: .deb and .rpm sets, and a tarball that may be unpacked anywhere.
# `tools/dev package` runs it. The packages need the distribution's own gRPC, Protobuf, Abseil, OpenSSL and libtorch, in the versions that they
# were built on; the dependencies are read from the files.
#
#   component     package          holds
#   runtime       libcohort0       libcohort_comm, libcohort_c
#   development   libcohort-dev    headers, find_package(cohort), pkg-config; libcohort-devel as .rpm
#   dlaunch       dlaunch          the programs, their pages and completion
#   trainer       cohort-trainer   libcohort_trainer with its headers, the examples and their data
include_guard(GLOBAL)

set(COHORT_PACKAGE_CONTACT "The Cohort authors <cohort@localhost>" CACHE STRING "Who maintains the packages")
set(COHORT_PACKAGE_RELEASE 1 CACHE STRING "The number of this packaging of the version")

# cohort_package_licence(<component> <package>): each package has the licence in its own folder.
function(cohort_package_licence component package)
  install(FILES ${PROJECT_SOURCE_DIR}/LICENSE DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/${package}
    RENAME copyright COMPONENT ${component})
endfunction()

# cohort_package(<component> <package> <summary> DEB <fields> RPM <fields>): the fields are name-value pairs of
# CPACK_DEBIAN_<component>_PACKAGE_<name> and CPACK_RPM_<component>_PACKAGE_<name>.
function(cohort_package component package summary)
  cmake_parse_arguments(PARSE_ARGV 3 arg "" "" "DEB;RPM")
  cohort_package_licence(${component} ${package})
  string(TOUPPER ${component} upper)
  set(lines "set(CPACK_COMPONENT_${upper}_DESCRIPTION \"${summary}\")\n"
    "set(CPACK_DEBIAN_${upper}_PACKAGE_NAME ${package})\n"
    "set(CPACK_DEBIAN_${upper}_DESCRIPTION \"${summary}\")\n"
    "set(CPACK_RPM_${component}_PACKAGE_SUMMARY \"${summary}\")\n"
    "set(CPACK_RPM_${component}_PACKAGE_NAME ${package})\n")
  foreach(format IN ITEMS DEB RPM)
    set(prefix CPACK_RPM_${component}_PACKAGE)
    if(format STREQUAL "DEB")
      set(prefix CPACK_DEBIAN_${upper}_PACKAGE)
    endif()
    while(arg_${format})
      list(POP_FRONT arg_${format} name value)
      list(APPEND lines "set(${prefix}_${name} \"${value}\")\n")
    endwhile()
  endforeach()
  list(JOIN lines "" lines)
  set_property(GLOBAL APPEND PROPERTY COHORT_PACKAGES ${component})
  set_property(GLOBAL APPEND_STRING PROPERTY COHORT_PACKAGE_FIELDS "${lines}")
endfunction()

function(cohort_describe_packages)
  set(same "= ${PROJECT_VERSION}-${COHORT_PACKAGE_RELEASE}")
  cohort_package(runtime libcohort0 "Collective communication runtime for C++ and C"
    DEB SECTION libs RECOMMENDS libucx0)
  cohort_package(development libcohort-dev "Headers, CMake and pkg-config files of Cohort"
    DEB SECTION libdevel DEPENDS "libcohort0 (${same}), libabsl-dev"
    RPM NAME libcohort-devel REQUIRES "libcohort0 ${same}, pkgconfig(absl_status), pkgconfig(absl_statusor)")
  if(COHORT_HAVE_GRPC)
    cohort_package(dlaunch dlaunch "Launcher of distributed jobs that names the rank which failed"
      DEB SECTION utils RECOMMENDS "libdw1, openssh-client" SUGGESTS "libpmix2, libucx0")
  endif()
  if(COHORT_HAVE_TORCH)
    # The BLAS is the one that heeds the number of threads a rank is given.
    cohort_package(trainer cohort-trainer "Distributed training in C++ on libtorch, with examples"
      DEB SECTION libs DEPENDS "libcohort0 (${same})" RECOMMENDS "dlaunch, libopenblas0-openmp"
        SUGGESTS "libcohort-dev (${same}), libtorch-dev"
      RPM REQUIRES "libcohort0 ${same}")
  endif()
endfunction()

# Reads CPack itself, so everything that is installed must be known.
macro(cohort_package_install)
  if(PROJECT_IS_TOP_LEVEL AND COHORT_SHARED)
    cohort_describe_packages()
    get_property(CPACK_COMPONENTS_ALL GLOBAL PROPERTY COHORT_PACKAGES)
    get_property(fields GLOBAL PROPERTY COHORT_PACKAGE_FIELDS)
    cmake_language(EVAL CODE "${fields}")
    set(CPACK_PACKAGE_NAME cohort)
    set(CPACK_PACKAGE_VENDOR "The Cohort authors")
    set(CPACK_PACKAGE_CONTACT "${COHORT_PACKAGE_CONTACT}")
    set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "${PROJECT_DESCRIPTION}")
    set(CPACK_RESOURCE_FILE_LICENSE ${PROJECT_SOURCE_DIR}/LICENSE)
    set(CPACK_PACKAGE_DIRECTORY ${PROJECT_BINARY_DIR}/packages)
    set(CPACK_PACKAGE_FILE_NAME cohort-${PROJECT_VERSION}-${CMAKE_SYSTEM_NAME}-${CMAKE_SYSTEM_PROCESSOR})
    set(CPACK_STRIP_FILES ${COHORT_STRIP})
    set(CPACK_THREADS 2)
    set(CPACK_GENERATOR TGZ)
    set(CPACK_DEB_COMPONENT_INSTALL ON)
    set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
    set(CPACK_DEBIAN_PACKAGE_RELEASE ${COHORT_PACKAGE_RELEASE})
    set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
    set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS_PRIVATE_DIRS ${PROJECT_BINARY_DIR}/package/lib)
    set(CPACK_DEBIAN_PACKAGE_GENERATE_SHLIBS ON)
    set(CPACK_DEBIAN_PACKAGE_GENERATE_SHLIBS_POLICY "=")
    set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
    set(CPACK_RPM_COMPONENT_INSTALL ON)
    set(CPACK_RPM_FILE_NAME RPM-DEFAULT)
    set(CPACK_RPM_PACKAGE_RELEASE ${COHORT_PACKAGE_RELEASE})
    set(CPACK_RPM_PACKAGE_LICENSE Apache-2.0)
    set(CPACK_RPM_INSTALL_WITH_EXEC ON)
    set(CPACK_RPM_SPEC_MORE_DEFINE "%define _build_id_links none")
    set(CPACK_RPM_EXCLUDE_FROM_AUTO_FILELIST_ADDITION /usr/share/man /usr/share/man/man1 /usr/share/man/man7 /usr/share/doc
      /usr/share/bash-completion /usr/share/bash-completion/completions /usr/share/zsh /usr/share/zsh/vendor-completions
      /usr/share/zsh/site-functions /usr/share/fish /usr/share/fish/vendor_completions.d /usr/lib64/cmake
      /usr/lib64/pkgconfig)
    file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/package/ldconfig.sh CONTENT "/sbin/ldconfig\n")
    foreach(component IN ITEMS runtime trainer)
      set(CPACK_RPM_${component}_POST_INSTALL_SCRIPT_FILE ${PROJECT_BINARY_DIR}/package/ldconfig.sh)
      set(CPACK_RPM_${component}_POST_UNINSTALL_SCRIPT_FILE ${PROJECT_BINARY_DIR}/package/ldconfig.sh)
    endforeach()
    include(CPack)
  endif()
endmacro()
