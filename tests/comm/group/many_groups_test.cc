// The cost of groups: making and destroying them is local and cheap, and leaves nothing behind however many come and
// go.
#include <gtest/gtest.h>
#include <malloc.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "cohort/comm/communicator.h"
#include "tests/support/nightly.h"
#include "tests/support/process_cluster.h"
#include "tests/support/sanitized.h"

namespace cohort::testing {
namespace {

using comm::Buffer;
using comm::Communicator;
using comm::ConstBuffer;
using comm::ReduceOp;
using std::chrono::steady_clock;

size_t BytesInUse() {
  const struct mallinfo2 info = mallinfo2();
  return info.uordblks + info.hblkhd;
}

double MillisecondsSince(steady_clock::time_point start) {
  return std::chrono::duration<double, std::milli>(steady_clock::now() - start).count();
}

std::string RunTwo(const std::function<std::string(ProcessRank&)>& program) {
  ProcessClusterOptions options;
  std::string wrong;
  for (const RankResult& result : RunProcesses(options, program)) wrong += result.text;
  return wrong;
}

// The promise is 10 ms for 1,000 groups; asserted at ten times that.
TEST(ManyGroupsTest, AThousandGroupsCostMilliseconds) {
  EXPECT_EQ(RunTwo([](ProcessRank& rank) -> std::string {
              const std::vector<int> both = {1, 0};
              std::vector<std::unique_ptr<Communicator>> groups;
              const auto start = steady_clock::now();
              for (int i = 0; i < 1000; ++i) {
                auto group = rank.world->Subgroup(both);
                if (!group.ok()) return group.status().ToString();
                groups.push_back(*std::move(group));
              }
              const double made = MillisecondsSince(start);
              const auto end = steady_clock::now();
              groups.clear();
              const double destroyed = MillisecondsSince(end);
              if (rank.rank == 0) std::printf("1,000 groups: %.2f ms to make, %.2f ms to destroy\n", made, destroyed);
              if (!kSanitized && (made > 100 || destroyed > 100)) return "too slow";
              return std::string(rank.world->Barrier().Wait().message());
            }),
            "");
}

// The cost of a call while many other groups, which all have been used, are idle.
TEST(ManyGroupsTest, IdleGroupsAreNotPolled) {
  EXPECT_EQ(RunTwo([](ProcessRank& rank) -> std::string {
              std::vector<std::unique_ptr<Communicator>> groups;
              int64_t value = 0;
              const auto call = [&](Communicator& group) {
                return group.AllReduce(ConstBuffer(&value, 1), Buffer(&value, 1), ReduceOp::kMax).Wait();
              };
              double first = 0;
              for (const size_t idle : {0, 1000}) {
                while (groups.size() < idle) {
                  auto group = rank.world->Duplicate();
                  if (!group.ok()) return group.status().ToString();
                  groups.push_back(*std::move(group));
                  if (const absl::Status status = call(*groups.back()); !status.ok()) return status.ToString();
                }
                // A poll of each would cost tens of microseconds in every wait that is longer than a moment. Ranks that
                // have come to share a CPU meanwhile take some by themselves. On a busy machine it takes many rounds
                // until both ranks have a CPU for one.
                const double bound = idle == 0 || kSanitized ? 1e9 : std::max(20 * first, 20.0);
                const auto begun = steady_clock::now();
                double fastest = 1e9;
                for (int round = 0; round < 20 || value > 0; ++round) {
                  const auto start = steady_clock::now();
                  for (int i = 0; i < 200; ++i) {
                    if (const absl::Status status = call(*rank.world); !status.ok()) return status.ToString();
                  }
                  fastest = std::min(fastest, MillisecondsSince(start) / 200 * 1000);
                  value = fastest > bound && MillisecondsSince(begun) < 20'000 ? 1 : 0;  // the ranks go on together
                  if (const absl::Status status = call(*rank.world); !status.ok()) return status.ToString();
                }
                if (idle == 0) first = fastest;
                if (rank.rank == 0) std::printf("8 B all-reduce beside %zu idle groups: %.2f us\n", idle, fastest);
                if (fastest > bound) return "idle groups slow the others down";
              }
              return "";
            }),
            "");
}

// Three lists of members in turn, as a program that makes a group for each step would.
TEST(ManyGroupsTest, AHundredThousandGroupsLeaveNothingBehind) {
  EXPECT_EQ(RunTwo([](ProcessRank& rank) -> std::string {
              const std::vector<std::vector<int>> lists = {{0, 1}, {1, 0}, {rank.rank}};
              const auto round = [&](int groups) -> std::string {
                for (int i = 0; i < groups; ++i) {
                  auto group = rank.world->Subgroup(lists[static_cast<size_t>(i) % 3]);
                  if (!group.ok()) return group.status().ToString();
                }
                return "";
              };
              if (std::string wrong = round(1000); !wrong.empty()) return wrong;
              const size_t before = BytesInUse();
              if (std::string wrong = round(100'000); !wrong.empty()) return wrong;
              const size_t after = BytesInUse();
              if (after > before + 16 * 1024) return "grew by " + std::to_string(after - before) + " bytes";
              return std::string(rank.world->Barrier().Wait().message());
            }),
            "");
}

// The same for groups that communicate: links, plans and their memory in the node's segment come back as well.
TEST(ManyGroupsTest, GroupsThatCommunicateLeaveNothingBehind) {
  EXPECT_EQ(RunTwo([](ProcessRank& rank) -> std::string {
              const auto round = [&](int groups) -> std::string {
                for (int i = 0; i < groups; ++i) {
                  auto group = i % 2 == 0 ? rank.world->Duplicate() : rank.world->Subgroup(std::vector<int>{1, 0});
                  if (!group.ok()) return group.status().ToString();
                  int64_t value = rank.rank + i;
                  const Buffer buffer(&value, 1);
                  const absl::Status status = (*group)->AllReduce(buffer, buffer, ReduceOp::kSum).Wait();
                  if (!status.ok()) return "group " + std::to_string(i) + ": " + status.ToString();
                  if (value != 2 * i + 1) return "group " + std::to_string(i) + " computes something wrong";
                }
                return "";
              };
              if (std::string wrong = round(500); !wrong.empty()) return wrong;
              const size_t before = BytesInUse();
              const auto start = steady_clock::now();
              const int groups = static_cast<int>(Trials(3000, 100'000));
              if (std::string wrong = round(groups); !wrong.empty()) return wrong;
              if (rank.rank == 0)
                std::printf("a group with its first call: %.1f us\n", 1000 * MillisecondsSince(start) / groups);
              const size_t after = BytesInUse();
              if (after > before + 64 * 1024) return "grew by " + std::to_string(after - before) + " bytes";
              return "";
            }),
            "");
}

TEST(DerivedGroupsTest, DuplicatesAreIndependent) {
  EXPECT_EQ(RunTwo([](ProcessRank& rank) -> std::string {
              auto first = rank.world->Duplicate();
              auto second = rank.world->Duplicate();
              if (!first.ok() || !second.ok()) return "no duplicates";
              if ((*first)->members() != rank.world->members()) return "other members";
              if ((*first)->id() == (*second)->id() || (*first)->id() == rank.world->id()) return "equal groups";
              // In different orders on the two ranks.
              int32_t a = 1;
              int32_t b = 10;
              Communicator& earlier = rank.rank == 0 ? **first : **second;
              Communicator& later = rank.rank == 0 ? **second : **first;
              comm::Work one = earlier.AllReduce(Buffer(rank.rank == 0 ? &a : &b, 1),
                                                 Buffer(rank.rank == 0 ? &a : &b, 1), ReduceOp::kSum);
              comm::Work two = later.AllReduce(Buffer(rank.rank == 0 ? &b : &a, 1), Buffer(rank.rank == 0 ? &b : &a, 1),
                                               ReduceOp::kSum);
              if (!one.Wait().ok() || !two.Wait().ok()) return "an operation failed";
              if (!rank.meet("summed", 2)) return "the other rank is late";
              (*first)->Abort("a test");
              if (!rank.world->status().ok()) return "the failure of one is the other's";
              if (a != 2 || b != 20) return "wrong sums";
              return std::string(rank.world->Barrier().Wait().message());
            }),
            "");
}

TEST(DerivedGroupsTest, DeviceGroupsNeedDevices) {
  EXPECT_EQ(RunTwo([](ProcessRank& rank) -> std::string {
              const auto group = rank.world->DeviceGroup(0);
              const std::string text(group.status().message());
              const bool refused = absl::IsInvalidArgument(group.status());
              return refused && text.find("--simulate-gpus") != std::string::npos ? "" : text;
            }),
            "");
}

}  // namespace
}  // namespace cohort::testing
