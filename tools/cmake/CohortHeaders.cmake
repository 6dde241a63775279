# Sets of headers that are precompiled once for many targets. Nothing of what they declare is linked by them.
#
#   common_headers      the standard library's and Abseil's status: every library that names no other set
#   test_headers        those and GoogleTest's: every program of the tests without libtorch
#   torch_headers       libtorch's: the trainer (PCH_FROM torch_headers)
#   torch_test_headers  those and GoogleTest's: the trainer's tests
#
# Most of a file's time goes into headers: 1 to 2.5 s of 3 to 9 s with the first set. Headers that this repository generates
# or writes are in no set, or each change of one would compile everything again.
#
# They are targets of the top folder because ninja begins there: the others wait 30 s for libtorch's, and meanwhile the
# other core has the rest to compile.
#
# CMAKE_DISABLE_PRECOMPILE_HEADERS=ON builds without them: then a file that lacks an #include does not compile.
include_guard(GLOBAL)

set(COHORT_COMMON_HEADERS <algorithm> <array> <atomic> <chrono> <cstdint> <cstring> <deque> <filesystem> <functional> <map>
  <memory> <mutex> <optional> <set> <sstream> <string> <string_view> <thread> <unordered_map> <utility> <variant> <vector>
  <absl/status/statusor.h>)

# cohort_reuse_headers(<target> <set>): lets g++ and ccache take the set for the target's C++ files.
function(cohort_reuse_headers target set)
  target_precompile_headers(${target} REUSE_FROM cohort_${set})
  target_compile_options(${target} PRIVATE $<$<CXX_COMPILER_ID:GNU>:-fpch-preprocess>) # or ccache gives up
  # With a precompiled <string> g++ 12 warns of std::string's operator+ (GCC bugs 105329 and 105651).
  target_compile_options(${target} PRIVATE
    "$<$<CXX_COMPILER_ID:GNU>:-Wno-array-bounds;-Wno-restrict;-Wno-stringop-overflow;-Wno-stringop-overread>")
endfunction()

# cohort_headers(NAME <set> HEADERS <header>... DEPS <target>... [PIE]): PIE for programs, else for libraries.
function(cohort_headers)
  cmake_parse_arguments(PARSE_ARGV 0 arg "PIE" "NAME" "HEADERS;DEPS")
  cohort_check_arguments("cohort_headers")
  cohort_check_deps(${arg_NAME} ${arg_DEPS})
  set(target cohort_${arg_NAME})
  set(source ${PROJECT_BINARY_DIR}/${arg_NAME}.cc)
  file(CONFIGURE OUTPUT ${source} CONTENT "")
  add_library(${target} OBJECT EXCLUDE_FROM_ALL ${source})
  target_link_libraries(${target} PRIVATE cohort_options ${arg_DEPS})
  target_compile_features(${target} PRIVATE cxx_std_20)
  target_compile_options(${target} PRIVATE $<$<CXX_COMPILER_ID:GNU>:-fpch-preprocess>)
  if(arg_PIE)
    set_target_properties(${target} PROPERTIES POSITION_INDEPENDENT_CODE OFF)
    target_compile_options(${target} PRIVATE -fPIE)
  endif()
  target_precompile_headers(${target} PRIVATE ${arg_HEADERS})
endfunction()

# Programs of tests that take torch_test_headers. libtorch and the trainer do their work, and g++ takes a quarter less time
# for them than with -O1.
set(COHORT_TORCH_TEST_OPTIONS "")
if(NOT COHORT_SANITIZE)
  set(COHORT_TORCH_TEST_OPTIONS $<$<CONFIG:RelWithDebInfo>:-O0>)
endif()

if(COHORT_HAVE_TORCH)
  cohort_headers(NAME torch_headers HEADERS <torch/torch.h> DEPS ${TORCH_LIBRARIES})
endif()
cohort_headers(NAME common_headers HEADERS ${COHORT_COMMON_HEADERS} DEPS absl::status absl::statusor)
if(COHORT_BUILD_TESTS)
  cohort_headers(NAME test_headers PIE HEADERS ${COHORT_COMMON_HEADERS} <gmock/gmock.h> <gtest/gtest.h>
    DEPS absl::status absl::statusor GTest::gmock)
  if(COHORT_HAVE_TORCH)
    cohort_headers(NAME torch_test_headers PIE HEADERS <torch/torch.h> <gmock/gmock.h> <gtest/gtest.h>
      DEPS ${TORCH_LIBRARIES} GTest::gmock)
    target_compile_options(cohort_torch_test_headers PRIVATE ${COHORT_TORCH_TEST_OPTIONS})
  endif()
endif()
