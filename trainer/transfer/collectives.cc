#include "cohort/trainer/transfer/collectives.h"

#include <algorithm>
#include <span>
#include <utility>
#include <vector>

#include "c10/util/Exception.h"
#include "cohort/comm/batch.h"
#include "cohort/trainer/transfer/communication_ledger.h"
#include "cohort/trainer/transfer/communication_timer.h"
#include "cohort/trainer/transfer/device_stream.h"

namespace cohort::trainer {
namespace {

using comm::Buffer;
using comm::ConstBuffer;
using runtime::Work;

size_t BytesOf(const ConstBuffer& buffer) { return static_cast<size_t>(buffer.count) * SizeOf(buffer.dtype); }

std::atomic<std::chrono::nanoseconds> timeout_unless_given{comm::CallOptions().timeout};
std::atomic<CallObserver*> observer{nullptr};

// The bytes that one rank sends of a whole vector, by the best algorithm for large ones.
double SentBytes(comm::CollectiveKind kind, int ranks, int64_t whole) {
  if (kind == comm::CollectiveKind::kRecv) return 0;
  if (kind == comm::CollectiveKind::kSend) return static_cast<double>(whole);
  if (kind == comm::CollectiveKind::kBroadcast) return ranks > 1 ? static_cast<double>(whole) : 0;
  const double share = static_cast<double>(ranks - 1) / ranks;
  return static_cast<double>(whole) * share * (kind == comm::CollectiveKind::kAllReduce ? 2 : 1);
}

// The kind of one of the calls that are started as one. An exchange of messages is named after its sends.
comm::CollectiveKind KindOf(comm::CollectiveKind kind, const CallBuffers& buffers) {
  const bool receives = kind == comm::CollectiveKind::kSend && buffers.in.data == nullptr && buffers.in.count == 0 &&
                        buffers.out.data != nullptr;
  return receives ? comm::CollectiveKind::kRecv : EqualBlocksForm(kind);
}

// `buffers` are those of the collectives that `start` starts as one.
template <typename Start>
Work CallUntimed(comm::Communicator& group, comm::CollectiveKind kind, const std::source_location& site,
                 std::span<const CallBuffers> buffers, Start start) {
  double sent = 0;
  for (const CallBuffers& each : buffers) {
    const auto whole = static_cast<int64_t>(std::max(BytesOf(each.in), BytesOf(each.out)));
    EnterInLedger(KindOf(kind, each), group, whole);
    sent += SentBytes(KindOf(kind, each), group.size(), whole);
  }
  CallObserver* const observing = observer.load(std::memory_order_acquire);
  if (observing == nullptr) return start();
  return observing->OnCall({group, kind, site, buffers, sent}, std::move(start));
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

// The options of a call. On device memory they name a stream that comes after the caller's current one.
comm::CallOptions OptionsOn(const ConstBuffer& in, const Buffer& out,
                            comm::CallOptions options = {.timeout = default_timeout()}) {
  const bool reads = in.memory == comm::MemoryKind::kCuda, writes = out.memory == comm::MemoryKind::kCuda;
  if ((!reads && !writes) || options.stream != nullptr || CudaStreams() == nullptr) return options;
  const int device = reads ? in.device : out.device;
  options.stream = CudaStreams()->ForCall(c10::Device(c10::kCUDA, static_cast<c10::DeviceIndex>(device)));
  return options;
}

comm::CallOptions Tagged(uint64_t tag) {
  comm::CallOptions options;
  options.timeout = default_timeout();
  options.tag = tag;
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

Work AllReduce(comm::Communicator& group, ConstBuffer in, Buffer out, comm::ReduceOp op, uint64_t tag,
               std::source_location site) {
  return Call(group, comm::CollectiveKind::kAllReduce, site, in, out,
              [=, &group] { return group.AllReduce(in, out, op, OptionsOn(in, out, Tagged(tag)), site); });
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

Work AllGathers(comm::Communicator& group, std::span<const CallBuffers> calls, uint64_t tag,
                std::source_location site) {
  if (calls.size() == 1) return AllGather(group, calls.front().in, calls.front().out, Tagged(tag), site);
  return Call(group, comm::CollectiveKind::kAllGather, site, calls,
              [&group, site, tag, kept = std::vector<CallBuffers>(calls.begin(), calls.end())] {
                comm::Batch batch(group);
                comm::CallOptions on_device;  // of calls on one device, which wait for one event
                const CallBuffers* before = nullptr;
                for (const CallBuffers& each : kept) {
                  const bool same = before != nullptr && before->out.memory == each.out.memory &&
                                    before->out.device == each.out.device;
                  if (!same) on_device = OptionsOn(each.in, each.out, Tagged(tag));
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

Work ReduceScatter(comm::Communicator& group, ConstBuffer in, Buffer out, comm::ReduceOp op, uint64_t tag,
                   std::source_location site) {
  return Call(group, comm::CollectiveKind::kReduceScatter, site, in, out,
              [=, &group] { return group.ReduceScatter(in, out, op, OptionsOn(in, out, Tagged(tag)), site); });
}

Work ReduceScatterV(comm::Communicator& group, ConstBuffer in, const comm::BlockLayout& blocks, Buffer out,
                    comm::ReduceOp op, uint64_t tag, std::source_location site) {
  return Call(group, comm::CollectiveKind::kReduceScatterV, site, in, out, [=, &group, kept = KeptLayout(blocks)] {
    return group.ReduceScatterV(in, kept.layout(), out, op, OptionsOn(in, out, Tagged(tag)), site);
  });
}

Work AllToAll(comm::Communicator& group, ConstBuffer in, Buffer out, std::source_location site) {
  return Call(group, comm::CollectiveKind::kAllToAll, site, in, out,
              [=, &group] { return group.AllToAll(in, out, OptionsOn(in, out), site); });
}

Work AllToAllV(comm::Communicator& group, ConstBuffer in, const comm::BlockLayout& in_blocks, Buffer out,
               const comm::BlockLayout& out_blocks, std::source_location site) {
  return Call(group, comm::CollectiveKind::kAllToAllV, site, in, out,
              [=, &group, sends = KeptLayout(in_blocks), receives = KeptLayout(out_blocks)] {
                return group.AllToAllV(in, sends.layout(), out, receives.layout(), OptionsOn(in, out), site);
              });
}

Work Send(comm::Communicator& group, ConstBuffer in, int peer, uint64_t tag, std::source_location site) {
  return Call(group, comm::CollectiveKind::kSend, site, in, Buffer(),
              [=, &group] { return group.Send(in, peer, OptionsOn(in, Buffer(), Tagged(tag)), site); });
}

Work Recv(comm::Communicator& group, Buffer out, int peer, uint64_t tag, std::source_location site) {
  return Call(group, comm::CollectiveKind::kRecv, site, ConstBuffer(), out,
              [=, &group] { return group.Recv(out, peer, OptionsOn(ConstBuffer(), out, Tagged(tag)), site); });
}

Work Exchange(comm::Communicator& group, std::span<const Message> messages, std::source_location site) {
  std::vector<CallBuffers> buffers;
  for (const Message& message : messages) {
    buffers.push_back(message.sends ? CallBuffers{message.in, Buffer()} : CallBuffers{ConstBuffer(), message.out});
  }
  return Call(group, comm::CollectiveKind::kSend, site, buffers,
              [&group, site, kept = std::vector<Message>(messages.begin(), messages.end())] {
                comm::Batch batch(group);
                for (const Message& each : kept) {
                  if (each.sends) {
                    batch.Send(each.in, each.peer, OptionsOn(each.in, Buffer(), Tagged(each.tag)), site);
                  } else {
                    batch.Recv(each.out, each.peer, OptionsOn(ConstBuffer(), each.out, Tagged(each.tag)), site);
                  }
                }
                return batch.Submit();
              });
}

CallObserver* ExchangeCallObserver(CallObserver* wanted) { return observer.exchange(wanted); }

void NoteGroupEnd(const comm::Communicator& group) {
  if (CallObserver* const observing = observer.load()) observing->OnGroupEnd(group);
}

}  // namespace cohort::trainer
