#include "trainer/collectives.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <list>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "runtime/base/mutex.h"
#include "trainer/communication_ledger.h"
#include "trainer/communication_timer.h"
#include "trainer/simulated_link.h"

namespace cohort::trainer {
namespace {

using comm::Buffer;
using comm::ConstBuffer;
using runtime::Work;

constexpr uint8_t kUntouched = 0xFF;

size_t BytesOf(const ConstBuffer& buffer) { return static_cast<size_t>(buffer.count) * SizeOf(buffer.dtype); }

// One call that is held back, with its buffers as the caller left them.
class DelayedCall final : public runtime::WorkState {
 public:
  DelayedCall(comm::Communicator& group, std::string name, ConstBuffer in, Buffer out, std::function<Work()> start)
      : group_(group), name_(std::move(name)), in_(in), out_(out), start_(std::move(start)) {
    Reset(1);
    const auto* data = static_cast<const uint8_t*>(in_.data);
    saved_.assign(data, data + BytesOf(in_));
    if (BytesOf(out_) > 0) std::memset(out_.data, kUntouched, BytesOf(out_));
  }
  const comm::Communicator* group() const { return &group_; }
  std::thread::id caller() const { return caller_; }

  // Once.
  void Start() {
    std::string wrong = ChangedOutput();
    if (wrong.empty()) wrong = ChangedInput();
    if (wrong.empty()) {
      if (InPlace()) std::memcpy(const_cast<void*>(in_.data), saved_.data(), saved_.size());
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

  bool InPlace() const {
    const auto in = reinterpret_cast<uintptr_t>(in_.data), out = reinterpret_cast<uintptr_t>(out_.data);
    return in < out + BytesOf(out_) && out < in + BytesOf(in_);
  }
  std::string ChangedOutput() const {
    const auto* data = static_cast<const uint8_t*>(out_.data);
    const auto* end = data + BytesOf(out_);
    const auto* found = std::find_if(data, end, [](uint8_t byte) { return byte != kUntouched; });
    return found == end ? "" : Place("output", "written to", found - data);
  }
  // Where it shares memory with the output, that has been looked at.
  std::string ChangedInput() const {
    const auto* data = static_cast<const uint8_t*>(in_.data);
    const auto* out = static_cast<const uint8_t*>(out_.data);
    for (size_t i = 0; i < saved_.size(); ++i) {
      const bool shared = data + i >= out && data + i < out + BytesOf(out_);
      if (!shared && data[i] != saved_[i]) return Place("input", "changed", static_cast<int64_t>(i));
    }
    return "";
  }
  std::string Place(const char* which, const char* what, int64_t byte) const {
    return std::string("the ") + which + " of " + name_ + " was " + what + " (byte " + std::to_string(byte) + ")";
  }

  comm::Communicator& group_;
  const std::string name_;
  const ConstBuffer in_;
  const Buffer out_;
  const std::function<Work()> start_;
  const std::thread::id caller_ = std::this_thread::get_id();
  std::vector<uint8_t> saved_;
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

// What one rank sends of a whole vector, by the best algorithm for large ones.
double SentBytes(comm::CollectiveKind kind, int ranks, int64_t whole) {
  if (kind == comm::CollectiveKind::kBroadcast) return ranks > 1 ? static_cast<double>(whole) : 0;
  const double share = static_cast<double>(ranks - 1) / ranks;
  return static_cast<double>(whole) * share * (kind == comm::CollectiveKind::kAllReduce ? 2 : 1);
}

std::string NameOf(comm::CollectiveKind kind, const std::source_location& site) {
  return std::string(Name(kind)) + " at " + site.file_name() + ":" + std::to_string(site.line());
}

template <typename Start>
Work CallUntimed(comm::Communicator& group, comm::CollectiveKind kind, const std::source_location& site, ConstBuffer in,
                 Buffer out, Start start) {
  const bool host = in.memory == comm::MemoryKind::kHost && out.memory == comm::MemoryKind::kHost;
  const auto whole = static_cast<int64_t>(std::max(BytesOf(in), BytesOf(out)));
  EnterInLedger(EqualBlocksForm(kind), group.size(), whole);
  if (OnSimulatedLink()) {
    return TimedOnSimulatedLink(start(), SentBytes(EqualBlocksForm(kind), group.size(), whole));
  }
  if (delays.load(std::memory_order_relaxed) == 0 || !host) return start();
  auto* call = new DelayedCall(group, NameOf(kind, site), in, out, std::move(start));
  Work work = Work::Adopt(call);
  runtime::MutexLock lock(mutex);
  ++calls;
  HeldBack().push_back({call, work});
  return work;
}

template <typename Start>
Work Call(comm::Communicator& group, comm::CollectiveKind kind, const std::source_location& site, ConstBuffer in,
          Buffer out, Start start) {
  const auto call = [&] { return CallUntimed(group, kind, site, in, out, std::move(start)); };
  return CommunicationIsTimed() ? TimeCommunication(call) : call();
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

Work AllReduce(comm::Communicator& group, ConstBuffer in, Buffer out, comm::ReduceOp op, std::source_location site) {
  return Call(group, comm::CollectiveKind::kAllReduce, site, in, out,
              [=, &group] { return group.AllReduce(in, out, op, {}, site); });
}

Work Broadcast(comm::Communicator& group, Buffer buffer, int root, std::source_location site) {
  const bool reads = group.rank() == root;
  return Call(group, comm::CollectiveKind::kBroadcast, site, reads ? ConstBuffer(buffer) : ConstBuffer(),
              reads ? Buffer() : buffer, [=, &group] { return group.Broadcast(buffer, root, {}, site); });
}

Work AllGather(comm::Communicator& group, ConstBuffer in, Buffer out, const comm::CallOptions& options,
               std::source_location site) {
  return Call(group, comm::CollectiveKind::kAllGather, site, in, out,
              [=, &group] { return group.AllGather(in, out, options, site); });
}

Work AllGatherV(comm::Communicator& group, ConstBuffer in, Buffer out, const comm::BlockLayout& blocks,
                const comm::CallOptions& options, std::source_location site) {
  return Call(group, comm::CollectiveKind::kAllGatherV, site, in, out, [=, &group, kept = KeptLayout(blocks)] {
    return group.AllGatherV(in, out, kept.layout(), options, site);
  });
}

Work ReduceScatter(comm::Communicator& group, ConstBuffer in, Buffer out, comm::ReduceOp op,
                   std::source_location site) {
  return Call(group, comm::CollectiveKind::kReduceScatter, site, in, out,
              [=, &group] { return group.ReduceScatter(in, out, op, {}, site); });
}

Work ReduceScatterV(comm::Communicator& group, ConstBuffer in, const comm::BlockLayout& blocks, Buffer out,
                    comm::ReduceOp op, std::source_location site) {
  return Call(group, comm::CollectiveKind::kReduceScatterV, site, in, out, [=, &group, kept = KeptLayout(blocks)] {
    return group.ReduceScatterV(in, kept.layout(), out, op, {}, site);
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
