#include "cohort/trainer/parallel/fsdp/fsdp_stage.h"

#include "cohort/trainer/base/caught_error.h"
#include "cohort/trainer/parallel/fsdp/flat_parameters.h"
#include "cohort/trainer/parallel/fsdp/fsdp_root.h"
#include "cohort/trainer/parallel/fsdp/gradient_reductions.h"
#include "cohort/trainer/parallel/fsdp/join_calls.h"
#include "cohort/trainer/parallel/fsdp/unit_gatherer.h"
#include "cohort/trainer/parallel/fsdp/unit_gradients.h"
#include "cohort/trainer/parallel/fsdp/unit_order.h"
#include "torch/torch.h"

namespace cohort::trainer {

void FsdpStage::set_micro_batches_under_way(bool under_way) {
  runtime::MutexLock lock(root_.mutex_);
  TORCH_CHECK(!root_.summoned(),
              "FullyShardedDataParallel: a pipeline's step under SummonFullParams, where parameters "
              "are whole and may have changed; run it after that");
  TORCH_CHECK(root_.calls_->group() == nullptr,
              "FullyShardedDataParallel: a pipeline's step under Join, whose ranks without inputs could not answer it");
  if (under_way) {
    root_.BeginForward(/*training=*/false);  // Reduce says whether gradients are averaged
  } else {
    root_.StartOver();
  }
  under_way_ = under_way;
}

void FsdpStage::Unshard() {
  runtime::MutexLock lock(root_.mutex_);
  TORCH_CHECK(under_way_, "FullyShardedDataParallel: Unshard is a pipeline's; see SummonFullParams");
  try {
    for (const auto& unit : root_.units_) root_.gatherer_->Start(*unit);
    for (const auto& unit : root_.units_) unit->weights().Finish();
  } catch (...) {
    root_.Fail(TextOfCaught());
    ThrowCaught("FullyShardedDataParallel");
  }
}

void FsdpStage::Reshard() { root_.Reshard(); }

void FsdpStage::AbortGroups(const std::string& why) { root_.Abort(why); }

// In the order of units, which is the same on all ranks.
void FsdpStage::Reduce() {
  runtime::MutexLock lock(root_.mutex_);
  TORCH_CHECK(under_way_, "FullyShardedDataParallel: Reduce is a pipeline's; see no_sync");
  try {
    if (root_.sync_) {
      root_.CompareReplicas();
      root_.tags_->BeginAverage();
    }
    for (const auto& unit : root_.units_) {
      const bool has_some = unit->gradients().trainable() && unit->gradients().begun();
      if (root_.sync_ && has_some) root_.reductions_->Launch(*unit);
    }
    root_.reductions_->Finish();
    for (const auto& unit : root_.units_) {
      unit->gradients().Restore();
      unit->gradients().Expect();
    }
  } catch (...) {
    root_.Fail(TextOfCaught());
    ThrowCaught("FullyShardedDataParallel");
  }
}

void FsdpStage::PreForward(FsdpUnit& unit) {
  TORCH_CHECK(unit.unsharded(),
              "FullyShardedDataParallel: a micro-batch's pass comes to a unit that is not gathered; the schedule must "
              "unshard a stage before its passes");
  if (!at::GradMode::is_enabled()) return;
  unit.AddGradientHooks(root_.shared_from_this());
  unit.gradients().Begin();
}

void FsdpStage::OnGradient(FsdpUnit& unit, int parameter) { unit.gradients().Take(parameter, root_.share_); }

}  // namespace cohort::trainer
