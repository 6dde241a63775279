// The runtime of cohort.h: joining and leaving a job, and what the job knows.
#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "cohort/comm/c/arguments.h"
#include "cohort/comm/c/cohort.h"
#include "cohort/comm/c/errors.h"
#include "cohort/comm/c/objects.h"
#include "cohort/runtime/base/forks.h"
#include "cohort/runtime/base/mutex.h"
#include "cohort/runtime/bootstrap/bootstrap.h"
#include "cohort/runtime/runtime.h"

namespace cohort::comm::c {
namespace {

constexpr size_t kLongerThanKeys = 4096;
constexpr size_t kMostValueBytes = 49152;

// The caller's store behind the interface of the runtime.
class CallersStore : public runtime::KeyValueStore {
 public:
  explicit CallersStore(const cohort_store& store) : store_(store) {}

  absl::Status Put(std::string_view key, std::string_view value) override {
    const std::string name(key);
    const int failed = store_.put(store_.context, name.c_str(), value.data(), value.size());
    if (failed == 0) return absl::OkStatus();
    return absl::UnavailableError("the program's store failed to put " + name + " (" + std::to_string(failed) + ")");
  }
  absl::StatusOr<std::string> Get(std::string_view key, runtime::Deadline deadline) override {
    const std::string name(key);
    std::string value(kMostValueBytes, '\0');
    size_t bytes = 0;
    const int failed =
        store_.get(store_.context, name.c_str(), deadline.left().count(), value.data(), value.size(), &bytes);
    if (failed == COHORT_UNAVAILABLE) return absl::UnavailableError("the program's store failed to get " + name);
    if (failed != 0) {
      return absl::NotFoundError("the program's store has no " + name + " (" + std::to_string(failed) + ")");
    }
    if (bytes > value.size()) {
      return absl::InternalError("the program's store says that " + name + " has " + std::to_string(bytes) + " bytes");
    }
    value.resize(bytes);
    return value;
  }

 private:
  const cohort_store store_;
};

cohort_status UseStore(const cohort_store* given, Membership* membership, runtime::RuntimeOptions* options) {
  cohort_store store = {};
  if (const cohort_status read = ReadSized("init", "options->store", given, &store); read != COHORT_OK) return read;
  if (store.put == nullptr || store.get == nullptr) return Invalid("init", "options->store has no put or no get");
  if (store.ranks < 1 || store.rank < 0 || store.rank >= store.ranks) {
    return Invalid("init", "options->store has rank " + std::to_string(store.rank) + " of " +
                               std::to_string(store.ranks) + " ranks");
  }
  membership->store = std::make_unique<CallersStore>(store);
  options->bootstrap = runtime::BootstrapFromStore(membership->store.get(), store.rank, store.ranks);
  return COHORT_OK;
}

// The membership of this process in the job of its environment. A job gives a process one place, and libraries that
// know nothing of each other may each join it.
struct Joined {
  runtime::Mutex mutex;  // held while a process joins or leaves
  std::weak_ptr<Membership> latest COHORT_GUARDED_BY(mutex);

  std::shared_ptr<Membership> Live() COHORT_REQUIRES(mutex) {
    std::shared_ptr<Membership> membership = latest.lock();
    const bool live = membership != nullptr && membership->handles > 0 && !membership->runtime->forks().InChild();
    return live ? membership : nullptr;
  }
};

Joined& OfThisProcess() {
  static auto* const joined = new Joined;  // calls may come until the process ends
  return *joined;
}

cohort_status Join(runtime::RuntimeOptions options, Membership* membership) {
  absl::StatusOr<std::unique_ptr<runtime::Runtime>> joined = runtime::Runtime::Init(std::move(options));
  if (!joined.ok()) return Fail(joined.status());
  membership->runtime = *std::move(joined);
  return COHORT_OK;
}

// Ends the use of a handle, and with the last one the membership.
cohort_status Leave(Held<cohort_runtime>* held) {
  Membership& membership = *(*held)->membership;
  if (membership.handles == 1 && membership.calls.load() > 0) {
    return Fail(COHORT_BUSY, "cohort_finalize: another thread is in a function of this runtime");
  }
  const RuntimeObject object = held->Take();
  if (--membership.handles > 0) return COHORT_OK;
  return Fail(membership.runtime->Finalize());
}

// The text of a key. The runtime checks its length.
cohort_status ReadKey(const char* function, const char* key, std::string_view* text) {
  if (key == nullptr) return Invalid(function, "key is null");
  *text = std::string_view(key, strnlen(key, kLongerThanKeys));
  const auto is_printable = [](char c) { return c >= ' ' && c <= '~'; };
  if (std::all_of(text->begin(), text->end(), is_printable)) return COHORT_OK;
  return Invalid(function, "key holds a byte that is no printable character of ASCII");
}

}  // namespace
}  // namespace cohort::comm::c

namespace c = cohort::comm::c;
using cohort::runtime::Runtime;

cohort_status cohort_init(const cohort_init_options* options, cohort_runtime* runtime) {
  return c::Guarded("init", [&]() -> cohort_status {
    if (runtime == nullptr) return c::Invalid("init", "runtime is null");
    *runtime = nullptr;
    if (c::InReduction()) return c::FailInReduction("init");
    cohort_init_options given = COHORT_INIT_OPTIONS_INIT;
    if (const cohort_status read = c::ReadSized("init", "options", options, &given); read != COHORT_OK) return read;
    c::Reserved<cohort_runtime> place;
    if (const cohort_status reserved = c::Reserve<cohort_runtime>("init", &place); reserved != COHORT_OK)
      return reserved;
    auto membership = std::make_shared<c::Membership>();
    cohort::runtime::RuntimeOptions wanted;
    if (given.timeout_ns != 0) wanted.init_timeout = c::TimeoutOf(given.timeout_ns);
    wanted.progress_thread = given.progress_thread != 0;
    wanted.detect_deadlocks = given.no_deadlock_checks == 0;
    if (given.store != nullptr) {
      cohort_status joined = c::UseStore(given.store, membership.get(), &wanted);
      if (joined == COHORT_OK) joined = c::Join(std::move(wanted), membership.get());
      if (joined == COHORT_OK) c::Fill<cohort_runtime>(&place, {std::move(membership)}, runtime);
      return joined;
    }
    c::Joined& process = c::OfThisProcess();
    cohort::runtime::MutexLock lock(process.mutex);
    if (std::shared_ptr<c::Membership> live = process.Live(); live != nullptr) {
      ++live->handles;
      membership = std::move(live);
    } else {
      if (const cohort_status joined = c::Join(std::move(wanted), membership.get()); joined != COHORT_OK) return joined;
      process.latest = membership;
    }
    c::Fill<cohort_runtime>(&place, {std::move(membership)}, runtime);
    return COHORT_OK;
  });
}

cohort_status cohort_finalize(cohort_runtime runtime) {
  return c::Guarded("finalize", [&]() -> cohort_status {
    c::Held<cohort_runtime> held;
    if (const cohort_status found = c::Hold("finalize", runtime, &held); found != COHORT_OK) return found;
    if (held->membership->store != nullptr) return c::Leave(&held);  // waits for no other library of the process
    cohort::runtime::MutexLock lock(c::OfThisProcess().mutex);
    return c::Leave(&held);
  });
}

cohort_status cohort_get_info(cohort_runtime runtime, cohort_runtime_info* info) {
  return c::WithRuntime("get_info", runtime, [=](const std::shared_ptr<c::Membership>& membership) {
    constexpr size_t kLeastBytes = c::kFirstSize<cohort_runtime_info>;
    if (info == nullptr) return c::Invalid("get_info", "info is null");
    if (info->size < kLeastBytes) {
      return c::Invalid("get_info", "info->size is " + std::to_string(info->size) + "; it must be sizeof *info, " +
                                        std::to_string(kLeastBytes) + " here");
    }
    const Runtime& joined = *membership->runtime;
    cohort_runtime_info known = COHORT_RUNTIME_INFO_INIT;
    known.rank = joined.rank();
    known.world_size = joined.world_size();
    known.node = joined.node();
    known.nodes = joined.node_count();
    known.local_rank = joined.local_rank();
    known.local_size = joined.local_world_size();
    known.devices = joined.identity().devices_per_rank;
    known.epoch = joined.identity().epoch;
    known.size = std::min(info->size, sizeof known);  // how much of the caller's struct is set
    std::memcpy(info, &known, known.size);
    return cohort_status{COHORT_OK};
  });
}

cohort_status cohort_put(cohort_runtime runtime, const char* key, const void* value, size_t bytes, int64_t timeout_ns) {
  return c::WithRuntime("put", runtime, [=](const std::shared_ptr<c::Membership>& membership) {
    std::string_view name;
    if (const cohort_status right = c::ReadKey("put", key, &name); right != COHORT_OK) return right;
    if (value == nullptr && bytes > 0) return c::Invalid("put", "value is null");
    const std::string_view text(static_cast<const char*>(value), bytes);
    return c::Fail(membership->runtime->Put(name, text, cohort::runtime::Deadline::After(c::TimeoutOf(timeout_ns))));
  });
}

cohort_status cohort_get(cohort_runtime runtime, const char* key, void* value, size_t capacity, size_t* bytes,
                         int64_t timeout_ns) {
  return c::WithRuntime("get", runtime, [=](const std::shared_ptr<c::Membership>& membership) {
    std::string_view name;
    if (const cohort_status right = c::ReadKey("get", key, &name); right != COHORT_OK) return right;
    if (bytes == nullptr || (value == nullptr && capacity > 0)) return c::Invalid("get", "value or bytes is null");
    const absl::StatusOr<std::string> found =
        membership->runtime->Get(name, cohort::runtime::Deadline::After(c::TimeoutOf(timeout_ns)));
    if (!found.ok()) return c::Fail(found.status());
    *bytes = found->size();
    if (found->size() > capacity) {
      return c::Invalid("get", "the value has " + std::to_string(found->size()) + " bytes and capacity is " +
                                   std::to_string(capacity));
    }
    if (!found->empty()) std::memcpy(value, found->data(), found->size());
    return cohort_status{COHORT_OK};
  });
}

cohort_status cohort_on_preemption(cohort_runtime runtime, uint64_t step, int64_t timeout_ns, int32_t* stop) {
  return c::WithRuntime("on_preemption", runtime, [=](const std::shared_ptr<c::Membership>& membership) {
    if (stop == nullptr) return c::Invalid("on_preemption", "stop is null");
    if (membership->in_preemption.exchange(true)) {
      return c::Fail(COHORT_BUSY, "cohort_on_preemption: another thread is in this function");
    }
    const std::shared_ptr<void> asking(nullptr, [&](void*) { membership->in_preemption.store(false); });
    const absl::StatusOr<bool> stops = membership->runtime->OnPreemption(step, c::TimeoutOf(timeout_ns));
    if (!stops.ok()) return c::Fail(stops.status());
    *stop = *stops ? 1 : 0;
    return cohort_status{COHORT_OK};
  });
}
