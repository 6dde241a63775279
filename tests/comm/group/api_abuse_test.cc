// Wrong arguments and calls at wrong times: never a crash, never a hang, always an error that names the argument and
// what would be right, and a group that goes on when nothing was sent.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "cohort/comm/batch.h"
#include "cohort/comm/communicator.h"
#include "tests/support/process_cluster.h"
#include "tests/support/sim_cluster.h"

namespace cohort::testing {
namespace {

using comm::Batch;
using comm::BlockLayout;
using comm::Buffer;
using comm::CallOptions;
using comm::CollectiveKind;
using comm::Communicator;
using comm::ConstBuffer;
using comm::DataType;
using comm::MemoryKind;
using comm::ReduceOp;
using std::chrono::seconds;
using ::testing::HasSubstr;

constexpr int64_t kMost = std::numeric_limits<int64_t>::max();

// The status with which the call ended; an answer that takes long is none.
absl::Status Ended(comm::Work work) {
  if (!work.Done()) return absl::InternalError("a refused call is under way");
  return work.Wait(seconds(0));
}

class ApiAbuseTest : public ::testing::Test {
 protected:
  // Runs on two simulated ranks, one after the other, since nobody may wait for anybody; then both still communicate.
  static void OnBoth(const std::function<void(Communicator&)>& body) {
    SimClusterOptions options;
    options.ranks = 2;
    SimCluster cluster(options);
    cluster.Run([&](SimRank& rank) {
      body(*rank.world);
      EXPECT_TRUE(rank.world->Barrier().Wait(seconds(20)).ok()) << rank.world->status();
    });
  }
  static void ExpectRefused(comm::Work work, const std::string& why) {
    const absl::Status status = Ended(std::move(work));
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << why << ": " << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(why));
  }
};

TEST_F(ApiAbuseTest, RefusedCallsSendNothingAndSayWhy) {
  OnBoth([](Communicator& world) {
    float data[8] = {};
    const ConstBuffer in(data, 4);
    const Buffer out(data + 4, 4);
    const int other = 1 - world.rank();
    CallOptions options;
    ExpectRefused(world.AllReduce(ConstBuffer(data, -1), out, ReduceOp::kSum), "in has -1 elements");
    ExpectRefused(world.AllReduce(in, Buffer(data + 4, kMost), ReduceOp::kSum), "2^56 bytes");
    ExpectRefused(world.AllReduce(in, Buffer(data + 2, 4), ReduceOp::kSum), "overlap");
    ExpectRefused(world.AllReduce(in, out, static_cast<ReduceOp>(0)), "op is 0");
    ExpectRefused(world.AllReduce(in, out, ReduceOp::kBor), "bor is defined for integers");
    ExpectRefused(world.AllReduce(in, out, ReduceOp::kUser), "user_op names no function");
    ExpectRefused(world.Broadcast(out, -1), "root is -1; the group's ranks are 0 to 1");
    ExpectRefused(world.Reduce(in, out, ReduceOp::kSum, 2), "root is 2");
    ExpectRefused(world.Send(in, 1 << 30), "peer is 1073741824");
    ExpectRefused(world.Recv(Buffer(static_cast<float*>(nullptr), 3), 0), "out is null but has 3 elements");
    ExpectRefused(world.AllGather(in, out), "2 * count");
    ExpectRefused(world.Send(ConstBuffer(data, 4, static_cast<DataType>(200)), other), "no DataType");
    ExpectRefused(world.Send(ConstBuffer(data, 4, DataType::kFloat32, static_cast<MemoryKind>(9)), other),
                  "memory kind 9");
    ExpectRefused(world.Send(ConstBuffer(data, 4, DataType::kFloat32, MemoryKind::kCuda, -2), other), "device -2");
    options.algorithm = "no_such_algorithm";
    ExpectRefused(world.AllReduce(in, out, ReduceOp::kSum, options), "no_such_algorithm");
    options = CallOptions();
    options.determinism = static_cast<comm::Determinism>(77);
    ExpectRefused(world.AllReduce(in, out, ReduceOp::kSum, options), "determinism is 77");
    options = CallOptions();
    options.factor = 0.5;
    const int32_t whole[2] = {1, 2};
    int32_t result[2];
    ExpectRefused(world.AllReduce(ConstBuffer(whole, 2), Buffer(result, 2), ReduceOp::kPreMulSum, options), "factor");
    const int64_t counts[] = {kMost, 1};
    const int64_t negative[] = {2, -2};
    ExpectRefused(world.AllGatherV(in, out, {counts, {}}), "reaches beyond out");
    ExpectRefused(world.AllToAllV(in, {negative, {}}, out, {negative, {}}), "counts[1] is -2");
    ExpectRefused(world.ReduceScatterV(in, BlockLayout(), out, ReduceOp::kSum), "the group has 2 ranks");
    ExpectRefused(Batch(world).AllReduce(in, in.count < 0 ? out : Buffer(data + 2, 4), ReduceOp::kSum).Submit(),
                  "overlap");
  });
}

TEST_F(ApiAbuseTest, GroupsAndWindowsRefuseImpossibleArguments) {
  OnBoth([](Communicator& world) {
    const auto refused = [&](std::vector<int> ranks, const std::string& why) {
      const auto group = world.Subgroup(ranks);
      EXPECT_TRUE(absl::IsInvalidArgument(group.status())) << group.status();
      EXPECT_THAT(std::string(group.status().message()), HasSubstr(why));
    };
    refused({}, "lacks the caller");
    refused({0, 1, 0}, "0 twice");
    refused({0, 1, -1}, "-1; the group's ranks are 0 to 1");
    refused({std::numeric_limits<int>::max()}, "2147483647");
    EXPECT_TRUE(absl::IsInvalidArgument(world.DeviceGroup(-1).status()));
    const Buffer host(static_cast<float*>(nullptr), 3);
    EXPECT_TRUE(absl::IsInvalidArgument(world.RegisterDeviceMemory(host)));
    const auto window = world.AllocateWindow(std::numeric_limits<size_t>::max());
    EXPECT_TRUE(absl::IsResourceExhausted(window.status())) << window.status();
    for (const int64_t count : {int64_t{-1}, int64_t{0}, kMost}) {
      for (int kind = -1; kind <= comm::kCollectiveKinds; ++kind) {
        for (const auto memory : {MemoryKind::kHost, MemoryKind::kCuda}) {
          EXPECT_NE(world.Explain(static_cast<CollectiveKind>(kind), count, DataType::kInt16, memory), "");
        }
      }
    }
    auto nothing = world.Split(std::numeric_limits<int>::min(), std::numeric_limits<int>::max());
    EXPECT_TRUE(nothing.ok() && *nothing == nullptr);
    auto apart = world.Split(std::numeric_limits<int>::max() - world.rank(), std::numeric_limits<int>::min());
    ASSERT_TRUE(apart.ok()) << apart.status();
    EXPECT_EQ((*apart)->size(), 1);
  });
}

TEST_F(ApiAbuseTest, WorldRefusesOptionsThatCannotBeRead) {
  SimCluster cluster({});
  cluster.Run([](SimRank& rank) {
    comm::CommunicatorOptions options;
    options.tuning = "alpha=fast";
    EXPECT_TRUE(absl::IsInvalidArgument(Communicator::World(*rank.runtime, options).status()));
    options = comm::CommunicatorOptions();
    options.determinism = static_cast<comm::Determinism>(50);
    EXPECT_TRUE(absl::IsInvalidArgument(Communicator::World(*rank.runtime, options).status()));
    options = comm::CommunicatorOptions();
    options.transports = "carrier_pigeon";
    auto world = Communicator::World(*rank.runtime, options);
    ASSERT_TRUE(world.ok()) << world.status();
    const absl::Status status = (*world)->Barrier().Wait(seconds(20));
    EXPECT_FALSE(status.ok());
    EXPECT_THAT(std::string(status.message()), HasSubstr("CommunicatorOptions::transports"));
  });
}

TEST_F(ApiAbuseTest, TimeoutsOfAnyValueEndTheCall) {
  for (const auto timeout :
       {std::chrono::nanoseconds(0), std::chrono::nanoseconds::min(), std::chrono::nanoseconds(-1)}) {
    SimClusterOptions cluster_options;
    cluster_options.ranks = 2;
    SimCluster cluster(cluster_options);
    cluster.Run([&](SimRank& rank) {
      CallOptions options;
      options.timeout = timeout;
      int32_t value = 1;
      if (rank.rank == 0) {
        // The other rank never calls.
        const absl::Status status = rank.world->Recv(Buffer(&value, 1), 1, options).Wait(seconds(20));
        EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
        EXPECT_THAT(std::string(status.message()), HasSubstr("recv"));
      }
    });
  }
  SimClusterOptions cluster_options;
  cluster_options.ranks = 2;
  SimCluster cluster(cluster_options);
  cluster.Run([&](SimRank& rank) {
    CallOptions options;
    options.timeout = std::chrono::nanoseconds::max();
    comm::Work work = rank.world->Barrier(options);
    (void)work.Wait(std::chrono::nanoseconds::min());
    EXPECT_TRUE(work.Wait(std::chrono::nanoseconds::max()).ok());
  });
}

// Its calls would be taken for the parent's.
TEST_F(ApiAbuseTest, ForkedChildrenAreRefused) {
  ProcessClusterOptions options;
  options.ranks = 2;
  for (const RankResult& result : RunProcesses(options, [](ProcessRank& rank) -> std::string {
         const int64_t counts[] = {1, 1};
         float data[3] = {1};
         auto window = rank.world->AllocateWindow(1 << 20);
         if (!window.ok()) return window.status().ToString();
         const pid_t child = fork();
         if (child == 0) {
           Batch batch(*rank.world);
           batch.Send(ConstBuffer(data, 1), 1 - rank.rank);
           const bool refused =
               absl::IsFailedPrecondition(Ended(rank.world->Barrier())) &&
               absl::IsFailedPrecondition(Ended(rank.world->AllGatherV({data, 1}, {data + 1, 2}, {counts, {}}))) &&
               absl::IsFailedPrecondition(Ended(batch.Submit())) &&
               absl::IsFailedPrecondition(rank.world->Split(0, 0).status()) &&
               absl::IsFailedPrecondition(rank.world->Shrink(seconds(1)).status()) &&
               absl::IsFailedPrecondition(rank.world->Duplicate().status()) &&
               absl::IsFailedPrecondition(rank.world->AllocateWindow(1 << 20).status()) &&
               absl::IsFailedPrecondition(rank.world->status()) &&
               absl::IsFailedPrecondition(Communicator::World(*rank.runtime).status()) &&
               rank.world->Explain(CollectiveKind::kBarrier, 0, DataType::kUint8).find("forked") != std::string::npos &&
               absl::IsFailedPrecondition(rank.runtime->Put("by a child", "", runtime::Deadline::After(seconds(1))));
           rank.world->Abort("by a child");
           _exit(refused ? 0 : 1);
         }
         int ended = 0;
         if (child < 0 || waitpid(child, &ended, 0) != child || ended != 0) return "the child was not refused";
         // Nothing that the child has done is felt here.
         std::memset(window->data(), 7, window->size());
         auto other = rank.world->AllocateWindow(1 << 20);
         if (!other.ok()) return other.status().ToString();
         return std::string(rank.world->Barrier().Wait(seconds(20)).message());
       })) {
    EXPECT_EQ(result.text, "");
  }
}

TEST_F(ApiAbuseTest, EveryCallAfterAbortAndFinalizeIsRefusedAtOnce) {
  ProcessClusterOptions options;
  options.ranks = 2;
  for (const RankResult& result : RunProcesses(options, [](ProcessRank& rank) -> std::string {
         float data[16] = {};
         const ConstBuffer in(data, 4);
         const Buffer out(data + 4, 8);
         const int64_t counts[] = {4, 4};
         const auto all_fail = [&](Communicator& group, absl::StatusCode code) -> std::string {
           Batch batch(group);
           batch.AllReduce(in, Buffer(data + 4, 4), ReduceOp::kSum).Send(in, 1 - rank.rank);
           absl::Status statuses[] = {Ended(group.AllReduce(in, Buffer(data + 4, 4), ReduceOp::kSum)),
                                      Ended(group.AllGatherV(in, out, {counts, {}})),
                                      Ended(group.Send(in, 1 - rank.rank)),
                                      Ended(group.Barrier()),
                                      Ended(batch.Submit()),
                                      group.Split(0, 0).status(),
                                      group.AllocateWindow(100).status(),
                                      group.status()};
           for (const absl::Status& status : statuses) {
             if (status.code() != code) return status.ToString();
           }
           return "";
         };
         auto group = rank.world->Duplicate();
         if (!group.ok()) return group.status().ToString();
         (*group)->Abort("once");
         (*group)->Abort("twice");
         if (std::string wrong = all_fail(**group, absl::StatusCode::kAborted); !wrong.empty()) return wrong;
         if (!rank.world->Barrier().Wait(seconds(20)).ok()) return "the group's parent has failed, too";
         comm::Work pending = rank.rank == 0 ? rank.world->Recv(Buffer(data, 4), 1) : comm::Work();
         (void)rank.runtime->Finalize();
         if (rank.rank == 0 && !absl::IsFailedPrecondition(pending.Wait(seconds(20)))) return "still under way";
         if (std::string wrong = all_fail(*rank.world, absl::StatusCode::kFailedPrecondition); !wrong.empty())
           return wrong;
         const runtime::Deadline soon = runtime::Deadline::After(seconds(1));
         if (!absl::IsFailedPrecondition(rank.runtime->Put("late", "", soon))) return "the store took a late key";
         if (!absl::IsFailedPrecondition(rank.runtime->Get("late", soon).status())) return "the store answers";
         return absl::IsFailedPrecondition(Communicator::World(*rank.runtime).status()) ? "" : "a late world";
       })) {
    EXPECT_EQ(result.text, "");
    EXPECT_FALSE(result.hung);
  }
}

// Arguments drawn at random, most of them wrong, on a group of one: whatever comes, the call ends.
TEST_F(ApiAbuseTest, RandomArgumentsNeverCrashNorHang) {
  SimClusterOptions options;
  options.ranks = 1;
  SimCluster cluster(options);
  cluster.Run([](SimRank& rank) {
    std::vector<float> memory(64);
    std::mt19937_64 random(11);
    const auto draw = [&](std::vector<int64_t> values) { return values[random() % values.size()]; };
    const auto buffer = [&] {
      const int64_t count = draw({0, 1, 4, 8, -1, kMost, int64_t{1} << 56});
      const bool fits = count <= 8;
      float* at = random() % 4 == 0 || !fits ? nullptr : memory.data() + random() % 48;
      return Buffer(at, count, static_cast<DataType>(draw({11, 11, 11, 5, 1, 0, 99})));
    };
    int refused = 0;
    int done = 0;
    for (int i = 0; i < 20'000; ++i) {
      const Buffer in = buffer();
      const Buffer out = random() % 3 == 0 ? in : buffer();
      const auto op = static_cast<ReduceOp>(draw({1, 2, 3, 4, 5, 6, 9, 10, 0, 40}));
      const int root = static_cast<int>(draw({0, 0, 0, 1, -1, 1 << 30}));
      const std::vector<int64_t> counts = {in.count};
      const std::vector<int64_t> places = {draw({0, 0, 1, -1, kMost})};
      const BlockLayout layout{counts, places};
      comm::Work works[] = {rank.world->AllReduce(in, out, op),
                            rank.world->Reduce(in, out, op, root),
                            rank.world->Broadcast(out, root),
                            rank.world->Gather(in, out, root),
                            rank.world->Scatter(in, out, root),
                            rank.world->AllToAll(in, out),
                            rank.world->AllGatherV(in, out, layout),
                            rank.world->ScatterV(in, layout, out, root),
                            rank.world->AllToAllV(in, layout, out, layout)};
      for (comm::Work& work : works) {
        const absl::Status status = Ended(work);
        ASSERT_TRUE(status.ok() || absl::IsInvalidArgument(status)) << status;
        ++(status.ok() ? done : refused);
      }
    }
    EXPECT_GT(refused, 1000);
    EXPECT_GT(done, 1000);
  });
}

}  // namespace
}  // namespace cohort::testing
