// Checks bit by bit the promises of the levels of determinism. order_invariant equals a loop over the ranks whatever
// the transport, the placement and the algorithm. reproducible does not depend on timing. Low-precision sums are
// rounded once, by every algorithm.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <type_traits>
#include <vector>

#include "cohort/comm/algorithm/registry.h"
#include "tests/comm/reduce/scalar_reference.h"
#include "tests/support/process_cluster.h"
#include "tests/support/sim_cluster.h"

namespace cohort::testing {
namespace {

using comm::CollectiveKind;
using comm::DataType;
using comm::Determinism;
using comm::ReduceOp;

template <typename T>
constexpr bool kIsSmall = !std::is_floating_point_v<T>;
template <typename T>
using Accumulator = std::conditional_t<std::is_same_v<T, double>, double, float>;

template <typename T>
T FromDouble(double value) {
  if constexpr (kIsSmall<T>) {
    return T::FromDouble(value);
  } else {
    return static_cast<T>(value);
  }
}

template <typename T>
double ToDouble(T value) {
  if constexpr (kIsSmall<T>) {
    return value.ToDouble();
  } else {
    return static_cast<double>(value);
  }
}

// A call as all ranks draw it from one seed.
struct Call {
  CollectiveKind kind = CollectiveKind::kAllReduce;
  DataType dtype = DataType::kFloat32;
  ReduceOp op = ReduceOp::kSum;
  int64_t count = 0;
  int root = 0;
  bool in_place = false;
  std::string algorithm;
  Determinism determinism = Determinism::kOrderInvariant;
  uint64_t seed = 0;

  std::string ToString() const {
    return std::string(Name(kind)) + " " + std::string(Name(dtype)) + " " + std::string(Name(op)) + " of " +
           std::to_string(count) + (in_place ? " in place" : "") + ", algorithm \"" + algorithm + "\", " +
           std::string(Name(determinism)) + ", seed " + std::to_string(seed);
  }
};

int64_t InCount(const Call& call, int size) {
  return call.kind == CollectiveKind::kReduceScatter ? call.count * size : call.count;
}

double FactorOf(const Call& call, int rank) { return call.op == ReduceOp::kPreMulSum ? 0.25 + 0.7 * rank : 1; }

// Values of several magnitudes, so that sums round.
template <typename T>
std::vector<T> InputOf(const Call& call, int rank, int size) {
  std::mt19937_64 random(call.seed * 1000 + static_cast<uint64_t>(rank));
  std::vector<T> values(static_cast<size_t>(InCount(call, size)));
  for (T& value : values) {
    const double mantissa = 0.5 + static_cast<double>(random() % 4096) / 8192;
    const double sign = random() % 4 == 0 ? -1 : 1;
    value = FromDouble<T>(std::ldexp(sign * mantissa, static_cast<int>(random() % 5) - 1));
  }
  return values;
}

template <typename T>
T LeftFold(const Call& call, const std::vector<std::vector<T>>& inputs, size_t i) {
  using Wide = Accumulator<T>;
  Wide result = 0;
  for (size_t rank = 0; rank < inputs.size(); ++rank) {
    Wide value = static_cast<Wide>(ToDouble(inputs[rank][i]));
    if (call.op == ReduceOp::kPreMulSum) value = value * static_cast<Wide>(FactorOf(call, static_cast<int>(rank)));
    if (rank == 0) {
      result = value;
    } else {
      result = call.op == ReduceOp::kProduct ? result * value : result + value;
    }
  }
  if (call.op == ReduceOp::kAvg) result = result / static_cast<Wide>(inputs.size());
  return FromDouble<T>(static_cast<double>(result));
}

template <typename T>
struct Outcome {
  std::string error;
  std::vector<T> result;  // empty where the call leaves none
  int64_t first = 0;      // element of the input that the result starts with
};

template <typename T>
Outcome<T> RunCall(comm::Communicator& communicator, const Call& call) {
  const int rank = communicator.rank();
  const int size = communicator.size();
  std::vector<T> in = InputOf<T>(call, rank, size);
  const bool has_out = call.kind != CollectiveKind::kReduce || rank == call.root;
  const bool scatters = call.kind == CollectiveKind::kReduceScatter;
  const bool in_place = call.in_place && has_out;
  std::vector<T> apart(has_out && !in_place ? static_cast<size_t>(call.count) : 0);
  T* out = in_place ? in.data() + (scatters ? rank * call.count : 0) : apart.data();
  const comm::ConstBuffer source(static_cast<const void*>(in.data()), InCount(call, size), call.dtype);
  const comm::Buffer target(static_cast<void*>(out), has_out ? call.count : 0, call.dtype);
  comm::CallOptions options;
  options.algorithm = call.algorithm;
  options.determinism = call.determinism;
  options.factor = FactorOf(call, rank);
  options.timeout = std::chrono::seconds(60);
  runtime::Work work;
  if (call.kind == CollectiveKind::kAllReduce) work = communicator.AllReduce(source, target, call.op, options);
  if (call.kind == CollectiveKind::kReduce) work = communicator.Reduce(source, target, call.op, call.root, options);
  if (scatters) work = communicator.ReduceScatter(source, target, call.op, options);
  Outcome<T> outcome;
  outcome.error = std::string(work.Wait().message());
  if (has_out) outcome.result.assign(out, out + call.count);
  outcome.first = scatters ? rank * call.count : 0;
  return outcome;
}

// "" when the result is the left fold, bit by bit.
template <typename T>
std::string CheckLeftFold(comm::Communicator& communicator, const Call& call) {
  const Outcome<T> outcome = RunCall<T>(communicator, call);
  if (!outcome.error.empty()) return call.ToString() + ": " + outcome.error;
  std::vector<std::vector<T>> inputs;
  for (int rank = 0; rank < communicator.size(); ++rank) {
    inputs.push_back(InputOf<T>(call, rank, communicator.size()));
  }
  for (size_t i = 0; i < outcome.result.size(); ++i) {
    const T expected = LeftFold(call, inputs, static_cast<size_t>(outcome.first) + i);
    if (!comm::SameValue(outcome.result[i], expected)) {
      return call.ToString() + ": rank " + std::to_string(communicator.rank()) + " has " +
             std::to_string(ToDouble(outcome.result[i])) + " instead of " + std::to_string(ToDouble(expected)) +
             " at element " + std::to_string(i);
    }
  }
  return "";
}

template <typename Visit>
auto WithType(DataType dtype, const Visit& visit) {
  switch (dtype) {
    case DataType::kFloat16:
      return visit(comm::ReferenceFloat16());
    case DataType::kBFloat16:
      return visit(comm::ReferenceBFloat16());
    case DataType::kFloat8E4M3:
      return visit(comm::ReferenceFloat8E4M3());
    case DataType::kFloat8E5M2:
      return visit(comm::ReferenceFloat8E5M2());
    case DataType::kFloat64:
      return visit(double());
    default:
      return visit(float());
  }
}

constexpr DataType kFloats[] = {DataType::kFloat16, DataType::kBFloat16,   DataType::kFloat32,
                                DataType::kFloat64, DataType::kFloat8E4M3, DataType::kFloat8E5M2};
constexpr ReduceOp kRoundingOps[] = {ReduceOp::kSum, ReduceOp::kAvg, ReduceOp::kProduct, ReduceOp::kPreMulSum};
constexpr CollectiveKind kReducing[] = {CollectiveKind::kAllReduce, CollectiveKind::kReduce,
                                        CollectiveKind::kReduceScatter};

// The selector's algorithm in half of the runs, else one that combines in rank order.
Call RandomCall(uint64_t seed, int size) {
  std::mt19937_64 random(seed);
  Call call;
  call.seed = seed;
  call.kind = kReducing[random() % 3];
  call.dtype = kFloats[random() % 6];
  call.op = kRoundingOps[random() % 4];
  call.count = static_cast<int64_t>(random() % 3 == 0 ? random() % 5000 : random() % 60);
  call.root = static_cast<int>(random() % static_cast<uint64_t>(size));
  call.in_place = random() % 2 == 0;
  if (random() % 2 == 0) return call;
  std::vector<std::string> fit;
  for (const comm::AlgorithmInfo& info : comm::Algorithms()) {
    if (info.kind == call.kind && info.traits.rank_order && comm::CheckRequirements(info, size).ok()) {
      fit.emplace_back(info.name);
    }
  }
  call.algorithm = fit[random() % fit.size()];
  return call;
}

constexpr int kRuns = 100;

std::string OrderInvariantRuns(comm::Communicator& communicator, uint64_t seed) {
  for (uint64_t run = 0; run < kRuns; ++run) {
    const Call call = RandomCall(seed * 1000 + run, communicator.size());
    std::string wrong =
        WithType(call.dtype, [&](auto type) { return CheckLeftFold<decltype(type)>(communicator, call); });
    if (wrong.empty()) continue;
    communicator.Abort(wrong);  // or the others would wait
    return wrong;
  }
  return std::string(communicator.Barrier().Wait().message());
}

struct Placement {
  const char* name;
  int ranks;
  int nodes;
};

class OrderInvariantTest : public ::testing::TestWithParam<Placement> {};

TEST_P(OrderInvariantTest, OrderInvariantResultsEqualALoopOverTheRanksBetweenProcesses) {
  ProcessClusterOptions options;
  options.ranks = GetParam().ranks;
  options.nodes = GetParam().nodes;
  if (options.nodes > 1) {
    const std::string why = WhyHostsCannotTalk();
    if (!why.empty()) GTEST_SKIP() << why;
  }
  const uint64_t seed = std::random_device()();
  for (const RankResult& result :
       RunProcesses(options, [&](ProcessRank& rank) { return OrderInvariantRuns(*rank.world, seed); })) {
    EXPECT_EQ(result.text, "");
    EXPECT_TRUE(result.exited);
  }
}

TEST_P(OrderInvariantTest, OrderInvariantResultsEqualALoopOverTheRanksInTheSimulator) {
  const uint64_t seed = std::random_device()();
  SimClusterOptions options;
  options.ranks = GetParam().ranks;
  options.nodes = GetParam().nodes;
  options.network.seed = seed;
  SimCluster cluster(options);
  std::vector<std::string> wrong(static_cast<size_t>(options.ranks));
  cluster.Run([&](SimRank& rank) { wrong[static_cast<size_t>(rank.rank)] = OrderInvariantRuns(*rank.world, seed); });
  for (const std::string& text : wrong) EXPECT_EQ(text, "");
}

INSTANTIATE_TEST_SUITE_P(Placements, OrderInvariantTest,
                         ::testing::Values(Placement{"one_node", 4, 1}, Placement{"two_nodes", 4, 2},
                                           Placement{"uneven", 5, 2}, Placement{"pair", 2, 1}),
                         [](const auto& info) { return std::string(info.param.name); });

// All ranks' results of one call, one after another.
std::vector<float> SimulatedResult(uint64_t network_seed, const Call& call, int ranks) {
  SimClusterOptions options;
  options.ranks = ranks;
  options.network.seed = network_seed;
  options.network.max_delay = 60;
  SimCluster cluster(options);
  std::vector<std::vector<float>> results(static_cast<size_t>(ranks));
  cluster.Run([&](SimRank& rank) {
    const Outcome<float> outcome = RunCall<float>(*rank.world, call);
    EXPECT_EQ(outcome.error, "");
    results[static_cast<size_t>(rank.rank)] = outcome.result;
  });
  std::vector<float> all;
  for (const std::vector<float>& result : results) all.insert(all.end(), result.begin(), result.end());
  return all;
}

TEST(ReproducibleTest, ReproducibleResultsDoNotDependOnTiming) {
  Call call;
  call.determinism = Determinism::kReproducible;
  for (const CollectiveKind kind : kReducing) {
    call.kind = kind;
    for (const int64_t count : {7, 3000}) {
      call.count = count;
      call.seed = std::random_device()();
      const std::vector<float> first = SimulatedResult(1, call, 5);
      for (uint64_t seed = 2; seed <= 18; ++seed) {
        const std::vector<float> again = SimulatedResult(seed, call, 5);
        ASSERT_EQ(again.size(), first.size());
        ASSERT_EQ(std::memcmp(again.data(), first.data(), first.size() * sizeof(float)), 0)
            << call.ToString() << ", network seed " << seed;
      }
    }
  }
}

// The distance between neighbouring numbers of the type at `value`.
template <typename T>
double UnitAt(double value) {
  const int exponent = value == 0 ? 1 - T::kBias : std::max(std::ilogb(value), 1 - T::kBias);
  return std::ldexp(1, exponent - T::kMantissa);
}

// A sum in float32 that is rounded once is off by less than a unit, however many ranks there are.
template <typename T>
std::string CheckAccuracy(comm::Communicator& communicator, const Call& call) {
  const Outcome<T> outcome = RunCall<T>(communicator, call);
  if (!outcome.error.empty()) return call.ToString() + ": " + outcome.error;
  const int size = communicator.size();
  std::vector<std::vector<T>> inputs;
  for (int rank = 0; rank < size; ++rank) inputs.push_back(InputOf<T>(call, rank, size));
  for (size_t i = 0; i < outcome.result.size(); ++i) {
    double exact = 0;
    double magnitude = 0;
    for (int rank = 0; rank < size; ++rank) {
      const double value =
          ToDouble(inputs[static_cast<size_t>(rank)][static_cast<size_t>(outcome.first) + i]) * FactorOf(call, rank);
      exact += value;
      magnitude += std::fabs(value);
    }
    if (call.op == ReduceOp::kAvg) exact /= size;
    const double off = std::fabs(ToDouble(outcome.result[i]) - exact);
    if (!(off <= UnitAt<T>(exact) + magnitude * size * 0x1p-24)) {
      return call.ToString() + ", " + std::to_string(size) + " ranks: " + std::to_string(ToDouble(outcome.result[i])) +
             " instead of " + std::to_string(exact);
    }
  }
  return "";
}

TEST(AccuracyTest, LowPrecisionSumsAreRoundedOnceByEveryAlgorithm) {
  for (int ranks = 2; ranks <= 17; ++ranks) {
    SimClusterOptions options;
    options.ranks = ranks;
    options.network.seed = static_cast<uint64_t>(ranks);
    SimCluster cluster(options);
    std::vector<Call> calls;
    for (const comm::AlgorithmInfo& info : comm::Algorithms()) {
      const bool reduces = std::find(std::begin(kReducing), std::end(kReducing), info.kind) != std::end(kReducing);
      if (!reduces || !comm::CheckRequirements(info, ranks).ok()) continue;
      for (const DataType dtype : {DataType::kFloat16, DataType::kBFloat16, DataType::kFloat8E5M2}) {
        for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kAvg, ReduceOp::kPreMulSum}) {
          Call call;
          call.kind = info.kind;
          call.algorithm = info.name;
          call.determinism = Determinism::kFast;
          call.dtype = dtype;
          call.op = op;
          call.count = 65;
          call.seed = calls.size();
          calls.push_back(call);
        }
      }
    }
    std::vector<std::string> wrong(static_cast<size_t>(ranks));
    cluster.Run([&](SimRank& rank) {
      for (const Call& call : calls) {
        std::string& mine = wrong[static_cast<size_t>(rank.rank)];
        if (call.dtype == DataType::kFloat16) mine = CheckAccuracy<comm::ReferenceFloat16>(*rank.world, call);
        if (call.dtype == DataType::kBFloat16) mine = CheckAccuracy<comm::ReferenceBFloat16>(*rank.world, call);
        if (call.dtype == DataType::kFloat8E5M2) mine = CheckAccuracy<comm::ReferenceFloat8E5M2>(*rank.world, call);
        if (mine.empty()) continue;
        rank.world->Abort(mine);
        return;
      }
    });
    for (const std::string& text : wrong) EXPECT_EQ(text, "");
  }
}

TEST(OrderInvariantRefusalTest, AlgorithmsOfOtherOrdersAreRefusedWithThoseThatFit) {
  SimClusterOptions options;
  SimCluster cluster(options);
  cluster.Run([&](SimRank& rank) {
    Call call;
    call.count = 4;
    call.algorithm = "ring";
    const std::string error = RunCall<float>(*rank.world, call).error;
    EXPECT_NE(error.find("choose one of flat, direct"), std::string::npos) << error;
  });
}

void Larger(void* out, const void* a, const void* b, int64_t count, DataType, void* calls) {
  for (int64_t i = 0; i < count; ++i) {
    const float x = static_cast<const float*>(a)[i];
    const float y = static_cast<const float*>(b)[i];
    static_cast<float*>(out)[i] = std::max(x, y);
  }
  ++*static_cast<int*>(calls);
}

// b where it is not 0: associative, and not commutative.
void Later(void* out, const void* a, const void* b, int64_t count, DataType, void*) {
  for (int64_t i = 0; i < count; ++i) {
    const float y = static_cast<const float*>(b)[i];
    static_cast<float*>(out)[i] = y != 0 ? y : static_cast<const float*>(a)[i];
  }
}

TEST(UserOpTest, UserFunctionsCombineInRankOrderWhereThatMatters) {
  SimClusterOptions options;
  options.ranks = 5;
  SimCluster cluster(options);
  cluster.Run([&](SimRank& rank) {
    for (const comm::AlgorithmInfo& info : comm::Algorithms()) {
      if (info.kind != CollectiveKind::kAllReduce || !comm::CheckRequirements(info, 5).ok()) continue;
      int calls = 0;
      const comm::UserReduceOp larger = {.function = Larger, .context = &calls, .name = "larger"};
      comm::CallOptions call;
      call.user_op = &larger;
      call.algorithm = info.name;
      std::vector<float> values(300, static_cast<float>(rank.rank % 4));
      const absl::Status status = rank.world
                                      ->AllReduce(comm::ConstBuffer(values.data(), 300),
                                                  comm::Buffer(values.data(), 300), ReduceOp::kUser, call)
                                      .Wait();
      ASSERT_TRUE(status.ok()) << info.name << ": " << status;
      EXPECT_EQ(values, std::vector<float>(300, 3)) << info.name;
    }
    const comm::UserReduceOp later = {.function = Later, .context = nullptr, .name = "later", .commutative = false};
    comm::CallOptions call;
    call.user_op = &later;
    for (const int64_t count : {5, 20000}) {
      std::vector<float> values(static_cast<size_t>(count), rank.rank == 4 ? 0 : static_cast<float>(rank.rank + 1));
      const absl::Status status = rank.world
                                      ->AllReduce(comm::ConstBuffer(values.data(), count),
                                                  comm::Buffer(values.data(), count), ReduceOp::kUser, call)
                                      .Wait();
      ASSERT_TRUE(status.ok()) << status;
      EXPECT_EQ(values, std::vector<float>(static_cast<size_t>(count), 4));
    }
  });
}

TEST(DeterminismMismatchTest, RanksThatAskForDifferentLevelsGetAMismatch) {
  SimClusterOptions options;
  SimCluster cluster(options);
  cluster.Run([&](SimRank& rank) {
    Call call;
    call.count = 4;
    call.determinism = rank.rank == 0 ? Determinism::kFast : Determinism::kOrderInvariant;
    const std::string error = RunCall<float>(*rank.world, call).error;
    EXPECT_NE(error.find("order_invariant"), std::string::npos) << error;
  });
}

TEST(ReductionArgumentsTest, ArgumentsThatDoNotGoTogetherAreRefusedWithTheRemedy) {
  SimClusterOptions options;
  SimCluster cluster(options);
  cluster.Run([&](SimRank& rank) {
    float values[2] = {};
    int32_t integers[2] = {};
    comm::CallOptions call;
    const auto error = [&](auto* memory, ReduceOp op) {
      return std::string(
          rank.world->AllReduce(comm::ConstBuffer(memory, 2), comm::Buffer(memory, 2), op, call).Wait().message());
    };
    EXPECT_NE(error(values, ReduceOp::kBxor).find("as integers of the same size"), std::string::npos);
    EXPECT_NE(error(values, ReduceOp::kUser).find("set its function and its name"), std::string::npos);
    call.factor = 0.5;
    EXPECT_NE(error(integers, ReduceOp::kPreMulSum).find("which is no int32"), std::string::npos);
  });
}

}  // namespace
}  // namespace cohort::testing
