#include "cohort/trainer/parallel/fsdp/fsdp_stage.h"

#include "cohort/trainer/base/caught_error.h"
#include "cohort/trainer/parallel/fsdp/fsdp_parts.h"
#include "cohort/trainer/parallel/fsdp/fsdp_root.h"
#include "cohort/trainer/parallel/fsdp/pass_course.h"
#include "torch/torch.h"

namespace cohort::trainer {

void FsdpStage::set_micro_batches_under_way(bool under_way) {
  runtime::MutexLock lock(parts_.mutex);
  TORCH_CHECK(!root_.summoned(),
              "FullyShardedDataParallel: a pipeline's step under SummonFullParams, where parameters "
              "are whole and may have changed; run it after that");
  TORCH_CHECK(parts_.calls.group() == nullptr,
              "FullyShardedDataParallel: a pipeline's step under Join, whose ranks without inputs could not answer it");
  if (under_way) {
    passes_.BeginForward(/*training=*/false);  // Reduce says whether gradients are averaged
  } else {
    passes_.StartOver();
  }
  under_way_ = under_way;
}

void FsdpStage::Unshard() {
  runtime::MutexLock lock(parts_.mutex);
  TORCH_CHECK(under_way_, "FullyShardedDataParallel: Unshard is a pipeline's; see SummonFullParams");
  try {
    for (const auto& unit : parts_.units) parts_.gatherer.Start(*unit);
    for (const auto& unit : parts_.units) unit->weights().Finish();
  } catch (...) {
    passes_.Fail(TextOfCaught());
    ThrowCaught("FullyShardedDataParallel");
  }
}

void FsdpStage::Reshard() { root_.Reshard(); }

void FsdpStage::AbortGroups(const std::string& why) { root_.Abort(why); }

// In the order of units, which is the same on all ranks.
void FsdpStage::Reduce() {
  runtime::MutexLock lock(parts_.mutex);
  TORCH_CHECK(under_way_, "FullyShardedDataParallel: Reduce is a pipeline's; see no_sync");
  try {
    if (passes_.averages()) {
      passes_.CompareReplicas();
      parts_.tags.BeginAverage();
    }
    for (const auto& unit : parts_.units) {
      const bool has_some = unit->gradients().trainable() && unit->gradients().begun();
      if (passes_.averages() && has_some) parts_.reductions.Launch(*unit);
    }
    parts_.reductions.Finish();
    for (const auto& unit : parts_.units) {
      unit->gradients().Restore();
      unit->gradients().Expect();
    }
  } catch (...) {
    passes_.Fail(TextOfCaught());
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

void FsdpStage::OnGradient(FsdpUnit& unit, int parameter) { unit.gradients().Take(parameter, passes_.share()); }

}  // namespace cohort::trainer
