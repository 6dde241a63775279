// The activity of a process, from one look at /proc to the next. See README.md.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "cohort/launcher/agent/activity/throttle.h"
#include "cohort/launcher/agent/stacks/python_threads.h"
#include "cohort/launcher/trace/rank_activity.h"
#include "cohort/runtime/base/file_descriptor.h"

namespace cohort::launcher {

// A process, also when another one has its number later.
struct WatchedProcess {
  pid_t pid = 0;            // 0: none
  uint64_t start_time = 0;  // ProcessState::start_time; 0: not known
  bool operator==(const WatchedProcess&) const = default;
};

// The process that has this number now. Reads /proc, in some microseconds.
WatchedProcess ProcessOf(pid_t pid);

// Not thread-safe.
class ProcessActivity {
 public:
  // Between two looks. The counters are parts of `length_ns`.
  struct State {
    Activity activity = Activity::kUnknown;  // of the main thread at the second look
    std::string object;                      // "read of /data/x"; empty: not known, or nothing
    std::string place;                       // the Python line; empty: not known
    uint64_t begin_ns = 0;                   // of the steady clock
    uint64_t length_ns = 0;
    uint64_t computed_ns = 0, queued_ns = 0, throttled_ns = 0;
  };

  explicit ProcessActivity(const WatchedProcess& process);
  const WatchedProcess& process() const { return watched_; }

  // Looks at it, in some microseconds; for a Python line now and then in some hundred. Blocks for as long as the kernel
  // needs to bring its memory back from a disk. Returns nothing at the first time, and when it has ended. While it is
  // ready to run without a CPU it returns nothing for a second at the most: the next state has that time too. `waits`:
  // it waits in a call of Cohort's, so that only what holds it up there counts: in other states nothing is returned.
  std::optional<State> Look(bool waits);

 private:
  struct Counters {
    uint64_t at_ns = 0;
    uint64_t main_ns = 0;     // of CPU, the main thread
    uint64_t process_ns = 0;  // of CPU, all threads
    uint64_t queued_ns = 0;   // the main thread
    uint64_t throttled_ns = 0;
    uint64_t faults = 0;
  };

  std::string Text(const runtime::FileDescriptor& file) const;
  void LookForOthers(uint64_t now_ns);
  void LookForPython(uint64_t now_ns);
  void FollowGroups();
  void FindPlace(uint64_t now_ns);
  bool Swaps() const;
  void Name(char state, bool faulted, State* found) const;
  static void Count(const Counters& before, const Counters& now, State* found);

  const WatchedProcess watched_;
  const pid_t process_;
  // `stat_` is the main thread's: for the process' the kernel adds up all threads.
  const runtime::FileDescriptor stat_, schedule_, call_;
  std::string groups_;                // its control groups, as the kernel writes them
  std::optional<Throttle> throttle_;  // by them
  std::unique_ptr<PythonWatch> python_;
  uint64_t others_at_ns_ = 0;    // when groups were looked for
  uint64_t next_python_ns_ = 0;  // when Python may be looked for
  uint64_t python_pause_ns_ = 1'000'000'000;
  uint64_t next_place_ns_ = 0;  // when the Python line may be looked for
  std::string place_;           // as it was found last
  std::optional<Counters> before_;
  std::optional<State> uncounted_;  // since then, outside of calls: the kernel has not counted most of it
};

}  // namespace cohort::launcher
