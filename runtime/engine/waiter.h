// A thread that sleeps in Engine::DriveUntil, as those see it who may fulfil its wish.
#pragma once

#include <atomic>
#include <cstdint>

#include "cohort/runtime/engine/engine.h"

namespace cohort::runtime {

// Lives on the sleeper's stack.
struct Waiter {
  bool (*done)(void*) = nullptr;
  void* context = nullptr;
  ProgressSource* first = nullptr;  // polled alone at first
  AwaitedCalls calls;
  bool counted = false;           // in Engine::Rep::waiting
  bool parked = false;            // sleeps on the rank's wake word rather than on `word`
  std::atomic<uint32_t> word{0};  // 1: wake up
  Waiter* next = nullptr;

  bool Done() const { return done(context); }
};

}  // namespace cohort::runtime
