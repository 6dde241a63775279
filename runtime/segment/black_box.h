// A rank's black box: a ring of its latest calls, written at about 20 ns a call (half of it the clock), readable by
// others at any time.
#pragma once

#include <pthread.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <type_traits>
#include <vector>

#include "cohort/runtime/base/clock.h"
#include "cohort/runtime/segment/call_record.h"

namespace cohort::runtime {

inline constexpr int kBlackBoxRecords = 512;  // a power of two

struct BlackBoxMemory;  // its layout, in layout.h

// How a call is served, for people. It stands in the box beside the call's record, and members do not compare it.
struct CallService {
  char algorithm[46] = {};  // "ring", "leader:flat+ring", "single_copy, or ring"; empty: none; NUL-terminated, cut
  uint16_t transports = 0;  // TransportBit (call_names.h) of each that connects this rank with the call's members
};
static_assert(sizeof(CallService) == 48 && std::is_trivially_copyable_v<CallService>);

// The slot in which a box holds what the records of repeated calls have in common. Its owner renews it when a call
// differs from the last user in more than its sequence, tag and wire signature.
struct CallDescription {
  uint64_t id = 0;      // 0: not written yet
  CallService service;  // written with it
};

// The owner's side. One call at a time writes (the engine's owner); not thread-safe beyond that.
class BlackBoxWriter {
 public:
  // Writes on behind what the box holds: another process of the rank may have written it before (Segment::Role).
  explicit BlackBoxWriter(BlackBoxMemory* memory);
  // Writes a record in state kStarted, start_ns filled in, and returns its ticket. With a description that the box
  // still holds this is one line.
  uint64_t Start(const CallRecord& record, CallDescription* description);
  uint64_t Start(const CallRecord& record) {
    CallDescription unknown;
    return Start(record, &unknown);
  }
  // Marks it done or failed. A record that the ring has since overwritten is left alone. The clock is half of a
  // record's cost: an operation that had not to wait (`at_once`) ends, for the record, when it began.
  void Finish(uint64_t ticket, CallState state, bool at_once = false);
  // Marks it done, with its result (CallRecord::result).
  void FinishWithResult(uint64_t ticket, uint32_t result);
  // The latest ticket; 0: none.
  uint64_t latest() const;
  // Whether there were calls, and `thread` alone has made them. For the engine's owner.
  bool CalledOnlyBy(pthread_t thread) const {
    return has_caller_ && !several_callers_ && pthread_equal(caller_, thread) != 0;
  }

 private:
  // The use of a description, by its slot.
  struct Use {
    uint64_t ticket = 0;  // of its latest record
    uint64_t generation = 0;
  };
  uint64_t StartSlowly(const CallRecord& record, CallDescription* description);
  void FinishWithClock(uint64_t ticket, CallState state);
  uint64_t Describe(const CallRecord& record, const CallService& service, uint64_t ticket);
  void NoteCaller();

  BlackBoxMemory* memory_;
  std::vector<Use> uses_;
  size_t next_ = 0;                // place to look at for the next description
  const void* calling_ = nullptr;  // the thread of the latest call
  pthread_t caller_{};             // of the same
  bool has_caller_ = false;
  bool several_callers_ = false;
  FastClock clock_;
};

// Anyone's side: consistent copies (per-record sequence lock), never blocking, never trusting the contents.
class BlackBoxReader {
 public:
  explicit BlackBoxReader(const BlackBoxMemory* memory) : memory_(memory) {}
  // The newest record, or nothing when there was no call.
  std::optional<CallRecord> Latest() const;
  // The record of this collective, if the ring still holds it. Sends and receives, which count their sequence per peer,
  // are never found.
  std::optional<CallRecord> Find(uint64_t group, uint32_t epoch, uint64_t sequence) const;
  // Whether the rank has made that collective: true also where the ring holds only later ones of the group; nothing
  // where it holds none of a group that the rank has used, so that it may have forgotten the call. That a group was
  // never used is known however many calls there were; one in a hundred such is taken for used by a rank that used
  // 3,400 others.
  std::optional<bool> Reached(uint64_t group, uint32_t epoch, uint64_t sequence) const;
  // The newest record of a group.
  std::optional<CallRecord> LatestOf(uint64_t group, uint32_t epoch) const;
  // All records, oldest first.
  std::vector<CallRecord> All() const;
  // The record with this ticket, if the ring still holds it. `service`, if not null, is filled where it does.
  std::optional<CallRecord> At(uint64_t ticket, CallService* service = nullptr) const;
  // The latest ticket, which is the number of calls that were made.
  uint64_t latest() const;

 private:
  const BlackBoxMemory* memory_;
};

}  // namespace cohort::runtime
