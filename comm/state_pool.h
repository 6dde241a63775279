// Recycled states behind Works, so that a steady state allocates nothing: a pool that hands them out, and a queue of
// those under way.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "runtime/engine.h"
#include "runtime/work.h"

namespace cohort::comm {

template <typename State>
class StatePool;

// What is common to the states of one pool: `class Operation final : public PooledState<Operation>`, with a constructor
// that takes the pool.
template <typename State>
class PooledState : public runtime::WorkState {
 public:
  State* next = nullptr;  // in a list of states

 protected:
  explicit PooledState(StatePool<State>* pool) : pool_(pool) {}

 private:
  friend class StatePool<State>;
  void Wait(runtime::Deadline deadline) override {
    if (!done()) pool_->Drive(*this, deadline);
  }
  void Recycle() override { pool_->Return(static_cast<State*>(this)); }

  StatePool<State>* const pool_;
};

// Hands out states to one owner; they come back from any thread. Outlives its owner while works are still held.
template <typename State>
class StatePool {
 public:
  // `source` makes the progress of what the states stand for. Both outlive what is pending.
  StatePool(runtime::Engine* engine, runtime::ProgressSource* source) : engine_(engine), source_(source) {}
  StatePool(const StatePool&) = delete;
  StatePool& operator=(const StatePool&) = delete;

  // A state that is not done, with two references: one that its producer drops and the caller's. Owner only.
  State* Take() {
    if (free_ == nullptr) free_ = returned_.exchange(nullptr, std::memory_order_acquire);
    State* state = free_;
    if (state != nullptr) [[likely]] {
      free_ = state->next;
      state->Reset();
    } else {
      state = new State(this);
      ++made_;
    }
    state->SetReferences(2);
    return state;
  }
  // Takes back a state that was never used. Owner only.
  void Discard(State* state) {
    state->next = free_;
    free_ = state;
  }
  // The owner is gone; nothing is pending. Deletes the pool with its last state.
  void Close() {
    int64_t held = made_;
    for (State* list : {free_, returned_.exchange(Closed(), std::memory_order_acq_rel)}) {
      for (; list != nullptr; --held) delete std::exchange(list, list->next);
    }
    // Those that came back between the two steps have been counted down already.
    if (held_.fetch_add(held, std::memory_order_acq_rel) + held == 0) delete this;
  }

 private:
  friend class PooledState<State>;
  ~StatePool() = default;

  // What `returned_` points to once the pool is closed: states that come back are then deleted.
  static State* Closed() {
    alignas(State) static constinit std::byte mark[1] = {};
    return reinterpret_cast<State*>(mark);
  }
  void Return(State* state) {
    state->next = returned_.load(std::memory_order_acquire);
    while (state->next != Closed()) {
      if (returned_.compare_exchange_weak(state->next, state, std::memory_order_acq_rel)) return;
    }
    delete state;
    if (held_.fetch_sub(1, std::memory_order_acq_rel) == 1) delete this;
  }
  // The engine is alive as long as an operation is pending: its group finishes all of them before it goes.
  void Drive(const PooledState<State>& state, runtime::Deadline deadline) {
    engine_->DriveUntil([&state] { return state.done(); }, deadline, source_);
  }

  runtime::Engine* const engine_;
  runtime::ProgressSource* const source_;
  int64_t made_ = 0;                       // states in all; the owner's
  State* free_ = nullptr;                  // the owner's
  std::atomic<State*> returned_{nullptr};  // pushed by any thread, taken whole by the owner
  // Once closed: states that are still held, less those that came back since.
  std::atomic<int64_t> held_{0};
};

// A first-in, first-out list of states, linked through them.
template <typename State>
class StateQueue {
 public:
  bool empty() const { return head_ == nullptr; }
  State* front() const { return head_; }
  void push(State* state) {
    state->next = nullptr;
    (head_ == nullptr ? head_ : tail_->next) = state;
    tail_ = state;
  }
  State* pop() {
    State* state = head_;
    head_ = state->next;
    return state;
  }

 private:
  State* head_ = nullptr;
  State* tail_ = nullptr;
};

}  // namespace cohort::comm
