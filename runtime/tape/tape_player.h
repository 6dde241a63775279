// Gives a program again what a tape holds, in the order in which it was recorded.
//
// The player stands at an event of the tape. A call that the program begins is marked; then the player goes on over
// events that have happened: calls that are begun, and the results of such calls, which it hands out. It stops before a
// call that the program has yet to begin. What was recorded behind that call may depend on it. What the program does
// before it can't, so that a program of several threads never waits for a call that waits for it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cohort/runtime/base/mutex.h"
#include "cohort/runtime/tape/replay_progress.h"
#include "cohort/runtime/tape/tape_contents.h"
#include "cohort/runtime/tape/tape_reader.h"

namespace cohort::runtime {

// A call of the program that waits for its result.
class ReplayedCall {
 public:
  // The bytes that it got from others. It may begin other calls.
  virtual void OnResult(std::span<const std::byte> result) = 0;

 protected:
  ~ReplayedCall() = default;
};

// A group of the program whose calls are replayed.
class ReplayedGroup {
 public:
  // It has failed, after all its calls that are begun.
  virtual void OnTapedFailure(const absl::Status& status) = 0;

 protected:
  ~ReplayedGroup() = default;
};

// The engine's owner makes all calls but Answer and AskStop, which any thread may make.
class TapePlayer {
 public:
  explicit TapePlayer(std::unique_ptr<OpenTape> tape);

  const TapeContents& contents() const { return contents_; }
  const std::string& path() const { return tape_->path(); }
  // Counts the calls that are begun, and outlives the player.
  std::shared_ptr<const ReplayProgress> progress() const { return progress_; }

  // A group exists from here on.
  void Join(uint64_t group, ReplayedGroup* listener);
  void Leave(uint64_t group);

  // The next call of the group that the program has not begun. Of a program with one thread, the next call of all.
  // Null: the tape has none.
  const TapedCall* Next(uint64_t group) const;
  // The next call of any group; null: all are begun.
  const TapedCall* NextOfAll() const;
  // The call before the one that is next, or null; for people.
  const TapedCall* Latest() const { return latest_; }
  // The call, which Next returned, is begun: its result, if there is one, comes at once or later.
  void Begin(const TapedCall& call, ReplayedCall* waiting);
  // The call does not wait any more.
  void Forget(const TapedCall& call);
  // Whether `call` has a result that has yet to come.
  bool Awaits(const TapedCall& call) const { return call.done && waiting_.contains(IndexOf(call)); }
  // Whether everything has been handed out.
  bool at_end() const { return at_ == contents_.events.size(); }
  // The number of results and calls that have passed, to see whether anything moves.
  uint64_t moved() const { return at_; }
  uint64_t NumberOf(const TapedCall& call) const { return IndexOf(call) + 1; }

  // The recorded answer to a lookup: the first that was not given yet. Of the store, whose keys are written once, the
  // last one again and again. kFailedPrecondition: the tape has none.
  absl::StatusOr<TapeLookup> Answer(TapeLookup::Kind kind, int call, std::string_view key);
  // Whether the recorded rank had to stop before `step`. A step before those that the tape holds is said on stderr.
  bool AskStop(uint64_t step);

 private:
  struct GroupCalls {
    std::vector<size_t> calls;  // in order
    size_t next = 0;
    ReplayedGroup* listener = nullptr;
  };
  using Key = std::pair<int, std::string>;

  size_t IndexOf(const TapedCall& call) const { return static_cast<size_t>(&call - contents_.calls.data()); }
  void Advance();
  bool Happen(const TapeEvent& event);

  const std::unique_ptr<OpenTape> tape_;
  const TapeContents& contents_;
  std::unordered_map<uint64_t, GroupCalls> groups_;  // by id
  std::vector<bool> begun_;                          // by call
  const std::shared_ptr<ReplayProgress> progress_;
  std::unordered_map<size_t, ReplayedCall*> waiting_;
  size_t at_ = 0;          // the event that has yet to happen
  size_t first_left_ = 0;  // the first call that is not begun, or an earlier one
  const TapedCall* latest_ = nullptr;
  bool advancing_ = false;

  Mutex mutex_;
  std::map<Key, std::deque<const TapeLookup*>> lookups_ COHORT_GUARDED_BY(mutex_);
  bool asked_ COHORT_GUARDED_BY(mutex_) = false;
};

}  // namespace cohort::runtime
