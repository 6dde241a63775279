// CommunicationLedger counts the bytes that a program moves, by operation.
//
//   CommunicationLedger ledger;
//   ... one step ...
//   std::puts(ledger.Table().c_str());
//
// B is the bytes of a call's whole vector: an all-gather's output, a reduce-scatter's input, the larger of an
// all-to-all's two. The n ranks of its group together send at least
//
//   all-reduce                               2 (n - 1) B
//   all-gather, reduce-scatter, broadcast      (n - 1) B
//   all-to-all                                 (n - 1) B
//
// and a message B, entered where it is sent. Algorithms for large vectors reach these figures; each rank sends an n-th
// of them. A step of n ranks, or of d ranks that share P bytes of parameters and r replicas of them, sends
//
//   DDP       2 (n - 1) P                    gradients
//   ZeRO-1    2 (n - 1) P + (n - 1) P        and parameters
//   ZeRO-2      (n - 1) P + (n - 1) P
//   FSDP      2 (d - 1) P + (d - 1) P        parameters twice, gradients; SHARD_GRAD_OP: parameters once
//   HSDP      the same in each row of d, and 2 (r - 1) P / d in each column of r
//
// The outermost FSDP unit's own parameters stay gathered from forward to backward, which saves (d - 1) times their
// bytes. FSDP's P counts the padding: each parameter's rows rounded up to a multiple of d.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "cohort/comm/communicator.h"
#include "cohort/comm/types.h"
#include "cohort/trainer/mesh/device_mesh.h"

namespace cohort::trainer {

// Calls of one operation on groups of one size.
struct LedgerEntry {
  int64_t calls = 0;
  int64_t bytes = 0;          // sum over whole vectors
  int64_t sent_by_group = 0;  // by all ranks of the group together
  int64_t sent_by_rank = 0;   // by this one: an equal share, and all of a message
};

// Counts this process's calls of collectives.h, all of the trainer's, in all threads, while it lives. Only one may
// live.
class [[nodiscard]] CommunicationLedger {
 public:
  CommunicationLedger();
  ~CommunicationLedger();
  CommunicationLedger(const CommunicationLedger&) = delete;
  CommunicationLedger& operator=(const CommunicationLedger&) = delete;

  // The entries by operation and number of ranks of the group, since this was made or Reset.
  std::map<std::pair<comm::CollectiveKind, int>, LedgerEntry> entries() const;
  // The entries by axis of `mesh`, a whole one, not a slice, and operation. A group belongs to the axes along which its
  // members lie: "shard", or "shard x tensor" for a group over both. Groups of one rank are those of no axis, "", and
  // groups with ranks outside of the mesh are "other". Throws c10::Error for a slice.
  std::map<std::pair<std::string, comm::CollectiveKind>, LedgerEntry> by_axis(const DeviceMesh& mesh) const;
  // The sum of all entries: the bytes that the groups of this rank send.
  LedgerEntry total() const;
  // A line for each entry, for people.
  std::string Table() const;
  void Reset();
};

// For collectives.cc: enters a call of `group` whose whole vector has `bytes` bytes.
void EnterInLedger(comm::CollectiveKind kind, const comm::Communicator& group, int64_t bytes);

}  // namespace cohort::trainer
