// Works, windows and operations of cohort.h.
#include <cstring>
#include <memory>
#include <string>
#include <utility>

#include "cohort/comm/c/arguments.h"
#include "cohort/comm/c/call_site.h"
#include "cohort/comm/c/cohort.h"
#include "cohort/comm/c/errors.h"
#include "cohort/comm/c/objects.h"

namespace cohort::comm::c {
namespace {

// COHORT_PENDING, which is no error and has no text, or the operation's end.
cohort_status WaitFor(WorkObject& object, runtime::Deadline deadline) {
  (void)object.work.Wait(deadline);
  return object.work.Done() ? Fail(object.work.status(), object.note) : COHORT_PENDING;
}

runtime::Deadline DeadlineOf(int64_t timeout_ns) {
  if (timeout_ns == COHORT_FOREVER) return runtime::Deadline::Infinite();
  return timeout_ns <= 0 ? runtime::Deadline::Now() : runtime::Deadline::After(TimeoutOf(timeout_ns));
}

template <typename Use>
cohort_status WithWork(const char* function, cohort_work work, Use use) {
  return Guarded(function, [&]() -> cohort_status {
    Held<cohort_work> held;
    const cohort_status found = HoldInParent(function, work, &held);
    return found == COHORT_OK ? use(*held) : found;
  });
}

}  // namespace
}  // namespace cohort::comm::c

namespace c = cohort::comm::c;

cohort_status cohort_work_wait(cohort_work work, int64_t timeout_ns) {
  return c::WithWork("work_wait", work,
                     [=](c::WorkObject& object) { return c::WaitFor(object, c::DeadlineOf(timeout_ns)); });
}

cohort_status cohort_work_test(cohort_work work) {
  return c::WithWork("work_test", work, [](c::WorkObject& object) { return c::WaitFor(object, c::DeadlineOf(0)); });
}

cohort_status cohort_work_wait_all(const cohort_work* works, int32_t count, int64_t timeout_ns) {
  return c::Guarded("work_wait_all", [&]() -> cohort_status {
    if (count < 0 || (works == nullptr && count > 0)) {
      return c::Invalid("work_wait_all",
                        "count is " + std::to_string(count) + (works == nullptr ? " and works is null" : ""));
    }
    const cohort::runtime::Deadline deadline = c::DeadlineOf(timeout_ns);
    cohort_status first = COHORT_OK;
    std::string first_text;
    for (int32_t i = 0; i < count; ++i) {
      c::Held<cohort_work> held;
      cohort_status ended = c::HoldInParent("work_wait_all", works[i], &held);
      const bool held_it = ended == COHORT_OK;
      if (held_it) ended = c::WaitFor(*held, deadline);
      if (ended == COHORT_PENDING) return ended;
      if (ended != COHORT_OK && first == COHORT_OK) {
        first = ended;
        first_text = cohort_last_error();
        if (!held_it) first_text += " (number " + std::to_string(i) + " of the list)";
      }
    }
    return first == COHORT_OK ? first : c::Fail(first, first_text);
  });
}

cohort_status cohort_work_wait_on_stream(cohort_work work, void* stream) {
  return c::WithWork("work_wait_on_stream", work,
                     [=](c::WorkObject& object) { return c::Fail(object.work.WaitOnStream(stream)); });
}

cohort_status cohort_work_free(cohort_work work) {
  return c::Guarded("work_free", [&]() -> cohort_status {
    c::Held<cohort_work> held;
    if (const cohort_status found = c::Hold("work_free", work, &held); found != COHORT_OK) return found;
    (void)held.Take();
    return COHORT_OK;
  });
}

cohort_status cohort_window_allocate(cohort_comm comm, size_t bytes, const cohort_call_options* options,
                                     cohort_window* window) {
  return c::Guarded("window_allocate", [&]() -> cohort_status {
    if (window == nullptr) return c::Invalid("window_allocate", "window is null");
    *window = nullptr;
    c::Held<cohort_comm> held;
    if (const cohort_status found = c::HoldInParent("window_allocate", comm, &held); found != COHORT_OK) return found;
    if (held->batch.open) return c::FailInBatch("window_allocate");
    c::PreparedOptions prepared;
    const cohort_status read = c::Prepare({"window_allocate", options}, &prepared);
    if (read != COHORT_OK) return read;
    if (prepared.memory != cohort::comm::MemoryKind::kHost) {
      return c::Invalid("window_allocate", "options->memory is not COHORT_HOST; windows are host memory");
    }
    c::Reserved<cohort_window> place;
    const cohort_status reserved = c::Reserve<cohort_window>("window_allocate", &place);
    if (reserved != COHORT_OK) return reserved;
    absl::StatusOr<cohort::comm::Window> made =
        held->communicator->AllocateWindow(bytes, prepared.options, prepared.site);
    if (!made.ok()) return c::Fail(made.status());
    c::Fill<cohort_window>(&place, {held->membership, *std::move(made)}, window);
    return COHORT_OK;
  });
}

cohort_status cohort_window_memory(cohort_window window, void** data, size_t* bytes) {
  return c::Guarded("window_memory", [&]() -> cohort_status {
    c::Held<cohort_window> held;
    if (const cohort_status found = c::Hold("window_memory", window, &held); found != COHORT_OK) return found;
    if (data != nullptr) *data = held->window.data();
    if (bytes != nullptr) *bytes = held->window.size();
    return COHORT_OK;
  });
}

cohort_status cohort_window_free(cohort_window window) {
  return c::Guarded("window_free", [&]() -> cohort_status {
    c::Held<cohort_window> held;
    if (const cohort_status found = c::Hold("window_free", window, &held); found != COHORT_OK) return found;
    (void)held.Take();
    return COHORT_OK;
  });
}

cohort_status cohort_op_create(cohort_reduce_function function, void* context, const char* name, int32_t commutative,
                               cohort_op* op) {
  return c::Guarded("op_create", [&]() -> cohort_status {
    constexpr size_t kLongestName = 255;
    if (op == nullptr) return c::Invalid("op_create", "op is null");
    *op = nullptr;
    if (function == nullptr) return c::Invalid("op_create", "function is null");
    if (name == nullptr || *name == '\0' || strnlen(name, kLongestName + 1) > kLongestName) {
      return c::Invalid("op_create", "name must have 1 to 255 bytes: ranks compare operations by it");
    }
    return c::Give<cohort_op>(
        "op_create", {std::make_shared<const c::UserOperation>(function, context, name, commutative != 0)}, op);
  });
}

cohort_status cohort_op_free(cohort_op op) {
  return c::Guarded("op_free", [&]() -> cohort_status {
    c::Held<cohort_op> held;
    if (const cohort_status found = c::Hold("op_free", op, &held); found != COHORT_OK) return found;
    (void)held.Take();
    return COHORT_OK;
  });
}
