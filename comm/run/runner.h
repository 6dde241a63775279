// The runner executes one rank's bound plans over links. It is the hot path of every collective that is not NCCL's: no
// virtual call but the transport's one per step, no allocation once a plan of that shape has run, no clock.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "cohort/comm/plan/plan.h"
#include "cohort/comm/run/bound_plan.h"
#include "cohort/comm/run/direct_steps.h"
#include "cohort/comm/run/lane_runner.h"
#include "cohort/comm/run/plan_binding.h"
#include "cohort/comm/transport/transport.h"

namespace cohort::comm {

class PlanRunner {
 public:
  // `source` outlives the runner. The group has `size` ranks, the caller is `rank`.
  PlanRunner(LinkSource* source, int rank, int size);
  ~PlanRunner();
  PlanRunner(const PlanRunner&) = delete;
  PlanRunner& operator=(const PlanRunner&) = delete;

  // Begins an operation; the previous one is done. The plan is bound by the runner itself, unless it still is from a
  // call before. False: it can't be bound; see failure().
  [[nodiscard]] bool Start(std::shared_ptr<const Plan> plan, const PlanBinding& binding);
  // Goes on with a call on `plan` from where its cursors stand. It must stay valid until the operation is done.
  void Start(BoundPlan& plan);
  // A bound plan for calls that repeat one, over this runner's links, for others to keep. Null: it can't be bound, or
  // its steps are too many to be kept. Valid until Reset.
  std::shared_ptr<BoundPlan> Bind(std::shared_ptr<const Plan> plan, const PlanBinding& binding);
  // The link of lane 0 to that peer; null: there is none, and the runner has failed.
  Link* LinkTo(int peer);
  // LaneRunner::PublishFirst of the first lane.
  void PublishFirst();
  // Moves what can be moved, boundedly. kDone: the result is in place and the buffers may be reused. kFailed: see
  // failure(); the runner must be Reset.
  Progress Advance();
  // After kDone: the plan was given up at its kOpen, as on all other members, and nothing was moved. The operation goes
  // on with the plan that they all choose instead.
  bool diverted() const { return direct_.diverted(); }
  // Whether the plan's reductions are averages already where averages are wanted (PlanBinding::fold).
  bool divides() const { return folds_ && !direct_.diverted(); }
  const RunnerFailure& failure() const { return failure_; }
  // Group ranks that the operation is waiting for, ascending; for messages to people.
  std::vector<int> WaitingFor() const;
  // Destroys all links and fan-outs: what is under way is abandoned.
  void Reset();

 private:
  // Makes the lanes and fan-outs that the plan needs, and binds it. False: see failure().
  bool BindTo(BoundPlan* bound, std::shared_ptr<const Plan> plan, const PlanBinding& binding);
  void Fail(const RunnerFailure& failure);

  LinkSource* const source_;
  BoundPlan own_;  // of calls that keep none
  size_t lanes_in_use_ = 0;
  bool folds_ = false;  // the plan
  std::vector<std::unique_ptr<LaneRunner>> lanes_;
  std::vector<Fanout*> fanouts_;  // of the plan that is being bound
  bool failed_ = false;           // failure_ says why
  DirectSteps direct_;
  RunnerFailure failure_;
};

}  // namespace cohort::comm
