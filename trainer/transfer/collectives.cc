#include "cohort/trainer/transfer/collectives.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <list>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "c10/util/Exception.h"
#include "cohort/comm/batch.h"
#include "cohort/runtime/base/mutex.h"
#include "cohort/trainer/transfer/communication_ledger.h"
#include "cohort/trainer/transfer/communication_timer.h"
#include "cohort/trainer/transfer/device_stream.h"
#include "cohort/trainer/transfer/simulated_link.h"

namespace cohort::trainer {
namespace {

using comm::Buffer;
using comm::ConstBuffer;
using runtime::Work;

constexpr uint8_t kUntouched = 0xFF;

size_t BytesOf(const ConstBuffer& buffer) { return static_cast<size_t>(buffer.count) * SizeOf(buffer.dtype); }

// What a collective that is held back reads and writes, as the caller left it.
class HeldBuffers {
 public:
  explicit HeldBuffers(const CallBuffers& buffers) : in_(buffers.in), out_(buffers.out) {
    const auto* data = static_cast<const uint8_t*>(in_.data);
    saved_.assign(data, data + BytesOf(in_));
  }
  void HideOutput() const {
    if (BytesOf(out_) > 0) std::memset(out_.data, kUntouched, BytesOf(out_));
  }
  // Where HideOutput has overwritten it.
  void RestoreInput() const {
    if (InPlace()) std::memcpy(const_cast<void*>(in_.data), saved_.data(), saved_.size());
  }
  std::string ChangedOutput(const std::string& name) const {
    const auto* data = static_cast<const uint8_t*>(out_.data);
    const auto* end = data + BytesOf(out_);
    const auto* found = std::find_if(data, end, [](uint8_t byte) { return byte != kUntouched; });
    return found == end ? "" : Place("output", name, "written to", found - data);
  }
  // Where it shares memory with the output, that has been looked at.
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

std::atomic<std::chrono::nanoseconds> timeout_unless_given{comm::CallOptions().timeout};

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

// What one rank sends of a whole vector, by the best algorithm for large ones.
double SentBytes(comm::CollectiveKind kind, int ranks, int64_t whole) {
  if (kind == comm::CollectiveKind::kBroadcast) return ranks > 1 ? static_cast<double>(whole) : 0;
  const double share = static_cast<double>(ranks - 1) / ranks;
  return static_cast<double>(whole) * share * (kind == comm::CollectiveKind::kAllReduce ? 2 : 1);
}

std::string NameOf(comm::CollectiveKind kind, const std::source_location& site) {
  return std::string(Name(kind)) + " at " + site.file_name() + ":" + std::to_string(site.line());
}

// `buffers` are those of the collectives that `start` starts as one.
template <typename Start>
Work CallUntimed(comm::Communicator& group, comm::CollectiveKind kind, const std::source_location& site,
                 std::span<const CallBuffers> buffers, Start start) {
  bool host = true;
  double sent = 0;
  for (const auto& [in, out] : buffers) {
    host = host && in.memory == comm::MemoryKind::kHost && out.memory == comm::MemoryKind::kHost;
    const auto whole = static_cast<int64_t>(std::max(BytesOf(in), BytesOf(out)));
    EnterInLedger(EqualBlocksForm(kind), group.size(), whole);
    sent += SentBytes(EqualBlocksForm(kind), group.size(), whole);
  }
  if (OnSimulatedLink()) return TimedOnSimulatedLink(start(), sent);
  if (delays.load(std::memory_order_relaxed) == 0 || !host) return start();
  auto* call = new DelayedCall(group, NameOf(kind, site), buffers, std::move(start));
  Work work = Work::Adopt(call);
  runtime::MutexLock lock(mutex);
  calls += static_cast<int64_t>(buffers.size());
  HeldBack().push_back({call, work});
  return work;
}

template <typename Start>
Work Call(comm::Communicator& group, comm::CollectiveKind kind, const std::source_location& site,
          std::span<const CallBuffers> buffers, Start start) {
  const auto call = [&] { return CallUntimed(group, kind, site, buffers, std::move(start)); };
  return CommunicationIsTimed() ? TimeCommunication(call) : call();
}

template <typename Start>
Work Call(comm::Communicator& group, comm::CollectiveKind kind, const std::source_location& site, ConstBuffer in,
          Buffer out, Start start) {
  const CallBuffers buffers = {in, out};
  return Call(group, kind, site, std::span(&buffers, 1), std::move(start));
}

// Those of a call on device memory name a stream that comes after the caller's current one.
comm::CallOptions OptionsOn(const ConstBuffer& in, const Buffer& out,
                            comm::CallOptions options = {.timeout = default_timeout()}) {
  const bool reads = in.memory == comm::MemoryKind::kCuda, writes = out.memory == comm::MemoryKind::kCuda;
  if ((!reads && !writes) || options.stream != nullptr || CudaStreams() == nullptr) return options;
  const int device = reads ? in.device : out.device;
  options.stream = CudaStreams()->ForCall(c10::Device(c10::kCUDA, static_cast<c10::DeviceIndex>(device)));
  return options;
}

// A layout is only read during a call.
class KeptLayout {
 public:
  explicit KeptLayout(const comm::BlockLayout& layout)
      : counts_(layout.counts.begin(), layout.counts.end()),
        displacements_(layout.displacements.begin(), layout.displacements.end()) {}
  comm::BlockLayout layout() const { return {.counts = counts_, .displacements = displacements_}; }

 private:
  std::vector<int64_t> counts_, displacements_;
};

}  // namespace

void set_default_timeout(std::chrono::nanoseconds timeout) {
  TORCH_CHECK(timeout.count() > 0, "set_default_timeout: ", timeout.count(), " ns is no time to wait for");
  timeout_unless_given = timeout;
}

std::chrono::nanoseconds default_timeout() { return timeout_unless_given; }

Work AllReduce(comm::Communicator& group, ConstBuffer in, Buffer out, comm::ReduceOp op, std::source_location site) {
  return Call(group, comm::CollectiveKind::kAllReduce, site, in, out,
              [=, &group] { return group.AllReduce(in, out, op, OptionsOn(in, out), site); });
}

Work Broadcast(comm::Communicator& group, Buffer buffer, int root, std::source_location site) {
  const bool reads = group.rank() == root;
  return Call(group, comm::CollectiveKind::kBroadcast, site, reads ? ConstBuffer(buffer) : ConstBuffer(),
              reads ? Buffer() : buffer,
              [=, &group] { return group.Broadcast(buffer, root, OptionsOn(buffer, buffer), site); });
}

Work AllGather(comm::Communicator& group, ConstBuffer in, Buffer out, const comm::CallOptions& options,
               std::source_location site) {
  return Call(group, comm::CollectiveKind::kAllGather, site, in, out,
              [=, &group] { return group.AllGather(in, out, OptionsOn(in, out, options), site); });
}

Work AllGathers(comm::Communicator& group, std::span<const CallBuffers> calls, std::source_location site) {
  if (calls.size() == 1) {
    return AllGather(group, calls.front().in, calls.front().out, {.timeout = default_timeout()}, site);
  }
  return Call(group, comm::CollectiveKind::kAllGather, site, calls,
              [&group, site, kept = std::vector<CallBuffers>(calls.begin(), calls.end())] {
                comm::Batch batch(group);
                comm::CallOptions on_device;  // of calls on one device, which wait for one event
                const CallBuffers* before = nullptr;
                for (const CallBuffers& each : kept) {
                  const bool same = before != nullptr && before->out.memory == each.out.memory &&
                                    before->out.device == each.out.device;
                  if (!same) on_device = OptionsOn(each.in, each.out);
                  batch.AllGather(each.in, each.out, on_device, site);
                  before = &each;
                }
                return batch.Submit();
              });
}

Work AllGatherV(comm::Communicator& group, ConstBuffer in, Buffer out, const comm::BlockLayout& blocks,
                const comm::CallOptions& options, std::source_location site) {
  return Call(group, comm::CollectiveKind::kAllGatherV, site, in, out, [=, &group, kept = KeptLayout(blocks)] {
    return group.AllGatherV(in, out, kept.layout(), OptionsOn(in, out, options), site);
  });
}

Work ReduceScatter(comm::Communicator& group, ConstBuffer in, Buffer out, comm::ReduceOp op,
                   std::source_location site) {
  return Call(group, comm::CollectiveKind::kReduceScatter, site, in, out,
              [=, &group] { return group.ReduceScatter(in, out, op, OptionsOn(in, out), site); });
}

Work ReduceScatterV(comm::Communicator& group, ConstBuffer in, const comm::BlockLayout& blocks, Buffer out,
                    comm::ReduceOp op, std::source_location site) {
  return Call(group, comm::CollectiveKind::kReduceScatterV, site, in, out, [=, &group, kept = KeptLayout(blocks)] {
    return group.ReduceScatterV(in, kept.layout(), out, op, OptionsOn(in, out), site);
  });
}

DelayedCollectives::DelayedCollectives() {
  delays.fetch_add(1);
  runtime::MutexLock lock(mutex);
  before_ = trainer::calls;
}

DelayedCollectives::~DelayedCollectives() {
  if (delays.fetch_sub(1) > 1) return;
  for (const Held& held : Take([](const DelayedCall&) { return true; })) held.call->Start();
}

int64_t DelayedCollectives::calls() const {
  runtime::MutexLock lock(mutex);
  return trainer::calls - before_;
}

void CancelDelayed(const comm::Communicator& group) {
  for (const Held& held : Take([&](const DelayedCall& call) { return call.group() == &group; })) held.call->Cancel();
}

}  // namespace cohort::trainer
