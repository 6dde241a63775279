// Times every algorithm at every point of a grid of operations and sizes, in turn; runs as a rank of a dlaunch job.
// Rank 0 prints a line of CSV for each point: the selector's choice, the best, and all medians.
//
// Algorithms that run the same plan count as one ("flat|chain"). Groups of hosts with several ranks may offer many
// compositions. A first turn of all then leaves the best for the others. `ratio` compares chosen and best within each
// turn and is the median over the turns. The least of several noisy medians is too small by chance. If the choice seems
// to miss, the two are therefore measured again alone, turn by turn. `again` is that result; it equals `ratio` if it
// was not needed.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cohort/comm/algorithm/registry.h"
#include "cohort/comm/communicator.h"
#include "cohort/comm/plan/placement.h"
#include "cohort/comm/plan/plan.h"
#include "cohort/runtime/base/cpu_cache.h"
#include "cohort/runtime/runtime.h"
#include "tools/collperf/buffers.h"
#include "tools/collperf/call.h"
#include "tools/collperf/options.h"
#include "tools/collperf/session.h"
#include "tools/measure/operation.h"
#include "tools/measure/statistics.h"
#include "tools/measure/timing.h"
#include "tools/program/program.h"

namespace cohort::bench {
namespace {

using comm::AlgorithmInfo;
using comm::CollectiveKind;
using comm::Communicator;

struct Options {
  std::string transport = "shm";  // a label
  std::vector<int64_t> sizes;
  std::vector<std::string> operations;  // empty: all
  int rounds = 7;
  bool window = false;
};

// A point whose ratio is above it counts as a miss.
constexpr double kBound = 1.1;
// How often a miss is measured again, alone with the best, before it counts.
constexpr int kSecondRounds = 15;
// How many algorithms are measured beyond a first turn, besides the chosen one.
constexpr size_t kMostMeasured = 12;
constexpr int kByte = 0x3f;  // of the buffers: in all places a number near 1

void Require(const absl::Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "tuner_grid: %s\n", std::string(status.message()).c_str());
  std::exit(1);
}

double Median(std::vector<double> values) { return measure::Median(values); }

measure::Operation OperationOf(CollectiveKind kind) {
  measure::Operation operation{};
  (void)measure::ParseOperation(comm::Name(kind), &operation);
  return operation;
}

class Grid {
 public:
  Grid(collperf::Session& session, const comm::Placement& placement, const Options& options)
      : session_(session), world_(session.world()), placement_(placement), options_(options) {}

  void Run() {
    if (world_.rank() == 0) {
      std::printf("op,transport,nodes,ranks,bytes,chosen,chosen_us,best,best_us,ratio,again,medians\n");
    }
    for (int value = 1; value <= static_cast<int>(CollectiveKind::kBarrier); ++value) {
      const auto kind = static_cast<CollectiveKind>(value);
      const auto& names = options_.operations;
      if (!names.empty() && std::find(names.begin(), names.end(), comm::Name(kind)) == names.end()) continue;
      MakeBuffers(kind);
      for (const int64_t bytes : options_.sizes) {
        Point(kind, bytes);
        if (kind == CollectiveKind::kBarrier) break;
      }
    }
  }

 private:
  // Algorithms that run the same plan here, measured as one.
  struct Candidate {
    std::vector<const AlgorithmInfo*> algorithms;
    std::string plans;                // of all ranks, for comparison
    std::vector<double> rounds = {};  // the median of each, in microseconds
    double median_us = 0;

    bool Has(std::string_view name) const {
      return std::any_of(algorithms.begin(), algorithms.end(), [&](const auto* a) { return a->name == name; });
    }
  };

  // For the largest size.
  void MakeBuffers(CollectiveKind kind) {
    const measure::Operation operation = OperationOf(kind);
    const int64_t bytes =
        kind == CollectiveKind::kBarrier ? 0 : *std::max_element(options_.sizes.begin(), options_.sizes.end());
    collperf::Options options;
    options.window = options_.window;
    buffers_.reset();
    auto made = collperf::Buffers::Make(session_, options, operation, bytes);
    Require(made.status());
    buffers_ = *std::move(made);
    const measure::Blocks blocks = measure::BlocksOf(operation, world_.rank() == 0, world_.size());
    // Not zeros: pages that nobody has written are all one page.
    std::memset(buffers_->in().host, kByte, static_cast<size_t>(bytes * blocks.in));
    std::memset(buffers_->out().host, kByte, static_cast<size_t>(bytes * blocks.out));
  }

  // The median of a turn, the slowest rank's time of each call behind the gate; the same number on all ranks.
  double Turn(CollectiveKind kind, int64_t bytes, const Candidate& candidate) {
    collperf::CallSpec spec{.group = &world_, .operation = OperationOf(kind)};
    spec.options.algorithm = std::string(candidate.algorithms[0]->name);
    spec.count = bytes / static_cast<int64_t>(sizeof(float));
    spec.in = buffers_->in();
    spec.out = buffers_->out();
    const collperf::Call call(std::move(spec));
    std::vector<uint64_t> times(bytes <= 4096 ? 40 : bytes <= 65536 ? 15 : bytes <= 1 << 20 ? 5 : 3);
    Require(call.Run(1));
    for (uint64_t& time : times) {
      const absl::StatusOr<uint64_t> sample = measure::TimeOnce(call, {}, session_.gate());
      Require(sample.status());
      time = *sample;
    }
    Require(session_.gate().Max(times));
    return Median({times.begin(), times.end()}) / 1e6;
  }

  // Returns the text of Explain between `before` and the next blank.
  std::string Explained(CollectiveKind kind, int64_t bytes, std::string_view before) {
    const std::string text =
        world_.Explain(kind, bytes / static_cast<int64_t>(sizeof(float)), comm::DataType::kFloat32);
    const size_t found = text.find(before);
    if (found == std::string::npos) return "";
    const size_t begin = text.find_first_not_of(' ', found + before.size());
    return text.substr(begin, text.find(' ', begin) - begin);
  }

  // The plans of all ranks as text, without the algorithm's name.
  std::string PlansOf(const AlgorithmInfo& algorithm, int64_t bytes) {
    const std::string listed = Explained(algorithm.kind, bytes, " " + std::string(algorithm.name) + " ");
    const int pieces = std::max(std::atoi(listed.c_str()), PartsOf(algorithm, world_.size(), placement_.shape()));
    std::string text;
    for (int rank = 0; rank < world_.size(); ++rank) {
      comm::PlanRequest request{.kind = algorithm.kind, .size = world_.size(), .rank = rank};
      if (comm::HasRoot(algorithm.kind)) request.root = 0;
      request.pieces = std::max(1, pieces);
      request.placement = &placement_;
      absl::StatusOr<comm::Plan> plan = comm::BuildPlan(algorithm, request);
      Require(plan.status());
      plan->algorithm.clear();
      text += plan->DebugString();
    }
    return text;
  }

  std::vector<Candidate> Candidates(CollectiveKind kind, int64_t bytes) {
    std::vector<Candidate> candidates;
    for (const AlgorithmInfo& algorithm : comm::AllAlgorithms()) {
      if (algorithm.kind != kind || !comm::CheckRequirements(algorithm, world_.size(), placement_.shape()).ok())
        continue;
      const bool reaches = placement_.nodes() == 1 && (options_.window || !runtime::Level3IsNear());
      if (algorithm.traits.single_copy && !reaches) continue;
      const std::string plans = PlansOf(algorithm, bytes);
      const auto same =
          std::find_if(candidates.begin(), candidates.end(), [&](const Candidate& c) { return c.plans == plans; });
      if (same != candidates.end()) {
        same->algorithms.push_back(&algorithm);
      } else {
        candidates.push_back({.algorithms = {&algorithm}, .plans = plans});
      }
    }
    return candidates;
  }

  // Leaves those that took the least in a turn, and the chosen one.
  void Screen(CollectiveKind kind, int64_t bytes, const std::string& chosen, std::vector<Candidate>* candidates) {
    if (candidates->size() <= kMostMeasured + 1) return;
    for (Candidate& candidate : *candidates) {
      candidate.median_us = candidate.Has(chosen) ? 0 : Turn(kind, bytes, candidate);
    }
    std::sort(candidates->begin(), candidates->end(),
              [](const Candidate& a, const Candidate& b) { return a.median_us < b.median_us; });
    candidates->resize(kMostMeasured + 1);
  }

  // By how much the chosen one is slower than the best: the median over the turns of the ratio within a turn.
  static double Ratio(const std::vector<double>& chosen, const std::vector<double>& best) {
    std::vector<double> ratios;
    for (size_t i = 0; i < chosen.size(); ++i) ratios.push_back(chosen[i] / best[i]);
    return Median(std::move(ratios));
  }

  void Point(CollectiveKind kind, int64_t bytes) {
    const std::string name = Explained(kind, bytes, "\n  * ");
    std::vector<Candidate> candidates = Candidates(kind, bytes);
    Screen(kind, bytes, name, &candidates);
    for (int round = 0; round < options_.rounds; ++round) {
      for (Candidate& candidate : candidates) candidate.rounds.push_back(Turn(kind, bytes, candidate));
    }
    const Candidate* best = nullptr;
    const Candidate* chosen = nullptr;
    for (Candidate& candidate : candidates) {
      candidate.median_us = Median(candidate.rounds);
      if (best == nullptr || candidate.median_us < best->median_us) best = &candidate;
      if (candidate.Has(name)) chosen = &candidate;
    }
    if (chosen == nullptr) Require(absl::InternalError("Explain names no algorithm that can be forced: " + name));
    const double first = Ratio(chosen->rounds, best->rounds);
    double again = first;
    if (first > kBound) {  // the same decision on all ranks, since all know the same medians
      std::vector<double> rounds[2];
      for (int round = 0; round < kSecondRounds; ++round) {
        rounds[0].push_back(Turn(kind, bytes, *chosen));
        rounds[1].push_back(Turn(kind, bytes, *best));
      }
      again = Ratio(rounds[0], rounds[1]);
    }
    if (world_.rank() == 0) Print(kind, bytes, candidates, *chosen, *best, first, again);
  }

  void Print(CollectiveKind kind, int64_t bytes, const std::vector<Candidate>& candidates, const Candidate& chosen,
             const Candidate& best, double first, double again) {
    const auto name = [](const Candidate& candidate) {
      std::string text;
      for (const AlgorithmInfo* algorithm : candidate.algorithms) {
        text += (text.empty() ? "" : "|") + std::string(algorithm->name);
      }
      return text;
    };
    std::string medians;
    for (const Candidate& candidate : candidates) {
      char text[32];
      std::snprintf(text, sizeof text, "=%.2f", candidate.median_us);
      medians += (medians.empty() ? "" : " ") + name(candidate) + text;
    }
    std::printf("%s,%s%s,%d,%d,%lld,%s,%.2f,%s,%.2f,%.3f,%.3f,%s\n", std::string(comm::Name(kind)).c_str(),
                options_.transport.c_str(), options_.window ? "-window" : "", placement_.nodes(), world_.size(),
                static_cast<long long>(kind == CollectiveKind::kBarrier ? 0 : bytes), name(chosen).c_str(),
                chosen.median_us, name(best).c_str(), best.median_us, first, again, medians.c_str());
    std::fflush(stdout);
  }

  collperf::Session& session_;
  Communicator& world_;
  const comm::Placement placement_;
  const Options& options_;
  std::optional<collperf::Buffers> buffers_;  // of the operation that is measured
};

int Main(int argc, char** argv) {
  CLI::App app("Times every algorithm on a grid of operations and sizes; a rank of a dlaunch job.");
  Options options;
  bool brief = false;
  bool calibrate = false;
  app.add_option("--transport", options.transport, "label for the lines");
  app.add_option("--sizes", options.sizes, "bytes of the block")->check(CLI::Range(4, 1 << 28));
  app.add_option("--rounds", options.rounds, "turns of each algorithm")->check(CLI::Range(1, 1000));
  app.add_option("--ops", options.operations, "operations, such as all_reduce; all unless given");
  app.add_flag("--window", options.window, "buffers in window memory");
  app.add_flag("--short", brief, "few sizes and turns");
  app.add_flag("--calibrate", calibrate, "use the table of a calibration run, and print it first");
  if (const std::optional<int> status = tools::ParseCommandLine(app, argc, argv)) return *status;
  if (options.sizes.empty()) {
    options.sizes = brief ? std::vector<int64_t>{8, 4096, 262144}
                          : std::vector<int64_t>{8, 512, 4096, 16384, 65536, 262144, 1 << 20, 4 << 20};
  }
  if (brief) options.rounds = std::min(options.rounds, 3);
  const auto session = collperf::Session::Start("");
  Require(session.status());
  Communicator& world = (*session)->world();
  if (world.rank() == 0 && runtime::Level3IsNear()) std::printf("# near caches\n");
  if (calibrate) {
    const absl::StatusOr<std::string> table = comm::Calibrate(world);
    Require(table.status());
    if (world.rank() == 0) std::printf("# %s\n", table->c_str());
  }
  std::vector<int> nodes;
  for (const int member : world.members()) nodes.push_back((*session)->runtime().node_of(member));
  Grid(**session, comm::Placement(nodes), options).Run();
  Require((*session)->Finish());
  return 0;
}

}  // namespace
}  // namespace cohort::bench

int main(int argc, char** argv) {
  return cohort::tools::RunProgram("tuner_grid", [=] { return cohort::bench::Main(argc, argv); });
}
