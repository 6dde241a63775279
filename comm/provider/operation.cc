#include "cohort/comm/provider/operation.h"

#include <utility>

namespace cohort::comm {

void Operation::Finish(runtime::BlackBoxWriter& black_box, absl::Status status, bool at_once) {
  if (call.request.blocks != nullptr && call.like != 0) [[unlikely]] {  // they are the prepared call's
    call.request.blocks = nullptr;
    call.blocks.reset();
    call.like = 0;
  }
  if (const uint32_t result = std::exchange(call.record.result, 0); result != 0) [[unlikely]] {
    black_box.FinishWithResult(call.ticket, result);
  } else {
    black_box.Finish(call.ticket, status.ok() ? runtime::CallState::kDone : runtime::CallState::kFailed, at_once);
  }
  CompleteAndDrop(std::move(status));
}

}  // namespace cohort::comm
