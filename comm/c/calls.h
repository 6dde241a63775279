// The one road of a call of the C interface: handle, options, batch or start, then a work or a wait.
#pragma once

#include <memory>
#include <utility>

#include "cohort/comm/c/arguments.h"
#include "cohort/comm/c/cohort.h"
#include "cohort/comm/c/errors.h"
#include "cohort/comm/c/objects.h"

namespace cohort::comm::c {

// Hands out a work, or waits for it where `work` is null. `held` is let go before the wait.
cohort_status Finish(const char* function, Held<cohort_comm>* held, runtime::Work started, Kept needs,
                     cohort_work* work);

// Serves a call. `start(target, prepared, group, &work)` calls one function of `target`, which is the communicator
// `group` or its open batch. `by_blocks(group, prepared, &work, &needs)` makes a reduction of blocks. Both return
// COHORT_OK when the call was made, and set the work where there is one.
template <typename Start, typename ByBlocks>
cohort_status Serve(const CallText& text, cohort_comm comm, cohort_work* work, Start start, ByBlocks by_blocks) {
  return Guarded(text.function, [&]() -> cohort_status {
    if (work != nullptr) *work = nullptr;
    Held<cohort_comm> held;
    if (const cohort_status found = Hold(text.function, comm, &held); found != COHORT_OK) return found;
    PreparedOptions prepared;
    if (const cohort_status read = Prepare(text, &prepared); read != COHORT_OK) return read;
    Kept needs;
    if (prepared.user != nullptr) needs.push_back(prepared.user);
    if (held->batch_open) {
      if (work != nullptr)
        return Invalid(text.function, "work must be null in a batch; cohort_batch_end has one for all");
      if (prepared.by_blocks) {
        return Fail(COHORT_UNIMPLEMENTED, std::string("cohort_") + text.function +
                                              ": blocks of other than 1, 2, 4 or 8 bytes are not reduced in a batch; "
                                              "make this call after cohort_batch_end");
      }
      held->batch_needs.insert(held->batch_needs.end(), needs.begin(), needs.end());
      return start(*held->batch, prepared, *held->communicator, nullptr);
    }
    runtime::Work started;
    const cohort_status called = prepared.by_blocks
                                     ? by_blocks(*held->communicator, prepared, &started, &needs)
                                     : start(*held->communicator, prepared, *held->communicator, &started);
    if (called != COHORT_OK) return called;
    return Finish(text.function, &held, std::move(started), std::move(needs), work);
  });
}

// For calls that do not reduce.
template <typename Start>
cohort_status Serve(const CallText& text, cohort_comm comm, cohort_work* work, Start start) {
  return Serve(
      text, comm, work, std::move(start),
      [](Communicator&, const PreparedOptions&, runtime::Work*, Kept*) -> cohort_status { return COHORT_INTERNAL; });
}

// Keeps the Work of a call on a communicator; one on a batch returns the batch.
inline void Keep(runtime::Work started, runtime::Work* work) { *work = std::move(started); }
inline void Keep(const Batch&, runtime::Work*) {}

inline cohort_status Barrier(Communicator& group, const PreparedOptions& prepared, runtime::Work* work) {
  *work = group.Barrier(prepared.options, prepared.site);
  return COHORT_OK;
}
inline cohort_status Barrier(Batch&, const PreparedOptions&, runtime::Work*) {
  return Fail(COHORT_UNIMPLEMENTED, "cohort_barrier: a batch has no barrier; make the call after cohort_batch_end");
}

}  // namespace cohort::comm::c
