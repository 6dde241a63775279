// The main() of every test binary. A binary whose tests all skipped exits with 77, which ctest shows as "Skipped"; with
// GoogleTest's own main it would count as passed. So would a filter that selects no test, which is an error here. Each
// reason is printed on one line that tools/dev collects.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <cstdio>
#include <string>
#include <string_view>

#include "cohort/runtime/base/sanitizer.h"
#include "tests/support/nightly.h"

namespace {

bool nightly = false;

constexpr int kSkipped = 77;

class SkipReporter : public testing::EmptyTestEventListener {
  void OnTestEnd(const testing::TestInfo& info) override {
    if (!info.result()->Skipped()) return;
    for (int i = 0; i < info.result()->total_part_count(); ++i) {
      const testing::TestPartResult& part = info.result()->GetTestPartResult(i);
      if (!part.skipped()) continue;
      std::string reason = part.message();
      while (!reason.empty() && reason.back() == '\n') reason.pop_back();
      std::printf("skipped: %s.%s: %s\n", info.test_suite_name(), info.name(), reason.c_str());
    }
  }
};

// The thread sanitizer leaves a program few addresses, and tests in which one process holds the segments of many ranks
// would use them up: this bound on files makes segments smaller.
void LimitSegments() {
  if (!COHORT_THREAD_SANITIZER) return;
  const rlimit limit{rlim_t{64} << 30, rlim_t{64} << 30};
  setrlimit(RLIMIT_FSIZE, &limit);
}

}  // namespace

bool cohort::testing::Nightly() { return nightly; }

int main(int argc, char** argv) {
  LimitSegments();
  testing::InitGoogleTest(&argc, argv);
  nightly = std::any_of(argv + 1, argv + argc, [](std::string_view argument) { return argument == "--nightly"; });
  testing::UnitTest::GetInstance()->listeners().Append(new SkipReporter);
  const int result = RUN_ALL_TESTS();
  const testing::UnitTest& unit = *testing::UnitTest::GetInstance();
  if (unit.test_to_run_count() == 0 && !GTEST_FLAG_GET(list_tests)) {
    std::fprintf(stderr, "%s: no test is selected by %s\n", argv[0], GTEST_FLAG_GET(filter).c_str());
    return 1;
  }
  if (result == 0 && unit.skipped_test_count() > 0 && unit.skipped_test_count() == unit.test_to_run_count()) {
    return kSkipped;
  }
  return result;
}
