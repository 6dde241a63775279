// A call that is checked and chosen for, as the provider that runs it needs it. One that is remembered holds what its
// first repetition has bound, too.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>

#include "cohort/comm/provider/provider.h"
#include "cohort/comm/request.h"
#include "cohort/runtime/segment/black_box.h"
#include "cohort/runtime/segment/call_record.h"

namespace cohort::comm {

class BoundPlan;
class InlineRun;

// Calls that were begun in the caller's thread (run/inline_run.h).
struct InlineCounts {
  uint64_t done = 0;       // there
  uint64_t continued = 0;  // as operations
  uint64_t all() const { return done + continued; }
};

// The meaning of a call's input to a tape of the rank (comm/tape).
enum class InputMeaning : uint8_t {
  kData,    // the program's data: a replay of the rank gives the same
  kPlaces,  // places of this process, such as offsets of windows: they differ from run to run
};

struct PreparedCall {
  // How far its provider has come to running it in the caller's thread. The first run is an operation, which makes the
  // links.
  enum class Stage : uint8_t { kNew, kRan, kAsked };

  uint64_t id = 0;  // never given twice; 0: it is not remembered
  Provider* provider = nullptr;

  CollectiveRequest request;
  std::shared_ptr<BlockTable> blocks;  // what request.blocks points to; otherwise kept for its memory
  std::chrono::nanoseconds timeout{};
  void* stream = nullptr;
  ServicePlan service;
  InputMeaning input = InputMeaning::kData;
  runtime::CallDescription description;

  // The latest repetition.
  const void* in = nullptr;
  void* out = nullptr;
  runtime::CallRecord record;
  uint64_t ticket = 0;

  // Made by the provider at the first repetition. Null: not yet, or there is none.
  std::shared_ptr<BoundPlan> plan;
  std::shared_ptr<InlineRun> inline_run;
  Stage stage = Stage::kNew;
  InlineCounts* counts = nullptr;
};

}  // namespace cohort::comm
