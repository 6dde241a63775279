#include "tools/plan/predicted_call.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <map>
#include <tuple>

#include "cohort/runtime/base/status_macros.h"
#include "cohort/runtime/perfetto/trace_words.h"

namespace cohort::tools {
namespace {

using runtime::TraceWords;

using comm::SimulatedStep;
using Kind = SimulatedStep::Kind;

constexpr int64_t kMostTracedRanks = 16384;

uint64_t Nanoseconds(int64_t femtoseconds) { return static_cast<uint64_t>(femtoseconds) / 1'000'000; }

// The arrows to receives that wait, by receive and by the send they come from.
class Arrows {
 public:
  Arrows(const std::vector<SimulatedStep>& steps, PredictionTrace* trace) {
    for (size_t i = 0; i < steps.size(); ++i) {
      const SimulatedStep& step = steps[i];
      if (step.kind != Kind::kReceive || Nanoseconds(step.end) == Nanoseconds(step.begin)) continue;
      const uint64_t flow = trace->NewFlow();
      to_[i] = flow;
      from_[{step.lane, step.peer, step.number, step.rank}].push_back(flow);
    }
  }
  uint64_t To(size_t receive) const {
    const auto at = to_.find(receive);
    return at == to_.end() ? 0 : at->second;
  }
  // A publish goes to all ranks.
  std::vector<uint64_t> From(const SimulatedStep& send, int64_t ranks) const {
    std::vector<uint64_t> flows;
    const int64_t first = send.peer < 0 ? 0 : send.peer;
    const int64_t end = send.peer < 0 ? ranks : send.peer + 1;
    for (int64_t reader = first; reader < end; ++reader) {
      const auto at = from_.find({send.lane, send.rank, send.number, reader});
      if (at != from_.end()) flows.insert(flows.end(), at->second.begin(), at->second.end());
    }
    return flows;
  }

 private:
  std::map<size_t, uint64_t> to_;
  std::map<std::tuple<size_t, int64_t, int64_t, int64_t>, std::vector<uint64_t>> from_;  // lane, sender, number, reader
};

std::string NameOf(const SimulatedStep& step) {
  switch (step.kind) {
    case Kind::kSend:
      return step.peer < 0 ? "publish" : "send";
    case Kind::kReceive:
      return "recv";
    case Kind::kReduce:
      return "reduce";
  }
  return "?";
}

}  // namespace

absl::StatusOr<PredictedCall> PredictedCall::Open(const std::string& path, const comm::AlgorithmInfo& algorithm,
                                                  int64_t bytes, const comm::Network& network) {
  if (network.ranks() > kMostTracedRanks) {
    return absl::InvalidArgumentError("a trace has at most " + std::to_string(kMostTracedRanks) +
                                      " ranks, and the network " + std::to_string(network.ranks()));
  }
  const std::string kind(comm::Name(algorithm.kind));
  // A run's call has the bytes of its larger buffer: a block, or one for each rank.
  const auto fits = [&](const std::string& text) {
    const int64_t moved = std::strtoll(text.c_str(), nullptr, 10);
    return moved == bytes || (moved % network.ranks() == 0 && moved / network.ranks() == bytes);
  };
  COHORT_ASSIGN_OR_RETURN(PredictionTrace trace,
                          PredictionTrace::Open(path, kind + " " + std::string(algorithm.name),
                                                [&](const runtime::PerfettoReader::Event& event) {
                                                  const auto moved = event.arguments.find(TraceWords::kBytes);
                                                  return event.name == kind && moved != event.arguments.end() &&
                                                         fits(moved->second);
                                                }));
  for (int64_t rank = 0; rank < network.ranks(); ++rank) {
    trace.PutInGroup(static_cast<int>(rank), "node" + std::to_string(network.NodeOf(rank)));
  }
  return PredictedCall(std::move(trace), algorithm, bytes, network.ranks());
}

absl::Status PredictedCall::Write() {
  const Arrows arrows(steps_, &trace_);
  std::vector<int64_t> ends(static_cast<size_t>(ranks_), 0);
  for (int64_t rank = 0; rank < ranks_; ++rank) {
    trace_.BeginSlice(static_cast<int>(rank), 0, 0, std::string(comm::Name(algorithm_->kind)),
                      {.texts = {{TraceWords::kAlgorithm, std::string(algorithm_->name)}},
                       .numbers = {{TraceWords::kBytes, static_cast<uint64_t>(bytes_)},
                                   {TraceWords::kGroupSize, static_cast<uint64_t>(ranks_)}}});
  }
  for (size_t i = 0; i < steps_.size(); ++i) {
    const SimulatedStep& step = steps_[i];
    int64_t& end = ends[static_cast<size_t>(step.rank)];
    end = std::max(end, step.end);
    PredictionTrace::Details details{
        .texts = {}, .numbers = {{TraceWords::kBytes, static_cast<uint64_t>(std::llround(step.bytes))}}};
    if (step.peer >= 0) details.numbers.emplace_back(TraceWords::kOtherRank, static_cast<uint64_t>(step.peer));
    if (step.kind == Kind::kSend) details.flows = arrows.From(step, ranks_);
    const auto rank = static_cast<int>(step.rank);
    trace_.BeginSlice(rank, step.lane, Nanoseconds(step.begin), NameOf(step), details);
    trace_.EndSlice(rank, step.lane, Nanoseconds(step.end), arrows.To(i));
  }
  for (int64_t rank = 0; rank < ranks_; ++rank) {
    trace_.EndSlice(static_cast<int>(rank), 0, Nanoseconds(ends[static_cast<size_t>(rank)]));
  }
  return trace_.Write();
}

}  // namespace cohort::tools
