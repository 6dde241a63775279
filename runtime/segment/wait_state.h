// The wait of a rank as its agent and its local peers see it, after the rank has come to sleeping: the calls that it
// waits for, and whether anything else could end the wait. With what the black box holds this tells which ranks wait
// for each other (wait_graph.h).
//
// A wait has a number, which changes when anything moves. A rank whose number is the same at two moments has made no
// call in between, and everything that its black box says was true all the time.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "cohort/runtime/segment/black_box.h"
#include "cohort/runtime/segment/call_record.h"
#include "cohort/runtime/segment/segment.h"

namespace cohort::runtime {

// --- the rank's side; ShowWait for the engine's owner ---

// Shows a wait for the calls with these tickets, or that the shown one goes on after one more look at everything.
// Returns the wait's number. `bound`: nothing but the end of all these calls ends the wait, and the rank calls nothing
// meanwhile.
uint64_t ShowWait(RankControl& control, uint64_t first_awaited, uint64_t last_awaited, bool bound);
// The wait with this number is over, or something has moved. Any thread: if another wait is shown by now, it stays.
void HideWait(RankControl& control, uint64_t number);

// --- anyone's side ---

struct Wait {
  uint64_t number = 0;
  bool bound = false;
  uint64_t looks = 0;               // times that the rank has looked at everything in vain
  std::vector<CallRecord> awaited;  // those that are not done
};
// The wait that the rank is in. Nothing when it does not wait, or something moves just now.
std::optional<Wait> ReadWait(const RankControl& control, const BlackBoxReader& box);
// The number of that wait, and its looks; 0 when the rank does not wait.
struct WaitNumber {
  uint64_t number = 0;
  uint64_t looks = 0;
};
WaitNumber ReadWaitNumber(const RankControl& control);

// The latest call of a group, in one direction with one peer where it is a send or a receive.
struct LatestCall {
  uint64_t group = 0;
  uint16_t kind = 0;  // comm::CollectiveKind of a send or a receive; 0: a collective of any kind
  int32_t peer = -1;  // send or receive: the other side's world rank
  uint64_t sequence = 0;
  bool done = false;
};
// How far a rank has come in each group. Bounded by the black box' size.
struct CallProgress {
  std::vector<LatestCall> latest;  // newest first
  bool forgets = false;            // there may have been calls of other groups and peers, which the box no longer holds
};
CallProgress ReadCallProgress(const BlackBoxReader& box);

}  // namespace cohort::runtime
