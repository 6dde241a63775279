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

std::string Text(const Slice& slice) {
  if (slice.chunks == 0) return "-";
  std::string text = std::string(comm::Name(slice.buffer)) + "[" + std::to_string(slice.first);
  if (slice.chunks > 1) text += ".." + std::to_string(slice.first + slice.chunks - 1);
  return text + "]";
}

std::string Text(const Step& step) {
  const std::string peer = std::to_string(step.peer);
  switch (step.kind) {
    case StepKind::kSend:
    case StepKind::kPut:
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
  };

  bool TryStep(size_t rank, size_t lane) {
    LaneState& state = lanes_[rank][lane];
    const std::vector<Step>& steps = plans_[rank].lanes[lane].steps;
    if (state.next == steps.size()) return false;
    const Step& step = steps[state.next];
    int row = state.round;
    if (step.kind == StepKind::kSend || step.kind == StepKind::kPut) {
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
    cells[rank].push_back(Text(step));
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
