#include "tests/support/delayed_collectives.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <functional>
#include <list>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "cohort/runtime/base/mutex.h"

namespace cohort::trainer {
namespace {

using comm::Buffer;
using comm::ConstBuffer;
using runtime::Work;

constexpr uint8_t kUntouched = 0xFF;

size_t BytesOf(const ConstBuffer& buffer) { return static_cast<size_t>(buffer.count) * SizeOf(buffer.dtype); }

// The buffers of a collective that is held back, as the caller left them.
class HeldBuffers {
 public:
  explicit HeldBuffers(const CallBuffers& buffers) : in_(buffers.in), out_(buffers.out) {
    const auto* data = static_cast<const uint8_t*>(in_.data);
    saved_.assign(data, data + BytesOf(in_));
  }
  void HideOutput() const {
    if (BytesOf(out_) > 0) std::memset(out_.data, kUntouched, BytesOf(out_));
  }
  // Restores the input if HideOutput has overwritten it.
  void RestoreInput() const {
    if (InPlace()) std::memcpy(const_cast<void*>(in_.data), saved_.data(), saved_.size());
  }
  std::string ChangedOutput(const std::string& name) const {
    const auto* data = static_cast<const uint8_t*>(out_.data);
    const auto* end = data + BytesOf(out_);
    const auto* found = std::find_if(data, end, [](uint8_t byte) { return byte != kUntouched; });
    return found == end ? "" : Place("output", name, "written to", found - data);
  }
  // Skips parts shared with the output: these have been checked.
  std::string ChangedInput(const std::string& name) const {
    const auto* data = static_cast<const uint8_t*>(in_.data);
    const auto* out = static_cast<const uint8_t*>(out_.data);
    for (size_t i = 0; i < saved_.size(); ++i) {
      const bool shared = data + i >= out && data + i < out + BytesOf(out_);
      if (!shared && data[i] != saved_[i]) return Place("input", name, "changed", static_cast<int64_t>(i));
    }
    return "";
  }

 private:
  bool InPlace() const {
    const auto in = reinterpret_cast<uintptr_t>(in_.data), out = reinterpret_cast<uintptr_t>(out_.data);
    return in < out + BytesOf(out_) && out < in + BytesOf(in_);
  }
  static std::string Place(const char* which, const std::string& name, const char* what, int64_t byte) {
    return std::string("the ") + which + " of " + name + " was " + what + " (byte " + std::to_string(byte) + ")";
  }

  ConstBuffer in_;
  Buffer out_;
  std::vector<uint8_t> saved_;
};

// One call that is held back; a batch is one.
class DelayedCall final : public runtime::WorkState {
 public:
  DelayedCall(comm::Communicator& group, std::string name, std::span<const CallBuffers> buffers,
              std::function<Work()> start)
      : group_(group), name_(std::move(name)), buffers_(buffers.begin(), buffers.end()), start_(std::move(start)) {
    Reset(1);
    for (const HeldBuffers& each : buffers_) each.HideOutput();  // when all inputs are saved
  }
  const comm::Communicator* group() const { return &group_; }
  std::thread::id caller() const { return caller_; }

  // Once.
  void Start() {
    std::string wrong;
    for (const HeldBuffers& each : buffers_) {
      if (wrong.empty()) wrong = each.ChangedOutput(name_);
      if (wrong.empty()) wrong = each.ChangedInput(name_);
    }
    if (wrong.empty()) {
      for (const HeldBuffers& each : buffers_) each.RestoreInput();
      inner_ = start_();
      started_ = true;
      return;
    }
    wrong += " before the operation was done: its memory is used too early. Wait for the Work first";
    group_.Abort(wrong);
    Complete(absl::FailedPreconditionError(wrong));
  }
  void Cancel() { Complete(absl::CancelledError(name_ + " was held back when its group ended")); }

 private:
  void Wait(runtime::Deadline deadline) override;

  comm::Communicator& group_;
  const std::string name_;
  const std::vector<HeldBuffers> buffers_;
  const std::function<Work()> start_;
  const std::thread::id caller_ = std::this_thread::get_id();
  bool started_ = false;
  Work inner_;
};

struct Held {
  DelayedCall* call;
  Work reference;
};

std::atomic<int> delays{0};
runtime::Mutex mutex;  // of all that follows
int64_t calls COHORT_GUARDED_BY(mutex) = 0;
std::list<Held>& HeldBack() COHORT_REQUIRES(mutex) {
  static auto* held = new std::list<Held>;  // for ever: threads may outlive main()
  return *held;
}

template <typename Chosen>
std::list<Held> Take(Chosen chosen) {
  runtime::MutexLock lock(mutex);
  std::list<Held> taken;
  for (auto each = HeldBack().begin(); each != HeldBack().end();) {
    const auto next = std::next(each);
    if (chosen(*each->call)) taken.splice(taken.end(), HeldBack(), each);
    each = next;
  }
  return taken;
}

// `call` and what its caller called before it.
void StartUpTo(const DelayedCall& call) {
  bool beyond = false;
  for (const Held& held : Take([&](const DelayedCall& each) {
         const bool chosen = !beyond && each.caller() == call.caller();
         beyond = beyond || &each == &call;
         return chosen;
       })) {
    held.call->Start();
  }
}

void DelayedCall::Wait(runtime::Deadline deadline) {
  if (!started_ && !done()) StartUpTo(*this);
  if (done()) return;
  const absl::Status status = inner_.Wait(deadline);
  if (inner_.Done()) Complete(status);
}

std::string NameOf(comm::CollectiveKind kind, const std::source_location& site) {
  return std::string(Name(kind)) + " at " + site.file_name() + ":" + std::to_string(site.line());
}

class Delays final : public CallObserver {
 public:
  Work OnCall(const ObservedCall& observed, std::function<Work()> start) override {
    const bool host = std::all_of(observed.buffers.begin(), observed.buffers.end(), [](const CallBuffers& each) {
      return each.in.memory == comm::MemoryKind::kHost && each.out.memory == comm::MemoryKind::kHost;
    });
    if (!host) return start();
    auto* call =
        new DelayedCall(observed.group, NameOf(observed.kind, observed.site), observed.buffers, std::move(start));
    Work work = Work::Adopt(call);
    runtime::MutexLock lock(mutex);
    calls += static_cast<int64_t>(observed.buffers.size());
    HeldBack().push_back({call, work});
    return work;
  }

  void OnGroupEnd(const comm::Communicator& group) override {
    for (const Held& held : Take([&](const DelayedCall& call) { return call.group() == &group; })) held.call->Cancel();
  }
};

// Lives for ever: Works may outlive main().
Delays& TheDelays() {
  static auto* delays = new Delays;
  return *delays;
}

}  // namespace

DelayedCollectives::DelayedCollectives() {
  if (delays.fetch_add(1) == 0) ExchangeCallObserver(&TheDelays());
  runtime::MutexLock lock(mutex);
  before_ = trainer::calls;
}

DelayedCollectives::~DelayedCollectives() {
  if (delays.fetch_sub(1) > 1) return;
  ExchangeCallObserver(nullptr);
  for (const Held& held : Take([](const DelayedCall&) { return true; })) held.call->Start();
}

int64_t DelayedCollectives::calls() const {
  runtime::MutexLock lock(mutex);
  return trainer::calls - before_;
}

}  // namespace cohort::trainer
