# cohort_test, cohort_test_group, cohort_command_test, cohort_test_program and cohort_fuzzer: the head of
# CohortLibrary.cmake shows their use.
#
# Test binaries lie in <build>/tests/bin and link `cohort::test_main`, whose main() exits with 77 when every test it ran
# skipped itself, so that ctest says "Skipped" and never hides a failure behind a skip. Each test finds
# COHORT_TEST_BIN_DIR (the programs), COHORT_TEST_HELPER_DIR (the test binaries) and COHORT_TEST_SOURCE_DIR (the
# repository) in its environment.
#
# `tools/dev test` gives ctest five places. A test takes two of them; a folder whose tests mostly wait sets
# COHORT_TEST_PROCESSORS to 1. Two that compute run at a time then, and one that waits beside them.
include_guard(GLOBAL)

# Precompiled headers of the programs of tests (CohortHeaders.cmake), whose sources are merged (CohortMerge.cmake). A folder
# that has its own headers clears the name, and merges for itself.
set(COHORT_TEST_HEADERS test_headers)

set(COHORT_TEST_OUTPUT_DIR ${CMAKE_BINARY_DIR}/tests/bin)
set(COHORT_TEST_ENV COHORT_TEST_BIN_DIR=${CMAKE_RUNTIME_OUTPUT_DIRECTORY}
  COHORT_TEST_HELPER_DIR=${COHORT_TEST_OUTPUT_DIR} COHORT_TEST_SOURCE_DIR=${PROJECT_SOURCE_DIR})
if("thread" IN_LIST COHORT_SANITIZE)
  # UCX's memory hooks run after the sanitizer's thread state is gone, and crash there.
  set(suppressions ${PROJECT_SOURCE_DIR}/tests/support/tsan.supp)
  list(APPEND COHORT_TEST_ENV UCX_MEM_EVENTS=n
    TSAN_OPTIONS=halt_on_error=1:ignore_noninstrumented_modules=1:second_deadlock_stack=1:suppressions=${suppressions})
endif()
if("address" IN_LIST COHORT_SANITIZE)
  # The leak checker crashes now and then over thread-local memory of libraries that were opened at run time (UCX).
  list(APPEND COHORT_TEST_ENV ASAN_OPTIONS=intercept_tls_get_addr=0
    LSAN_OPTIONS=print_suppressions=0:suppressions=${PROJECT_SOURCE_DIR}/tests/support/lsan.supp)
endif()
if("undefined" IN_LIST COHORT_SANITIZE)
  list(APPEND COHORT_TEST_ENV UBSAN_OPTIONS=print_stacktrace=1)
endif()

function(cohort_test_program)
  cmake_parse_arguments(PARSE_ARGV 0 arg "" "NAME" "SRCS;DEPS")
  cohort_check_arguments("cohort_test_program")
  cohort_check_deps(${arg_NAME} ${arg_DEPS})
  add_executable(${arg_NAME} ${arg_SRCS})
  set_target_properties(${arg_NAME} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${COHORT_TEST_OUTPUT_DIR})
  target_include_directories(${arg_NAME} PRIVATE ${PROJECT_SOURCE_DIR})
  target_link_libraries(${arg_NAME} PRIVATE cohort_options ${arg_DEPS})
  if(COHORT_TEST_HEADERS AND NOT arg_SRCS MATCHES "[.]c(;|$)")
    cohort_reuse_headers(${arg_NAME} ${COHORT_TEST_HEADERS})
    target_compile_definitions(${arg_NAME} PRIVATE GTEST_HAS_PTHREAD=1) # as GoogleTest's target says, or g++ refuses them
    cohort_merge_sources(${arg_NAME} 10)
  endif()
endfunction()

# Sanitizers make programs up to ten times slower.
function(cohort_sanitized_timeout variable seconds)
  if(COHORT_SANITIZE)
    math(EXPR seconds "${seconds} * 8")
  endif()
  set(${variable} ${seconds} PARENT_SCOPE)
endfunction()

# cohort_test_timeout(<seconds> <entry>...): another time for some of the entries of a group.
function(cohort_test_timeout seconds)
  cohort_sanitized_timeout(seconds ${seconds})
  set_tests_properties(${ARGN} PROPERTIES TIMEOUT ${seconds})
endfunction()

# cohort_test_properties(<variable>): what a test's ctest entry gets, as code, because ENVIRONMENT and LABELS are lists.
macro(cohort_test_properties variable)
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 120)
  endif()
  cohort_sanitized_timeout(arg_TIMEOUT ${arg_TIMEOUT})
  if(NOT DEFINED COHORT_TEST_PROCESSORS)
    set(COHORT_TEST_PROCESSORS 2)
  endif()
  string(CONCAT ${variable} "TIMEOUT ${arg_TIMEOUT} SKIP_RETURN_CODE 77 LABELS \"${arg_LABELS}\" "
    "PROCESSORS ${COHORT_TEST_PROCESSORS} "
    "ENVIRONMENT \"${COHORT_TEST_ENV};${arg_ENV}\"")
  # Large counts of several processes leave no CPU for the deadlines of whatever runs beside them.
  if(arg_RUN_SERIAL OR ("nightly" IN_LIST arg_LABELS AND "multiprocess" IN_LIST arg_LABELS))
    string(APPEND ${variable} " RUN_SERIAL ON")
  endif()
endmacro()

function(cohort_test)
  cmake_parse_arguments(PARSE_ARGV 0 arg "RUN_SERIAL;DISCOVER;NIGHTLY" "NAME;TIMEOUT" "SRCS;DEPS;LABELS;ENV")
  cohort_check_arguments("cohort_test")
  cohort_test_program(NAME ${arg_NAME} SRCS ${arg_SRCS} DEPS ${arg_DEPS} cohort::test_main)
  cohort_test_properties(properties)
  if(arg_DISCOVER)
    # PRE_TEST asks the binary when ctest starts. gtest_discover_tests cannot pass properties that are lists, so they
    # follow in a script of our own, read after the one it generates.
    include(GoogleTest)
    gtest_discover_tests(${arg_NAME} TEST_PREFIX ${arg_NAME}. DISCOVERY_MODE PRE_TEST TEST_LIST ${arg_NAME}_TESTS)
    set(script ${CMAKE_CURRENT_BINARY_DIR}/${arg_NAME}_properties.cmake)
    file(WRITE ${script} "foreach(test IN LISTS ${arg_NAME}_TESTS)\n"
      "  set_tests_properties(\"\${test}\" PROPERTIES ${properties})\nendforeach()\n")
    set_property(DIRECTORY APPEND PROPERTY TEST_INCLUDE_FILES ${script})
  else()
    add_test(NAME ${arg_NAME} COMMAND ${arg_NAME})
    cmake_language(EVAL CODE "set_tests_properties(${arg_NAME} PROPERTIES ${properties})")
  endif()
  set_property(GLOBAL APPEND PROPERTY COHORT_TESTS ${arg_NAME})
  if(arg_NIGHTLY)
    cohort_command_test(NAME ${arg_NAME}_nightly COMMAND ${arg_NAME} --nightly TIMEOUT 7200 LABELS ${arg_LABELS} nightly
      ENV ${arg_ENV})
  endif()
endfunction()

function(cohort_command_test)
  cmake_parse_arguments(PARSE_ARGV 0 arg "RUN_SERIAL" "NAME;TIMEOUT" "COMMAND;LABELS;ENV")
  cohort_check_arguments("cohort_command_test")
  cohort_test_properties(properties)
  add_test(NAME ${arg_NAME} COMMAND ${arg_COMMAND})
  cmake_language(EVAL CODE "set_tests_properties(${arg_NAME} PROPERTIES ${properties})")
  set_property(GLOBAL APPEND PROPERTY COHORT_TESTS ${arg_NAME})
endfunction()

# cohort_test_filter(<variable> <file>): the --gtest_filter of the file's tests. The list of suites is read when CMake
# configures, which it does again after each change of the file. A suite belongs to one file of a program.
function(cohort_test_filter variable file)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${file})
  file(READ ${file} text)
  # A macro with TEST in its name that is not in this list would add tests that are in no entry.
  set(known "(TEST|TEST_F|TEST_P|TYPED_TEST|TYPED_TEST_SUITE|INSTANTIATE_TEST_SUITE_P|GTEST_[A-Z_]+)")
  set(suites "")
  set(patterns "")
  string(REGEX MATCHALL "\n[A-Z_]*TEST[A-Z_]*\\([A-Za-z0-9_]*" tests "\n${text}")
  foreach(test IN LISTS tests)
    string(REGEX MATCH "^\n(.*)\\((.*)$" found "${test}")
    set(kind ${CMAKE_MATCH_1})
    set(suite ${CMAKE_MATCH_2})
    if(NOT kind MATCHES "^${known}$" OR suite STREQUAL "")
      message(FATAL_ERROR "${file}: the entries of its program cannot tell which suite ${kind}(${suite} adds tests to.")
    elseif(kind MATCHES "^(TEST|TEST_F|TEST_P|TYPED_TEST)$")
      list(APPEND suites ${suite})
      if(kind STREQUAL "TEST_P") # GoogleTest's own suite fails where nothing instantiates this one
        list(APPEND patterns ${suite}.* */${suite}.* GoogleTestVerification.*<${suite}>)
      elseif(kind STREQUAL "TYPED_TEST")
        list(APPEND patterns ${suite}/*)
      else()
        list(APPEND patterns ${suite}.*)
      endif()
    endif()
  endforeach()
  if(NOT suites)
    message(FATAL_ERROR "${file} has no tests.")
  endif()
  list(REMOVE_DUPLICATES suites)
  list(REMOVE_DUPLICATES patterns)
  list(JOIN patterns ":" filter)
  set(${variable} ${filter} PARENT_SCOPE)
  set(${variable}_SUITES ${suites} PARENT_SCOPE)
endfunction()

function(cohort_test_group)
  cmake_parse_arguments(PARSE_ARGV 0 arg "" "NAME;PREFIX;TIMEOUT" "SRCS;DEPS;LABELS;ENV;NIGHTLY")
  cohort_check_arguments("cohort_test_group")
  foreach(file IN LISTS arg_NIGHTLY)
    if(NOT file IN_LIST arg_SRCS)
      message(FATAL_ERROR "cohort_test_group(${arg_NAME}): NIGHTLY names ${file}, which is none of the SRCS")
    endif()
  endforeach()
  cohort_test_program(NAME ${arg_NAME} SRCS ${arg_SRCS} DEPS ${arg_DEPS} cohort::test_main)
  set(all_suites "")
  foreach(file IN LISTS arg_SRCS)
    if(NOT file MATCHES "_test[.]cc$")
      continue()
    endif()
    cohort_test_filter(filter ${CMAKE_CURRENT_SOURCE_DIR}/${file})
    foreach(suite IN LISTS filter_SUITES)
      if(suite IN_LIST all_suites)
        message(FATAL_ERROR "${arg_NAME}: ${file} and a file before it both have tests of ${suite}. Rename one.")
      endif()
    endforeach()
    list(APPEND all_suites ${filter_SUITES})
    cmake_path(GET file STEM stem)
    set(command ${arg_NAME} --gtest_filter=${filter})
    cohort_command_test(NAME ${arg_PREFIX}_${stem} COMMAND ${command} TIMEOUT ${arg_TIMEOUT} LABELS ${arg_LABELS}
      ENV ${arg_ENV})
    if(file IN_LIST arg_NIGHTLY)
      cohort_command_test(NAME ${arg_PREFIX}_${stem}_nightly COMMAND ${command} --nightly TIMEOUT 7200
        LABELS ${arg_LABELS} nightly ENV ${arg_ENV})
    endif()
  endforeach()
endfunction()

function(cohort_fuzzer)
  cmake_parse_arguments(PARSE_ARGV 0 arg "" "NAME;CORPUS" "SRCS;DEPS")
  cohort_check_arguments("cohort_fuzzer")
  set(corpus "")
  if(arg_CORPUS)
    set(corpus ${CMAKE_CURRENT_SOURCE_DIR}/${arg_CORPUS})
  endif()
  set(timeout 120)
  if(COHORT_FUZZ)
    cohort_test_program(NAME ${arg_NAME} SRCS ${arg_SRCS} DEPS ${arg_DEPS})
    target_link_options(${arg_NAME} PRIVATE -fsanitize=fuzzer)
    # New findings go to the build folder; the corpus in the repository is only read.
    set(learned ${CMAKE_CURRENT_BINARY_DIR}/${arg_NAME}_corpus)
    file(MAKE_DIRECTORY ${learned})
    add_test(NAME ${arg_NAME} COMMAND ${arg_NAME} -max_total_time=${COHORT_FUZZ_SECONDS} -timeout=10
      -print_final_stats=1 -artifact_prefix=${CMAKE_CURRENT_BINARY_DIR}/${arg_NAME}- ${learned} ${corpus})
    math(EXPR timeout "${COHORT_FUZZ_SECONDS} + 100")
    cohort_fuzz_keep(${arg_NAME} "${corpus}" ${learned})
  else()
    cohort_test_program(NAME ${arg_NAME} SRCS ${arg_SRCS} DEPS ${arg_DEPS} cohort::fuzz_main)
    add_test(NAME ${arg_NAME} COMMAND ${arg_NAME} ${corpus})
  endif()
  set_tests_properties(${arg_NAME} PROPERTIES TIMEOUT ${timeout} LABELS fuzz ENVIRONMENT "${COHORT_TEST_ENV}")
  set_property(GLOBAL APPEND PROPERTY COHORT_TESTS ${arg_NAME})
endfunction()

# Targets of preset fuzz: `fuzzers` builds them all, `fuzz_keep` adds to the repository's corpora what reaches code that
# they do not.
function(cohort_fuzz_keep name corpus learned)
  if(NOT TARGET fuzzers)
    add_custom_target(fuzzers)
    add_custom_target(fuzz_keep)
  endif()
  add_dependencies(fuzzers ${name})
  if(corpus)
    add_custom_target(${name}_keep COMMAND ${name} -set_cover_merge=1 -use_counters=0 ${corpus} ${learned} VERBATIM)
    add_dependencies(fuzz_keep ${name}_keep)
  endif()
endfunction()
