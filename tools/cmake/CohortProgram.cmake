# cohort_program: see the head of CohortLibrary.cmake.
include_guard(GLOBAL)

# Set by `tools/dev wheel`: tools/wheel/link.py with its first arguments.
set(COHORT_WHEEL_LINKER "" CACHE STRING "Links the programs and the module of the wheel; empty: as the others are")
mark_as_advanced(COHORT_WHEEL_LINKER)

# cohort_link_for_wheel(<target>...)
function(cohort_link_for_wheel)
  if(COHORT_WHEEL_LINKER)
    set_target_properties(${ARGN} PROPERTIES RULE_LAUNCH_LINK "${COHORT_WHEEL_LINKER}")
    set_property(TARGET ${ARGN} APPEND PROPERTY LINK_DEPENDS
      ${PROJECT_SOURCE_DIR}/tools/wheel/link.py ${PROJECT_SOURCE_DIR}/tools/wheel/old_glibc.c)
  endif()
endfunction()

function(cohort_program)
  cmake_parse_arguments(PARSE_ARGV 0 arg "EXCLUDE_FROM_INSTALL;PREFER_ARCHIVES" "NAME" "SRCS;DEPS")
  cohort_check_arguments("cohort_program")
  cohort_check_deps(${arg_NAME} ${arg_DEPS})
  add_executable(${arg_NAME} ${arg_SRCS})
  target_include_directories(${arg_NAME} PRIVATE ${PROJECT_SOURCE_DIR})
  target_link_libraries(${arg_NAME} PRIVATE cohort_options ${arg_DEPS})
  if(arg_PREFER_ARCHIVES)
    set(launcher ${PROJECT_SOURCE_DIR}/tools/cmake/prefer_archives.sh)
    set_target_properties(${arg_NAME} PROPERTIES RULE_LAUNCH_LINK ${launcher} LINK_DEPENDS ${launcher})
  endif()
  set_property(GLOBAL APPEND PROPERTY COHORT_PROGRAMS ${arg_NAME})
  if(NOT arg_EXCLUDE_FROM_INSTALL)
    set(part dlaunch)
    if(CMAKE_CURRENT_SOURCE_DIR MATCHES "^${PROJECT_SOURCE_DIR}/trainer/")
      set(part trainer)
    endif()
    install(TARGETS ${arg_NAME} RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT ${part})
  endif()
endfunction()

# cohort_program_pch(<program> <set>): compiles the program with a set of precompiled headers (CohortHeaders.cmake) that was
# made for libraries (-fPIC), so the program is compiled as they are: making another set of libtorch's takes 35 s.
function(cohort_program_pch program set)
  cohort_reuse_headers(${program} ${set})
  target_compile_options(${program} PRIVATE -fPIC)
endfunction()
