#include "tests/comm/c/wrong_calls.h"

#include <array>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <limits>
#include <utility>

namespace cohort::testing {
namespace {

constexpr int64_t kMost = std::numeric_limits<int64_t>::max();

// One wrong call under way: the values that it is made from.
struct Wrong {
  const Handles& handles;
  std::mt19937_64& random;
  int32_t size = 1;  // of the group
  std::array<int64_t, 64> memory = {};
  std::array<int64_t, 64> counts = {};
  std::array<int64_t, 64> places = {};
  cohort_work work = nullptr;
  cohort_call_options options = COHORT_CALL_OPTIONS_INIT;

  int64_t Negative() { return -1 - static_cast<int64_t>(random() % 1000); }
  int64_t Huge() { return kMost - static_cast<int64_t>(random() % 1000); }
  int64_t WrongCount() { return random() % 2 == 0 ? Negative() : Huge(); }
  int32_t NoRank() {
    return random() % 2 == 0 ? -1 - static_cast<int32_t>(random() % 9) : size + static_cast<int32_t>(random() % 9);
  }
  cohort_type NoType() {
    const cohort_type values[] = {0,
                                  -1,
                                  15,
                                  99,
                                  COHORT_BLOCK_BASE,
                                  COHORT_BLOCK_BASE - 1,
                                  COHORT_BLOCK(16777217),
                                  std::numeric_limits<int32_t>::min()};
    return values[random() % std::size(values)];
  }
  // A handle that is none: null, junk, freed, of another kind.
  template <typename Handle>
  Handle NoHandle(Handle freed) {
    const uint64_t junk = random();
    const auto other = reinterpret_cast<uintptr_t>(handles.op);
    const uintptr_t values[] = {
        0,    1, static_cast<uintptr_t>(junk), reinterpret_cast<uintptr_t>(freed), reinterpret_cast<uintptr_t>(&memory),
        other};
    return reinterpret_cast<Handle>(values[random() % std::size(values)]);
  }
  cohort_op NoOp() {
    const uintptr_t values[] = {0,
                                10,
                                11,
                                static_cast<uintptr_t>(random()) | 16,
                                reinterpret_cast<uintptr_t>(handles.freed_op),
                                reinterpret_cast<uintptr_t>(handles.comm)};
    return reinterpret_cast<cohort_op>(values[random() % std::size(values)]);
  }
  cohort_work* MaybeWork() { return random() % 2 == 0 ? &work : nullptr; }
  void* Data() { return memory.data(); }
  const int64_t* Counts(int64_t value) {
    counts.fill(value);
    return counts.data();
  }
  const int64_t* Places(int64_t value) {
    places.fill(value);
    return places.data();
  }
};

using Call = cohort_status (*)(Wrong& w);

constexpr Call kHandles[] = {
    [](Wrong& w) { return cohort_barrier(w.NoHandle(w.handles.freed_comm), nullptr, w.MaybeWork()); },
    [](Wrong& w) {
      return cohort_all_reduce(w.NoHandle(w.handles.freed_comm), w.Data(), w.Data(), 1, COHORT_INT64, COHORT_SUM,
                               nullptr, w.MaybeWork());
    },
    [](Wrong& w) {
      return cohort_send(w.NoHandle(w.handles.freed_comm), w.Data(), 1, COHORT_INT8, 0, nullptr, nullptr);
    },
    [](Wrong& w) { return cohort_comm_free(w.NoHandle(w.handles.freed_comm)); },
    [](Wrong& w) { return cohort_comm_abort(w.NoHandle(w.handles.freed_comm), "never"); },
    [](Wrong& w) { return cohort_comm_state(w.NoHandle(w.handles.freed_comm)); },
    [](Wrong& w) {
      int32_t rank = 0;
      return cohort_comm_rank(w.NoHandle(w.handles.freed_comm), &rank);
    },
    [](Wrong& w) {
      cohort_comm out = nullptr;
      return cohort_split(w.NoHandle(w.handles.freed_comm), 0, 0, &out);
    },
    [](Wrong& w) { return cohort_batch_begin(w.NoHandle(w.handles.freed_comm)); },
    [](Wrong& w) { return cohort_batch_end(w.NoHandle(w.handles.freed_comm), w.MaybeWork()); },
    [](Wrong& w) { return cohort_work_wait(w.NoHandle(w.handles.freed_work), COHORT_FOREVER); },
    [](Wrong& w) { return cohort_work_test(w.NoHandle(w.handles.freed_work)); },
    [](Wrong& w) { return cohort_work_free(w.NoHandle(w.handles.freed_work)); },
    [](Wrong& w) { return cohort_work_wait_on_stream(w.NoHandle(w.handles.freed_work), nullptr); },
    [](Wrong& w) {
      const cohort_work works[] = {w.NoHandle(w.handles.freed_work)};
      return cohort_work_wait_all(works, 1, 0);
    },
    [](Wrong& w) { return cohort_window_free(w.NoHandle(w.handles.freed_window)); },
    [](Wrong& w) { return cohort_window_memory(w.NoHandle(w.handles.freed_window), nullptr, nullptr); },
    [](Wrong& w) {
      const cohort_op op = w.NoOp();
      return cohort_op_free(op);
    },
    [](Wrong& w) { return cohort_finalize(w.NoHandle(w.handles.freed_runtime)); },
    [](Wrong& w) {
      cohort_comm comm = nullptr;
      return cohort_world(w.NoHandle(w.handles.freed_runtime), nullptr, &comm);
    },
    [](Wrong& w) { return cohort_put(w.NoHandle(w.handles.freed_runtime), "key", "value", 5, 0); },
};

constexpr Call kArguments[] = {
    [](Wrong& w) {
      return cohort_all_reduce(w.handles.comm, w.Data(), w.Data(), w.WrongCount(), COHORT_INT32, COHORT_MAX, nullptr,
                               w.MaybeWork());
    },
    [](Wrong& w) {
      return cohort_all_reduce(w.handles.comm, w.Data(), w.Data(), 1, w.NoType(), COHORT_SUM, nullptr, w.MaybeWork());
    },
    [](Wrong& w) {
      return cohort_all_reduce(w.handles.comm, w.Data(), w.Data(), 1, COHORT_INT32, w.NoOp(), nullptr, w.MaybeWork());
    },
    [](Wrong& w) {  // a built-in op of blocks
      return cohort_all_reduce(w.handles.comm, w.Data(), w.Data(), 1, COHORT_BLOCK(1 + w.random() % 64), COHORT_SUM,
                               nullptr, w.MaybeWork());
    },
    [](Wrong& w) {
      return cohort_all_reduce(w.handles.comm, nullptr, w.Data(), 1, COHORT_FLOAT32, COHORT_SUM, nullptr,
                               w.MaybeWork());
    },
    [](Wrong& w) {  // an overlap that is not in place
      return cohort_all_reduce(w.handles.comm, w.Data(), w.memory.data() + 1, 4, COHORT_INT64, COHORT_SUM, nullptr,
                               w.MaybeWork());
    },
    [](Wrong& w) {  // bitwise and of floating-point numbers
      return cohort_all_reduce(w.handles.comm, w.Data(), w.Data(), 1, COHORT_FLOAT64, COHORT_BAND, nullptr, nullptr);
    },
    [](Wrong& w) {
      return cohort_all_reduce(w.handles.comm, w.Data(), w.Data(), w.WrongCount(), COHORT_BLOCK(24), w.handles.op,
                               nullptr, w.MaybeWork());
    },
    [](Wrong& w) {
      return cohort_all_reduce(w.handles.comm, nullptr, w.Data(), 2, COHORT_BLOCK(24), w.handles.op, nullptr, nullptr);
    },
    [](Wrong& w) {
      return cohort_reduce(w.handles.comm, w.Data(), w.memory.data() + 32, 1, COHORT_BLOCK(24), w.handles.op,
                           w.NoRank(), nullptr, w.MaybeWork());
    },
    [](Wrong& w) {
      return cohort_broadcast(w.handles.comm, w.Data(), 1, COHORT_INT8, w.NoRank(), nullptr, w.MaybeWork());
    },
    [](Wrong& w) { return cohort_broadcast(w.handles.comm, nullptr, 1, COHORT_BLOCK(40), 0, nullptr, w.MaybeWork()); },
    [](Wrong& w) {
      return cohort_gather(w.handles.comm, w.Data(), w.Data(), 1, COHORT_INT8, w.NoRank(), nullptr, nullptr);
    },
    [](Wrong& w) {
      return cohort_scatter(w.handles.comm, nullptr, nullptr, 3, COHORT_INT8, 0, nullptr, w.MaybeWork());
    },
    [](Wrong& w) {
      return cohort_all_gather(w.handles.comm, w.Data(), nullptr, 3, COHORT_INT8, nullptr, w.MaybeWork());
    },
    [](Wrong& w) {
      return cohort_all_gather(w.handles.comm, w.Data(), w.memory.data() + 16, w.WrongCount(), COHORT_INT64, nullptr,
                               w.MaybeWork());
    },
    [](Wrong& w) {
      return cohort_reduce_scatter(w.handles.comm, w.Data(), nullptr, 1, COHORT_BLOCK(12), w.handles.op, nullptr,
                                   nullptr);
    },
    [](Wrong& w) {
      return cohort_all_to_all(w.handles.comm, w.Data(), w.Data(), w.WrongCount(), COHORT_BLOCK(100), nullptr,
                               w.MaybeWork());
    },
    [](Wrong& w) { return cohort_send(w.handles.comm, w.Data(), 1, COHORT_INT8, w.NoRank(), nullptr, w.MaybeWork()); },
    [](Wrong& w) { return cohort_receive(w.handles.comm, nullptr, 1, COHORT_INT8, 0, nullptr, w.MaybeWork()); },
    [](Wrong& w) { return cohort_receive(w.handles.comm, w.Data(), w.WrongCount(), COHORT_INT8, 0, nullptr, nullptr); },
};

constexpr Call kLists[] = {
    [](Wrong& w) {
      return cohort_all_gather_v(w.handles.comm, w.Data(), w.Data(), nullptr, nullptr, COHORT_INT8, nullptr,
                                 w.MaybeWork());
    },
    [](Wrong& w) {
      return cohort_all_gather_v(w.handles.comm, w.Data(), w.memory.data() + 32, w.Counts(w.WrongCount()), nullptr,
                                 COHORT_BLOCK(3), nullptr, w.MaybeWork());
    },
    [](Wrong& w) {  // blocks beyond all memory
      return cohort_all_gather_v(w.handles.comm, w.Data(), w.memory.data() + 32, w.Counts(w.Huge()), w.Places(w.Huge()),
                                 COHORT_INT64, nullptr, w.MaybeWork());
    },
    [](Wrong& w) {  // blocks that overlap, where there are two; a negative place where there is one
      return cohort_all_gather_v(w.handles.comm, w.Data(), w.memory.data() + 32, w.Counts(1),
                                 w.Places(w.size > 1 ? 1 : -1), COHORT_INT64, nullptr, w.MaybeWork());
    },
    [](Wrong& w) {
      return cohort_reduce_scatter_v(w.handles.comm, w.Data(), nullptr, nullptr, w.Data(), COHORT_BLOCK(12),
                                     w.handles.op, nullptr, w.MaybeWork());
    },
    [](Wrong& w) {
      return cohort_reduce_scatter_v(w.handles.comm, w.Data(), w.Counts(w.WrongCount()), nullptr, w.memory.data() + 32,
                                     COHORT_BLOCK(12), w.handles.op, nullptr, w.MaybeWork());
    },
    [](Wrong& w) {
      return cohort_all_to_all_v(w.handles.comm, w.Data(), w.Counts(1), nullptr, nullptr, w.Counts(1), nullptr,
                                 COHORT_INT64, nullptr, w.MaybeWork());
    },
    [](Wrong& w) {
      return cohort_all_to_all_v(w.handles.comm, w.Data(), nullptr, nullptr, w.Data(), nullptr, nullptr, COHORT_INT64,
                                 nullptr, nullptr);
    },
    [](Wrong& w) {
      return cohort_gather_v(w.handles.comm, w.Data(), w.WrongCount(), w.Data(), w.Counts(1), nullptr, COHORT_INT16, 0,
                             nullptr, w.MaybeWork());
    },
    [](Wrong& w) {
      return cohort_scatter_v(w.handles.comm, nullptr, nullptr, nullptr, w.Data(), w.WrongCount(), COHORT_INT16, 0,
                              nullptr, w.MaybeWork());
    },
};

// A call with these options.
cohort_status With(Wrong& w) {
  return cohort_all_reduce(w.handles.comm, w.Data(), w.Data(), 1, COHORT_INT64, COHORT_SUM, &w.options, w.MaybeWork());
}

constexpr Call kOptions[] = {
    [](Wrong& w) {
      w.options.size = w.random() % sizeof w.options;
      return With(w);
    },
    [](Wrong& w) {
      w.options.size = 5000 + w.random() % 1000;
      return With(w);
    },
    [](Wrong& w) {
      w.options.determinism = w.random() % 2 == 0 ? 4 : -1;
      return With(w);
    },
    [](Wrong& w) {
      w.options.memory = w.random() % 2 == 0 ? 2 : -1;
      return With(w);
    },
    [](Wrong& w) {  // a larger struct, of a version to come, that sets something
      struct {
        cohort_call_options known = COHORT_CALL_OPTIONS_INIT;
        int64_t later = 1;
      } larger;
      larger.known.size = sizeof larger;
      return cohort_barrier(w.handles.comm, &larger.known, w.MaybeWork());
    },
    [](Wrong& w) {
      cohort_runtime_info info = COHORT_RUNTIME_INFO_INIT;
      info.size = w.random() % sizeof info;
      return cohort_get_info(w.handles.runtime, &info);
    },
    [](Wrong& w) { return cohort_get_info(w.handles.runtime, nullptr); },
    [](Wrong& w) { return cohort_world(w.handles.runtime, nullptr, nullptr); },
    [](Wrong& w) {
      cohort_comm_options options = COHORT_COMM_OPTIONS_INIT;
      options.tuning = "no tuning at all";
      cohort_comm comm = nullptr;
      return cohort_world(w.handles.runtime, &options, &comm);
    },
    [](Wrong& w) { return cohort_put(w.handles.runtime, w.random() % 2 == 0 ? nullptr : "", "x", 1, 0); },
    [](Wrong& w) { return cohort_put(w.handles.runtime, "key", w.Data(), 50'000, 0); },
    [](Wrong& w) { return cohort_put(w.handles.runtime, "key", nullptr, 1, 0); },
    [](Wrong& w) { return cohort_get(w.handles.runtime, "key", nullptr, 8, nullptr, 0); },
    [](Wrong& w) { return cohort_on_preemption(w.handles.runtime, 1, 0, nullptr); },
    [](Wrong& w) {
      const int32_t ranks[] = {0, 0};
      cohort_comm out = nullptr;
      return cohort_subgroup(w.handles.comm, w.random() % 2 == 0 ? ranks : nullptr, 2, &out);
    },
    [](Wrong& w) { return cohort_subgroup(w.handles.comm, nullptr, w.NoRank(), nullptr); },
    [](Wrong& w) { return cohort_split(w.handles.comm, 0, 0, nullptr); },
    [](Wrong& w) {
      cohort_comm out = nullptr;
      return cohort_device_group(w.handles.comm, w.NoRank(), &out);
    },
    [](Wrong& w) { return cohort_comm_members(w.handles.comm, nullptr, 100); },
    [](Wrong& w) {
      int32_t members[1] = {0};
      return cohort_comm_members(w.handles.comm, members, 0);
    },
    [](Wrong& w) { return cohort_comm_size(w.handles.comm, nullptr); },
    [](Wrong& w) { return cohort_window_allocate(w.handles.comm, 8, nullptr, nullptr); },
    [](Wrong& w) { return cohort_work_wait_all(nullptr, 1 + static_cast<int32_t>(w.random() % 9), 0); },
    [](Wrong& w) { return cohort_work_wait_all(nullptr, -1, static_cast<int64_t>(w.random())); },
    [](Wrong&) { return cohort_init(nullptr, nullptr); },
    [](Wrong&) {
      cohort_op op = nullptr;
      return cohort_op_create(nullptr, nullptr, "nothing", 1, &op);
    },
    [](Wrong& w) { return cohort_batch_end(w.handles.comm, w.MaybeWork()); },
    [](Wrong& w) { return cohort_batch_cancel(w.handles.comm); },
};

}  // namespace

int WrongCalls() {
  return static_cast<int>(std::size(kHandles) + std::size(kArguments) + std::size(kLists) + std::size(kOptions));
}

std::string MakeWrongCall(int which, const Handles& handles, std::mt19937_64& random) {
  Wrong wrong{handles, random};
  if (cohort_comm_size(handles.comm, &wrong.size) != COHORT_OK) return cohort_last_error();
  auto at = static_cast<size_t>(which);
  cohort_status status = COHORT_OK;
  for (const auto& [calls, count] :
       {std::pair(kHandles, std::size(kHandles)), std::pair(kArguments, std::size(kArguments)),
        std::pair(kLists, std::size(kLists)), std::pair(kOptions, std::size(kOptions))}) {
    if (at < count) {
      status = calls[at](wrong);
      break;
    }
    at -= count;
  }
  const std::string name = "wrong call " + std::to_string(which);
  const bool refused = status == COHORT_INVALID_ARGUMENT || status == COHORT_INVALID_HANDLE ||
                       status == COHORT_UNIMPLEMENTED || status == COHORT_FAILED_PRECONDITION;
  if (!refused) return name + " ended with status " + std::to_string(status);
  if (std::strlen(cohort_last_error()) == 0) return name + " has no text";
  if (wrong.work != nullptr) return name + " gave out a work";
  return "";
}

}  // namespace cohort::testing
