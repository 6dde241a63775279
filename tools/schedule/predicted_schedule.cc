#include "tools/schedule/predicted_schedule.h"

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "cohort/runtime/base/status_macros.h"
#include "tools/prediction/prediction_trace.h"

namespace cohort::tools {
namespace {

using trainer::Action;
using trainer::ActionKind;
using trainer::Schedule;
using trainer::Span;
using trainer::Timing;

constexpr uint64_t kUnitNs = 1000;

// A pass, by its place in the schedule.
struct Pass {
  size_t rank = 0;
  size_t place = 0;
};
using PassKey = std::tuple<bool, int, int>;  // forward, stage, micro-batch

bool GivesToNeighbour(ActionKind kind) { return IsCompute(kind) && kind != ActionKind::kWeightGradient; }

PassKey KeyOf(const Action& pass) { return {pass.kind == ActionKind::kForward, pass.stage, pass.micro_batch}; }

// The pass of the neighbouring stage that it needs. It may not exist.
PassKey NeedOf(const Action& pass) {
  const bool forward = pass.kind == ActionKind::kForward;
  return {forward, pass.stage + (forward ? -1 : 1), pass.micro_batch};
}

std::map<PassKey, Pass> FindPasses(const Schedule& schedule) {
  std::map<PassKey, Pass> passes;
  for (size_t rank = 0; rank < schedule.by_rank.size(); ++rank) {
    for (size_t i = 0; i < schedule.by_rank[rank].size(); ++i) {
      const Action& action = schedule.by_rank[rank][i];
      if (GivesToNeighbour(action.kind)) passes[KeyOf(action)] = {rank, i};
    }
  }
  return passes;
}

const char* KindText(ActionKind kind) {
  switch (kind) {
    case ActionKind::kForward:
      return "forward pass";
    case ActionKind::kBackward:
      return "backward pass";
    case ActionKind::kInputGradient:
      return "backward pass: gradient of the input";
    case ActionKind::kWeightGradient:
      return "backward pass: gradients of the weights";
    default:
      return "message";
  }
}

class Writer {
 public:
  Writer(const Schedule& schedule, const Timing& timing, PredictionTrace* trace)
      : schedule_(schedule), timing_(timing), trace_(*trace), passes_(FindPasses(schedule)) {}

  void Write() {
    FindArrows();
    for (size_t rank = 0; rank < schedule_.by_rank.size(); ++rank) {
      for (size_t i = 0; i < schedule_.by_rank[rank].size(); ++i) WriteAction(rank, i);
    }
  }

 private:
  const Span& SpanOf(const Pass& pass) const { return timing_.by_rank[pass.rank][pass.place]; }

  // To passes before which their rank had nothing to do.
  void FindArrows() {
    for (size_t rank = 0; rank < schedule_.by_rank.size(); ++rank) {
      int64_t idle_from = 0;
      for (size_t i = 0; i < schedule_.by_rank[rank].size(); ++i) {
        const Action& action = schedule_.by_rank[rank][i];
        const Span& span = timing_.by_rank[rank][i];
        if (!IsCompute(action.kind)) continue;
        const bool waited = span.begin > idle_from;
        idle_from = span.end;
        const auto need = passes_.find(NeedOf(action));
        if (!waited || !GivesToNeighbour(action.kind) || need == passes_.end() || need->second.rank == rank) continue;
        const uint64_t flow = trace_.NewFlow();
        begins_[{need->second.rank, need->second.place}].push_back(flow);
        ends_[{rank, i}] = flow;
      }
    }
  }
  void WriteAction(size_t rank, size_t place) {
    const Action& action = schedule_.by_rank[rank][place];
    const Span& span = timing_.by_rank[rank][place];
    if (!IsCompute(action.kind) && span.begin == span.end) return;  // it takes no time of the rank
    PredictionTrace::Details details{.texts = {{"pass", KindText(action.kind)}},
                                     .numbers = {{"stage", static_cast<uint64_t>(action.stage)},
                                                 {"micro-batch", static_cast<uint64_t>(action.micro_batch)}}};
    if (const auto at = begins_.find({rank, place}); at != begins_.end()) details.flows = at->second;
    const auto end = ends_.find({rank, place});
    const auto own = static_cast<int>(rank);
    trace_.BeginSlice(own, LineOf(action), static_cast<uint64_t>(span.begin) * kUnitNs, ToString(action), details);
    trace_.EndSlice(own, LineOf(action), static_cast<uint64_t>(span.end) * kUnitNs,
                    end == ends_.end() ? 0 : end->second);
  }
  // The messages of a turn have the same time.
  static size_t LineOf(const Action& action) {
    if (IsCompute(action.kind)) return 0;
    return 1 + static_cast<size_t>(action.kind) - static_cast<size_t>(ActionKind::kSendForward);
  }

  const Schedule& schedule_;
  const Timing& timing_;
  PredictionTrace& trace_;
  const std::map<PassKey, Pass> passes_;
  std::map<std::pair<size_t, size_t>, std::vector<uint64_t>> begins_;  // arrows, by rank and place
  std::map<std::pair<size_t, size_t>, uint64_t> ends_;
};

}  // namespace

absl::StatusOr<std::string> TraceSchedule(const std::string& path, const Schedule& schedule, const Timing& timing) {
  const auto is_like = [](const runtime::PerfettoReader::Event& event) { return event.name == "0F0"; };
  COHORT_ASSIGN_OR_RETURN(PredictionTrace trace, PredictionTrace::Open(path, schedule.name, is_like));
  for (int rank = 0; rank < schedule.ranks; ++rank) trace.PutInGroup(rank, "pipeline");
  Writer(schedule, timing, &trace).Write();
  COHORT_RETURN_IF_ERROR(trace.Write());
  return trace.place();
}

}  // namespace cohort::tools
