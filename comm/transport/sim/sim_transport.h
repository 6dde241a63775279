// The simulated transport: many ranks in one process, deterministic. Every delay, split and choice comes from one seed,
// so that a failing interleaving replays. It moves real bytes between real communicators, for tests.
//
// It simulates eager messages (copied at once, into bounded room) and long ones (the receiver reads the sender's
// memory bit by bit); messages that arrive late, and links that overtake one another, while each keeps its order;
// fan-outs with a bounded number of slots, whose members reach each other's memory; senders whose call comes along and
// senders whose call does not; peers that vanish in the middle of a message.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "cohort/comm/transport/transport.h"

namespace cohort::comm {

// How ranks of a fan-out reach each other's memory (memory_access.h).
enum class SimAccess : uint8_t {
  kNone,        // not at all
  kMixed,       // each buffer is shared or private, as drawn; private memory can be reached
  kSharedOnly,  // likewise, but private memory can't be reached: such calls are served otherwise
};

struct SimOptions {
  uint64_t seed = 1;
  // A message arrives 0 to this many ticks after it was sent.
  int max_delay = 20;
  // Messages up to this size are copied when sent, as long as their link holds at most `window_bytes`.
  size_t eager_bytes = 256;
  size_t window_bytes = 1024;
  // One call moves at most this much of a long message; the amount is drawn.
  size_t chunk_bytes = 4096;
  // Fan-outs: the longest message, and messages that one may hold. 0 bytes: there are no fan-outs.
  size_t fanout_bytes = 512;
  int fanout_slots = 2;
  SimAccess access = SimAccess::kMixed;
  // Whether messages carry their call, or only its signature.
  bool carry_calls = true;
};

// The wires among all ranks. Not thread-safe: one rank runs at a time.
class SimNetwork {
 public:
  explicit SimNetwork(const SimOptions& options);
  ~SimNetwork();
  SimNetwork(const SimNetwork&) = delete;
  SimNetwork& operator=(const SimNetwork&) = delete;

  // The transport of one rank; the network outlives it. `on_poll` is called whenever the rank's engine polls: there the
  // test lets other ranks run. May be null.
  std::unique_ptr<Transport> MakeTransport(int world_rank, std::function<void()> on_poll);
  // Time goes on.
  void Tick();
  // A number below `bound`, drawn from the seed.
  uint64_t Draw(uint64_t bound);

  struct State;

 private:
  std::unique_ptr<State> state_;
};

}  // namespace cohort::comm
