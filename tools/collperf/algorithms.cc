#include "tools/collperf/algorithms.h"

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "cohort/comm/algorithm/registry.h"
#include "cohort/comm/communicator.h"
#include "cohort/comm/plan/placement.h"
#include "cohort/comm/plan/plan.h"
#include "cohort/runtime/base/cpu_cache.h"
#include "cohort/runtime/base/status_macros.h"
#include "tools/collperf/buffers.h"
#include "tools/collperf/call.h"
#include "tools/measure/operation.h"
#include "tools/measure/statistics.h"
#include "tools/measure/text.h"
#include "tools/measure/timing.h"
#include "tools/program/program.h"

namespace cohort::collperf {
namespace {

using comm::AlgorithmInfo;
using comm::CollectiveKind;
using measure::Operation;

constexpr int kTurns = 7;
// A point whose ratio is above it counts as a miss.
constexpr double kBound = 1.1;
// How often a miss is measured again, alone with the best, before it counts.
constexpr int kSecondTurns = 15;
// How many algorithms are measured beyond a first turn, besides the chosen one.
constexpr size_t kMostMeasured = 12;
constexpr int kByte = 0x3f;  // of the buffers: in all places a number near 1

double Median(std::vector<double> values) { return measure::Median(values); }

CollectiveKind KindOf(Operation operation) {
  for (int value = 1; value < comm::kCollectiveKinds; ++value) {
    const auto kind = static_cast<CollectiveKind>(value);
    if (comm::Name(kind) == measure::Name(operation)) return kind;
  }
  return CollectiveKind::kBarrier;
}

// Algorithms that run the same plan here, measured as one.
struct Candidate {
  std::vector<const AlgorithmInfo*> algorithms;
  std::string plans;               // of all ranks, for comparison
  std::vector<double> turns = {};  // the median of each, in microseconds
  double median_us = 0;

  bool Has(std::string_view name) const {
    return std::any_of(algorithms.begin(), algorithms.end(), [&](const auto* a) { return a->name == name; });
  }
  std::string Names() const {
    std::string text;
    for (const AlgorithmInfo* algorithm : algorithms) text += (text.empty() ? "" : "|") + std::string(algorithm->name);
    return text;
  }
};

// By how much the chosen one is slower than the best: the median over the turns of the ratio within a turn.
double RatioOf(const std::vector<double>& chosen, const std::vector<double>& best) {
  std::vector<double> ratios;
  for (size_t i = 0; i < chosen.size(); ++i) ratios.push_back(chosen[i] / best[i]);
  return Median(std::move(ratios));
}

std::vector<int> NodesOf(RankSession& session) {
  std::vector<int> nodes;
  for (const int member : session.world().members()) nodes.push_back(session.runtime().node_of(member));
  return nodes;
}

// The points of one operation.
class Grid {
 public:
  Grid(RankSession& session, const Options& options, std::string transport, Operation operation)
      : session_(session),
        world_(session.world()),
        placement_(NodesOf(session)),
        options_(options),
        transport_(std::move(transport)),
        operation_(operation),
        kind_(KindOf(operation)) {}

  // For the largest size.
  absl::Status MakeBuffers() {
    const int64_t bytes = measure::HasBlocks(operation_) ? options_.sizes.back() : 0;
    COHORT_ASSIGN_OR_RETURN(buffers_, Buffers::Make(session_, options_, operation_, bytes));
    const measure::Blocks blocks = measure::BlocksOf(operation_, world_.rank() == 0, world_.size());
    // Not zeros: pages that nobody has written are all one page.
    std::memset(buffers_->in().host, kByte, static_cast<size_t>(bytes * blocks.in));
    std::memset(buffers_->out().host, kByte, static_cast<size_t>(bytes * blocks.out));
    return absl::OkStatus();
  }

  absl::Status Point(int64_t bytes) {
    const std::string name = Explained(bytes, "\n  * ");
    COHORT_ASSIGN_OR_RETURN(std::vector<Candidate> candidates, Candidates(bytes));
    COHORT_RETURN_IF_ERROR(Screen(bytes, name, &candidates));
    for (int turn = 0; turn < (options_.turns > 0 ? options_.turns : kTurns); ++turn) {
      for (Candidate& candidate : candidates) COHORT_RETURN_IF_ERROR(Turn(bytes, candidate, &candidate.turns));
    }
    const Candidate* best = nullptr;
    const Candidate* chosen = nullptr;
    for (Candidate& candidate : candidates) {
      candidate.median_us = Median(candidate.turns);
      if (best == nullptr || candidate.median_us < best->median_us) best = &candidate;
      if (candidate.Has(name)) chosen = &candidate;
    }
    if (chosen == nullptr) return absl::InternalError("Explain names no algorithm that can be forced: " + name);
    const double first = RatioOf(chosen->turns, best->turns);
    double again = first;
    if (first > kBound) {  // the same decision on all ranks, since all know the same medians
      std::vector<double> turns[2];
      for (int turn = 0; turn < kSecondTurns; ++turn) {
        COHORT_RETURN_IF_ERROR(Turn(bytes, *chosen, &turns[0]));
        COHORT_RETURN_IF_ERROR(Turn(bytes, *best, &turns[1]));
      }
      again = RatioOf(turns[0], turns[1]);
    }
    if (world_.rank() == 0) Print(bytes, candidates, *chosen, *best, first, again);
    return absl::OkStatus();
  }

 private:
  // Adds the median of a turn, the slowest rank's time of each call behind the gate; the same number on all ranks.
  absl::Status Turn(int64_t bytes, const Candidate& candidate, std::vector<double>* turns) {
    CallSpec spec{.group = &world_, .operation = operation_};
    spec.options.algorithm = std::string(candidate.algorithms[0]->name);
    spec.count = bytes / static_cast<int64_t>(sizeof(float));
    spec.in = buffers_->in();
    spec.out = buffers_->out();
    const Call call(std::move(spec));
    std::vector<uint64_t> times(bytes <= 4096 ? 40 : bytes <= 65536 ? 15 : bytes <= 1 << 20 ? 5 : 3);
    COHORT_RETURN_IF_ERROR(call.Run(1));
    for (uint64_t& time : times) {
      COHORT_ASSIGN_OR_RETURN(time, measure::TimeOnce(call, {}, session_.gate()));
    }
    COHORT_RETURN_IF_ERROR(session_.gate().Max(times));
    turns->push_back(Median({times.begin(), times.end()}) / 1e6);
    return absl::OkStatus();
  }

  // Returns the text of Explain between `before` and the next blank.
  std::string Explained(int64_t bytes, std::string_view before) {
    const std::string text =
        world_.Explain(kind_, bytes / static_cast<int64_t>(sizeof(float)), comm::DataType::kFloat32);
    const size_t found = text.find(before);
    if (found == std::string::npos) return "";
    const size_t begin = text.find_first_not_of(' ', found + before.size());
    return text.substr(begin, text.find(' ', begin) - begin);
  }

  // The plans of all ranks as text, without the algorithm's name.
  absl::StatusOr<std::string> PlansOf(const AlgorithmInfo& algorithm, int64_t bytes) {
    const std::string listed = Explained(bytes, " " + std::string(algorithm.name) + " ");
    const int pieces = std::max(std::atoi(listed.c_str()), PartsOf(algorithm, world_.size(), placement_.shape()));
    std::string text;
    for (int rank = 0; rank < world_.size(); ++rank) {
      comm::PlanRequest request{.kind = algorithm.kind, .size = world_.size(), .rank = rank};
      if (comm::IsRooted(algorithm.kind)) request.root = 0;
      request.pieces = std::max(1, pieces);
      request.placement = &placement_;
      COHORT_ASSIGN_OR_RETURN(comm::Plan plan, comm::BuildPlan(algorithm, request));
      plan.algorithm.clear();
      text += plan.DebugString();
    }
    return text;
  }

  absl::StatusOr<std::vector<Candidate>> Candidates(int64_t bytes) {
    std::vector<Candidate> candidates;
    for (const AlgorithmInfo& algorithm : comm::AllAlgorithms()) {
      if (algorithm.kind != kind_) continue;
      if (!comm::CheckRequirements(algorithm, world_.size(), placement_.shape()).ok()) continue;
      const bool reaches = placement_.nodes() == 1 && (options_.window || !runtime::Level3IsNear());
      if (algorithm.traits.single_copy && !reaches) continue;
      COHORT_ASSIGN_OR_RETURN(const std::string plans, PlansOf(algorithm, bytes));
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
  absl::Status Screen(int64_t bytes, const std::string& chosen, std::vector<Candidate>* candidates) {
    if (candidates->size() <= kMostMeasured + 1) return absl::OkStatus();
    for (Candidate& candidate : *candidates) {
      std::vector<double> turn = {0};
      if (!candidate.Has(chosen)) COHORT_RETURN_IF_ERROR(Turn(bytes, candidate, &turn));
      candidate.median_us = turn.back();
    }
    std::sort(candidates->begin(), candidates->end(),
              [](const Candidate& a, const Candidate& b) { return a.median_us < b.median_us; });
    candidates->resize(kMostMeasured + 1);
    return absl::OkStatus();
  }

  void Print(int64_t bytes, const std::vector<Candidate>& candidates, const Candidate& chosen, const Candidate& best,
             double first, double again) {
    std::string medians;
    for (const Candidate& candidate : candidates) {
      medians += (medians.empty() ? "" : " ") + candidate.Names() + '=' + measure::Fixed(candidate.median_us, 2);
    }
    std::printf("%s,%s%s,%d,%d,%lld,%s,%.2f,%s,%.2f,%.3f,%.3f,%s\n", std::string(measure::Name(operation_)).c_str(),
                transport_.c_str(), options_.window ? "-window" : "", placement_.nodes(), world_.size(),
                static_cast<long long>(bytes), chosen.Names().c_str(), chosen.median_us, best.Names().c_str(),
                best.median_us, first, again, medians.c_str());
    tools::FlushOutput("collperf");
  }

  RankSession& session_;
  comm::Communicator& world_;
  const comm::Placement placement_;
  const Options& options_;
  const std::string transport_;
  const Operation operation_;
  const CollectiveKind kind_;
  std::optional<Buffers> buffers_;
};

}  // namespace

absl::Status MeasureAlgorithms(RankSession& session, const Options& options, const std::string& transport) {
  if (session.rank() == 0) {
    if (runtime::Level3IsNear()) std::printf("# near caches\n");
    std::printf("op,transport,nodes,ranks,bytes,chosen,chosen_us,best,best_us,ratio,again,medians\n");
  }
  for (const Operation operation : options.operations) {
    if (operation == Operation::kSendRecv) continue;  // it has no algorithms
    Grid grid(session, options, transport, operation);
    COHORT_RETURN_IF_ERROR(grid.MakeBuffers());
    for (const int64_t bytes : measure::HasBlocks(operation) ? options.sizes : std::vector<int64_t>{0})
      COHORT_RETURN_IF_ERROR(grid.Point(bytes));
  }
  return absl::OkStatus();
}

}  // namespace cohort::collperf
