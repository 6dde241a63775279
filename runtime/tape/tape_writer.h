// Writes a rank's tape: what its calls, and its lookups in the job's store, gave it.
//
//   head, group, site, begin, begin, result, call, lookup, ..., end
//
// A call that is done at once is one entry. Another one begins, and its result comes later, behind whatever else
// happened meanwhile: the order of entries is the order of events. All that is complete is in the kernel's hands, and
// so survives the process.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cohort/runtime/base/mutex.h"
#include "cohort/runtime/segment/call_record.h"
#include "cohort/runtime/tape/call_prediction.h"
#include "cohort/runtime/tape/running_check.h"
#include "cohort/runtime/tape/tape_bytes.h"
#include "cohort/runtime/tape/tape_file.h"
#include "cohort/runtime/tape/tape_head.h"

namespace cohort::runtime {

// A call that begins.
struct BegunCall {
  uint32_t group = 0;                  // TapeWriter::AddGroup
  const CallRecord* record = nullptr;  // numbered or not
  uint64_t count = 0;                  // elements of the call's block; 0 for a variable-count form
  uint16_t input = 0;                  // a hash of what the rank gives to the call
  uint64_t received = 0;               // bytes that it will get from others
  bool unequal = false;                // a variable-count form, with these counts
  std::span<const int64_t> in_counts = {};
  std::span<const int64_t> out_counts = {};
};

// Any thread may call. A disk that is full, or fails, ends the tape: that is said once on stderr, and the rest is left
// out. Nothing is ever returned to the program.
class TapeWriter {
 public:
  // The calls that count as one step in a program that marks none.
  static constexpr uint64_t kCallsOfAStep = 10'000;

  // Makes the folder if need be, and the tape for head.rank in it, by `name`. What an earlier job has left under that
  // name is replaced. Blocks. The error names the path and the cause.
  static absl::StatusOr<std::unique_ptr<TapeWriter>> Create(const std::string& folder, const std::string& name,
                                                            const TapeHead& head);
  ~TapeWriter();
  TapeWriter(const TapeWriter&) = delete;
  TapeWriter& operator=(const TapeWriter&) = delete;

  const std::string& path() const { return path_; }

  // Makes a group of these world ranks known. Returns its number.
  uint32_t AddGroup(uint64_t id, std::span<const int> members);
  // Returns the number of the call.
  uint64_t Begin(const BegunCall& call);
  // The call is done, and `result` is what it got from others: as many bytes as its BegunCall says.
  void End(uint64_t call, std::span<const MemoryPiece> result);
  // The group has failed: its calls that have not ended do not end otherwise.
  void Fail(uint32_t group, const absl::Status& status);
  void AddLookup(const TapeLookup& lookup);
  // The program has asked whether it must stop before `step`.
  void Step(uint64_t step, bool stop);
  // The rank ends in order. Nothing may follow.
  void Finish();

 private:
  struct Known {
    std::string body;       // of its entry
    uint64_t part = ~0ull;  // the latest that has it
  };
  TapeWriter(std::string path, TapeHead head, std::unique_ptr<TapeFile> file);

  enum class When : uint8_t { kNow, kLater };  // an entry is written, with all that waits; or it waits
  void Put(TapeEntry entry, std::string_view body, When when) COHORT_REQUIRES(mutex_);
  // `header` begins with the byte of the entry.
  void PutCall(std::string_view header, std::span<const MemoryPiece> result, When when) COHORT_REQUIRES(mutex_);
  // Puts `rest` and the check behind the entry that begins there in `waiting_`.
  void Seal(size_t begin, std::span<const MemoryPiece> rest, size_t check_bytes, When when) COHORT_REQUIRES(mutex_);
  void Write(std::span<const MemoryPiece> pieces) COHORT_REQUIRES(mutex_);
  void PutHead() COHORT_REQUIRES(mutex_);
  // Writes what the part does not have yet.
  void Mention(TapeEntry entry, Known* known) COHORT_REQUIRES(mutex_);
  uint32_t SiteOf(const CallRecord& record) COHORT_REQUIRES(mutex_);
  uint32_t ShapeOf(const BegunCall& call, uint32_t site) COHORT_REQUIRES(mutex_);
  void ForgetShapes() COHORT_REQUIRES(mutex_);
  // A step begins: with --tape-last another part, perhaps.
  void BeginStep() COHORT_REQUIRES(mutex_);
  void NextPart() COHORT_REQUIRES(mutex_);
  void Stop(const absl::Status& why) COHORT_REQUIRES(mutex_);

  const std::string path_;
  Mutex mutex_;
  TapeHead head_ COHORT_GUARDED_BY(mutex_);
  std::unique_ptr<TapeFile> file_ COHORT_GUARDED_BY(mutex_);  // null: the tape has ended
  std::vector<Known> groups_ COHORT_GUARDED_BY(mutex_);
  struct Site {
    uint32_t index = 0;
    Known known = {};
  };
  std::unordered_map<std::string, Site> sites_ COHORT_GUARDED_BY(mutex_);       // by the bytes of the record
  std::unordered_map<std::string, uint32_t> shapes_ COHORT_GUARDED_BY(mutex_);  // by the bytes behind their index
  size_t shape_bytes_ COHORT_GUARDED_BY(mutex_) = 0;                            // of all of them
  CallPrediction prediction_ COHORT_GUARDED_BY(mutex_);
  RunningCheck check_ COHORT_GUARDED_BY(mutex_);
  std::string waiting_ COHORT_GUARDED_BY(mutex_);  // entries that are not written yet
  std::vector<MemoryPiece> pieces_ COHORT_GUARDED_BY(mutex_);
  std::string body_ COHORT_GUARDED_BY(mutex_);
  uint64_t calls_ COHORT_GUARDED_BY(mutex_) = 0;  // begun
  // The latest call's entry, if nothing is behind it and it waits.
  std::string begun_ COHORT_GUARDED_BY(mutex_);                    // without its check
  size_t begun_at_ COHORT_GUARDED_BY(mutex_) = std::string::npos;  // in waiting_; npos: not so
  RunningCheck check_before_ COHORT_GUARDED_BY(mutex_);            // it
  const void* thread_ COHORT_GUARDED_BY(mutex_) = nullptr;         // that made the latest call
  Known threads_ COHORT_GUARDED_BY(mutex_);                        // that there are several
  bool marks_steps_ COHORT_GUARDED_BY(mutex_) = false;
  uint64_t steps_in_part_ COHORT_GUARDED_BY(mutex_) = 0;
  uint64_t calls_in_step_ COHORT_GUARDED_BY(mutex_) = 0;
};

}  // namespace cohort::runtime
