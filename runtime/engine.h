// The engine moves everything that is under way in this process. It is passive: whoever waits drives it, in the
// waiting thread, with no hand-off; one optional progress thread drives it while the program computes.
//
// One owner at a time (EngineLock). The sources are touched by the owner only and so have no locks of their own.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "runtime/base/deadline.h"

namespace cohort::runtime {

class Segment;

// Something that makes progress when polled: a communicator's queue, a transport, the agent connection.
class ProgressSource {
 public:
  virtual ~ProgressSource() = default;
  // Does a bounded amount of work (about 64 KiB). Returns true when anything moved. Called by the engine's owner.
  virtual bool Poll() = 0;
  // True when the source is waiting for something and so wants the engine to be driven.
  virtual bool Active() const = 0;
  // Sources whose news come through a descriptor (UCX): arms it. Returns the descriptor to sleep on, or -1 when there
  // is none; sets *ready instead when there is something to poll right now. The default has none: its news come with
  // Segment::Wake.
  virtual int Arm(bool* ready) {
    (void)ready;
    return -1;
  }
};

class Engine {
 public:
  // `segment` carries this rank's wake words; it outlives the engine. local_ranks: the ranks that share this node's
  // CPUs, for the spin budget.
  Engine(Segment* segment, int local_ranks);
  ~Engine();

  // Owner only. Sources are polled in order of addition.
  void Add(ProgressSource* source);
  void Remove(ProgressSource* source);

  // Polls every active source once. Owner only.
  bool Poll();

  // Drives the engine until `done()` (cheap, called with and without ownership) or the deadline. Returns done().
  // Takes the ownership over from the progress thread; spins, yields, then sleeps (DESIGN: spin budget from the CPUs
  // really available; park after about 1 ms on the rank's futex word or in epoll over armed descriptors).
  template <typename Predicate>
  bool DriveUntil(Predicate done, Deadline deadline) {
    if (done()) return true;
    return DriveUntilErased([](void* context) { return (*static_cast<Predicate*>(context))(); }, &done, deadline);
  }

  // Starts the progress thread (idempotent): it drives the engine whenever a source is active and nobody waits, and
  // sleeps otherwise.
  void StartProgressThread();
  void StopProgressThread();
  // Tells a sleeping progress thread that there is new work. Called after submissions.
  void Kick();

 private:
  friend class EngineLock;
  bool DriveUntilErased(bool (*done)(void*), void* context, Deadline deadline);
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

 private:
  Engine& engine_;
};

}  // namespace cohort::runtime
