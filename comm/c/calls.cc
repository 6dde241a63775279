#include "cohort/comm/c/calls.h"

#include <new>

namespace cohort::comm::c {
namespace {

// Keeps `needs` until the operation is done. Without memory for that it waits instead.
void KeepUntilDone(runtime::Work& work, const Kept& needs) {
  if (needs.empty() || work.Done()) return;
  try {
    work.Then([needs](const absl::Status&) {});
  } catch (const std::bad_alloc&) {
    (void)work.Wait();
  }
}

}  // namespace

cohort_status Finish(Held<cohort_comm>* held, runtime::Work started, const Kept& needs, const BlockNote& note,
                     Reserved<cohort_work>* place, cohort_work* work) {
  if (work == nullptr && started.Done()) return Fail(started.status(), note);
  if (work != nullptr) KeepUntilDone(started, needs);
  WorkObject object{(*held)->membership, std::move(started), note};
  held->Release();
  if (work == nullptr) return Fail(object.work.Wait(), note);
  if (object.work.Done()) {
    // A call that was refused, or that found its group failed, has no work.
    if (const absl::Status status = object.work.status(); !status.ok()) return Fail(status, note);
  }
  Fill<cohort_work>(place, std::move(object), work);
  return COHORT_OK;
}

}  // namespace cohort::comm::c
