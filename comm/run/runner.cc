#include "cohort/comm/run/runner.h"

#include <algorithm>
#include <utility>

namespace cohort::comm {
namespace {

// Bound plans with more steps are not kept by calls: a group may remember many calls.
constexpr size_t kMostKeptSteps = 64;

bool Publishes(const Lane& lane) {
  return std::any_of(lane.steps.begin(), lane.steps.end(),
                     [](const Step& step) { return step.published || step.kind == StepKind::kPublish; });
}

}  // namespace

PlanRunner::PlanRunner(LinkSource* source, int rank, int size) : source_(source), direct_(rank, size) {}
PlanRunner::~PlanRunner() = default;

bool PlanRunner::BindTo(BoundPlan* bound, std::shared_ptr<const Plan> plan, const PlanBinding& binding) {
  while (lanes_.size() < plan->lanes.size()) {
    lanes_.push_back(std::make_unique<LaneRunner>(source_, static_cast<uint16_t>(lanes_.size())));
  }
  fanouts_.assign(plan->lanes.size(), nullptr);
  for (size_t i = 0; i < plan->lanes.size(); ++i) {
    if (Publishes(plan->lanes[i]) && !lanes_[i]->FanoutOf(&fanouts_[i])) {
      Fail(lanes_[i]->failure());
      return false;
    }
  }
  if (absl::Status status = bound->Bind(std::move(plan), binding, fanouts_); !status.ok()) {
    RunnerFailure failure;
    failure.status = std::move(status);
    Fail(failure);
    return false;
  }
  return true;
}

bool PlanRunner::Start(std::shared_ptr<const Plan> plan, const PlanBinding& binding) {
  if (own_.Fits(plan.get(), binding)) {
    own_.Begin(binding);
  } else if (!BindTo(&own_, std::move(plan), binding)) {
    lanes_in_use_ = 0;
    return false;
  }
  Start(own_);
  return true;
}

void PlanRunner::Start(BoundPlan& plan) {
  lanes_in_use_ = plan.lanes();
  folds_ = !plan.plan()->operands.empty();
  for (size_t i = 0; i < lanes_in_use_; ++i) lanes_[i]->Start(plan, i, &direct_);
  direct_.Start(*plan.plan(), plan.binding(), plan.memory().buffers());
}

std::shared_ptr<BoundPlan> PlanRunner::Bind(std::shared_ptr<const Plan> plan, const PlanBinding& binding) {
  size_t steps = 0;
  for (const Lane& lane : plan->lanes) steps += lane.steps.size();
  if (failed_ || steps > kMostKeptSteps) return nullptr;
  auto bound = std::make_shared<BoundPlan>();
  return BindTo(bound.get(), std::move(plan), binding) ? bound : nullptr;
}

Link* PlanRunner::LinkTo(int peer) {
  if (lanes_.empty()) return nullptr;
  Link* const link = lanes_.front()->LinkTo(peer);
  if (link == nullptr) Fail(lanes_.front()->failure());
  return link;
}

void PlanRunner::PublishFirst() {
  LaneRunner& lane = *lanes_.front();
  lane.PublishFirst();
  if (lane.failed()) Fail(lane.failure());
}

Progress PlanRunner::Advance() {
  if (failed_) return Progress::kFailed;
  bool moved = false;
  bool done = true;
  for (size_t i = 0; i < lanes_in_use_; ++i) {
    const Progress progress = lanes_[i]->Advance();
    if (progress == Progress::kFailed) {
      Fail(lanes_[i]->failure());
      return progress;
    }
    moved = moved || progress != Progress::kBlocked;
    done = done && progress == Progress::kDone;
  }
  if (done) {
    lanes_in_use_ = 0;  // the plan may go
    return Progress::kDone;
  }
  return moved ? Progress::kMoved : Progress::kBlocked;
}

void PlanRunner::Fail(const RunnerFailure& failure) {
  failure_ = failure;
  failed_ = true;
}

std::vector<int> PlanRunner::WaitingFor() const {
  std::vector<int> peers;
  for (size_t i = 0; i < lanes_in_use_; ++i) lanes_[i]->AddWaitingFor(&peers);
  if (lanes_in_use_ > 0) direct_.AddWaitingFor(&peers);
  std::sort(peers.begin(), peers.end());
  peers.erase(std::unique(peers.begin(), peers.end()), peers.end());
  return peers;
}

void PlanRunner::Reset() {
  own_.Forget();
  lanes_.clear();
  lanes_in_use_ = 0;
  failed_ = false;
}

}  // namespace cohort::comm
