// A call that was made before, as its repetitions need it: what was checked, chosen and bound then.
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

struct PreparedCall {
  uint64_t id = 0;  // never given twice
  Provider* provider = nullptr;

  CollectiveRequest request;
  std::chrono::nanoseconds timeout{};
  void* stream = nullptr;
  ServicePlan service;
  runtime::CallDescription description;

  // The latest repetition.
  const void* in = nullptr;
  void* out = nullptr;
  runtime::CallRecord record;
  uint64_t ticket = 0;

  // Made by the provider at the first repetition, when the links are there. Null: not yet, or there is none.
  std::shared_ptr<BoundPlan> plan;
  std::shared_ptr<InlineRun> inline_run;
  bool asked = false;  // whether they were asked for
  InlineCounts* counts = nullptr;
};

}  // namespace cohort::comm
