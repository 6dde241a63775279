// The engine moves everything that is under way in this process. It is passive: whoever waits drives it, in the
// waiting thread, with no hand-off; one optional progress thread drives it while the program computes.
//
// One owner at a time (EngineLock). The sources are touched by the owner only and so have no locks of their own.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "cohort/runtime/base/deadline.h"

namespace cohort::runtime {

class Segment;

// Something that makes progress when polled: a communicator's queue, a transport, the agent connection.
class ProgressSource {
 public:
  virtual ~ProgressSource() = default;
  // Does a bounded amount of work (about 64 KiB). Returns true when anything moved. Called by the engine's owner, also
  // when the source is not active, so it must be quick when there is nothing to do.
  virtual bool Poll() = 0;
  // True when the source is waiting for something and so wants the progress thread to drive the engine.
  virtual bool Active() const = 0;
  // Sources whose news come through a descriptor (UCX): arms it. Returns the descriptor to sleep on, or -1 when there
  // is none; sets *ready instead when there is something to poll right now. The default has none: its news come with
  // Segment::Wake. Called by the engine's owner before every sleep, which lasts 50 ms at the most.
  virtual int Arm(bool* ready) {
    (void)ready;
    return -1;
  }

 private:
  friend class Engine;
  friend class SourceList;
  bool polled_ = false;             // among the engine's sources
  bool only_while_active_ = false;  // leaves them when it is found inactive
};

class Engine {
 public:
  // `segment` carries this rank's wake words; it outlives the engine. local_ranks: the ranks that share this node's
  // CPUs, for the spin budget.
  Engine(Segment* segment, int local_ranks);
  ~Engine();

  // Owner only; allowed while polling. Sources are polled in order of addition; those added with `first` (transports)
  // before all others, so that what they bring is used in the same round.
  void Add(ProgressSource* source, bool first = false);
  void Remove(ProgressSource* source);
  // Polls the source from now on, and until it is found inactive some time after its last operation. For those that
  // have nothing to do between operations: a thousand idle groups cost nothing. Owner only; quick when it is polled
  // already.
  void PollWhileActive(ProgressSource* source) {
    if (!source->polled_) [[unlikely]]
      Enlist(source);
  }

  // Polls every source once; true when anything moved. Owner only.
  bool Poll();

  // Drives the engine until `done()` or the deadline, and returns done(). Takes the ownership over from the progress
  // thread; while another thread drives, sleeps until that one has made done() true or leaves. Polls at least once.
  // Spins, yields, then sleeps: see wait_policy.h. `done` must be cheap and thread-safe: the thread that drives calls
  // it too. Called by a thread that holds the ownership (EngineLock), it keeps it until it returns.
  // `first`, if known, is the source that makes done() true: it is polled alone for a moment before all sources take
  // turns, which shortens short waits. done() is true when it goes away.
  template <typename Predicate>
  bool DriveUntil(Predicate done, Deadline deadline, ProgressSource* first = nullptr) {
    if (done()) return true;
    return DriveUntilErased([](void* context) { return (*static_cast<Predicate*>(context))(); }, &done, deadline,
                            first);
  }

  // Starts the progress thread (idempotent): it drives the engine whenever a source is active and nobody waits, and
  // sleeps otherwise.
  void StartProgressThread();
  void StopProgressThread();
  // Tells a sleeping progress thread, or a sleeping waiter, that there is new work. Called after submissions, without
  // ownership.
  void Kick();

 private:
  friend class EngineLock;
  friend class EngineRelease;
  void Enlist(ProgressSource* source);
  bool DriveUntilErased(bool (*done)(void*), void* context, Deadline deadline, ProgressSource* first);
  struct Rep;
  std::unique_ptr<Rep> rep_;
};

// Ownership of the engine for a scope. Re-entrant in one thread (a callback may submit new operations).
class EngineLock {
 public:
  explicit EngineLock(Engine& engine);
  ~EngineLock();
  EngineLock(const EngineLock&) = delete;
  EngineLock& operator=(const EngineLock&) = delete;

  // This thread did not own the engine before.
  bool outermost() const { return outermost_; }

 private:
  friend class EngineRelease;
  Engine& engine_;
  bool outermost_;
};

// Gives the ownership up for a scope, however often this thread has taken it: for a wait of which nobody can say how
// long it will be, during which other threads submit, abort and look. `outermost` is this thread's outermost lock. Only
// for code that knows all callers between that and itself, and that none of them relies on being alone: nothing that
// the engine calls, whose callers are sources in the midst of their work.
class EngineRelease {
 public:
  explicit EngineRelease(const EngineLock& outermost);
  ~EngineRelease();
  EngineRelease(const EngineRelease&) = delete;
  EngineRelease& operator=(const EngineRelease&) = delete;

 private:
  Engine& engine_;
  const int depth_;  // of the locks on top of the outermost one
};

}  // namespace cohort::runtime
