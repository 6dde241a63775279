// Recycled states behind Works, so that a steady state allocates nothing: a pool that hands them out, and a queue of
// those under way.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

#include "cohort/runtime/engine/engine.h"
#include "cohort/runtime/engine/work.h"

namespace cohort::comm {

template <typename State>
class StatePool;

// The base of the states of one pool: `class Operation final : public PooledState<Operation>`, with a constructor
// that takes the pool.
template <typename State>
class PooledState : public runtime::WorkState {
 public:
  State* next = nullptr;  // in a list of states

 protected:
  explicit PooledState(StatePool<State>* pool) : engine_(pool->engine_), source_(pool->source_) { SetPooled(); }

 private:
  friend class StatePool<State>;
  // The engine is alive as long as an operation is pending: its group finishes all of them before it goes.
  void Wait(runtime::Deadline deadline) override {
    if (!done()) engine_->DriveUntil([this] { return done(); }, deadline, source_, Awaited());
  }
  // The calls that the state stands for, where it knows them.
  runtime::AwaitedCalls Awaited() const {
    if constexpr (requires(const State& state) { state.awaited(); }) {
      return static_cast<const State*>(this)->awaited();
    } else {
      return {};
    }
  }

  runtime::Engine* const engine_;
  runtime::ProgressSource* const source_;
};

// Hands out states to one owner. They come back from any thread, by being unused; those still held when the pool goes
// delete themselves.
template <typename State>
class StatePool {
 public:
  // `source` makes the progress of what the states stand for. Both outlive what is pending.
  StatePool(runtime::Engine* engine, runtime::ProgressSource* source) : engine_(engine), source_(source) {}
  // Nothing is pending.
  ~StatePool() {
    for (State* state : states_) {
      if (state->ClearPooled()) delete state;
    }
  }
  StatePool(const StatePool&) = delete;
  StatePool& operator=(const StatePool&) = delete;

  // A state that is not done, with two references: one that its producer drops and the caller's. Owner only.
  State* Take() {
    const size_t most = std::min(kMostPassedOver, states_.size());
    for (size_t tried = most; tried > 0; --tried) {
      if (turn_ == states_.size()) turn_ = 0;
      State* state = states_[turn_++];
      if (!state->unused()) continue;
      state->Reset(2);
      return state;
    }
    auto* state = new State(this);
    state->Reset(2);
    // Amid those that are held, so that they are not passed over in one run again: however long they are held, one new
    // state for each few of them is enough.
    const size_t place = turn_ - std::min(turn_, most / 2);
    states_.insert(states_.begin() + static_cast<std::ptrdiff_t>(place), state);
    ++turn_;
    return state;
  }
  // Takes back a state that was never used. Owner only.
  void Discard(State* state) { state->Reset(0); }

 private:
  friend class PooledState<State>;
  // The number of states still held that are passed over before another one is made.
  static constexpr size_t kMostPassedOver = 4;

  runtime::Engine* const engine_;
  runtime::ProgressSource* const source_;
  // Handed out in turn, since they mostly come back in the order in which they went.
  std::vector<State*> states_;
  size_t turn_ = 0;
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
