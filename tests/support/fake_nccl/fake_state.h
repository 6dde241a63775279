// What the fake CUDA runtime and the fake NCCL share.
#pragma once

#include <memory>
#include <vector>

#include "runtime/base/mutex.h"

namespace fake {

// Something that a stream waits for. Guarded by State::mutex.
struct Ticket {
  bool done = false;
};
using TicketList = std::vector<std::shared_ptr<Ticket>>;

struct State {
  cohort::runtime::Mutex mutex;
  cohort::runtime::CondVar changed;
};
State& GlobalState();

bool AllDone(const TicketList& tickets);
// The tickets of a stream; null names the calling thread's own default stream.
TicketList& TicketsOf(void* stream);

}  // namespace fake
