// Communicators and batches of cohort.h.
#include <algorithm>
#include <chrono>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <utility>

#include "cohort/comm/c/call_site.h"
#include "cohort/comm/c/calls.h"
#include "cohort/comm/c/cohort.h"

namespace cohort::comm::c {
namespace {

// Makes a group and hands it out. One that is null, of a rank without a group, is COHORT_NULL.
template <typename Make>
cohort_status GiveGroup(const char* function, std::shared_ptr<Membership> membership, cohort_comm* out, Make make) {
  Reserved<cohort_comm> place;
  if (const cohort_status reserved = Reserve<cohort_comm>(function, &place); reserved != COHORT_OK) return reserved;
  absl::StatusOr<std::unique_ptr<Communicator>> made = make();
  if (!made.ok()) return Fail(made.status());
  if (*made == nullptr) return COHORT_OK;
  Fill<cohort_comm>(&place, {std::move(membership), std::shared_ptr<Communicator>(*std::move(made))}, out);
  return COHORT_OK;
}

// A function that makes a group from another. `make(communicator)` may block.
template <typename Make>
cohort_status MakeFrom(const char* function, cohort_comm comm, cohort_comm* out, Make make) {
  return Guarded(function, [&]() -> cohort_status {
    if (out == nullptr) return Invalid(function, "out is null");
    *out = nullptr;
    Held<cohort_comm> held;
    if (const cohort_status found = HoldInParent(function, comm, &held); found != COHORT_OK) return found;
    if (held->batch.open) return FailInBatch(function);
    return GiveGroup(function, held->membership, out, [&] { return make(*held->communicator); });
  });
}

// A function that asks a communicator, which may be in use.
template <typename Ask>
cohort_status AskOf(const char* function, cohort_comm comm, Ask ask) {
  return Guarded(function, [&]() -> cohort_status {
    std::shared_ptr<Communicator> communicator;
    const cohort_status found = Peek(function, comm, &CommunicatorObject::communicator, &communicator);
    return found == COHORT_OK ? ask(*communicator) : found;
  });
}

// The same for a function that concerns the other ranks.
template <typename Ask>
cohort_status AskInParent(const char* function, cohort_comm comm, Ask ask) {
  return Guarded(function, [&]() -> cohort_status {
    std::shared_ptr<Membership> membership;
    const cohort_status found = Peek(function, comm, &CommunicatorObject::membership, &membership);
    if (found == COHORT_OK && InChild(*membership)) return FailInChild(function);
    return found == COHORT_OK ? AskOf(function, comm, std::move(ask)) : found;
  });
}

// Holds a communicator with an open batch.
cohort_status HoldBatch(const char* function, cohort_comm comm, Held<cohort_comm>* held) {
  if (const cohort_status found = HoldInParent(function, comm, held); found != COHORT_OK) return found;
  if ((*held)->batch.open) return COHORT_OK;
  return Fail(COHORT_FAILED_PRECONDITION,
              std::string("cohort_") + function + ": no batch is open on this communicator");
}

}  // namespace
}  // namespace cohort::comm::c

namespace c = cohort::comm::c;
using cohort::comm::Communicator;

namespace {
constexpr std::chrono::seconds kLongestQuestion(10);
}

cohort_status cohort_world(cohort_runtime runtime, const cohort_comm_options* options, cohort_comm* comm) {
  if (comm != nullptr) *comm = nullptr;
  return c::WithRuntime("world", runtime, [=](const std::shared_ptr<c::Membership>& membership) -> cohort_status {
    if (comm == nullptr) return c::Invalid("world", "comm is null");
    cohort_comm_options given = COHORT_COMM_OPTIONS_INIT;
    if (const cohort_status read = c::ReadSized("world", "options", options, &given); read != COHORT_OK) return read;
    cohort::comm::CommunicatorOptions wanted;
    if (given.transports != nullptr) wanted.transports = given.transports;
    if (given.tuning != nullptr) wanted.tuning = given.tuning;
    if (given.reserved != 0) return c::Invalid("world", "options->reserved is not 0");
    if (const cohort_status read = c::ReadDeterminism("world", given.determinism, &wanted.determinism);
        read != COHORT_OK) {
      return read;
    }
    return c::GiveGroup("world", membership, comm, [&] { return Communicator::World(*membership->runtime, wanted); });
  });
}

cohort_status cohort_split(cohort_comm comm, int32_t color, int32_t key, cohort_comm* out) {
  return c::MakeFrom("split", comm, out,
                     [=](Communicator& group) { return group.Split(color, key, c::CallSite(nullptr, 0)); });
}

cohort_status cohort_subgroup(cohort_comm comm, const int32_t* ranks, int32_t count, cohort_comm* out) {
  return c::MakeFrom("subgroup", comm, out, [=](Communicator& group) -> absl::StatusOr<std::unique_ptr<Communicator>> {
    if (count < 0 || count > group.size() || (ranks == nullptr && count > 0)) {
      return absl::InvalidArgumentError("cohort_subgroup: count is " + std::to_string(count) +
                                        (ranks == nullptr ? " and ranks is null" : "") + "; the group has " +
                                        std::to_string(group.size()) + " ranks");
    }
    return group.Subgroup(std::span<const int>(ranks, static_cast<size_t>(count)));
  });
}

cohort_status cohort_duplicate(cohort_comm comm, cohort_comm* out) {
  return c::MakeFrom("duplicate", comm, out, [](Communicator& group) { return group.Duplicate(); });
}

cohort_status cohort_device_group(cohort_comm comm, int32_t index, cohort_comm* out) {
  return c::MakeFrom("device_group", comm, out, [=](Communicator& group) { return group.DeviceGroup(index); });
}

cohort_status cohort_shrink(cohort_comm comm, int64_t timeout_ns, cohort_comm* out) {
  return c::MakeFrom("shrink", comm, out, [=](Communicator& group) {
    return group.Shrink(c::TimeoutOf(timeout_ns), c::CallSite(nullptr, 0));
  });
}

cohort_status cohort_comm_free(cohort_comm comm) {
  return c::Guarded("comm_free", [&]() -> cohort_status {
    c::Held<cohort_comm> held;
    if (const cohort_status found = c::Hold("comm_free", comm, &held); found != COHORT_OK) return found;
    c::CommunicatorObject object = held.Take();
    object.batch = {};
    // Another thread may be asking or aborting, for microseconds. It may be inside of a callback of this group, where
    // the communicator must not end: so it ends here, unless that thread stands still.
    const auto deadline = cohort::runtime::Deadline::After(kLongestQuestion);
    while (object.communicator.use_count() > 1 && !deadline.passed()) std::this_thread::yield();
    object.communicator.reset();
    return COHORT_OK;
  });
}

cohort_status cohort_comm_rank(cohort_comm comm, int32_t* rank) {
  return c::AskOf("comm_rank", comm, [=](const Communicator& group) {
    if (rank == nullptr) return c::Invalid("comm_rank", "rank is null");
    *rank = group.rank();
    return cohort_status{COHORT_OK};
  });
}

cohort_status cohort_comm_size(cohort_comm comm, int32_t* size) {
  return c::AskOf("comm_size", comm, [=](const Communicator& group) {
    if (size == nullptr) return c::Invalid("comm_size", "size is null");
    *size = group.size();
    return cohort_status{COHORT_OK};
  });
}

cohort_status cohort_comm_members(cohort_comm comm, int32_t* world_ranks, int32_t capacity) {
  return c::AskOf("comm_members", comm, [=](const Communicator& group) {
    if (world_ranks == nullptr || capacity < group.size()) {
      return c::Invalid("comm_members",
                        std::string("world_ranks ") +
                            (world_ranks == nullptr ? "is null" : "has room for " + std::to_string(capacity)) +
                            "; the group has " + std::to_string(group.size()) + " ranks");
    }
    std::copy(group.members().begin(), group.members().end(), world_ranks);
    return cohort_status{COHORT_OK};
  });
}

cohort_status cohort_comm_state(cohort_comm comm) {
  return c::AskInParent("comm_state", comm, [](const Communicator& group) { return c::Fail(group.status()); });
}

cohort_status cohort_comm_abort(cohort_comm comm, const char* reason) {
  return c::AskInParent("comm_abort", comm, [=](Communicator& group) {
    group.Abort(reason == nullptr ? "no reason was given" : reason);
    return cohort_status{COHORT_OK};
  });
}

cohort_status cohort_batch_begin(cohort_comm comm) {
  return c::Guarded("batch_begin", [&]() -> cohort_status {
    c::Held<cohort_comm> held;
    if (const cohort_status found = c::HoldInParent("batch_begin", comm, &held); found != COHORT_OK) return found;
    c::NotedCalls& batch = held->batch;
    if (batch.open) {
      return c::Fail(COHORT_FAILED_PRECONDITION, "cohort_batch_begin: a batch is open on this communicator");
    }
    if (batch.calls == nullptr) batch.calls = std::make_unique<cohort::comm::Batch>(*held->communicator);
    batch.open = true;
    return COHORT_OK;
  });
}

cohort_status cohort_batch_end(cohort_comm comm, cohort_work* work) {
  return c::Guarded("batch_end", [&]() -> cohort_status {
    if (work != nullptr) *work = nullptr;
    c::Held<cohort_comm> held;
    if (const cohort_status found = c::HoldBatch("batch_end", comm, &held); found != COHORT_OK) return found;
    c::NotedCalls batch = std::exchange(held->batch, {});
    if (batch.refused != COHORT_OK) {
      return c::Fail(batch.refused,
                     "cohort_batch_end: nothing was started, since a call was refused: " + batch.refusal);
    }
    c::Reserved<cohort_work> place;
    if (work != nullptr) {
      const cohort_status reserved = c::Reserve<cohort_work>("batch_end", &place);
      if (reserved != COHORT_OK) return reserved;
    }
    cohort::runtime::Work started = batch.calls->Submit();
    held->batch.calls = std::move(batch.calls);
    return c::Finish(&held, std::move(started), batch.needs, {}, &place, work);
  });
}

cohort_status cohort_batch_cancel(cohort_comm comm) {
  return c::Guarded("batch_cancel", [&]() -> cohort_status {
    c::Held<cohort_comm> held;
    if (const cohort_status found = c::HoldBatch("batch_cancel", comm, &held); found != COHORT_OK) return found;
    held->batch = {};
    return COHORT_OK;
  });
}
