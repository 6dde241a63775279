// Writes NCCL's calls into the black box of their rank. A record begins when the call's kernel begins on the device,
// and ends with it: only then it is known that the rank waits for others, and no longer computes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "cohort/comm/nccl/profiler/announced_call.h"
#include "cohort/comm/nccl/profiler/call_slots.h"
#include "cohort/comm/nccl/profiler/recorded_box.h"
#include "cohort/runtime/base/mutex.h"
#include "cohort/runtime/segment/call_record.h"
#include "cohort/runtime/segment/segment.h"

namespace cohort::comm::nccl_profiler {

// A communicator as NCCL describes it.
struct CommunicatorFacts {
  uint64_t hash = 0;  // equal on all its ranks; 0: not known yet
  int rank = 0;
  int size = 0;  // 0: not known
};

// The group by which a communicator's calls are compared. Never 0.
uint64_t GroupOf(uint64_t communicator_hash);

// Any thread, except where it is said.
class NcclRecorder {
 public:
  static constexpr size_t kCommunicators = 4096;  // at a time; the calls of others are not recorded
  static constexpr size_t kPeers = 64 << 10;      // of one communicator, to which messages go
  static constexpr size_t kRunningCalls = 64;     // of one communicator, at a time

  // Records as local_rank() of `segment`, which outlives it.
  NcclRecorder(runtime::Segment* segment, uint32_t epoch);

  // A new communicator's number. 0 where its calls are not recorded: there are too many, or another of its ranks is in
  // this process.
  uint64_t Add(const CommunicatorFacts& facts);
  // Says who it is, where Add did not know. False: another of its ranks is in this process, and it is not recorded.
  bool Describe(uint64_t communicator, const CommunicatorFacts& facts);
  // Its calls that still run have failed: NCCL lets a communicator go before its kernels have ended when it is aborted.
  void Remove(uint64_t communicator);

  // A call is about to be launched. Its handle; null where it is not recorded.
  void* Announce(uint64_t communicator, const AnnouncedCall& call);
  // The call's kernel begins on a channel. The handle of that; null where there is no such call.
  void* BeginKernel(const void* call, int channel);
  // A call has been launched, or a kernel ends.
  void Stop(const void* handle);

  // The oldest call of a communicator that runs.
  struct Running {
    uint64_t number = 0;  // of the call, in this process
    uint64_t communicator = 0;
    uint64_t group = 0;
    uint64_t sequence = 0;
    bool message = false;
    uint64_t since_ns = 0;     // steady clock
    std::vector<int> members;  // of the communicator, as world ranks; empty: not known
  };
  // One of each communicator that has such a call, oldest first.
  std::vector<Running> OldestRunning();
  // Shows in the segment that the rank waits for the call of this number, as long as it runs; 0: for none.
  void ShowWait(uint64_t number);

  // A communicator whose members are not known yet.
  struct Unresolved {
    uint64_t communicator = 0;
    CommunicatorFacts facts;
  };
  std::vector<Unresolved> UnresolvedCommunicators();
  // World ranks by the communicator's ranks; -1: not known.
  void SetMembers(uint64_t communicator, std::vector<int> world_ranks);

  // False when a runtime of this rank has joined: nothing is recorded any more.
  bool open() const { return box_.open(); }

 private:
  struct Messages {
    uint64_t sent = 0;
    uint64_t received = 0;
  };
  struct Communicator {
    CommunicatorFacts facts;
    uint64_t sequence = 0;                       // of the latest collective
    std::unordered_map<int, Messages> messages;  // by peer
    std::vector<uint64_t> running;               // numbers of calls, ascending
    std::vector<int> world_ranks;
  };

  Communicator* Find(uint64_t communicator) COHORT_REQUIRES(mutex_);
  bool IsTwin(const CommunicatorFacts& facts) const COHORT_REQUIRES(mutex_);
  uint64_t NextSequence(const AnnouncedCall& call, Communicator* communicator) COHORT_REQUIRES(mutex_);
  void Begin(CallSlot* slot) COHORT_REQUIRES(mutex_);
  void End(CallSlot* slot, runtime::CallState state, bool at_once = false) COHORT_REQUIRES(mutex_);
  void EndEarlier(Communicator* communicator, uint64_t number) COHORT_REQUIRES(mutex_);
  void HideWait() COHORT_REQUIRES(mutex_);

  runtime::Segment* const segment_;
  const uint32_t epoch_;
  runtime::Mutex mutex_;
  RecordedBox box_;  // written under the lock
  CallSlots slots_ COHORT_GUARDED_BY(mutex_);
  std::unordered_map<uint64_t, Communicator> communicators_ COHORT_GUARDED_BY(mutex_);
  uint64_t latest_communicator_ COHORT_GUARDED_BY(mutex_) = 0;
  uint64_t shown_call_ COHORT_GUARDED_BY(mutex_) = 0;
  uint64_t shown_wait_ COHORT_GUARDED_BY(mutex_) = 0;  // the number of the wait for it, in the segment
};

}  // namespace cohort::comm::nccl_profiler
