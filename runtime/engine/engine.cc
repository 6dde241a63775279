#include "cohort/runtime/engine/engine.h"

#include <sched.h>

#include <algorithm>
#include <span>
#include <thread>
#include <utility>

#include "cohort/runtime/base/asymmetric_fence.h"
#include "cohort/runtime/base/check.h"
#include "cohort/runtime/base/forks.h"
#include "cohort/runtime/base/futex.h"
#include "cohort/runtime/base/mutex.h"
#include "cohort/runtime/base/thread.h"
#include "cohort/runtime/engine/cpu_spread.h"
#include "cohort/runtime/engine/shown_wait.h"
#include "cohort/runtime/engine/sleeper.h"
#include "cohort/runtime/engine/source_list.h"
#include "cohort/runtime/engine/wait_policy.h"
#include "cohort/runtime/engine/waiter.h"
#include "cohort/runtime/segment/segment.h"

namespace cohort::runtime {
namespace {

using Clock = Deadline::Clock;

// A thread sleeps on these besides the wake word. Further sources with descriptors are looked at every 50 ms.
constexpr size_t kMaxDescriptors = 16;
struct Descriptors {
  int fds[kMaxDescriptors];
  size_t count = 0;
};

}  // namespace

struct Engine::Rep {
  Rep(Segment* segment, int local_ranks)
      : segment(segment), sleeper(segment), policy(MakeWaitPolicy(local_ranks)), spread(segment, policy.spins == 0) {}

  // --- ownership ---
  bool Owned() const { return owner.load(std::memory_order_relaxed) == ThisThread(); }
  bool TryAcquire() {
    const void* nobody = nullptr;
    return owner.load(std::memory_order_relaxed) == nullptr &&
           owner.compare_exchange_strong(nobody, ThisThread(), std::memory_order_acquire, std::memory_order_relaxed);
  }
  void Acquire();
  bool AcquireToDrive();
  // Later reads see every thread that was registered before it could see the engine free, and the owner's writes.
  void Release() {
    owner.store(nullptr, std::memory_order_release);
    fence.Light();
  }

  // --- owner only ---
  bool PollAll() { return sources.Poll(); }
  bool PollFirst(const Waiter& waiter);
  bool AnyActive() const { return sources.AnyActive(); }
  bool Arm(Descriptors* armed);

  // --- waiting ---
  bool Drive(Waiter& waiter, Deadline deadline, bool nested, bool* lost);
  bool EndDrive(const Waiter& waiter, bool nested);
  bool Park(Waiter* waiter, Deadline deadline, bool keep);
  bool StopCounting(const Waiter& waiter);
  void Unlock() {
    Release();
    if (registered.load(std::memory_order_relaxed) > 0) [[unlikely]]
      WakeFulfilled(false);
  }
  bool Sit(Waiter& waiter, Deadline deadline);
  void Leave(const Waiter& waiter);
  void Register(Waiter& waiter);
  void Unregister(Waiter& waiter);
  void WakeFulfilled(bool successor);

  // --- progress thread ---
  void ProgressMain();
  void DriveInBackground();
  bool LetGo() const { return waiting.load(std::memory_order_relaxed) > 0 || stop.load(std::memory_order_relaxed); }
  void Kick();

  alignas(64) std::atomic<const void*> owner{nullptr};
  int depth = 0;                        // owner only: nested locks of the same thread
  std::atomic<uint32_t> wanted{0};      // threads that ask the owner to let go
  std::atomic<bool> driving{false};     // the owner is a thread in DriveUntil
  std::atomic<uint32_t> waiting{0};     // threads in DriveUntil
  std::atomic<uint32_t> registered{0};  // of them, those in `waiters`

  SourceList sources;  // owner only

  const AsymmetricFence fence;  // Heavy: once registered, before a sleep
  Mutex waiters_mutex;
  Waiter* waiters COHORT_GUARDED_BY(waiters_mutex) = nullptr;

  Segment* const segment;
  const ForkWatch forks;
  WaitingThreads waiting_threads;
  bool detects_deadlocks = true;
  Sleeper sleeper;
  const WaitPolicy policy;
  CpuSpread spread;     // owner only
  uint32_t yields = 0;  // owner only

  std::thread progress;
  std::atomic<bool> has_progress{false};
  std::atomic<bool> stop{false};
  std::atomic<bool> progress_asleep{false};  // on `kicks`
  std::atomic<bool> progress_parked{false};  // on the rank's wake word
  std::atomic<uint32_t> kicks{0};
};

Engine::Engine(Segment* segment, int local_ranks) : rep_(std::make_unique<Rep>(segment, local_ranks)) {}
Engine::~Engine() { StopProgressThread(); }
void Engine::set_detects_deadlocks(bool detects) { rep_->detects_deadlocks = detects; }

// --- ownership ------------------------------------------------------------------------------------------------------

void Engine::Rep::Acquire() {
  if (TryAcquire()) [[likely]]
    return;
  wanted.fetch_add(1, std::memory_order_relaxed);
  Backoff backoff;
  while (!TryAcquire()) backoff.Wait();
  wanted.fetch_sub(1, std::memory_order_relaxed);
}

// Acquires unless another thread drives already.
bool Engine::Rep::AcquireToDrive() {
  if (TryAcquire()) [[likely]]
    return true;
  wanted.fetch_add(1, std::memory_order_relaxed);
  Backoff backoff;
  bool acquired = false;
  while (!driving.load(std::memory_order_relaxed) && !(acquired = TryAcquire())) backoff.Wait();
  wanted.fetch_sub(1, std::memory_order_relaxed);
  return acquired;
}

EngineLock::EngineLock(Engine& engine) : engine_(engine), outermost_(true) {
  if (!engine.rep_->TryAcquire()) [[unlikely]]
    NestOrWait();
}

[[gnu::noinline]] void EngineLock::NestOrWait() {
  Engine::Rep& rep = *engine_.rep_;
  outermost_ = !rep.Owned();
  if (outermost_) {
    rep.Acquire();
  } else {
    ++rep.depth;
  }
}

EngineLock::~EngineLock() {
  Engine::Rep& rep = *engine_.rep_;
  if (rep.depth > 0) {
    --rep.depth;
    return;
  }
  rep.Unlock();
}

EngineRelease::EngineRelease(const EngineLock& outermost)
    : engine_(outermost.engine_), depth_(std::exchange(engine_.rep_->depth, 0)) {
  COHORT_CHECK(outermost.outermost() && engine_.rep_->Owned());
  engine_.rep_->Unlock();
}

EngineRelease::~EngineRelease() {
  engine_.rep_->Acquire();
  engine_.rep_->depth = depth_;
}

// --- sources --------------------------------------------------------------------------------------------------------

void Engine::Add(ProgressSource* source, bool first) {
  COHORT_CHECK(rep_->Owned());
  rep_->sources.Add(source, first);
}

void Engine::Enlist(ProgressSource* source) {
  COHORT_CHECK(rep_->Owned());
  rep_->sources.AddWhileActive(source);
}

void Engine::Remove(ProgressSource* source) {
  COHORT_CHECK(rep_->Owned());
  rep_->sources.Remove(source);
}

bool Engine::Poll() {
  COHORT_CHECK(rep_->Owned());
  return rep_->PollAll();
}

// Polls the waiter's own source for about as long as the other processors need to answer. True when the waiter is done.
bool Engine::Rep::PollFirst(const Waiter& waiter) {
  for (int i = 0; i < policy.spins / 2; ++i) {
    waiter.first->Poll();
    if (waiter.Done()) return true;
  }
  return false;
}

// Collects the descriptors to sleep on; true when there is something to poll right now.
bool Engine::Rep::Arm(Descriptors* armed) {
  bool ready = false;
  for (ProgressSource* source : sources.all()) {
    const int descriptor = source != nullptr ? source->Arm(&ready) : -1;
    if (descriptor >= 0 && armed->count < kMaxDescriptors) armed->fds[armed->count++] = descriptor;
  }
  return ready;
}

// --- waiting --------------------------------------------------------------------------------------------------------

bool Engine::DriveUntilErased(bool (*done)(void*), void* context, Deadline deadline, ProgressSource* first,
                              AwaitedCalls calls) {
  Rep& rep = *rep_;
  if (rep.forks.InChild()) return done(context);  // what would move is the parent's
  rep.waiting_threads.Note(ThisThread());
  Waiter waiter;
  waiter.done = done;
  waiter.context = context;
  waiter.first = first;
  waiter.calls = calls;
  bool lost = false;
  if (rep.Owned()) return rep.Drive(waiter, deadline, /*nested=*/true, &lost);
  waiter.counted = rep.has_progress.load(std::memory_order_relaxed);
  if (waiter.counted) rep.waiting.fetch_add(1, std::memory_order_seq_cst);
  while (true) {
    if (rep.AcquireToDrive()) {
      const bool result = rep.Drive(waiter, deadline, /*nested=*/false, &lost);
      if (!lost) return result;
    } else if (rep.Sit(waiter, deadline)) {
      return waiter.Done();
    }
  }
}

// The result of Drive.
bool Engine::Rep::EndDrive(const Waiter& waiter, bool nested) {
  const bool done = waiter.Done();  // before another thread may drive, which may free what it looks at
  if (!nested) Leave(waiter);
  return done;
}

// The owner polls until the waiter is done or out of time, and then leaves: the result. Sets *lost instead when the
// ownership went to another thread meanwhile.
bool Engine::Rep::Drive(Waiter& waiter, Deadline deadline, bool nested, bool* lost) {
  const bool look = deadline.time() == Deadline::Now().time();
  *lost = false;
  if (!nested) driving.store(true, std::memory_order_relaxed);
  // `first` may be gone once the waiter is done, which may have happened before the ownership came here.
  if (waiter.first != nullptr && !look && (waiter.Done() || PollFirst(waiter))) {
    return EndDrive(waiter, nested);
  }
  ShownWait shown(segment);
  int spins = 0;
  uint32_t rounds = 0;
  bool park_at_once = false;
  Clock::time_point idle_since{};
  while (true) {
    const bool moved = PollAll();
    if (waiter.Done() || look) return EndDrive(waiter, nested);
    if (registered.load(std::memory_order_relaxed) > 0) WakeFulfilled(false);
    if (!nested && wanted.load(std::memory_order_relaxed) > 0) {
      driving.store(false, std::memory_order_seq_cst);
      Release();
      Backoff backoff;
      while (wanted.load(std::memory_order_relaxed) > 0) backoff.Wait();
      *lost = true;
      return false;
    }
    if (moved) {
      shown.Moved();
      park_at_once = false;
      idle_since = {};
      spins = 0;
      if (++rounds % 64 != 0) continue;  // while things move, the clock is read now and then only
    } else if (!park_at_once && spins < policy.spins) {
      ++spins;
      Pause();
      continue;
    } else if (!park_at_once && ++yields % policy.yields_per_clock != 0) {
      sched_yield();
      continue;
    }
    const Clock::time_point now = Clock::now();
    if (now >= deadline.time()) return EndDrive(waiter, nested);
    if (moved) continue;
    spread.Look(now);
    if (idle_since == Clock::time_point{}) idle_since = now;
    if (!park_at_once && now - idle_since < policy.park_after) {
      sched_yield();
      continue;
    }
    shown.Sleeps(waiter.calls, deadline, nested || waiting_threads.several() || !detects_deadlocks);
    const bool slept = Park(&waiter, Earlier(deadline, Deadline(now + policy.park_slice)), nested);
    if (!slept) shown.Moved();
    if (slept && !nested) {
      if (!AcquireToDrive()) {
        *lost = true;
        return false;
      }
      driving.store(true, std::memory_order_relaxed);
    }
    // After a time-out one look is enough; after a wake-up something is about to happen.
    park_at_once = slept && Clock::now() >= now + policy.park_slice;
    if (!park_at_once) {
      spins = 0;
      idle_since = {};
    }
  }
}

// The owner sleeps; unless `keep`, the ownership is free meanwhile and the caller takes it again. False when there was
// something to do: the ownership was kept.
bool Engine::Rep::Park(Waiter* waiter, Deadline deadline, bool keep) {
  const uint32_t token = sleeper.Announce();
  if (waiter != nullptr) {
    waiter->parked = true;
    Register(*waiter);
  }
  Descriptors armed;
  const bool busy = PollAll() || Arm(&armed) || (waiter != nullptr && waiter->Done()) ||
                    (!keep && wanted.load(std::memory_order_relaxed) > 0) || (waiter == nullptr && LetGo());
  if (!busy) {
    if (!keep) {
      driving.store(false, std::memory_order_seq_cst);
      Release();
    }
    sleeper.Sleep(token, std::span<const int>(armed.fds, armed.count), deadline);
  }
  if (waiter != nullptr) Unregister(*waiter);
  sleeper.Withdraw();
  return !busy;
}

// Another thread drives: sleeps until that one has fulfilled the wish or has gone. True when the wait is over: done, or
// out of time.
bool Engine::Rep::Sit(Waiter& waiter, Deadline deadline) {
  waiter.parked = false;
  Register(waiter);
  bool over = false;
  while (true) {
    over = waiter.Done() || deadline.passed();
    if (over || !driving.load(std::memory_order_seq_cst)) break;
    FutexWait(waiter.word, 0, FutexScope::kPrivate, Earlier(deadline, Deadline::After(policy.park_slice)));
    waiter.word.store(0, std::memory_order_relaxed);
  }
  Unregister(waiter);
  if (!over) return false;
  // It may have been chosen to drive on.
  if (!driving.load(std::memory_order_seq_cst) && registered.load(std::memory_order_seq_cst) > 0) WakeFulfilled(true);
  if (StopCounting(waiter)) Kick();
  return true;
}

// True when the progress thread may take over: the last thread that waits has gone.
bool Engine::Rep::StopCounting(const Waiter& waiter) {
  return waiter.counted && waiting.fetch_sub(1, std::memory_order_seq_cst) == 1;
}

// A driver's wait is over: hands the engine to the next who wants it.
void Engine::Rep::Leave(const Waiter& waiter) {
  const bool background = StopCounting(waiter) && AnyActive();
  driving.store(false, std::memory_order_release);
  Release();
  if (registered.load(std::memory_order_relaxed) > 0) WakeFulfilled(true);
  if (background) Kick();
}

void Engine::Rep::Register(Waiter& waiter) {
  waiter.word.store(0, std::memory_order_relaxed);
  {
    MutexLock lock(waiters_mutex);
    waiter.next = waiters;
    waiters = &waiter;
    registered.fetch_add(1, std::memory_order_seq_cst);
  }
  fence.Heavy();
}

void Engine::Rep::Unregister(Waiter& waiter) {
  MutexLock lock(waiters_mutex);
  Waiter** link = &waiters;
  while (*link != &waiter) link = &(*link)->next;
  *link = waiter.next;
  registered.fetch_sub(1, std::memory_order_relaxed);
}

// Wakes the sleepers whose wish has been fulfilled and, with `successor`, one more to drive on. A parked sleeper is no
// successor: peers wake it.
void Engine::Rep::WakeFulfilled(bool successor) {
  bool wake_parked = false;
  {
    MutexLock lock(waiters_mutex);
    for (Waiter* waiter = waiters; waiter != nullptr; waiter = waiter->next) {
      const bool done = waiter->Done();
      if (!done && (!successor || waiter->parked)) continue;
      if (!done) successor = false;
      if (waiter->word.exchange(1, std::memory_order_relaxed) != 0) continue;
      wake_parked |= waiter->parked;
      if (!waiter->parked) FutexWake(waiter->word, FutexScope::kPrivate, 1);
    }
  }
  if (wake_parked) sleeper.WakeSelf();
}

// --- progress thread ------------------------------------------------------------------------------------------------

void Engine::StartProgressThread() {
  if (rep_->progress.joinable()) return;
  rep_->stop.store(false);
  rep_->progress = StartThread("cohort-progress", [rep = rep_.get()] { rep->ProgressMain(); });
  rep_->has_progress.store(true);
}

void Engine::StopProgressThread() {
  if (!rep_->progress.joinable()) return;
  rep_->has_progress.store(false);
  rep_->stop.store(true);
  rep_->Kick();
  rep_->progress.join();
}

void Engine::Kick() {
  if (rep_->has_progress.load(std::memory_order_relaxed)) rep_->Kick();
  // A waiter that sleeps has not polled the new work yet.
  if (rep_->registered.load(std::memory_order_relaxed) > 0) rep_->sleeper.WakeSelf();
}

void Engine::Rep::Kick() {
  kicks.fetch_add(1, std::memory_order_seq_cst);
  if (progress_asleep.load(std::memory_order_seq_cst)) FutexWake(kicks, FutexScope::kPrivate, 1);
  if (progress_parked.load(std::memory_order_seq_cst)) sleeper.WakeSelf();
}

void Engine::Rep::ProgressMain() {
  while (!stop.load(std::memory_order_acquire)) {
    const uint32_t seen = kicks.load(std::memory_order_seq_cst);
    if (!LetGo() && AcquireToDrive()) DriveInBackground();
    progress_asleep.store(true, std::memory_order_seq_cst);
    FutexWait(kicks, seen, FutexScope::kPrivate, Deadline::Infinite());
    progress_asleep.store(false, std::memory_order_relaxed);
  }
}

// The owner polls until no source is active or somebody waits, and then lets go.
void Engine::Rep::DriveInBackground() {
  int spins = 0;
  Clock::time_point idle_since{};
  while (true) {
    const bool moved = PollAll();
    if (registered.load(std::memory_order_relaxed) > 0) WakeFulfilled(false);
    if (LetGo() || !AnyActive()) break;
    if (wanted.load(std::memory_order_relaxed) > 0) {
      Release();
      Backoff backoff;
      while (wanted.load(std::memory_order_relaxed) > 0) backoff.Wait();
      if (!AcquireToDrive()) return;
      continue;
    }
    if (moved) {
      spins = 0;
      idle_since = {};
      continue;
    }
    if (spins < policy.spins) {
      ++spins;
      Pause();
      continue;
    }
    const Clock::time_point now = Clock::now();
    if (idle_since == Clock::time_point{}) idle_since = now;
    if (now - idle_since < policy.park_after) {
      sched_yield();
      continue;
    }
    progress_parked.store(true, std::memory_order_seq_cst);
    const bool slept = Park(nullptr, Deadline(now + policy.park_slice), /*keep=*/false);
    progress_parked.store(false, std::memory_order_relaxed);
    if (slept && !AcquireToDrive()) return;
    if (!slept || Clock::now() < now + policy.park_slice) {
      spins = 0;
      idle_since = {};
    }
  }
  Release();
  if (registered.load(std::memory_order_relaxed) > 0) WakeFulfilled(false);
}

}  // namespace cohort::runtime
