// The time of a small call of cohort.h beside the same call in C++.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <limits>
#include <string>

#include "cohort/comm/c/cohort.h"
#include "tests/comm/c/c_ranks.h"

namespace cohort::testing {
namespace {

constexpr int kTurns = 25;
constexpr int kCalls = 2000;

// Nanoseconds of one of `kCalls` calls.
template <typename Call>
double TimeOf(Call call) {
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < kCalls; ++i) call();
  return std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - begin).count() / kCalls;
}

// Both in turn, the least of each, so that other load counts little.
void Compare(int ranks) {
  OnRanks(ranks, [](ProcessRank &rank, cohort_runtime, cohort_comm world) -> std::string {
    int64_t value = 0;
    bool right = true;
    double cpp = std::numeric_limits<double>::max();
    double c = cpp;
    for (int turn = 0; turn < kTurns; ++turn) {
      cpp = std::min(
          cpp, TimeOf([&] {
            right &= rank.world->AllReduce(comm::ConstBuffer(&value, 1), comm::Buffer(&value, 1), comm::ReduceOp::kMax)
                         .Wait()
                         .ok();
          }));
      c = std::min(c, TimeOf([&] {
                     const cohort_call_options options = COHORT_CALL_OPTIONS_INIT;
                     right &= cohort_all_reduce(world, &value, &value, 1, COHORT_INT64, COHORT_MAX, &options,
                                                nullptr) == COHORT_OK;
                   }));
    }
    if (rank.rank == 0) {
      std::printf("8 B all-reduce, ranks %d: C++ %.0f ns, C %.0f ns, ratio %.2f\n", rank.size, cpp, c, c / cpp);
    }
    if (!right) return "a call failed";
    return c < 10 * cpp ? "" : "a call in C takes ten times that in C++";
  });
}

TEST(CCallCostTest, ASmallCallTakesAboutAsLongAsInCpp) {
  Compare(1);
  Compare(2);
}

}  // namespace
}  // namespace cohort::testing
