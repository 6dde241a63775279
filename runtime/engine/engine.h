// The engine moves all pending operations of this process. It is passive: the waiting thread drives it, with no
// hand-off. An optional progress thread drives it while the program computes.
//
// It has one owner at a time (EngineLock). Only the owner touches the sources, which therefore have no locks of their
// own.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "cohort/runtime/base/deadline.h"

namespace cohort::runtime {

class Segment;

// Makes progress when polled: a communicator's queue, a transport, the agent connection.
class ProgressSource {
 public:
  virtual ~ProgressSource() = default;
  // Does a bounded amount of work (about 64 KiB) and returns whether anything moved. The engine's owner calls it, also
  // when the source is not active. It must therefore be quick when there is nothing to do.
  virtual bool Poll() = 0;
  // True when the source waits for something and therefore wants the progress thread to drive the engine.
  virtual bool Active() const = 0;
  // Arms the descriptor of a source whose news come through one (UCX). Returns the descriptor to sleep on, or -1 when
  // there is none. Sets *ready instead when there is something to poll right now. The default has no descriptor: its
  // news come with Segment::Wake. The engine's owner calls it before every sleep, which lasts at most 50 ms.
  virtual int Arm(bool* ready) {
    (void)ready;
    return -1;
  }

 private:
  friend class Engine;
  friend class SourceList;
  bool polled_ = false;             // is among the engine's sources
  bool only_while_active_ = false;  // is removed from them when it is found inactive
};

// The calls that a wait is for, by their tickets in the rank's black box; first 0: not known.
struct AwaitedCalls {
  uint64_t first = 0;
  uint64_t last = 0;
};

class Engine {
 public:
  // `segment` holds this rank's wake words and outlives the engine. `local_ranks` is the number of ranks that share
  // this node's CPUs; it sets the spin budget.
  Engine(Segment* segment, int local_ranks);
  ~Engine();

  // Adds or removes a source. Only the owner may call them, also while polling. The engine polls sources in order of
  // addition. It polls sources added with `first` (transports) before all others, so that their data is used in the
  // same round.
  void Add(ProgressSource* source, bool first = false);
  void Remove(ProgressSource* source);
  // Polls the source from now on, until it is found inactive some time after its last operation. This serves sources
  // that have nothing to do between operations: a thousand idle groups cost nothing. Only the owner may call it. It is
  // quick when the source is polled already.
  void PollWhileActive(ProgressSource* source) {
    if (!source->polled_) [[unlikely]]
      Enlist(source);
  }

  // Polls every source once. Returns whether anything moved. Only the owner may call it.
  bool Poll();

  // Drives the engine until `done()` or the deadline, and returns done(). Blocks. It polls at least once. It spins,
  // yields, then sleeps: see wait_policy.h. It takes the ownership over from the progress thread. While another thread
  // drives, it sleeps until that thread has made done() true or leaves. A caller that holds the ownership (EngineLock)
  // keeps it until the return.
  //
  // `done` must be cheap and thread-safe, because the driving thread calls it too. `first`, if known, is the source
  // that makes done() true. It is polled alone for a moment before all sources take turns, which shortens short waits.
  // done() must be true when that source goes away. `calls`: done() is true when all of these have ended. A wait that
  // comes to sleeping is shown to the agent and the local peers, who look for ranks that wait for each other
  // (runtime/segment/wait_state.h).
  template <typename Predicate>
  bool DriveUntil(Predicate done, Deadline deadline, ProgressSource* first = nullptr, AwaitedCalls calls = {}) {
    if (done()) return true;
    return DriveUntilErased([](void* context) { return (*static_cast<Predicate*>(context))(); }, &done, deadline, first,
                            calls);
  }

  // Whether ranks that wait for each other may be told from this engine's waits; true at first. Otherwise no wait is
  // shown as one that only other ranks can end. Before the first wait.
  void set_detects_deadlocks(bool detects);

  // Starts the progress thread, once. It drives the engine whenever a source is active and no thread waits. Otherwise
  // it sleeps.
  void StartProgressThread();
  void StopProgressThread();
  // Wakes a sleeping progress thread or waiter because there is new work. Called after submissions, without ownership.
  void Kick();

 private:
  friend class EngineLock;
  friend class EngineRelease;
  void Enlist(ProgressSource* source);
  bool DriveUntilErased(bool (*done)(void*), void* context, Deadline deadline, ProgressSource* first,
                        AwaitedCalls calls);
  struct Rep;
  std::unique_ptr<Rep> rep_;
};

// Owns the engine for a scope. It blocks until the engine is free. One thread may nest it: a callback may submit
// operations.
class EngineLock {
 public:
  explicit EngineLock(Engine& engine);
  ~EngineLock();
  EngineLock(const EngineLock&) = delete;
  EngineLock& operator=(const EngineLock&) = delete;

  // True if this thread did not own the engine before.
  bool outermost() const { return outermost_; }

 private:
  friend class EngineRelease;
  void NestOrWait();
  Engine& engine_;
  bool outermost_;
};

// Gives the ownership up for a scope, however often this thread has taken it. It serves waits of unknown length, during
// which other threads submit, abort and look. `outermost` is this thread's outermost lock.
//
// The code that uses it must know all callers between that lock and itself. None of them may rely on being alone. Code
// that the engine calls must not use it: its callers are sources in the midst of their work.
class EngineRelease {
 public:
  explicit EngineRelease(const EngineLock& outermost);
  ~EngineRelease();
  EngineRelease(const EngineRelease&) = delete;
  EngineRelease& operator=(const EngineRelease&) = delete;

 private:
  Engine& engine_;
  const int depth_;  // number of locks on top of the outermost one
};

}  // namespace cohort::runtime
