// A pipeline schedule as data: what every rank does in one step of training, in order. It needs no torch.
//
// The model is cut into stages; each stage lies on one rank. Every micro-batch goes forward through all stages and then
// backward. A schedule says in which order a rank computes its share and when it sends and receives. Schedules are made
// by pure functions (registry.h), read from text (text.h), proved (checker.h), timed (simulator.h), drawn (picture.h)
// and run (../pipeline.h).
//
// Turns. Messages of a rank that follow each other with nothing between them are one turn: they are started together,
// as one batch. Two ranks that send to each other in a turn each can't stand still (pytorch#172668).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace cohort::trainer {

enum class ActionKind : uint8_t {
  kForward,         // F: forward pass of a micro-batch through a stage
  kBackward,        // B: its whole backward pass
  kInputGradient,   // I: the part of the backward pass that the stage before waits for
  kWeightGradient,  // W: the rest, which gives the gradients of the weights; after I
  kSendForward,     // the stage's output, to the next stage
  kRecvForward,     // the stage's input, from the stage before
  kSendBackward,    // the gradient of the stage's input, to the stage before
  kRecvBackward,    // the gradient of the stage's output, from the next stage
  kUnshard,         // gather the stage's whole parameters
  kReshard,         // free them
  kReduce,          // reduce the stage's gradients over its replicas
};
inline constexpr int kActionKinds = 11;

struct Action {
  ActionKind kind = ActionKind::kForward;
  int32_t stage = 0;
  int32_t micro_batch = 0;  // 0 where the kind has none (HasMicroBatch)

  bool operator==(const Action&) const = default;
};

// F, B, I and W.
bool IsCompute(ActionKind kind);
// The sends and receives.
bool IsMessage(ActionKind kind);
// The sends.
bool IsSend(ActionKind kind);
// All but unshard, reshard and reduce.
bool HasMicroBatch(ActionKind kind);
// The action at the other end of a message: the receive of a send, the send of a receive. Its stage may not exist.
Action OtherEnd(const Action& message);

struct Schedule {
  std::string name;
  int ranks = 0;
  int stages = 0;
  int micro_batches = 0;
  std::vector<int> rank_of_stage;            // a rank for each stage
  std::vector<std::vector<Action>> by_rank;  // actions in order

  int RankOf(const Action& action) const { return rank_of_stage[static_cast<size_t>(action.stage)]; }
  // The rank at the other end of a message.
  int PeerOf(const Action& message) const { return RankOf(OtherEnd(message)); }
};

// The action in the text form of PyTorch: stage, kind, micro-batch, such as 3F0, 2SEND_F1 and 0REDUCE_GRAD.
std::string ToString(const Action& action);
// The letters of a kind in it, such as SEND_F.
const char* Name(ActionKind kind);

}  // namespace cohort::trainer
