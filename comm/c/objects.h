// The objects behind the handles of the C interface, and their tables.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "cohort/comm/batch.h"
#include "cohort/comm/c/cohort.h"
#include "cohort/comm/c/errors.h"
#include "cohort/comm/c/handle_table.h"
#include "cohort/comm/communicator.h"
#include "cohort/comm/request.h"
#include "cohort/comm/window.h"
#include "cohort/runtime/base/forks.h"
#include "cohort/runtime/runtime.h"

namespace cohort::comm::c {

// A runtime and the store by which it joined. Shared by everything that was made from it, and by all handles of a
// process that joined without a store.
struct Membership {
  std::unique_ptr<runtime::KeyValueStore> store;  // outlives the runtime
  std::shared_ptr<runtime::Runtime> runtime;
  int handles = 1;            // that are not finalized; under the lock of memberships.cc, but for a store's
  std::atomic<int> calls{0};  // that are using the runtime (WithRuntime)
  std::atomic<bool> in_preemption{false};  // Runtime::OnPreemption serves one thread
};

// cohort_op_create. It stays where it is: calls under way have pointers into it.
class UserOperation {
 public:
  UserOperation(cohort_reduce_function function, void* context, std::string name, bool commutative);
  UserOperation(const UserOperation&) = delete;
  UserOperation& operator=(const UserOperation&) = delete;

  // The operation on elements of a built-in type, or on blocks of `block_bytes` bytes: 1, 2, 4 or 8.
  const UserReduceOp* ForNumbers() const { return &views_[0].op; }
  const UserReduceOp* ForBlocks(int64_t block_bytes) const;
  // Calls the function. An exception of it comes through.
  void Combine(void* out, const void* a, const void* b, int64_t count, cohort_type type) const;
  const std::string& name() const { return name_; }

 private:
  // The function as the layers below call it. `type` is 0 for numbers, whose type the call says.
  struct View {
    const UserOperation* operation = nullptr;
    cohort_type type = 0;
    UserReduceOp op = {};
  };
  static void Call(void* out, const void* a, const void* b, int64_t count, DataType dtype, void* context);

  const cohort_reduce_function function_;
  void* const context_;
  const std::string name_;
  std::array<View, 5> views_;
};

// Things that an operation under way needs: functions, memory.
using Kept = std::vector<std::shared_ptr<const void>>;

struct RuntimeObject {
  std::shared_ptr<Membership> membership;
};
// The batch of a communicator: calls between cohort_batch_begin and cohort_batch_end.
struct NotedCalls {
  std::unique_ptr<Batch> calls = nullptr;  // null until there is one; kept for its memory
  bool open = false;
  Kept needs = {};
  cohort_status refused = COHORT_OK;  // the first error of a call, which refuses all of them
  std::string refusal = {};           // its text
};
struct CommunicatorObject {
  std::shared_ptr<Membership> membership;
  std::shared_ptr<Communicator> communicator;  // never null, and never replaced
  NotedCalls batch = {};
};
struct WorkObject {
  std::shared_ptr<Membership> membership;
  runtime::Work work;
  BlockNote note = {};
};
struct WindowObject {
  std::shared_ptr<Membership> membership;
  Window window;
};
struct OperationObject {
  std::shared_ptr<const UserOperation> operation;
};

// True within a function of cohort_op_create, in this thread.
bool InReduction();

template <typename Handle>
struct ObjectOf;
template <>
struct ObjectOf<cohort_runtime> {
  using Type = RuntimeObject;
  static constexpr HandleKind kKind = HandleKind::kRuntime;
  static constexpr const char* kName = "runtime";
};
template <>
struct ObjectOf<cohort_comm> {
  using Type = CommunicatorObject;
  static constexpr HandleKind kKind = HandleKind::kCommunicator;
  static constexpr const char* kName = "communicator";
};
template <>
struct ObjectOf<cohort_work> {
  using Type = WorkObject;
  static constexpr HandleKind kKind = HandleKind::kWork;
  static constexpr const char* kName = "work";
};
template <>
struct ObjectOf<cohort_window> {
  using Type = WindowObject;
  static constexpr HandleKind kKind = HandleKind::kWindow;
  static constexpr const char* kName = "window";
};
template <>
struct ObjectOf<cohort_op> {
  using Type = OperationObject;
  static constexpr HandleKind kKind = HandleKind::kOperation;
  static constexpr const char* kName = "operation";
};

template <typename Handle>
using TableOf = HandleTable<typename ObjectOf<Handle>::Type>;
template <typename Handle>
using Held = typename TableOf<Handle>::Held;
template <typename Handle>
using Reserved = typename TableOf<Handle>::Reserved;

template <typename Handle>
TableOf<Handle>& Table() {
  static auto* const table =
      new TableOf<Handle>(ObjectOf<Handle>::kKind);  // handles may be used until the process ends
  return *table;
}

template <typename Handle>
uint64_t NumberOf(Handle handle) {
  return static_cast<uint64_t>(reinterpret_cast<uintptr_t>(handle));
}

// The error of a handle that was not found.
cohort_status FailLookup(const char* function, const char* kind, Lookup found);
// COHORT_BUSY in a reduction function.
cohort_status FailInReduction(const char* function);
// COHORT_FAILED_PRECONDITION in a child of fork; on a communicator with an open batch.
cohort_status FailInChild(const char* function);
cohort_status FailInBatch(const char* function);

// Begins exclusive use of a handle, or says why not.
template <typename Handle>
cohort_status Hold(const char* function, Handle handle, Held<Handle>* held) {
  if (InReduction()) return FailInReduction(function);
  const Lookup found = Table<Handle>().Hold(NumberOf(handle), held);
  return found == Lookup::kFound ? COHORT_OK : FailLookup(function, ObjectOf<Handle>::kName, found);
}

// Whether this process is a child that was forked after its parent had joined: what communicates is its parent's alone.
inline bool InChild(const Membership& membership) { return membership.runtime->forks().InChild(); }

// Hold, for functions that communicate or make progress.
template <typename Handle>
cohort_status HoldInParent(const char* function, Handle handle, Held<Handle>* held) {
  const cohort_status found = Hold(function, handle, held);
  if (found == COHORT_OK && InChild(*(*held)->membership)) return FailInChild(function);
  return found;
}

// Copies a member that never changes, also while another thread uses the handle.
template <typename Handle, typename Member>
cohort_status Peek(const char* function, Handle handle, Member ObjectOf<Handle>::Type::* member, Member* copy) {
  const Lookup found = Table<Handle>().Peek(NumberOf(handle), [&](const auto& object) { *copy = object.*member; });
  return found == Lookup::kFound ? COHORT_OK : FailLookup(function, ObjectOf<Handle>::kName, found);
}

// Reserves a handle before the object is made: what has begun cannot be refused any more. COHORT_RESOURCE_EXHAUSTED:
// the table is full.
template <typename Handle>
cohort_status Reserve(const char* function, Reserved<Handle>* place) {
  if (Table<Handle>().Reserve(place)) return COHORT_OK;
  return Fail(COHORT_RESOURCE_EXHAUSTED, std::string("cohort_") + function + ": 2^20 handles of this kind exist (" +
                                             ObjectOf<Handle>::kName + "); free those that are not needed");
}

// Makes the handle. Cannot fail.
template <typename Handle>
void Fill(Reserved<Handle>* place, typename ObjectOf<Handle>::Type object, Handle* handle) {
  *handle = reinterpret_cast<Handle>(static_cast<uintptr_t>(place->Fill(std::move(object))));
}

// Both, for objects that communicate with nobody.
template <typename Handle>
cohort_status Give(const char* function, typename ObjectOf<Handle>::Type object, Handle* handle) {
  Reserved<Handle> place;
  const cohort_status reserved = Reserve<Handle>(function, &place);
  if (reserved == COHORT_OK) Fill<Handle>(&place, std::move(object), handle);
  return reserved;
}

// Runs a function that uses a runtime. Several threads may do so at the same time; cohort_finalize does not.
template <typename Use>
cohort_status WithRuntime(const char* function, cohort_runtime handle, Use use) {
  return Guarded(function, [&]() -> cohort_status {
    if (InReduction()) return FailInReduction(function);
    struct Call {
      ~Call() {
        if (membership != nullptr) membership->calls.fetch_sub(1);
      }
      std::shared_ptr<Membership> membership;
    } call;
    std::shared_ptr<Membership> membership;
    const cohort_status found = Peek(function, handle, &RuntimeObject::membership, &membership);
    if (found != COHORT_OK) return found;
    membership->calls.fetch_add(1);
    call.membership = std::move(membership);
    return use(call.membership);
  });
}

}  // namespace cohort::comm::c
