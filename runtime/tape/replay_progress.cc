#include "cohort/runtime/tape/replay_progress.h"

#include <sys/types.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <utility>
#include <vector>

#include "cohort/runtime/base/mutex.h"

namespace cohort::runtime {
namespace {

constexpr int kExitShort = 1;

struct Watched {
  std::atomic<pid_t> process{0};  // whose replays these are; 0: Check is no handler of exit yet
  Mutex mutex;
  std::vector<std::shared_ptr<const ReplayProgress>> replays COHORT_GUARDED_BY(mutex);
};

// Never destroyed: it is looked at when static objects are gone.
Watched& TheWatched() {
  static auto* const watched = new Watched();
  return *watched;
}

void Check(int status, void*) {
  if (status != 0) return;  // the program has said why
  Watched& watched = TheWatched();
  // Before the lock: a thread of the parent may have held it when this process was forked.
  if (watched.process.load() != ::getpid()) return;
  bool any_short = false;
  {
    MutexLock lock(watched.mutex);
    for (const std::shared_ptr<const ReplayProgress>& replay : watched.replays) {
      const size_t begun = replay->begun.load();
      if (begun >= replay->calls) continue;
      any_short = true;
      std::fprintf(
          stderr,
          "cohort: replay of rank %d: the program ended after %zu of %zu calls: it, its arguments or its input "
          "differ from the recorded run, or it ended sooner than the recorded one\n",
          replay->rank, begun, replay->calls);
    }
  }
  // glibc's exit may be called by a handler: it goes on with the handlers that are left, and with the new status.
  if (any_short) std::exit(kExitShort);
}

}  // namespace

void CheckAtExit(std::shared_ptr<const ReplayProgress> progress) {
  Watched& watched = TheWatched();
  MutexLock lock(watched.mutex);
  const pid_t before = watched.process.load();
  if (before == 0 && ::on_exit(Check, nullptr) != 0) return;
  if (before != ::getpid()) watched.replays.clear();  // those of the process that has forked this one
  watched.process.store(::getpid());
  watched.replays.push_back(std::move(progress));
}

}  // namespace cohort::runtime
