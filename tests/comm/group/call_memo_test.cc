// A group's memory of its calls: which calls it keeps.
#include "cohort/comm/group/call_memo.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <source_location>
#include <string>
#include <vector>

#include "tests/support/all_well.h"
#include "tests/support/process_cluster.h"
#include "tests/support/short_calls.h"

namespace cohort::testing {
namespace {

using comm::Buffer;
using comm::CallOptions;
using comm::ConstBuffer;
using comm::ReduceOp;
using runtime::Work;

constexpr auto kBound = std::chrono::seconds(10);

TEST(CallMemoTest, CallsOfOneSiteDoNotPushEachOtherOut) {
  ExpectAllWell(RunProcesses({.ranks = 2}, [](ProcessRank& self) -> std::string {
    constexpr uint64_t kRounds = 10;
    const auto site = std::source_location::current();
    const CallOptions options;
    alignas(8) std::byte data[16] = {};
    uint64_t calls = 0;
    absl::Status status;
    const auto make = [&](Work work) {
      ++calls;
      if (status.ok()) status = work.Wait(kBound);
    };
    uint64_t different = 0;
    for (uint64_t round = 0; round < kRounds; ++round) {
      for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kProduct, ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kBor}) {
        make(self.world->AllReduce(ConstBuffer(data, 2, comm::DataType::kInt32),
                                   Buffer(data + 8, 2, comm::DataType::kInt32), op, options, site));
      }
      for (const auto dtype : {comm::DataType::kUint32, comm::DataType::kFloat32, comm::DataType::kInt16}) {
        make(self.world->AllReduce(ConstBuffer(data, 2, dtype), Buffer(data + 8, 2, dtype), ReduceOp::kSum, options,
                                   site));
      }
      if (round == 0) different = calls;
    }
    if (!status.ok()) return status.ToString();
    const uint64_t short_ones = ShortCallsOf(*self.world).all();
    return short_ones == calls - different ? "" : "only " + std::to_string(short_ones) + " calls were short";
  }));
}

// More calls than CallMemo has places: two of them have one. Each may push out the other once, as the older.
TEST(CallMemoTest, TwoCallsThatAlternateAreRemembered) {
  ExpectAllWell(RunProcesses({.ranks = 2}, [](ProcessRank& self) -> std::string {
    constexpr int64_t kCounts = 65;
    int32_t data[2 * kCounts] = {};
    for (int64_t one = 1; one <= kCounts; ++one) {
      for (int64_t other = 1; other < one; ++other) {
        uint64_t before = 0;
        for (int call = 0; call < 8; ++call) {
          if (call == 4) before = ShortCallsOf(*self.world).all();
          const int64_t count = call % 2 == 0 ? one : other;
          const absl::Status status =
              self.world->AllReduce(ConstBuffer(data, count), Buffer(data + kCounts, count), ReduceOp::kSum)
                  .Wait(kBound);
          if (!status.ok()) return status.ToString();
        }
        if (ShortCallsOf(*self.world).all() == before + 4) continue;
        return std::to_string(one) + " and " + std::to_string(other) + " elements push each other out";
      }
    }
    return "";
  }));
}

}  // namespace
}  // namespace cohort::testing
