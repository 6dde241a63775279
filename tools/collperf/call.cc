#include "tools/collperf/call.h"

#include <algorithm>
#include <vector>

#include "cohort/comm/batch.h"
#include "cohort/runtime/base/status_macros.h"

namespace cohort::collperf {
namespace {

using measure::Operation;
using runtime::Work;

// The most calls that are on a stream at a time: each holds an event until it is over.
constexpr int64_t kMostUnderWay = 512;

int Next(const Session& session) { return (session.rank() + 1) % session.ranks(); }
int Previous(const Session& session) { return (session.rank() + session.ranks() - 1) % session.ranks(); }

}  // namespace

comm::ConstBuffer Call::Input() const {
  return comm::Buffer(in.data, in_count, dtype, session->memory(), session->device_ordinal());
}

comm::Buffer Call::Output() const {
  return comm::Buffer(out.data, out_count, dtype, session->memory(), session->device_ordinal());
}

Work Call::Start() const {
  comm::Communicator& world = session->world();
  switch (operation) {
    case Operation::kBroadcast:
      return world.Broadcast(comm::Buffer(session->rank() == root ? in.data : out.data, count, dtype, session->memory(),
                                          session->device_ordinal()),
                             root, options);
    case Operation::kReduce:
      return world.Reduce(Input(), Output(), op, root, options);
    case Operation::kAllReduce:
      return world.AllReduce(Input(), Output(), op, options);
    case Operation::kGather:
      return world.Gather(Input(), Output(), root, options);
    case Operation::kScatter:
      return world.Scatter(Input(), Output(), root, options);
    case Operation::kAllGather:
      return world.AllGather(Input(), Output(), options);
    case Operation::kReduceScatter:
      return world.ReduceScatter(Input(), Output(), op, options);
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
  comm::Communicator& world = session->world();
  std::vector<Work> works;
  for (int64_t i = 0; i < messages; ++i) {
    works.push_back(world.Send(Input(), Next(*session), options));
    works.push_back(world.Recv(Output(), Previous(*session), options));
  }
  absl::Status first;
  for (Work& work : works) first.Update(work.Wait());
  return first;
}

// NCCL's sends wait for the peer's receive, so both go into one launch.
Work Call::StartExchangeOnDevice() const {
  comm::Batch batch(session->world());
  batch.Send(Input(), Next(*session), options).Recv(Output(), Previous(*session), options);
  return batch.Submit();
}

// A staged call blocks, and batches can't be staged: every other rank receives first.
absl::Status Call::ExchangeStaged() const {
  comm::Communicator& world = session->world();
  const auto send = [&] { return world.Send(Input(), Next(*session), options).Wait(); };
  const auto receive = [&] { return world.Recv(Output(), Previous(*session), options).Wait(); };
  const bool sends_first = session->rank() % 2 == 0;
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
  const bool on_device = session->device() != nullptr;
  const bool exchanges = operation == Operation::kSendRecv;
  absl::Status status;
  if (on_device && !(staged && exchanges)) {
    status = RunOnDevice(calls);
  } else {
    for (int64_t i = 0; i < calls && status.ok(); ++i) {
      status = !exchanges ? Start().Wait() : on_device ? ExchangeStaged() : ExchangeOnHost();
    }
  }
  if (on_device && !status.ok()) session->device()->Abandon();
  return status;
}

absl::Status Call::Upload() const {
  CudaDevice* const device = session->device();
  if (device == nullptr) return absl::OkStatus();
  COHORT_RETURN_IF_ERROR(device->CopyToDevice(out.data, out.host, out_bytes()));
  return device->CopyToDevice(in.data, in.host, in_bytes());
}

absl::Status Call::Download() const {
  CudaDevice* const device = session->device();
  return device == nullptr ? absl::OkStatus() : device->CopyToHost(out.host, out.data, out_bytes());
}

}  // namespace cohort::collperf
