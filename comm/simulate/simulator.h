// Times the plans of all ranks on a described network, by events, without moving data.
//
// Model. A rank runs its lanes' operations in order. A send is posted when its turn comes; a send right after a send,
// and a receive right after a receive, costs `message_us` more. Messages take the links of their route (port of the
// rank, NIC of the host, up- and downlink of the leaf switches, NIC, port) in the order in which they were posted, each
// for bytes / its rate, from when it is free and the message has begun to pass the one before; a message arrives alpha
// after it has passed the last of them. Flow control: a rank's messages come in the order in which it receives them;
// one that it wants later is held back by its sender until those before it have begun to pass. Reductions take bytes /
// reduce_gigabytes_s; copies nothing. All chunks are equally long. Times are whole femtoseconds, so that equal states
// are equal.
//
// Exactness. The result is that of the model for every plan. Two shortcuts leave it unchanged (tests compare): ranks
// that are images of each other are timed once, where the plan and the network look the same from each leaf switch;
// and once the state of all ranks and links repeats itself, shifted in time, the rest of a repeating stretch of the
// plan is skipped at that pace.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

#include "absl/status/statusor.h"
#include "cohort/comm/algorithm/registry.h"
#include "cohort/comm/simulate/network.h"

namespace cohort::comm {

// A step of a rank as it was timed. Times are femtoseconds from the beginning of the call.
struct SimulatedStep {
  enum class Kind : uint8_t { kSend, kReceive, kReduce };

  Kind kind = Kind::kReduce;
  int64_t rank = 0;
  size_t lane = 0;
  int64_t peer = -1;   // of a message
  int64_t number = 0;  // of a message among those that its sender's lane has sent; a publish has one for all readers
  double bytes = 0;
  int64_t begin = 0;  // a receive: when the rank comes to it
  int64_t end = 0;    // a receive: when its message is there
};

struct SimulateOptions {
  int root = 0;
  int32_t pieces = 0;  // 0: what the algorithm needs
  // False: time every rank and every operation.
  bool shortcuts = true;
  // Plans with more operations than this are refused.
  int64_t most_operations = int64_t{200} * 1000 * 1000;
  // Is told of every step; those of a lane come in order. No shortcut is taken then.
  std::function<void(const SimulatedStep& step)> on_step = nullptr;
};

struct SimulationReport {
  double microseconds = 0;  // until the last rank is done
  int64_t messages = 0;     // of all ranks; a publish counts once
  double wire_bytes = 0;    // between hosts
  double core_bytes = 0;    // up a leaf switch
  double uplink_busy = 0;   // share of the time that the busiest uplink is in use
  int64_t ranks_timed = 0;  // the others are images of these
  int64_t events = 0;       // messages that were timed one by one
};

// Times `algorithm` on a block of `bytes` bytes among all ranks of `network`. kInvalidArgument: the algorithm does not
// fit the network (BuildPlan's errors); kResourceExhausted: more operations than allowed.
absl::StatusOr<SimulationReport> Simulate(const AlgorithmInfo& algorithm, int64_t bytes, const Network& network,
                                          const SimulateOptions& options = {});

}  // namespace cohort::comm
