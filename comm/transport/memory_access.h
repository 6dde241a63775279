// Memory of a group's members, reached directly: what plans with kOpen run on. A transport
// whose ranks can reach each other's memory offers it through its Fanout, over which the ranks also tell each other
// where their buffers lie.
//
// A rank must never touch memory of a member that has given its group up: that member's user may have freed it. So all
// access is made between Enter and Leave, which take part in a protocol: a member that destroys its MemoryAccess
// forbids further access to its memory and then waits, boundedly, until no member is inside.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "cohort/comm/transport/transport.h"

namespace cohort::comm {

// The place of memory, in the transport's terms. Plain bytes: sent to the other members, who trust nothing in it.
struct MemoryName {
  uint64_t place = 0;
  uint64_t shared = 0;  // 1: all members can map it; 0: it is private
};

class MemoryAccess {
 public:
  virtual ~MemoryAccess() = default;

  // How others name this process' memory from `data` on, which has `bytes` bytes.
  virtual MemoryName NameOf(const void* data, size_t bytes) = 0;
  // kDone: it is known, and told in *reaches, whether this process can read and write the private memory of all other
  // members. kBlocked: *waiting_for, a group rank, has not come yet.
  virtual Progress ReachesPrivate(bool* reaches, int* waiting_for) = 0;
  // Returns where `bytes` bytes of a peer's shared memory lie in this process; null if the peer named no such memory.
  // Stays valid as long as this object.
  virtual std::byte* Resolve(int peer, const MemoryName& name, size_t bytes) = 0;

  // Permission to touch other members' memory until Leave. False: one of them has given the group up, and this process
  // will be told.
  virtual bool Enter() = 0;
  // False: a member gave the group up meanwhile, and what was read inside may be anything. The operation must not be
  // completed with it; this process will be told that the member has ended.
  virtual bool Leave() = 0;
  // Copies from and to a peer's private memory, in one go; inside only. kDone, kBlocked (the peer is gone; news will
  // come), or kFailed with *error.
  virtual Progress Read(int peer, uint64_t address, std::byte* to, size_t bytes, absl::Status* error) = 0;
  virtual Progress Write(int peer, uint64_t address, const std::byte* from, size_t bytes, absl::Status* error) = 0;

  // The longest that a caller should touch between Enter and Leave, in bytes of one buffer.
  virtual size_t piece_bytes() const = 0;
};

}  // namespace cohort::comm
