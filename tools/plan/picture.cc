#include "tools/plan/picture.h"

#include <algorithm>
#include <deque>
#include <map>
#include <tuple>
#include <vector>

namespace cohort::tools {
namespace {

using comm::Plan;
using comm::Slice;
using comm::Step;
using comm::StepKind;

std::string Text(const Slice& slice) { return slice.chunks == 0 ? "-" : comm::ToString(slice); }

std::string Text(const Plan& plan, const comm::RankSlice& operand) {
  return Text(operand.slice) + (operand.rank == plan.rank ? "" : "@" + std::to_string(operand.rank));
}

// "out[1],out[1]@0=in[1]@0+in[1]": `@0` is memory of rank 0.
std::string FoldText(const Plan& plan, const Step& step) {
  std::string text;
  for (const comm::RankSlice& target : TargetsOf(plan, step)) text += (text.empty() ? "" : ",") + Text(plan, target);
  std::string sum;
  for (const comm::RankSlice& source : SourcesOf(plan, step)) sum += (sum.empty() ? "" : "+") + Text(plan, source);
  return text + "=" + sum;
}

std::string Text(const Plan& plan, const Step& step) {
  const std::string peer = std::to_string(step.peer);
  switch (step.kind) {
    case StepKind::kSend:
      return Text(step.src) + ">" + peer;
    case StepKind::kPublish:
      return Text(step.src) + ">*";
    case StepKind::kRecv:
      return Text(step.dst) + "<" + peer;
    case StepKind::kRecvReduce:
      return Text(step.dst) + "=" +
             (step.incoming_first ? "<" + peer + "+" + Text(step.src) : Text(step.src) + "+<" + peer);
    case StepKind::kReduce:
      return Text(step.dst) + "=" + Text(step.src) + "+" + Text(step.src2);
    case StepKind::kCopy:
      return Text(step.dst) + "=" + Text(step.src);
    case StepKind::kOpen:
      return "open";
    case StepKind::kMeet:
      return "meet";
    case StepKind::kFold:
      return FoldText(plan, step);
  }
  return "?";
}

// Steps by (round, rank), in the plan's order.
class Rounds {
 public:
  explicit Rounds(std::span<const Plan> plans) : plans_(plans) {
    for (const Plan& plan : plans) lanes_.emplace_back(plan.lanes.size());
    for (bool moved = true; moved;) {
      moved = false;
      for (size_t rank = 0; rank < plans.size(); ++rank) {
        for (size_t lane = 0; lane < plans[rank].lanes.size(); ++lane) {
          while (TryStep(rank, lane)) moved = true;
        }
      }
    }
  }
  const std::map<int, std::vector<std::vector<std::string>>>& rows() const { return rows_; }

 private:
  struct LaneState {
    size_t next = 0;
    int round = 0;
    std::vector<int> arrivals;  // the round in which it came to each open and meet
    size_t passed = 0;
  };

  // The round of the meeting that the lane has come to; -1 while others are missing.
  int TryMeet(size_t rank, size_t lane) {
    LaneState& state = lanes_[rank][lane];
    if (state.arrivals.size() == state.passed) state.arrivals.push_back(state.round);
    int row = 0;
    for (const auto& other : lanes_) {
      if (other[lane].arrivals.size() <= state.passed) return -1;
      row = std::max(row, other[lane].arrivals[state.passed] + 1);
    }
    ++state.passed;
    state.round = row;
    return row;
  }

  bool TryStep(size_t rank, size_t lane) {
    LaneState& state = lanes_[rank][lane];
    const std::vector<Step>& steps = plans_[rank].lanes[lane].steps;
    if (state.next == steps.size()) return false;
    const Step& step = steps[state.next];
    int row = state.round;
    if (step.kind == StepKind::kOpen || step.kind == StepKind::kMeet) {
      row = TryMeet(rank, lane);
      if (row < 0) return false;
    } else if (step.kind == StepKind::kSend) {
      channels_[{rank, static_cast<size_t>(step.peer), lane}].push_back(++row);
    } else if (step.kind == StepKind::kPublish) {
      ++row;
      for (size_t peer = 0; peer < plans_.size(); ++peer) {
        if (peer != rank) channels_[{rank, peer, lane}].push_back(row);
      }
    } else if (step.kind == StepKind::kRecv || step.kind == StepKind::kRecvReduce) {
      std::deque<int>& channel = channels_[{static_cast<size_t>(step.peer), rank, lane}];
      if (channel.empty()) return false;
      row = channel.front();
      channel.pop_front();
      state.round = std::max(state.round, row);
    }
    auto& cells = rows_[row];
    cells.resize(plans_.size());
    cells[rank].push_back(Text(plans_[rank], step));
    ++state.next;
    return true;
  }

  std::span<const Plan> plans_;
  std::vector<std::vector<LaneState>> lanes_;
  std::map<std::tuple<size_t, size_t, size_t>, std::deque<int>> channels_;
  std::map<int, std::vector<std::vector<std::string>>> rows_;
};

std::string Padded(std::string text, size_t width) {
  text.resize(std::max(text.size(), width), ' ');
  return text;
}

}  // namespace

std::string DrawPlans(std::span<const Plan> plans) {
  const Rounds rounds(plans);
  std::vector<size_t> widths(plans.size(), 6);
  for (const auto& [round, cells] : rounds.rows()) {
    for (size_t rank = 0; rank < cells.size(); ++rank) {
      for (const std::string& text : cells[rank]) widths[rank] = std::max(widths[rank], text.size());
    }
  }
  std::string picture = "round  ";
  for (size_t rank = 0; rank < plans.size(); ++rank) {
    picture += Padded("rank " + std::to_string(rank), widths[rank] + 2);
  }
  picture.erase(picture.find_last_not_of(' ') + 1);
  picture += "\n";
  for (const auto& [round, cells] : rounds.rows()) {
    size_t lines = 0;
    for (const auto& cell : cells) lines = std::max(lines, cell.size());
    for (size_t line = 0; line < lines; ++line) {
      picture += Padded(line == 0 ? std::to_string(round) : "", 7);
      for (size_t rank = 0; rank < cells.size(); ++rank) {
        picture += Padded(line < cells[rank].size() ? cells[rank][line] : "", widths[rank] + 2);
      }
      picture.erase(picture.find_last_not_of(' ') + 1);
      picture += "\n";
    }
  }
  return picture;
}

}  // namespace cohort::tools
