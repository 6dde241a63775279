#include "cohort/comm/provider/operation.h"

#include <utility>

namespace cohort::comm {

void Operation::Finish(runtime::BlackBoxWriter& black_box, absl::Status status, bool at_once) {
  black_box.Finish(call.ticket, status.ok() ? runtime::CallState::kDone : runtime::CallState::kFailed, at_once);
  CompleteAndDrop(std::move(status));
}

}  // namespace cohort::comm
