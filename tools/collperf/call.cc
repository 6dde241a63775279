#include "tools/collperf/call.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "cohort/comm/batch.h"
#include "cohort/runtime/base/status_macros.h"

namespace cohort::collperf {
namespace {

using measure::Operation;
using runtime::Work;

// The most calls that are on a stream at a time: each holds an event until it is over.
constexpr int64_t kMostUnderWay = 512;

}  // namespace

Call::Call(CallSpec spec) : spec_(std::move(spec)) {
  const measure::Blocks blocks =
      measure::BlocksOf(spec_.operation, spec_.group->rank() == spec_.root, spec_.group->size());
  in_count_ = spec_.count * blocks.in;
  out_count_ = spec_.count * blocks.out;
  in_bytes_ = static_cast<size_t>(in_count_) * comm::SizeOf(spec_.dtype);
  out_bytes_ = static_cast<size_t>(out_count_) * comm::SizeOf(spec_.dtype);
}

comm::Buffer Call::BufferAt(const Place& place, int64_t count) const {
  if (spec_.device == nullptr) return comm::Buffer(place.data, count, spec_.dtype);
  return comm::Buffer(place.data, count, spec_.dtype, comm::MemoryKind::kCuda, spec_.device->ordinal());
}

Work Call::Start() const {
  comm::Communicator& world = *spec_.group;
  const comm::CallOptions& options = spec_.options;
  const int root = spec_.root;
  switch (spec_.operation) {
    case Operation::kBroadcast:
      return world.Broadcast(BufferAt(world.rank() == root ? spec_.in : spec_.out, spec_.count), root, options);
    case Operation::kReduce:
      return world.Reduce(Input(), Output(), spec_.op, root, options);
    case Operation::kAllReduce:
      return world.AllReduce(Input(), Output(), spec_.op, options);
    case Operation::kGather:
      return world.Gather(Input(), Output(), root, options);
    case Operation::kScatter:
      return world.Scatter(Input(), Output(), root, options);
    case Operation::kAllGather:
      return world.AllGather(Input(), Output(), options);
    case Operation::kReduceScatter:
      return world.ReduceScatter(Input(), Output(), spec_.op, options);
    case Operation::kAllToAll:
      return world.AllToAll(Input(), Output(), options);
    case Operation::kSendRecv:
      return StartExchangeOnDevice();
    case Operation::kBarrier:
      break;
  }
  return world.Barrier(options);
}

absl::Status Call::ExchangeOnHost() const {
  std::vector<Work> works;
  for (int64_t i = 0; i < spec_.messages; ++i) {
    works.push_back(spec_.group->Recv(Output(), Previous(), spec_.options));
    works.push_back(spec_.group->Send(Input(), Next(), spec_.options));
  }
  absl::Status first;
  for (Work& work : works) first.Update(work.Wait());
  return first;
}

// NCCL's sends wait for the peer's receive, so both go into one launch.
Work Call::StartExchangeOnDevice() const {
  comm::Batch batch(*spec_.group);
  batch.Send(Input(), Next(), spec_.options).Recv(Output(), Previous(), spec_.options);
  return batch.Submit();
}

// A staged call blocks, and batches can't be staged: every other rank receives first.
absl::Status Call::ExchangeStaged() const {
  const auto send = [&] { return spec_.group->Send(Input(), Next(), spec_.options).Wait(); };
  const auto receive = [&] { return spec_.group->Recv(Output(), Previous(), spec_.options).Wait(); };
  const bool sends_first = spec_.group->rank() % 2 == 0;
  COHORT_RETURN_IF_ERROR(sends_first ? send() : receive());
  return sends_first ? receive() : send();
}

// The works end in the order of the stream. Waiting for one is waiting for its event on the device; the engine, which
// is driven meanwhile, finds out about lost ranks, as a synchronised stream would not.
absl::Status Call::RunOnDevice(int64_t calls) const {
  std::vector<Work> works(static_cast<size_t>(std::min(calls, kMostUnderWay)));
  for (int64_t i = 0; i < calls; ++i) {
    Work& work = works[static_cast<size_t>(i % kMostUnderWay)];
    if (i >= kMostUnderWay) COHORT_RETURN_IF_ERROR(work.Wait());
    work = Start();
    if (work.Done()) COHORT_RETURN_IF_ERROR(work.status());
  }
  COHORT_RETURN_IF_ERROR(works[static_cast<size_t>((calls - 1) % kMostUnderWay)].Wait());
  for (Work& work : works) COHORT_RETURN_IF_ERROR(work.Wait());  // over
  return absl::OkStatus();
}

absl::Status Call::Run(int64_t calls) const {
  const bool on_device = spec_.device != nullptr;
  const bool exchanges = spec_.operation == Operation::kSendRecv;
  absl::Status status;
  if (on_device && !(spec_.staged && exchanges)) {
    status = RunOnDevice(calls);
  } else {
    for (int64_t i = 0; i < calls && status.ok(); ++i) {
      status = !exchanges ? Start().Wait() : on_device ? ExchangeStaged() : ExchangeOnHost();
    }
  }
  if (on_device && !status.ok()) spec_.device->Abandon();
  return status;
}

absl::Status Call::Upload() const {
  if (spec_.device == nullptr) return absl::OkStatus();
  COHORT_RETURN_IF_ERROR(spec_.device->CopyToDevice(spec_.out.data, spec_.out.host, out_bytes_));
  return spec_.device->CopyToDevice(spec_.in.data, spec_.in.host, in_bytes_);
}

absl::Status Call::Download() const {
  if (spec_.device == nullptr) return absl::OkStatus();
  return spec_.device->CopyToHost(spec_.out.host, spec_.out.data, out_bytes_);
}

}  // namespace cohort::collperf
