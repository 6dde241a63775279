// The plan provider: serves calls on host memory by running plans. One operation at a time per group, in the order of
// the calls; the first is advanced by the caller that submits it and then by the engine.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cohort/comm/check/result_hash.h"
#include "cohort/comm/provider/operation.h"
#include "cohort/comm/provider/prepared_call.h"
#include "cohort/comm/provider/provider.h"
#include "cohort/comm/provider/stall_watch.h"
#include "cohort/comm/run/host_provider.h"
#include "cohort/comm/run/plan_cache.h"
#include "cohort/comm/run/reduction_stage.h"
#include "cohort/comm/run/runner.h"
#include "cohort/comm/select/selector.h"

namespace cohort::comm {

class PlanProvider : public HostProvider {
 public:
  // Both outlive it.
  PlanProvider(const GroupContext* group, LinkSource* links);
  ~PlanProvider() override;

  std::string_view name() const override { return "plan"; }
  absl::StatusOr<ServicePlan> Choose(const CollectiveRequest& request, const std::string& forced_algorithm) override;
  void Start(PreparedCall& call, const void* in, void* out) override;
  runtime::Work Launch(const AcceptedCall& call) override;
  bool Poll() override;
  bool Active() const override { return !queue_.empty(); }
  void Fail(const absl::Status& status) override;
  const runtime::CallRecord* Pending() const override;
  bool WaitsIn(uint64_t sequence) const override;
  void OnTuning() override;
  std::string Explain(const CollectiveRequest& request) override;

 protected:
  // Publishes at once when nothing else is under way.
  void Post() override;
  void Prepare(PreparedCall& call) override;

 private:
  // Begins the first of the queue with its algorithm, or with its fallback; or says why it can't be begun.
  absl::Status Begin(bool fallback = false);
  // Advances the first of the queue, and what follows while operations finish. True when anything moved.
  bool Advance();
  // Copies more of its input, boundedly much; begins its plan once that is complete.
  absl::Status PrepareMore();
  absl::Status StartPlan();
  // The binding of a call that no stage prepares, without its signature and record.
  PlanBinding BindingOf(const CollectiveRequest& request) const;
  void FinishFirst();
  // Ends all operations; within a user's function all but the one that it works for, which Advance ends then.
  void EndAll(const absl::Status& status);
  void OnRunnerFailed();
  void OnMismatch(const RunnerFailure& failure);
  void OnBlocked();
  void SetDeadlines();
  void ReportStall(uint64_t sequence, bool expired);

  const GroupContext* const group_;
  PlanRunner runner_;
  PlanCache plans_;
  Selector selector_;
  uint64_t tuning_hash_;
  OperationQueue queue_;
  // The work under way for the first of the queue: kIdle -> [kPreparing ->] kRunning -> [kFinishing ->] kIdle. The
  // stages in brackets copy to and from `stage_`. A diverted plan begins again; a failure ends in kIdle.
  enum class Phase : uint8_t { kIdle, kPreparing, kRunning, kFinishing };
  Phase phase_ = Phase::kIdle;
  uint16_t algorithm_ = 0;  // the one chosen, or its fallback
  int32_t pieces_ = 1;
  bool staged_ = false;  // it runs on the copies in stage_
  ReductionStage stage_;
  // While it is not kIdle, callbacks may submit: they must not advance what is being advanced. kRunning: inside
  // runner_, which may be inside a user's reduction function.
  enum class Activity : uint8_t { kIdle, kAdvancing, kRunning };
  Activity activity_ = Activity::kIdle;
  uint64_t earliest_deadline_ = 0;  // at most the earliest of the pending ones that have one
  bool undated_ = false;            // some have none yet
  StallWatch watch_;
  Suspicion suspicion_;
  std::optional<ResultChain> results_;  // where they are compared
  absl::Status failed_;
};

}  // namespace cohort::comm
