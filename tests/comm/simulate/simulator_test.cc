// The simulator: closed formulas where they are exact, and shortcuts that change nothing.
#include "cohort/comm/simulate/simulator.h"

#include <algorithm>
#include <map>
#include <string>
#include <tuple>
#include <utility>

#include "cohort/comm/select/selector.h"
#include "cohort/comm/simulate/program.h"
#include "gtest/gtest.h"

namespace cohort::comm {
namespace {

const AlgorithmInfo& Algorithm(CollectiveKind kind, const char* name) {
  const AlgorithmInfo* algorithm = FindAlgorithm(kind, name);
  EXPECT_NE(algorithm, nullptr) << name;
  return *algorithm;
}

Network Parsed(const std::string& text) {
  const auto network = Network::Parse(text);
  EXPECT_TRUE(network.ok()) << network.status();
  return *network;
}

double Microseconds(const AlgorithmInfo& algorithm, int64_t bytes, const Network& network,
                    const SimulateOptions& options = {}) {
  const auto report = Simulate(algorithm, bytes, network, options);
  EXPECT_TRUE(report.ok()) << algorithm.name << ": " << report.status();
  return report.ok() ? report->microseconds : -1;
}

// rounds x alpha + bytes one after another + bytes combined one after another: what the cost of an algorithm says where
// every rank has a host of its own and messages of one round cost nothing extra.
double Formula(const AlgorithmInfo& algorithm, int64_t bytes, int32_t pieces, const Network& network) {
  const AlgorithmCost cost =
      algorithm.cost({.size = static_cast<int>(network.ranks()), .pieces = pieces, .fanout = false});
  const double chunk = static_cast<double>(bytes) / pieces * 1e-3;
  return static_cast<double>(cost.rounds) * network.remote.alpha_us +
         static_cast<double>(cost.critical) * chunk / network.remote.gigabytes_s +
         static_cast<double>(cost.reduced) * chunk / network.reduce_gigabytes_s;
}

Network OneSwitch(int64_t ranks) {
  const std::string size = std::to_string(ranks);
  return Parsed("flat:remote-message-us=0,remote-gigabytes-s=8,nic-gigabytes-s=8,nodes-per-leaf=" + size +
                ",nodes=" + size);
}

void ExpectFormula(const AlgorithmInfo& algorithm, int64_t ranks, int32_t pieces) {
  for (const int64_t bytes : {int64_t{0}, int64_t{1000}, int64_t{1} << 24}) {
    const double formula = Formula(algorithm, bytes, pieces, OneSwitch(ranks));
    EXPECT_NEAR(Microseconds(algorithm, bytes, OneSwitch(ranks), {.pieces = pieces}), formula, 1e-6 * formula)
        << Name(algorithm.kind) << " " << algorithm.name << " " << ranks << " ranks, " << bytes << " bytes";
  }
}

TEST(SimulatorTest, AgreesWithTheFormulasThatAreExact) {
  for (const int ranks : {2, 3, 5, 8, 17, 64, 100}) {
    ExpectFormula(Algorithm(CollectiveKind::kAllReduce, "ring"), ranks, ranks);
    ExpectFormula(Algorithm(CollectiveKind::kAllGather, "ring"), ranks, 1);
    ExpectFormula(Algorithm(CollectiveKind::kReduceScatter, "ring"), ranks, 1);
    ExpectFormula(Algorithm(CollectiveKind::kBroadcast, "chain"), ranks, 7);
    ExpectFormula(Algorithm(CollectiveKind::kBarrier, "dissemination"), ranks, 1);
    ExpectFormula(Algorithm(CollectiveKind::kAllReduce, "circulant"), ranks, ranks);
    ExpectFormula(Algorithm(CollectiveKind::kAllGather, "circulant"), ranks, 1);
    ExpectFormula(Algorithm(CollectiveKind::kReduceScatter, "circulant"), ranks, 1);
  }
  for (const int ranks : {2, 4, 16, 128}) {
    ExpectFormula(Algorithm(CollectiveKind::kAllReduce, "recursive_doubling"), ranks, 1);
    ExpectFormula(Algorithm(CollectiveKind::kAllReduce, "rabenseifner"), ranks, ranks);
    ExpectFormula(Algorithm(CollectiveKind::kAllReduce, "binomial"), ranks, 1);
    ExpectFormula(Algorithm(CollectiveKind::kBroadcast, "binomial"), ranks, 1);
    ExpectFormula(Algorithm(CollectiveKind::kReduce, "binomial"), ranks, 1);
  }
}

TEST(SimulatorTest, LargeRingTreeAndCirculantAgreeWithTheFormulas) {
  // By images of one leaf switch's ranks.
  const AlgorithmInfo& ring = Algorithm(CollectiveKind::kAllReduce, "ring");
  const Network network = Parsed("flat:remote-message-us=0,nodes-per-leaf=32,nodes=65536");
  for (const int64_t bytes : {int64_t{0}, int64_t{1} << 30}) {
    const double formula = Formula(ring, bytes, 65536, network);
    EXPECT_NEAR(Microseconds(ring, bytes, network), formula, 1e-6 * formula);
  }
  ExpectFormula(Algorithm(CollectiveKind::kAllReduce, "binomial"), 4096, 1);
  for (const int ranks : {1000, 2048}) {
    ExpectFormula(Algorithm(CollectiveKind::kAllReduce, "circulant"), ranks, ranks);
  }
}

// Images of ranks, and stretches skipped at a steady pace, against every event one by one.
TEST(SimulatorTest, ShortcutsChangeNothing) {
  int64_t skipped = 0;
  for (const char* network :
       {"fat-tree:nodes=32,ranks-per-node=4,nodes-per-leaf=8,oversubscription=4",
        "fat-tree:nodes=24,ranks-per-node=3,nodes-per-leaf=4,oversubscription=1.5",
        "fat-tree:nodes=12,ranks-per-node=16,nodes-per-leaf=3,oversubscription=7", "gpu:nodes=16,nodes-per-leaf=4",
        "ethernet:nodes=200,nodes-per-leaf=10,oversubscription=3", "flat:nodes=300,nodes-per-leaf=300",
        "host:ranks-per-node=150"}) {
    for (const AlgorithmInfo& algorithm : Algorithms()) {
      if (!algorithm.traits.rotation) continue;
      for (const int64_t bytes : {int64_t{64}, int64_t{1} << 20, int64_t{1} << 28}) {
        const auto fast = Simulate(algorithm, bytes, Parsed(network));
        const auto slow = Simulate(algorithm, bytes, Parsed(network), {.shortcuts = false});
        ASSERT_TRUE(fast.ok() && slow.ok()) << fast.status() << slow.status();
        const std::string which = std::string(algorithm.name) + " on " + network + ", " + std::to_string(bytes);
        EXPECT_EQ(fast->microseconds, slow->microseconds) << which;
        EXPECT_EQ(fast->messages, slow->messages) << which;
        EXPECT_NEAR(fast->wire_bytes, slow->wire_bytes, 1e-9 * slow->wire_bytes) << which;
        EXPECT_NEAR(fast->core_bytes, slow->core_bytes, 1e-9 * slow->core_bytes) << which;
        EXPECT_NEAR(fast->uplink_busy, slow->uplink_busy, 1e-9) << which;
        EXPECT_EQ(slow->ranks_timed, Parsed(network).ranks());
        skipped += slow->events - fast->events;
      }
    }
  }
  EXPECT_GT(skipped, 0);  // else this test compares nothing
}

TEST(SimulatorTest, AlgorithmsWithTheRotationTraitHaveEqualPrograms) {
  for (const AlgorithmInfo& algorithm : Algorithms()) {
    if (!algorithm.traits.rotation) continue;
    for (const int size : {1, 2, 3, 7, 16, 33}) {
      for (const int32_t times : {1, 3}) {
        const int32_t pieces = times * PartsOf(algorithm, size);
        std::vector<Program> first;
        for (int rank = 0; rank < size; ++rank) {
          const auto plan = BuildPlan(algorithm, {algorithm.kind, size, rank, -1, false, pieces});
          ASSERT_TRUE(plan.ok()) << plan.status();
          if (rank == 0) first = ProgramsOf(*plan);
          ASSERT_EQ(ProgramsOf(*plan), first) << Name(algorithm.kind) << " " << algorithm.name << " rank " << rank;
        }
      }
    }
  }
}

// Every message is sent before it is there, the steps of a lane follow each other, and the last one ends with the call.
TEST(SimulatorTest, TellsOfEveryStep) {
  using Kind = SimulatedStep::Kind;
  for (const char* network : {"host:ranks-per-node=6", "flat:nodes=6", "fat-tree:nodes=4,ranks-per-node=2"}) {
    for (const char* name : {"ring", "flat", "recursive_doubling", "direct"}) {
      SCOPED_TRACE(std::string(name) + " on " + network);
      std::map<std::tuple<size_t, int64_t, int64_t, int64_t>, int64_t> sent;  // lane, from, number, to: when
      std::map<std::pair<int64_t, size_t>, int64_t> ends;
      int64_t received = 0, last = 0;
      SimulateOptions options;
      options.on_step = [&](const SimulatedStep& step) {
        int64_t& end = ends[{step.rank, step.lane}];
        EXPECT_GE(step.begin, end);
        EXPECT_GE(step.end, step.begin);
        end = step.end;
        last = std::max(last, end);
        if (step.kind == Kind::kSend) sent[{step.lane, step.rank, step.number, step.peer}] = step.end;
        if (step.kind != Kind::kReceive) return;
        ++received;
        auto from = sent.find({step.lane, step.peer, step.number, step.rank});
        if (from == sent.end()) from = sent.find({step.lane, step.peer, step.number, -1});  // a publish
        ASSERT_NE(from, sent.end());
        EXPECT_LE(from->second, step.end);
      };
      const AlgorithmInfo& algorithm = Algorithm(CollectiveKind::kAllReduce, name);
      const auto report = Simulate(algorithm, 4096, Parsed(network), options);
      ASSERT_TRUE(report.ok()) << report.status();
      EXPECT_EQ(static_cast<double>(last) / 1e9, report->microseconds);
      EXPECT_GE(received, report->messages);
      EXPECT_EQ(report->ranks_timed, Parsed(network).ranks());
      EXPECT_EQ(report->microseconds, Microseconds(algorithm, 4096, Parsed(network)));
    }
  }
}

TEST(SimulatorTest, ContentionTakesTime) {
  const AlgorithmInfo& doubling = Algorithm(CollectiveKind::kAllReduce, "recursive_doubling");
  const AlgorithmInfo& ring = Algorithm(CollectiveKind::kAllReduce, "ring");
  const auto time = [](const AlgorithmInfo& algorithm, const char* network) {
    return Microseconds(algorithm, 1 << 22, Parsed(network));
  };
  // Eight ranks share a NIC, and their leaf's uplinks.
  const double free = time(doubling, "fat-tree:nodes=16,ranks-per-node=8,nodes-per-leaf=4,nic-gigabytes-s=100");
  const double nic = time(doubling, "fat-tree:nodes=16,ranks-per-node=8,nodes-per-leaf=4");
  const double core = time(doubling, "fat-tree:nodes=16,ranks-per-node=8,nodes-per-leaf=4,oversubscription=4");
  EXPECT_GT(nic, 2 * free);
  EXPECT_GT(core, 1.5 * nic);
  // A ring leaves each host and each leaf once: it need not mind either, unless ranks are dealt out in turn.
  const double ring_free = time(ring, "fat-tree:nodes=16,ranks-per-node=8,nodes-per-leaf=4,nic-gigabytes-s=100");
  const double ring_core = time(ring, "fat-tree:nodes=16,ranks-per-node=8,nodes-per-leaf=4,oversubscription=4");
  EXPECT_LT(ring_core, 1.01 * ring_free);
  EXPECT_GT(time(ring, "fat-tree:nodes=16,ranks-per-node=8,nodes-per-leaf=4,placement=cyclic"), 2 * ring_core);
}

TEST(SimulatorTest, EveryAlgorithmRunsToItsEnd) {
  for (const AlgorithmInfo& algorithm : Algorithms()) {
    for (const char* text : {"host:ranks-per-node=6", "fat-tree:nodes=3,ranks-per-node=2,nodes-per-leaf=2"}) {
      const Network network = Parsed(text);
      if (!CheckRequirements(algorithm, static_cast<int>(network.ranks())).ok()) continue;
      EXPECT_GT(Microseconds(algorithm, 4096, network, {.root = 2}), 0)
          << Name(algorithm.kind) << " " << algorithm.name;
    }
  }
}

TEST(SimulatorTest, RefusesSimulationsThatAreTooLarge) {
  const auto report =
      Simulate(Algorithm(CollectiveKind::kAllToAll, "flat"), 8, Parsed("flat:nodes=1000"), {.most_operations = 100000});
  EXPECT_EQ(report.status().code(), absl::StatusCode::kResourceExhausted);
}

}  // namespace
}  // namespace cohort::comm
