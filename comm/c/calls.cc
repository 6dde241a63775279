#include "cohort/comm/c/calls.h"

namespace cohort::comm::c {

cohort_status Finish(const char* function, Held<cohort_comm>* held, runtime::Work started, Kept needs,
                     cohort_work* work) {
  if (started.Done()) needs.clear();
  WorkObject object{(*held)->membership, std::move(started), std::move(needs)};
  held->Release();
  if (work == nullptr) return Fail(object.work.Wait());
  if (object.work.Done()) {
    // A call that was refused, or that found its group failed, has no work.
    if (const absl::Status status = object.work.status(); !status.ok()) return Fail(status);
  }
  const WorkObject kept = object.needs.empty() ? WorkObject() : object;  // goes on when there is no place for a handle
  const cohort_status given = Give<cohort_work>(function, std::move(object), work);
  if (given != COHORT_OK) Detach(kept);
  return given;
}

}  // namespace cohort::comm::c
