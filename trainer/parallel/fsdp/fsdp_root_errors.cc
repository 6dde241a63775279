// What FsdpRoot does when a pass has ended in an exception: on this rank, or on all alike.
#include <algorithm>
#include <chrono>
#include <string>
#include <vector>

#include "cohort/trainer/base/error.h"
#include "cohort/trainer/parallel/fsdp/fsdp_root.h"
#include "cohort/trainer/transfer/collectives.h"
#include "torch/torch.h"

namespace cohort::trainer {

// Of a backward pass that begins. Without averaging, and with all parameters there, it has no collectives: its
// exception is a matter of this rank alone. Unless other passes have accumulated before, whose gradients go with its
// own: the others have theirs.
bool FsdpRoot::ConcernsOthers() const {
  return sync_ || std::any_of(units_.begin(), units_.end(), [](const auto& unit) {
           return unit->has_flat_gradient() || (unit->gathers() && !unit->unsharded());
         });
}

// An exception of the user's has ended the last backward pass here. Where one has on all ranks, they go on together;
// else the others wait in some group for what this one won't send, and must hear of it.
void FsdpRoot::AgreeOnGivingUp() {
  std::vector<comm::Communicator*> groups = OwnGroups();
  if (join_ != nullptr) groups.push_back(&join_->group());  // where ranks that are through wait for the next iteration
  std::erase_if(groups, [](const comm::Communicator* group) { return group->size() == 1; });
  std::vector<int32_t> said(groups.size(), 1);
  std::vector<runtime::Work> works;
  absl::Status failed;
  if (join_ != nullptr && !join_->all_have_inputs()) {
    failed = absl::FailedPreconditionError("ranks without inputs can't tell");
  } else {
    for (size_t i = 0; i < groups.size(); ++i) {
      const comm::Buffer word(&said[i], 1);
      works.push_back(AllReduce(*groups[i], word, word, comm::ReduceOp::kSum));
    }
  }
  // In turns: nobody knows in which group the others are. Each call has its own timeout.
  const auto done = [](const runtime::Work& work) { return work.Done(); };
  while (failed.ok() && !std::all_of(works.begin(), works.end(), done)) {
    for (runtime::Work& work : works) {
      const absl::Status waited = work.Wait(std::chrono::milliseconds(10));
      if (!waited.ok() && work.Done()) failed.Update(work.status());
    }
  }
  for (size_t i = 0; failed.ok() && i < groups.size(); ++i) {
    if (said[i] != groups[i]->size()) failed = absl::FailedPreconditionError("other ranks have called something else");
  }
  if (failed.ok()) return;
  const std::string message =
      "FullyShardedDataParallel: an exception has ended the last backward pass of this rank, and not in the same place "
      "on all ranks: what they have sent each other or accumulated no longer fits; wrap the module anew";
  Fail(message);
  for (comm::Communicator* group : groups) group->Abort(message);
  for (runtime::Work& work : works) {
    const absl::Status ignored = work.Wait();  // they write into `said`
    (void)ignored;
  }
  ThrowUnlessOk(failed, message);
}

// What was gathered ahead is waited for: peers read the shards that the caller may step next.
void FsdpRoot::AbandonForward(const FsdpUnit& unit) {
  runtime::MutexLock lock(mutex_);
  if (!outermost(unit) || backward_) return;  // the module around it may catch what was thrown, and go on
  for (const auto& each : units_) {
    try {
      each->Reshard(pool_);
    } catch (const c10::Error&) {  // the group has failed: the next collective says so
    }
  }
  // No backward pass will come to these runs, but one may to those of a forward pass before.
  for (const auto& each : units_) each->RestoreRuns();
  order_.clear();
}

void FsdpRoot::Abort(const std::string& why) {
  runtime::MutexLock lock(mutex_);
  Fail(why);
}

// The other ranks wait for what this one won't send.
void FsdpRoot::Fail(const std::string& why) {
  backward_ = false;
  AbortGroups(why);
  AwaitReductions();
}

void FsdpRoot::AbortGroups(const std::string& why) {
  for (comm::Communicator* group : OwnGroups()) group->Abort(why);
}

// They work in memory that is let go of next.
void FsdpRoot::AwaitReductions() {
  for (Reduction& reduction : reductions_) {
    const absl::Status ignored = reduction.work.Wait();
    (void)ignored;
  }
}

}  // namespace cohort::trainer
