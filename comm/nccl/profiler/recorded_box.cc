#include "cohort/comm/nccl/profiler/recorded_box.h"

#include <atomic>

#include "cohort/runtime/segment/agent_protocol.h"
#include "cohort/runtime/segment/wait_state.h"

namespace cohort::comm::nccl_profiler {

RecordedBox::RecordedBox(runtime::RankPart* part) : owner_(&part->black_box.owner) {
  // A runtime changes the state first and the owner then: one that comes after the look at the state takes the box.
  const uint64_t look = owner_.Look();
  const uint32_t state = part->control.state.load(std::memory_order_seq_cst);
  if (state != runtime::kRankAbsent && state != runtime::kRankFinalised) return;
  number_ = owner_.ClaimSince(look);
  if (!number_.has_value()) return;
  writer_.emplace(&part->black_box);
  runtime::HideWait(part->control, runtime::ReadWaitNumber(part->control).number);  // of the former owner
}

}  // namespace cohort::comm::nccl_profiler
