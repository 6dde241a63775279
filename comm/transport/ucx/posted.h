// A message under way on a link: its sequence numbers, one a piece, and the transfers that carry the pieces.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "cohort/comm/transport/net/buffer_pool.h"
#include "cohort/comm/transport/net/ordered_link.h"
#include "cohort/comm/transport/transport.h"
#include "cohort/comm/transport/ucx/worker.h"

namespace cohort::comm::ucx {

inline constexpr size_t kMostInFlight = 4;  // pieces of one message

// How far a message is.
struct Pieces {
  uint64_t started = 0;
  uint64_t finished = 0;
  std::array<Transfer*, kMostInFlight> in_flight = {};
  bool moved = false;
  bool failed = false;

  bool InFlight() const;  // from or to the operation's memory
  bool AddTransfer(Transfer* transfer);
  bool HasRoom() const;
  void DropTransfer(const Transfer* transfer);
};
struct PostedSend : net::PostedMessage<SendOperation>, Pieces {};
struct PostedRecv : net::PostedMessage<RecvOperation>, Pieces {
  struct Stage {
    net::BufferPool::Block block;
    uint64_t offset = 0;
    uint64_t bytes = 0;
    enum { kFree, kFilling, kFull } state = kFree;
  };

  std::array<Stage, kMostInFlight> stages;  // of a reduction; filled out of order, reduced in any
};

// Which sequence numbers have come: all before a first one, and some of the 64 after it.
class ArrivalWindow {
 public:
  // Notes that the piece has come; false when it had come before, or is further ahead than any sender goes.
  bool IsNew(uint64_t sequence) {
    if (sequence == next_) {
      const int run = std::countr_one(ahead_);
      ahead_ = run >= 63 ? 0 : ahead_ >> (run + 1);
      next_ += static_cast<uint64_t>(run) + 1;
      return true;
    }
    const uint64_t ahead = sequence - next_ - 1;
    if (sequence < next_ || ahead >= 64 || (ahead_ >> ahead & 1) != 0) return false;
    ahead_ |= uint64_t{1} << ahead;
    return true;
  }

 private:
  uint64_t next_ = 0;   // no piece before this one is missing
  uint64_t ahead_ = 0;  // bit i: piece next_ + 1 + i has come
};

}  // namespace cohort::comm::ucx
