#include "cohort/comm/simulate/program.h"

#include <algorithm>

namespace cohort::comm {
namespace {

constexpr size_t kLongestPeriod = 4;

bool IsMessage(StepKind kind) {
  return kind != StepKind::kReduce && kind != StepKind::kCopy && kind != StepKind::kFold;
}

Op OpOf(const Plan& plan, const Step& step, int32_t posted) {
  Op op;
  if (IsMessage(step.kind) && step.kind != StepKind::kPublish) {
    op.offset = static_cast<int32_t>((int64_t{step.peer} - plan.rank + plan.size) % plan.size);
  }
  op.published = step.published;
  if (step.sends_before > 0) op.fence = posted - step.sends_before;
  switch (step.kind) {
    case StepKind::kSend:
      op.kind = OpKind::kSend;
      op.chunks = step.src.chunks;
      break;
    case StepKind::kPublish:
      op.kind = OpKind::kPublish;
      op.chunks = step.src.chunks;
      break;
    case StepKind::kRecv:
    case StepKind::kRecvReduce:
      op.kind = OpKind::kRecv;
      op.chunks = step.dst.chunks;
      op.combined = step.kind == StepKind::kRecvReduce ? step.dst.chunks : 0;
      break;
    case StepKind::kReduce:
      op.combined = step.dst.chunks;
      break;
    case StepKind::kFold:
      op.combined = (step.sources - 1) * SourcesOf(plan, step)[0].slice.chunks;
      break;
    case StepKind::kCopy:
    case StepKind::kOpen:
    case StepKind::kMeet:
      break;
  }
  return op;
}

// kOpen and kMeet: everybody publishes an empty line and waits for those of all others.
void AppendMeeting(const Plan& plan, Program* program) {
  Op publish;
  publish.kind = OpKind::kPublish;
  program->push_back(publish);
  for (int32_t i = 1; i < plan.size; ++i) {
    Op receive;
    receive.kind = OpKind::kRecv;
    receive.published = true;
    receive.offset = i;
    program->push_back(receive);
  }
}

}  // namespace

std::vector<Program> ProgramsOf(const Plan& plan) {
  std::vector<Program> programs;
  for (const Lane& lane : plan.lanes) {
    Program program;
    int32_t posted = 0;
    for (const Step& step : lane.steps) {
      if (step.kind == StepKind::kCopy && step.sends_before == 0) continue;
      if (step.kind == StepKind::kOpen || step.kind == StepKind::kMeet) {
        AppendMeeting(plan, &program);
        ++posted;
        continue;
      }
      program.push_back(OpOf(plan, step, posted));
      if (program.back().kind == OpKind::kSend || program.back().kind == OpKind::kPublish) ++posted;
    }
    programs.push_back(std::move(program));
  }
  return programs;
}

Peers::Peers(const Program& program) : of_op(program.size()) {
  for (const Op& op : program) {
    if (op.kind == OpKind::kRecv) offsets.push_back(op.offset);
  }
  std::sort(offsets.begin(), offsets.end());
  offsets.erase(std::unique(offsets.begin(), offsets.end()), offsets.end());
  for (size_t i = 0; i < program.size(); ++i) {
    if (program[i].kind == OpKind::kRecv) of_op[i] = static_cast<uint32_t>(Find(program[i].offset));
  }
}

size_t Peers::Find(int32_t offset) const {
  const auto found = std::lower_bound(offsets.begin(), offsets.end(), offset);
  return static_cast<size_t>((found != offsets.end() && *found == offset ? found : offsets.end()) - offsets.begin());
}

std::vector<Repetition> FindRepetitions(const Program& program, size_t least) {
  std::vector<Repetition> found;
  for (size_t begin = 0; begin < program.size();) {
    Repetition best{begin, begin, 1};
    for (size_t period = 1; period <= kLongestPeriod; ++period) {
      size_t end = begin + period;
      while (end < program.size() && program[end] == program[end - period]) ++end;
      if (end <= program.size() && end > best.end) best = {begin, end, period};
    }
    if (best.end - best.begin >= least) {
      found.push_back(best);
      begin = best.end;
    } else {
      ++begin;
    }
  }
  return found;
}

}  // namespace cohort::comm
