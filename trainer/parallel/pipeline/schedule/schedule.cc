#include "cohort/trainer/parallel/pipeline/schedule/schedule.h"

namespace cohort::trainer {

bool IsCompute(ActionKind kind) { return kind <= ActionKind::kWeightGradient; }

bool IsMessage(ActionKind kind) { return kind >= ActionKind::kSendForward && kind <= ActionKind::kRecvBackward; }

bool IsSend(ActionKind kind) { return kind == ActionKind::kSendForward || kind == ActionKind::kSendBackward; }

bool HasMicroBatch(ActionKind kind) { return kind <= ActionKind::kRecvBackward; }

Action OtherEnd(const Action& message) {
  switch (message.kind) {
    case ActionKind::kSendForward:
      return {ActionKind::kRecvForward, message.stage + 1, message.micro_batch};
    case ActionKind::kRecvForward:
      return {ActionKind::kSendForward, message.stage - 1, message.micro_batch};
    case ActionKind::kSendBackward:
      return {ActionKind::kRecvBackward, message.stage - 1, message.micro_batch};
    case ActionKind::kRecvBackward:
      return {ActionKind::kSendBackward, message.stage + 1, message.micro_batch};
    default:
      return message;
  }
}

const char* Name(ActionKind kind) {
  switch (kind) {
    case ActionKind::kForward:
      return "F";
    case ActionKind::kBackward:
      return "B";
    case ActionKind::kInputGradient:
      return "I";
    case ActionKind::kWeightGradient:
      return "W";
    case ActionKind::kSendForward:
      return "SEND_F";
    case ActionKind::kRecvForward:
      return "RECV_F";
    case ActionKind::kSendBackward:
      return "SEND_B";
    case ActionKind::kRecvBackward:
      return "RECV_B";
    case ActionKind::kUnshard:
      return "UNSHARD";
    case ActionKind::kReshard:
      return "RESHARD";
    case ActionKind::kReduce:
      return "REDUCE_GRAD";
  }
  return "?";
}

std::string ToString(const Action& action) {
  std::string text = std::to_string(action.stage) + Name(action.kind);
  if (HasMicroBatch(action.kind)) text += std::to_string(action.micro_batch);
  return text;
}

}  // namespace cohort::trainer
