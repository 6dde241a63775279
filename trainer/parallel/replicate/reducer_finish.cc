// The end of a backward pass: waiting for the buckets and giving gradients their averages.
#include <utility>

#include "cohort/trainer/base/caught_error.h"
#include "cohort/trainer/base/error.h"
#include "cohort/trainer/parallel/replicate/reducer.h"
#include "cohort/trainer/parallel/replicate/reducer_state.h"
#include "torch/torch.h"

namespace cohort::trainer {

void Reducer::FinishGuarded() {
  if (state_ != State::kCollecting) return;  // a hook has failed
  try {
    Finish();
  } catch (...) {
    if (state_ == State::kCollecting) Fail(TextOfCaught());
    ThrowCaught("DistributedDataParallel");
  }
  state_ = State::kIdle;
}

void Reducer::Finish() {
  if (first_static_iteration() && !shadow_) {
    for (int i = 0; i < static_cast<int>(parameters_.size()); ++i) MarkReady(i);
  }
  MarkUnused();
  if (together_) MarkAccumulated();
  if (next_bucket_ < buckets_.size()) ThrowForMissing();
  WaitForBuckets();
  if (!first_static_iteration() || shadow_) return;
  expected_calls_ = calls_;
  // Parameters that no rank uses give no order: theirs is at the end.
  for (int i = 0; i < static_cast<int>(parameters_.size()) && !rebuilt_; ++i) {
    if (calls_[i] == 0) observed_order_.push_back(i);
  }
}

// Parameters that only the forward pass under no_sync has used: theirs came before the pass was known to average.
void Reducer::MarkAccumulated() {
  for (int i = 0; i < static_cast<int>(parameters_.size()); ++i) {
    if (ready_[i] || !accumulated_[i]) continue;
    calls_[i] = 1;
    if (!rebuilt_) observed_order_.push_back(i);
    MarkReady(i);
  }
}

void Reducer::WaitForUsage() {
  if (!counts_usage()) return;
  ThrowUnlessAllCame(usage_work_.Wait(), "learning which parameters are used");
  usage_work_ = runtime::Work();
  const int32_t* users = usage_.data_ptr<int32_t>();
  for (size_t i = 0; i < parameters_.size(); ++i) globally_unused_[i] = users[i] == 0;
  usage_.zero_();
  static_usage_known_ = true;
}

void Reducer::WaitForBuckets() {
  // All of them, also when one has failed: none may go on in memory that its owner takes for its own again.
  absl::Status first;
  const Bucket* failed = nullptr;
  for (auto& bucket : buckets_) {
    const absl::Status status = KeepOwned(*bucket);
    if (status.ok() || failed != nullptr) continue;
    first = status;
    failed = bucket.get();
  }
  for (auto& bucket : buckets_) {
    if (bucket->reduction == nullptr) continue;
    bucket->reduction->Wait();  // one that throws is kept until the group is aborted: its destructor may wait
    bucket->reduction.reset();
  }
  if (failed != nullptr) {
    state_ = State::kIdle;
    ThrowUnlessAllCame(first, failed->context);
  }
  WaitForUsage();
  for (auto& bucket : buckets_) CopyOut(*bucket);
  accumulated_.assign(parameters_.size(), false);
}

// Waits for the bucket. With owners, frees it but for this rank's part.
absl::Status Reducer::KeepOwned(Bucket& bucket) {
  const absl::Status status = bucket.work.Wait();
  bucket.work = runtime::Work();
  if (!to_owners() || !bucket.buffer.defined()) return status;
  bucket.owned = bucket.buffer.narrow(0, bucket.first, bucket.counts[bucket.group->rank()]).clone();
  bucket.buffer = at::Tensor();
  return status;
}

void Reducer::CopyOutOwned(Bucket& bucket) {
  const at::NoGradGuard no_grad;
  const int rank = bucket.group->rank();
  for (int member : bucket.members) {
    at::Tensor& tensor = parameters_[member].tensor;
    const at::Tensor kept = std::exchange(kept_[member], at::Tensor());
    if (globally_unused_[member]) {
      tensor.mutable_grad() = kept;
    } else if (parameters_[member].owner == rank) {
      tensor.mutable_grad() = bucket.owned.narrow(0, offset_of_[member] - bucket.first, tensor.numel())
                                  .view(tensor.sizes())
                                  .variable_data();
    }
  }
  bucket.owned = at::Tensor();
}

void Reducer::CopyOut(Bucket& bucket) {
  if (to_owners()) return CopyOutOwned(bucket);
  const at::NoGradGuard no_grad;
  for (int member : bucket.members) {
    at::Tensor& grad = parameters_[member].tensor.mutable_grad();
    const at::Tensor kept = std::exchange(kept_[member], at::Tensor());
    if (!globally_unused_[member] && grad.defined() &&
        (options_.gradient_as_bucket_view ? IsSlot(slots_[member], grad) : CopySlotTo(slots_[member], grad))) {
      continue;
    }
    const at::Tensor average = ViewOf(member);
    if (globally_unused_[member]) {
      if (kept.defined()) grad.copy_(kept);
    } else if (options_.gradient_as_bucket_view) {
      // No view to autograd, or Optimizer::zero_grad could not detach it.
      if (!grad.defined() || !grad.is_alias_of(average)) grad = average.variable_data();
    } else if (grad.defined()) {
      grad.copy_(average);
    } else {
      grad = average.clone();
    }
  }
}

void Reducer::Abort(const std::string& why) {
  runtime::MutexLock lock(shared_->mutex);
  Fail(why);
}

void Reducer::Fail(const std::string& why) {
  state_ = State::kIdle;
  for (comm::Communicator* group : groups_) group->Abort(why);
}

void Reducer::ThrowForMissing() {
  std::string names;
  int missing = 0;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    if (ready_[i]) continue;
    if (++missing <= 8) names += (names.empty() ? "" : ", ") + parameters_[i].name;
  }
  if (missing > 8) names += ", ...";
  const char* remedy = options_.find_unused_parameters ? "Use every output of forward() in the loss"
                       : options_.static_graph
                           ? "static_graph is on, and the first backward pass had them: leave it off"
                           : "Use every parameter in the loss, set find_unused_parameters, or freeze the unused ones "
                             "(requires_grad_(false)) before wrapping the module";
  const std::string message = "DistributedDataParallel: the backward pass gave no gradient for " +
                              std::to_string(missing) + " of " + std::to_string(parameters_.size()) + " parameters (" +
                              names + "), so their buckets can't be averaged. " + remedy;
  // The other ranks wait for these buckets: tell them now instead of letting them run into their timeout.
  Fail(message);
  throw DistributedError(absl::StatusCode::kFailedPrecondition, message);
}

}  // namespace cohort::trainer
