#include "cohort/trainer/parallel/pipeline/schedule/turn.h"

namespace cohort::trainer {

std::span<const Action> TurnAt(std::span<const Action> actions, size_t at) {
  size_t end = at;
  while (end < actions.size() && IsMessage(actions[end].kind)) ++end;
  return actions.subspan(at, end - at);
}

TurnParts PartsOf(std::span<const Action> turn, const std::function<bool(int stage)>& knows_output) {
  TurnParts parts;
  for (const Action& message : turn) {
    if (IsSend(message.kind)) {
      parts.sends.push_back(message);
    } else if (message.kind == ActionKind::kRecvForward && !knows_output(message.stage - 1)) {
      parts.later.push_back(message);
    } else {
      parts.now.push_back(message);
    }
  }
  return parts;
}

}  // namespace cohort::trainer
