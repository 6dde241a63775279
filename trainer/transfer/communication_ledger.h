// CommunicationLedger: how many bytes a program moves, by operation.
//
//   CommunicationLedger ledger;
//   ... one step ...
//   std::puts(ledger.Table().c_str());
//
// Of a call whose whole vector has B bytes (all-gather: what comes out; reduce-scatter: what goes in), the n ranks of
// its group together send at least
//
//   all-reduce                               2 (n - 1) B
//   all-gather, reduce-scatter, broadcast      (n - 1) B
//
// which algorithms for large vectors reach; each rank sends an n-th of it. So a step of n ranks, or of d ranks that
// share P bytes of parameters and r replicas of them, sends
//
//   DDP       2 (n - 1) P                    gradients
//   ZeRO-1    2 (n - 1) P + (n - 1) P        and parameters
//   ZeRO-2      (n - 1) P + (n - 1) P
//   FSDP      2 (d - 1) P + (d - 1) P        parameters twice, gradients; SHARD_GRAD_OP: parameters once
//   HSDP      the same in each row of d, and 2 (r - 1) P / d in each column of r
//
// less (d - 1) of the outermost FSDP unit's own parameters, which stay gathered from forward to backward. FSDP's P
// counts the padding: each parameter's rows rounded up to a multiple of d.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "cohort/comm/types.h"

namespace cohort::trainer {

// Calls of one operation on groups of one size.
struct LedgerEntry {
  int64_t calls = 0;
  int64_t bytes = 0;          // of whole vectors
  int64_t sent_by_group = 0;  // by all ranks of the group together
};

// Counts this process's calls of collectives.h, all of the trainer's, in all threads, while it lives. One at a time.
class [[nodiscard]] CommunicationLedger {
 public:
  CommunicationLedger();
  ~CommunicationLedger();
  CommunicationLedger(const CommunicationLedger&) = delete;
  CommunicationLedger& operator=(const CommunicationLedger&) = delete;

  // By operation and ranks of the group. Since this was made or Reset.
  std::map<std::pair<comm::CollectiveKind, int>, LedgerEntry> entries() const;
  // Of all of them: what the groups of this rank send.
  LedgerEntry total() const;
  // A line for each entry, for people.
  std::string Table() const;
  void Reset();
};

// For collectives.cc: a call among `ranks` ranks whose whole vector has so many bytes.
void EnterInLedger(comm::CollectiveKind kind, int ranks, int64_t bytes);

}  // namespace cohort::trainer
