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

#include "cohort/comm/batch.h"
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

// All have one call site, one total and one type: only their layouts tell them apart.
TEST(CallMemoTest, VariableCountCallsAreRememberedByTheirLayouts) {
  ExpectAllWell(RunProcesses({.ranks = 2}, [](ProcessRank& self) -> std::string {
    const auto site = std::source_location::current();
    const std::vector<std::vector<int64_t>> counts = {{1, 3}, {2, 2}, {3, 1}};
    const std::vector<std::vector<int64_t>> displacements = {{}, {0, 2}, {1, 0}};
    const auto once = [&](size_t which) -> std::string {
      const std::vector<int64_t>& block = counts[which];
      const std::vector<int64_t>& place = displacements[which];
      const int32_t own[3] = {10 + self.rank, 20 + self.rank, 30 + self.rank};
      int32_t out[4] = {};
      const auto status = self.world
                              ->AllGatherV(ConstBuffer(own, block[static_cast<size_t>(self.rank)]), Buffer(out, 4),
                                           {block, place}, {}, site)
                              .Wait(kBound);
      if (!status.ok()) return status.ToString();
      for (size_t rank = 0; rank < 2; ++rank) {
        const int64_t first = place.empty() ? (rank == 0 ? 0 : block[0]) : place[rank];
        for (int64_t i = 0; i < block[rank]; ++i) {
          const auto expected = static_cast<int32_t>(10 * (i + 1)) + static_cast<int32_t>(rank);
          if (out[first + i] != expected) return "layout " + std::to_string(which) + " got another's blocks";
        }
      }
      return "";
    };
    for (int round = 0; round < 4; ++round) {
      for (size_t which = 0; which < counts.size(); ++which) {
        if (std::string error = once(which); !error.empty()) return error;
      }
    }
    const uint64_t before = ShortCallsOf(*self.world).all();
    for (int repetition = 0; repetition < 6; ++repetition) {
      if (std::string error = once(1); !error.empty()) return error;
    }
    const uint64_t repeated = ShortCallsOf(*self.world).all() - before;
    return repeated >= 5 ? "" : "only " + std::to_string(repeated) + " of 6 equal calls were remembered";
  }));
}

TEST(CallMemoTest, CallsOfABatchAreRemembered) {
  ExpectAllWell(RunProcesses({.ranks = 2}, [](ProcessRank& self) -> std::string {
    const std::vector<int64_t> counts = {1, 2};
    const int peer = 1 - self.rank;
    comm::Batch batch(*self.world);
    uint64_t before = 0;
    for (int32_t round = 0; round < 12; ++round) {
      if (round == 2) before = ShortCallsOf(*self.world).all();
      int32_t in[2] = {round, self.rank};
      int32_t one = 0;
      int32_t two = 0;
      int32_t gathered[3] = {};
      int32_t received = 0;
      batch.AllReduce(ConstBuffer(in, 1), Buffer(&one, 1), ReduceOp::kSum)
          .AllReduce(ConstBuffer(in + 1, 1), Buffer(&two, 1), ReduceOp::kSum)
          .AllGatherV(ConstBuffer(in, counts[static_cast<size_t>(self.rank)]), Buffer(gathered, 3), {counts, {}})
          .Send(ConstBuffer(in + 1, 1), peer)
          .Recv(Buffer(&received, 1), peer);
      const absl::Status status = batch.Submit().Wait(kBound);
      if (!status.ok()) return status.ToString();
      const bool right = one == 2 * round && two == 1 && gathered[0] == round && gathered[1] == round &&
                         gathered[2] == 1 && received == peer;
      if (!right) return "round " + std::to_string(round) + " has a wrong result";
    }
    // Two all-reduces are one message. A receive that is made before its message comes in vain is counted, too.
    const uint64_t repeated = ShortCallsOf(*self.world).all() - before;
    return repeated > 10 ? "" : "only " + std::to_string(repeated) + " calls began in the caller's thread";
  }));
}

}  // namespace
}  // namespace cohort::testing
