// Collectives over memory of other ranks between processes: every kind, buffers in windows, in private memory or mixed
// by rank, with and without permission to reach private memory, and a rank that is killed in the middle.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <new>
#include <random>
#include <string>
#include <vector>

#include "cohort/comm/communicator.h"
#include "cohort/comm/group/transport_set.h"
#include "cohort/comm/transport/shm/runtime_binding.h"
#include "cohort/runtime/base/cpu_cache.h"
#include "cohort/runtime/base/deadline.h"
#include "tests/support/process_cluster.h"

namespace cohort::testing {
namespace {

using comm::Buffer;
using comm::CollectiveKind;
using comm::Communicator;
using comm::ConstBuffer;
using comm::ReduceOp;

int32_t Input(int rank, int64_t i) { return static_cast<int32_t>((i * 2654435761 + rank * 40503) % 1000003); }

struct Call {
  CollectiveKind kind = CollectiveKind::kAllReduce;
  int64_t count = 0;
  int root = 0;
  bool in_place = false;
};

// A call's buffers, in the window or in private memory, and what must be in `out` in the end.
struct Buffers {
  std::vector<int32_t> private_in, private_out;
  int32_t* in = nullptr;
  int32_t* out = nullptr;
  comm::BufferBlocks blocks;
};

Buffers Place(const Call& call, int rank, int size, int32_t* window, bool shared_in, bool shared_out) {
  Buffers b;
  b.blocks = comm::BlocksOf(call.kind, rank == call.root, size);
  const auto all = static_cast<size_t>(call.count * size);
  b.private_in.resize(all);
  b.private_out.resize(all);
  b.in = shared_in ? window : b.private_in.data();
  b.out = shared_out ? window + all : b.private_out.data();
  const bool one_buffer =
      call.kind == CollectiveKind::kBroadcast || (call.in_place && b.blocks.in > 0 && b.blocks.out > 0);
  if (one_buffer) {
    if (b.blocks.in > b.blocks.out) {
      b.out = b.in + rank * call.count;
    } else if (b.blocks.in < b.blocks.out && call.kind != CollectiveKind::kBroadcast) {
      b.in = b.out + rank * call.count;
    } else {
      b.in = b.out;
    }
  }
  std::fill(b.out, b.out + call.count * b.blocks.out, -1);
  for (int64_t i = 0; i < call.count * b.blocks.in; ++i) b.in[i] = Input(rank, i);
  return b;
}

int32_t Expected(const Call& call, int rank, int size, int64_t i) {
  const int64_t block = call.count == 0 ? 0 : i / call.count;
  const int64_t own = rank * call.count + (call.count == 0 ? 0 : i % call.count);
  const auto sum = [&](int64_t element) {
    int32_t total = 0;
    for (int r = 0; r < size; ++r) total += Input(r, element);
    return total;
  };
  switch (call.kind) {
    case CollectiveKind::kBroadcast:
      return Input(call.root, i);
    case CollectiveKind::kReduce:
    case CollectiveKind::kAllReduce:
      return sum(i);
    case CollectiveKind::kGather:
    case CollectiveKind::kAllGather:
      return Input(static_cast<int>(block), i % call.count);
    case CollectiveKind::kScatter:
      return Input(call.root, own);
    case CollectiveKind::kReduceScatter:
      return sum(own);
    default:
      return Input(static_cast<int>(block), own);
  }
}

runtime::Work Start(Communicator& group, const Call& call, const Buffers& b) {
  comm::CallOptions options;
  options.algorithm = "single_copy";
  const ConstBuffer in(b.in, call.count * b.blocks.in);
  const Buffer out(b.out, call.count * b.blocks.out);
  switch (call.kind) {
    case CollectiveKind::kBroadcast:
      return group.Broadcast(out, call.root, options);
    case CollectiveKind::kReduce:
      return group.Reduce(in, out, ReduceOp::kSum, call.root, options);
    case CollectiveKind::kAllReduce:
      return group.AllReduce(in, out, ReduceOp::kSum, options);
    case CollectiveKind::kGather:
      return group.Gather(in, out, call.root, options);
    case CollectiveKind::kScatter:
      return group.Scatter(in, out, call.root, options);
    case CollectiveKind::kAllGather:
      return group.AllGather(in, out, options);
    case CollectiveKind::kReduceScatter:
      return group.ReduceScatter(in, out, ReduceOp::kSum, options);
    default:
      return group.AllToAll(in, out, options);
  }
}

std::string RunCall(Communicator& group, const Call& call, int32_t* window, bool shared_in, bool shared_out) {
  const Buffers b = Place(call, group.rank(), group.size(), window, shared_in, shared_out);
  const absl::Status status = Start(group, call, b).Wait();
  const std::string what = std::string(Name(call.kind)) + " of " + std::to_string(call.count) + ", root " +
                           std::to_string(call.root) + (call.in_place ? ", in place" : "") + ", rank " +
                           std::to_string(group.rank()) + (shared_in ? ", in shared" : "") +
                           (shared_out ? ", out shared" : "") + ": ";
  if (!status.ok()) return what + std::string(status.message());
  for (int64_t i = 0; i < call.count * b.blocks.out; ++i) {
    if (b.out[i] != Expected(call, group.rank(), group.size(), i)) return what + "wrong at " + std::to_string(i);
  }
  const bool input_kept = b.in + call.count * b.blocks.in <= b.out || b.out + call.count * b.blocks.out <= b.in;
  for (int64_t i = 0; input_kept && i < call.count * b.blocks.in; ++i) {
    if (b.in[i] != Input(group.rank(), i)) return what + "input changed at " + std::to_string(i);
  }
  return "";
}

enum class Memory { kWindows, kPrivate, kMixed, kOnlyInWindows };

struct Setting {
  const char* name;
  int ranks;
  Memory memory;
  bool reach_private;
};

class SingleCopyTest : public ::testing::TestWithParam<Setting> {};

TEST_P(SingleCopyTest, EveryKindEqualsTheReference) {
  const Setting setting = GetParam();
  ProcessClusterOptions options;
  options.ranks = setting.ranks;
  const std::vector<RankResult> results = RunProcesses(options, [setting](ProcessRank& rank) -> std::string {
    {
      runtime::EngineLock lock(rank.runtime->engine());
      comm::TransportSet::Of(*rank.runtime)
          .Add(comm::MakeShmTransport(*rank.runtime, comm::ShmOptions{.private_reads = setting.reach_private}));
    }
    const int64_t counts[] = {0, 1, setting.ranks - 1, 1009, 65'537, 300'007};
    auto window = rank.world->AllocateWindow(2 * 300'007 * 4 * static_cast<size_t>(setting.ranks));
    if (!window.ok()) return std::string(window.status().message());
    std::mt19937_64 random(17);  // equal draws on all ranks
    for (int kind = 1; kind <= static_cast<int>(CollectiveKind::kAllToAll); ++kind) {
      for (const int64_t count : counts) {
        for (const bool in_place : {false, true}) {
          const uint64_t draw = random();
          const uint64_t mine = draw >> (2 * rank.rank);
          Call call{static_cast<CollectiveKind>(kind), count, static_cast<int>(draw % setting.ranks), in_place};
          const bool in = setting.memory == Memory::kWindows || setting.memory == Memory::kOnlyInWindows ||
                          (setting.memory == Memory::kMixed && mine % 2 == 0);
          const bool out =
              setting.memory == Memory::kWindows || (setting.memory == Memory::kMixed && mine / 2 % 2 == 0);
          std::string wrong = RunCall(*rank.world, call, static_cast<int32_t*>(window->data()), in, out);
          if (wrong.empty()) continue;
          rank.world->Abort(wrong);
          return wrong;
        }
      }
    }
    return std::string(rank.world->Barrier().Wait().message());
  });
  for (const RankResult& result : results) {
    EXPECT_EQ(result.text, "");
    EXPECT_TRUE(result.exited);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Memories, SingleCopyTest,
    ::testing::Values(Setting{"windows2", 2, Memory::kWindows, true}, Setting{"windows5", 5, Memory::kWindows, false},
                      Setting{"only_in_windows4", 4, Memory::kOnlyInWindows, true},
                      Setting{"private2", 2, Memory::kPrivate, true}, Setting{"private3", 3, Memory::kPrivate, true},
                      Setting{"private3_unreachable", 3, Memory::kPrivate, false},
                      Setting{"mixed2", 2, Memory::kMixed, true}, Setting{"mixed4", 4, Memory::kMixed, true},
                      Setting{"mixed4_unreachable", 4, Memory::kMixed, false}),
    [](const auto& info) { return std::string(info.param.name); });

// Buffers that exceed every cache: stores past the cache, several pieces, and the ends that don't fill a line.
TEST(SingleCopyLargeTest, EveryKindEqualsTheReferenceAtLargeSizes) {
  for (const bool shared : {true, false}) {
    ProcessClusterOptions options;
    options.ranks = 2;
    const std::vector<RankResult> results = RunProcesses(options, [shared](ProcessRank& rank) -> std::string {
      {
        runtime::EngineLock lock(rank.runtime->engine());
        comm::TransportSet::Of(*rank.runtime)
            .Add(comm::MakeShmTransport(*rank.runtime, comm::ShmOptions{.private_reads = true}));
      }
      // From below what is streamed to folds that are streamed to the own output; odd, so that parts begin anywhere.
      const auto near = static_cast<int64_t>(runtime::NearBytes(runtime::ReadCpuCaches()));
      const int64_t most = (near + near / 20) | 1;
      auto window = rank.world->AllocateWindow(static_cast<size_t>(4 * most * 4));
      if (!window.ok()) return std::string(window.status().message());
      for (int kind = 1; kind <= static_cast<int>(CollectiveKind::kAllToAll); ++kind) {
        for (const int64_t count : {int64_t{130'003}, (near / 8) | 1, most}) {
          const Call call{static_cast<CollectiveKind>(kind), count, 1, false};
          std::string wrong = RunCall(*rank.world, call, static_cast<int32_t*>(window->data()), shared, shared);
          if (wrong.empty()) continue;
          rank.world->Abort(wrong);
          return wrong;
        }
      }
      return std::string(rank.world->Barrier().Wait().message());
    });
    for (const RankResult& result : results) EXPECT_EQ(result.text, "");
  }
}

// The survivors of a test share this besides their group.
struct Survivors {
  std::atomic<int> failed{0};  // have got the failure, after which they write nowhere
};

// True when all have failed.
bool AwaitFailures(const Survivors& survivors, int all) {
  const auto deadline = runtime::Deadline::After(std::chrono::seconds(30));
  while (survivors.failed.load() < all) {
    if (deadline.passed()) return false;
    usleep(200);
  }
  return true;
}

// Each survivor gets the error, and its memory is its own again: its writes there stay until the others have the error
// too, and can't write any more.
TEST(SingleCopyDeathTest, AKillAmidASingleCopyCallEndsTheOthers) {
  for (const bool shared : {true, false}) {
    void* page = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ASSERT_NE(page, MAP_FAILED);
    auto* survivors = new (page) Survivors;
    ProcessClusterOptions options;
    options.ranks = 3;
    const std::vector<RankResult> results =
        RunProcesses(options, [shared, survivors](ProcessRank& rank) -> std::string {
          constexpr int64_t kCount = 1 << 20;
          auto window = rank.world->AllocateWindow(2 * kCount * 4);
          if (!window.ok()) return std::string(window.status().message());
          std::vector<int32_t> own(2 * kCount, 1);
          int32_t* in = shared ? static_cast<int32_t*>(window->data()) : own.data();
          for (int i = 0; i < 1000; ++i) {
            runtime::Work work =
                rank.world->AllReduce(ConstBuffer(in, kCount), Buffer(in + kCount, kCount), ReduceOp::kSum);
            if (rank.rank == 1 && i == 7) kill(getpid(), SIGKILL);
            const absl::Status status = work.Wait();
            if (status.ok()) continue;
            if (!absl::IsUnavailable(status)) return status.ToString();
            std::fill(in, in + 2 * kCount, 5);
            survivors->failed.fetch_add(1);
            if (!AwaitFailures(*survivors, 2)) return "the other survivor has no error";
            if (std::count(in, in + 2 * kCount, 5) != 2 * kCount) return "memory was written after the failure";
            return "";
          }
          return "no error";
        });
    EXPECT_EQ(results[0].text, "");
    EXPECT_EQ(results[1].signal, SIGKILL);
    EXPECT_EQ(results[2].text, "");
    munmap(page, 4096);
  }
}

}  // namespace
}  // namespace cohort::testing
