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
  // Hides the wait of the former owner. As a write: the wait that is read may else be that of a runtime that has come
  // since.
  Write([&control = part->control](runtime::BlackBoxWriter&) {
    runtime::HideWait(control, runtime::ReadWaitNumber(control).number);
  });
}

}  // namespace cohort::comm::nccl_profiler
