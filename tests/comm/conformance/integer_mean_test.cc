// Means of integers against a sum in 128 bits: every type, kind of call, algorithm and level of determinism, with
// values whose sums do not fit the type.
#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <tuple>
#include <vector>

#include "absl/status/statusor.h"
#include "cohort/comm/algorithm/registry.h"
#include "cohort/comm/batch.h"
#include "cohort/comm/window.h"
#include "tests/support/process_cluster.h"
#include "tests/support/sim_cluster.h"

namespace cohort::testing {
namespace {

using comm::Buffer;
using comm::CollectiveKind;
using comm::Communicator;
using comm::ConstBuffer;
using comm::ReduceOp;

constexpr CollectiveKind kKinds[] = {CollectiveKind::kAllReduce, CollectiveKind::kReduce,
                                     CollectiveKind::kReduceScatter, CollectiveKind::kReduceScatterV};

struct Call {
  CollectiveKind kind = CollectiveKind::kAllReduce;
  int64_t count = 1;  // of the longest block
  int root = 0;
  uint64_t seed = 0;
  bool in_place = false;
  comm::CallOptions options = {};
};

// All least, all greatest, greatest or least in turn, or any.
template <typename T>
T ValueAt(const Call& call, int rank, int64_t i) {
  using Limits = std::numeric_limits<T>;
  uint64_t random = call.seed * 7919 + static_cast<uint64_t>(rank) * 104729 + static_cast<uint64_t>(i) + 1;
  for (int round = 0; round < 3; ++round) random = (random ^ random >> 29) * 0xbf58476d1ce4e5b9u;
  switch ((call.seed + static_cast<uint64_t>(i)) % 4) {
    case 0:
      return Limits::min();
    case 1:
      return Limits::max();
    case 2:
      return random >> 63 == 0 ? Limits::min() : Limits::max();
    default:
      return static_cast<T>(random >> 32 ^ random);
  }
}

template <typename T>
T MeanAt(const Call& call, int size, int64_t i) {
  __extension__ using Wide = __int128;
  Wide sum = 0;
  for (int rank = 0; rank < size; ++rank) sum += ValueAt<T>(call, rank, i);
  return static_cast<T>(sum / size);
}

// Rank r's block of a call with blocks of unequal length.
std::vector<int64_t> CountsOf(const Call& call, int size) {
  std::vector<int64_t> counts;
  for (int rank = 0; rank < size; ++rank) counts.push_back(call.count * (rank + 1) / size);
  return counts;
}

// The elements of the input, and the first one of them whose mean this rank gets, and how many.
std::tuple<int64_t, int64_t, int64_t> PartsOf(const Call& call, int rank, int size) {
  switch (call.kind) {
    case CollectiveKind::kReduceScatter:
      return {call.count * size, call.count * rank, call.count};
    case CollectiveKind::kReduceScatterV: {
      const std::vector<int64_t> counts = CountsOf(call, size);
      int64_t total = 0, first = 0;
      for (int other = 0; other < size; ++other) {
        if (other < rank) first += counts[static_cast<size_t>(other)];
        total += counts[static_cast<size_t>(other)];
      }
      return {total, first, counts[static_cast<size_t>(rank)]};
    }
    case CollectiveKind::kReduce:
      return {call.count, 0, rank == call.root ? call.count : 0};
    default:
      return {call.count, 0, call.count};
  }
}

// Starts the call, or adds it to the batch.
template <typename T>
runtime::Work Start(Communicator& communicator, const Call& call, std::vector<T>& in, std::vector<T>& out,
                    comm::Batch* batch) {
  const auto run = [&](auto& target) -> decltype(auto) {
    switch (call.kind) {
      case CollectiveKind::kAllReduce:
        return target.AllReduce(in, out, ReduceOp::kAvg, call.options);
      case CollectiveKind::kReduce:
        return target.Reduce(in, out, ReduceOp::kAvg, call.root, call.options);
      default:
        return target.ReduceScatter(in, out, ReduceOp::kAvg, call.options);
    }
  };
  if (batch != nullptr) {
    run(*batch);
    return {};
  }
  if (call.kind != CollectiveKind::kReduceScatterV) return run(communicator);
  const std::vector<int64_t> counts = CountsOf(call, communicator.size());
  return communicator.ReduceScatterV(in, {counts, {}}, out, ReduceOp::kAvg, call.options);
}

// "" or what is wrong.
template <typename T>
std::string Check(Communicator& communicator, const Call& call, bool batched = false) {
  const int rank = communicator.rank();
  const int size = communicator.size();
  const auto [elements, first, count] = PartsOf(call, rank, size);
  std::vector<T> in;
  for (int64_t i = 0; i < elements; ++i) in.push_back(ValueAt<T>(call, rank, i));
  std::vector<T> separate(static_cast<size_t>(count), T{42});
  std::vector<T>& out = call.in_place ? in : separate;
  comm::Batch batch(communicator);
  runtime::Work work = Start<T>(communicator, call, in, out, batched ? &batch : nullptr);
  const absl::Status status = batched ? batch.Submit().Wait() : work.Wait();
  const std::string what = std::string(Name(call.kind)) + " of " + std::to_string(call.count) + " " +
                           std::string(Name(comm::DataTypeOf<T>::kValue)) + ", algorithm \"" + call.options.algorithm +
                           "\", " + std::string(Name(call.options.determinism)) + ", " + std::to_string(size) +
                           " ranks, seed " + std::to_string(call.seed) + ": ";
  if (!status.ok()) return what + status.ToString();
  for (int64_t i = 0; i < count; ++i) {
    const T expected = MeanAt<T>(call, size, first + i);
    if (out[static_cast<size_t>(i)] == expected) continue;
    return what + "element " + std::to_string(i) + " is " + std::to_string(out[static_cast<size_t>(i)]) +
           " instead of " + std::to_string(expected);
  }
  return "";
}

constexpr std::array<std::string (*)(Communicator&, const Call&, bool), 8> kChecks = {
    Check<int8_t>,  Check<uint8_t>,  Check<int16_t>, Check<uint16_t>,
    Check<int32_t>, Check<uint32_t>, Check<int64_t>, Check<uint64_t>};

// `types` of the types, which the seed chooses.
std::string CheckTypes(Communicator& communicator, Call call, size_t types, bool batched = false) {
  for (size_t i = 0; i < types; ++i) {
    ++call.seed;
    std::string wrong = kChecks[call.seed % kChecks.size()](communicator, call, batched);
    if (wrong.empty()) continue;
    communicator.Abort(wrong);  // or the others would wait
    return wrong;
  }
  return "";
}

// With every algorithm that can be forced, and with the selector's at every level.
std::string CheckAllAlgorithms(Communicator& communicator, size_t types) {
  uint64_t seed = 0;
  const auto check = [&](CollectiveKind kind, const comm::CallOptions& options) {
    Call call{.kind = kind, .count = std::array<int64_t, 3>{1, 13, 70}[seed % 3], .seed = seed += 17};
    call.options = options;
    call.root = static_cast<int>(seed) % communicator.size();
    call.in_place = seed % 2 == 0 && kind == CollectiveKind::kAllReduce;
    return CheckTypes(communicator, call, types);
  };
  for (const CollectiveKind kind : kKinds) {
    for (int level = 1; level < comm::kDeterminismLevels; ++level) {
      std::string wrong = check(kind, {.determinism = static_cast<comm::Determinism>(level)});
      if (!wrong.empty()) return wrong;
    }
    for (const comm::AlgorithmInfo& info : comm::Algorithms()) {
      if (info.kind != kind || !comm::CheckRequirements(info, communicator.size()).ok()) continue;
      std::string wrong = check(kind, {.algorithm = std::string(info.name)});
      if (!wrong.empty()) return wrong;
    }
  }
  return std::string(communicator.Barrier().Wait().message());
}

class SimulatedMeanTest : public ::testing::TestWithParam<int> {};

TEST_P(SimulatedMeanTest, IntegerMeansAreExactWithEveryAlgorithm) {
  SimClusterOptions options;
  options.ranks = GetParam();
  options.network.seed = static_cast<uint64_t>(GetParam());
  SimCluster cluster(options);
  std::vector<std::string> wrong(static_cast<size_t>(options.ranks));
  cluster.Run([&](SimRank& rank) { wrong[static_cast<size_t>(rank.rank)] = CheckAllAlgorithms(*rank.world, 8); });
  for (const std::string& text : wrong) EXPECT_EQ(text, "");
}

INSTANTIATE_TEST_SUITE_P(Sizes, SimulatedMeanTest, ::testing::Range(1, 10));

struct Placement {
  const char* name;
  int ranks;
  int nodes;
};

class ProcessMeanTest : public ::testing::TestWithParam<Placement> {
 protected:
  void SetUp() override {
    if (GetParam().nodes == 1) return;
    if (const std::string why = WhyHostsCannotTalk(); !why.empty()) GTEST_SKIP() << why;
  }
  void Run(const std::function<std::string(ProcessRank&)>& program) {
    ProcessClusterOptions options;
    options.ranks = GetParam().ranks;
    options.nodes = GetParam().nodes;
    for (const RankResult& result : RunProcesses(options, program)) {
      EXPECT_EQ(result.text, "");
      EXPECT_TRUE(result.exited);
    }
  }
};

TEST_P(ProcessMeanTest, IntegerMeansAreExactWithEveryAlgorithm) {
  Run([](ProcessRank& rank) { return CheckAllAlgorithms(*rank.world, 2); });
}

// Repeated calls take a way of their own where they are short, and long ones are cut.
TEST_P(ProcessMeanTest, IntegerMeansAreExactInRepeatedLongAndBatchedCalls) {
  Run([](ProcessRank& rank) -> std::string {
    for (uint64_t i = 0; i < 12; ++i) {
      if (std::string wrong = Check<int32_t>(*rank.world, {.count = 3, .seed = i}); !wrong.empty()) return wrong;
    }
    for (const CollectiveKind kind : kKinds) {
      if (std::string wrong = CheckTypes(*rank.world, {.kind = kind, .count = 40'000}, 2); !wrong.empty()) return wrong;
      if (kind == CollectiveKind::kReduceScatterV) continue;
      if (std::string wrong = CheckTypes(*rank.world, {.kind = kind, .count = 77}, 4, true); !wrong.empty()) {
        return wrong;
      }
    }
    return std::string(rank.world->Barrier().Wait().message());
  });
}

// In windows every member folds its part of all inputs at once.
TEST_P(ProcessMeanTest, IntegerMeansAreExactInWindows) {
  Run([](ProcessRank& rank) -> std::string {
    constexpr int64_t kCount = 5000;
    absl::StatusOr<comm::Window> window = rank.world->AllocateWindow(2 * kCount * sizeof(int8_t));
    if (!window.ok()) return window.status().ToString();
    auto* const in = static_cast<int8_t*>(window->data());
    const Call call{.count = kCount, .seed = 5};
    for (int64_t i = 0; i < kCount; ++i) in[i] = ValueAt<int8_t>(call, rank.rank, i);
    const absl::Status status =
        rank.world->AllReduce(ConstBuffer(in, kCount), Buffer(in + kCount, kCount), ReduceOp::kAvg).Wait();
    if (!status.ok()) return status.ToString();
    for (int64_t i = 0; i < kCount; ++i) {
      if (in[kCount + i] != MeanAt<int8_t>(call, rank.size, i)) return "element " + std::to_string(i) + " is wrong";
    }
    return std::string(rank.world->Barrier().Wait().message());
  });
}

INSTANTIATE_TEST_SUITE_P(Placements, ProcessMeanTest,
                         ::testing::Values(Placement{"pair", 2, 1}, Placement{"four", 4, 1}, Placement{"nodes", 4, 2}),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace cohort::testing
