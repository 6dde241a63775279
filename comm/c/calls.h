// The one road of a call of the C interface: handle, options, batch or start, then a work or a wait.
#pragma once

#include <memory>
#include <utility>

#include "cohort/comm/c/arguments.h"
#include "cohort/comm/c/cohort.h"
#include "cohort/comm/c/errors.h"
#include "cohort/comm/c/objects.h"

namespace cohort::comm::c {

// Hands out a work at `place`, or waits for it where `work` is null. `held` is let go before the wait. `needs` stay
// until the operation is done.
cohort_status Finish(Held<cohort_comm>* held, runtime::Work started, const Kept& needs, const BlockNote& note,
                     Reserved<cohort_work>* place, cohort_work* work);

// Notes a call in the open batch. One that is refused refuses the batch.
template <typename Start>
cohort_status Note(const CallText& text, CommunicatorObject& object, bool has_work, Start start) {
  NotedCalls& batch = object.batch;
  const bool first = batch.refused == COHORT_OK;
  if (first) batch.refused = COHORT_RESOURCE_EXHAUSTED;  // stays where an exception ends this function
  const cohort_status noted = [&]() -> cohort_status {
    PreparedOptions prepared;
    if (const cohort_status read = Prepare(text, &prepared); read != COHORT_OK) return read;
    if (has_work) return Invalid(text.function, "work must be null in a batch; cohort_batch_end has one for all");
    if (prepared.by_blocks) {
      return Fail(COHORT_UNIMPLEMENTED, std::string("cohort_") + text.function +
                                            ": blocks of other than 1, 2, 4 or 8 bytes are not reduced in a batch; "
                                            "make this call after cohort_batch_end");
    }
    if (prepared.user != nullptr) batch.needs.push_back(prepared.user);
    return start(*batch.calls, prepared, *object.communicator, nullptr);
  }();
  if (first) batch.refused = noted;
  if (first && noted != COHORT_OK) batch.refusal = cohort_last_error();
  return noted;
}

// Serves a call. `start(target, prepared, group, &work)` calls one function of `target`, which is the communicator
// `group` or its open batch. `by_blocks(group, prepared, &work, &needs)` makes a reduction of blocks. Both return
// COHORT_OK when the call was made, and set the work where there is one.
template <typename Start, typename ByBlocks>
cohort_status Serve(const CallText& text, cohort_comm comm, cohort_work* work, Start start, ByBlocks by_blocks) {
  return Guarded(text.function, [&]() -> cohort_status {
    if (work != nullptr) *work = nullptr;
    Held<cohort_comm> held;
    if (const cohort_status found = HoldInParent(text.function, comm, &held); found != COHORT_OK) return found;
    if (held->batch.open) return Note(text, *held, work != nullptr, std::move(start));
    PreparedOptions prepared;
    if (const cohort_status read = Prepare(text, &prepared); read != COHORT_OK) return read;
    Reserved<cohort_work> place;
    if (work != nullptr) {
      if (const cohort_status reserved = Reserve<cohort_work>(text.function, &place); reserved != COHORT_OK)
        return reserved;
    }
    Kept needs;
    if (prepared.user != nullptr) needs.push_back(prepared.user);
    runtime::Work started;
    const cohort_status called = prepared.by_blocks
                                     ? by_blocks(*held->communicator, prepared, &started, &needs)
                                     : start(*held->communicator, prepared, *held->communicator, &started);
    if (called != COHORT_OK) return called;
    return Finish(&held, std::move(started), needs, prepared.note(), &place, work);
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
