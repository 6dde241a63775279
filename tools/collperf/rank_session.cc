#include "tools/collperf/rank_session.h"

#include <sys/random.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "cohort/comm/algorithm/registry.h"
#include "cohort/comm/group/transport_set.h"
#include "cohort/runtime/base/errno_status.h"
#include "cohort/runtime/base/status_macros.h"
#include "cohort/runtime/engine/engine.h"
#include "cohort/runtime/env.h"
#include "cohort/runtime/segment/black_box.h"

namespace cohort::collperf {
namespace {

using measure::GateMemory;
using measure::SharedMemory;
using measure::SharedMemoryGate;

using GateToken = std::array<char, 16>;

// The memory of a gate, with a token that tells it from another host's file of the same name.
struct GateFile {
  GateToken token;
  GateMemory gate;
};
size_t FileBytes(int ranks) { return sizeof(GateFile) - sizeof(GateMemory) + measure::GateBytes(ranks); }

// Rank 0's offer of a gate in memory that ranks of its machine can map.
struct Offer {
  GateToken token{};
  char path[64] = "";
};

// For ranks on several machines: a barrier of a group of its own. It releases the ranks about one message apart, some
// tens of microseconds on most networks, so times of that order say little there.
class GroupGate final : public measure::Gate {
 public:
  explicit GroupGate(std::unique_ptr<comm::Communicator> group) : group_(std::move(group)) {}
  absl::Status Wait() override { return group_->Barrier().Wait(); }
  absl::Status Max(std::span<uint64_t> numbers) override { return Reduce(numbers, comm::ReduceOp::kMax); }
  absl::Status Sum(std::span<uint64_t> numbers) override { return Reduce(numbers, comm::ReduceOp::kSum); }
  std::string Describe() const override { return "a barrier between machines, released one message apart"; }

 private:
  absl::Status Reduce(std::span<uint64_t> numbers, comm::ReduceOp op) {
    const comm::Buffer buffer(numbers.data(), numbers.size());
    return group_->AllReduce(buffer, buffer, op).Wait();
  }

  const std::unique_ptr<comm::Communicator> group_;
};

// The remedy where NCCL refuses ranks of one host that use one device.
std::string_view SharedDeviceHint(const absl::Status& status) {
  const std::string text(status.message());
  const bool refused =
      text.find("Duplicate GPU") != std::string::npos || text.find("invalid usage") != std::string::npos;
  if (!refused) return "";
  return ". NCCL refuses ranks of one host that share a device. Give each rank a device of its own (dlaunch "
         "--gpus-per-rank 1); for a test on one GPU give each rank its own NCCL_HOSTID, as in: dlaunch "
         "--simulate-nodes 2 --gpus-per-rank 1 sh -c 'NCCL_HOSTID=$RANK exec collperf all_reduce --memory cuda'";
}

}  // namespace

absl::StatusOr<std::unique_ptr<RankSession>> RankSession::Start(const std::string& transports,
                                                                comm::MemoryKind memory) {
  COHORT_ASSIGN_OR_RETURN(std::unique_ptr<runtime::Runtime> runtime, runtime::Runtime::Init());
  return Start(std::move(runtime), transports, memory);
}

absl::StatusOr<std::unique_ptr<RankSession>> RankSession::Start(std::unique_ptr<runtime::Runtime> runtime,
                                                                const std::string& transports,
                                                                comm::MemoryKind memory) {
  std::unique_ptr<RankSession> session(new RankSession);
  session->transports_ = transports;
  session->runtime_ = std::move(runtime);
  if (memory == comm::MemoryKind::kCuda) COHORT_RETURN_IF_ERROR(session->OpenDevice());
  comm::CommunicatorOptions options;
  options.transports = transports;
  COHORT_ASSIGN_OR_RETURN(session->world_, comm::Communicator::World(*session->runtime_, options));
  COHORT_RETURN_IF_ERROR(session->UsedTransports().status());  // a refusal, before others wait for this rank
  // A rank that has ended is missed here at once, before rank 0 works for the gate.
  if (session->ranks() > 1) COHORT_RETURN_IF_ERROR(session->world_->Barrier().Wait());
  COHORT_RETURN_IF_ERROR(session->MakeGate());
  session->gate_->set_idle([session = session.get()] { return session->Look(); });
  return session;
}

absl::Status RankSession::OpenDevice() {
  COHORT_ASSIGN_OR_RETURN(const runtime::Environment environment, runtime::Environment::Read());
  int ordinal = -1;
  for (const runtime::Device& device : runtime_->devices()) {
    if (device.kind == runtime::DeviceKind::kCuda && ordinal < 0) ordinal = device.index;
  }
  COHORT_ASSIGN_OR_RETURN(device_, CudaDevice::Open(environment.cuda_library, ordinal, runtime_->local_rank()));
  return absl::OkStatus();
}

absl::Status RankSession::ConnectDevices(const std::string& algorithm) {
  COHORT_ASSIGN_OR_RETURN(char* const memory, device_->Allocate(sizeof(float)));
  const comm::Buffer buffer(memory, 1, comm::DataType::kFloat32, comm::MemoryKind::kCuda, device_->ordinal());
  comm::CallOptions options;
  options.algorithm = algorithm;
  options.stream = device_->stream();
  const float zero = 0;
  absl::Status status = device_->CopyToDevice(memory, reinterpret_cast<const char*>(&zero), sizeof zero);
  if (status.ok()) status = world_->AllReduce(buffer, buffer, comm::ReduceOp::kSum, options).Wait();
  if (!status.ok()) {
    device_->Abandon();
    return absl::Status(status.code(), std::string(status.message()) + std::string(SharedDeviceHint(status)));
  }
  device_->Free(memory);
  return absl::OkStatus();
}

std::string RankSession::ExplainOnDevice(comm::CollectiveKind kind, comm::DataType dtype) const {
  const std::string text = world_->Explain(kind, 1, dtype, comm::MemoryKind::kCuda);
  constexpr std::string_view kProvider = "provider nccl: ";
  const size_t at = text.find(kProvider);
  return at == std::string::npos ? text : text.substr(at + kProvider.size());
}

absl::StatusOr<std::string_view> RankSession::DeviceService(comm::CollectiveKind kind, comm::DataType dtype) {
  if (ranks() == 1) return "copy";
  uint64_t staged[1] = {ExplainOnDevice(kind, dtype).starts_with("through host memory") ? 1u : 0u};
  COHORT_RETURN_IF_ERROR(gate_->Max(staged));
  return staged[0] != 0 ? "staged" : "nccl";
}

std::string RankSession::DescribeDevice() {
  return "CUDA device " + std::to_string(device_->ordinal()) + ", " +
         ExplainOnDevice(comm::CollectiveKind::kAllReduce, comm::DataType::kFloat32);
}

absl::Status RankSession::MakeGate() {
  Offer offer;
  if (rank() == 0) {
    COHORT_ASSIGN_OR_RETURN(memory_, SharedMemory::Create(FileBytes(ranks())));
    if (getrandom(offer.token.data(), offer.token.size(), 0) != static_cast<ssize_t>(offer.token.size())) {
      return runtime::ErrnoStatus(errno, "no random numbers for the benchmark's gate");
    }
    static_cast<GateFile*>(memory_->data())->token = offer.token;
    std::snprintf(offer.path, sizeof offer.path, "%s", memory_->Path().c_str());
  }
  COHORT_RETURN_IF_ERROR(world_->Broadcast(comm::Buffer(&offer, sizeof offer, comm::DataType::kUint8), 0).Wait());
  if (rank() != 0) {
    absl::StatusOr<std::unique_ptr<SharedMemory>> memory = SharedMemory::Open(offer.path, FileBytes(ranks()));
    if (memory.ok() && static_cast<GateFile*>((*memory)->data())->token == offer.token) memory_ = std::move(*memory);
  }
  int32_t mapped = memory_ != nullptr ? 1 : 0;  // by all
  const comm::Buffer answer(&mapped, 1);
  COHORT_RETURN_IF_ERROR(world_->AllReduce(answer, answer, comm::ReduceOp::kMin).Wait());
  if (mapped != 0) {
    auto* file = static_cast<GateFile*>(memory_->data());
    gate_ = std::make_unique<SharedMemoryGate>(&file->gate, rank(), ranks(), measure::GateSpins(ranks()));
  } else {
    COHORT_ASSIGN_OR_RETURN(std::unique_ptr<comm::Communicator> group, world_->Duplicate());
    gate_ = std::make_unique<GroupGate>(std::move(group));
  }
  return absl::OkStatus();
}

absl::Status RankSession::Look() {
  {
    runtime::EngineLock lock(runtime_->engine());
    (void)runtime_->engine().Poll();
  }
  for (int rank = 0; rank < ranks(); ++rank) COHORT_RETURN_IF_ERROR(runtime_->rank_status(rank));
  return world_->status();
}

absl::StatusOr<RankSession::Uses> RankSession::UsedTransports() {
  Uses used{};
  runtime::EngineLock lock(runtime_->engine());
  comm::TransportSet& set = comm::TransportSet::Of(*runtime_);
  for (int peer = 0; peer < ranks(); ++peer) {
    if (peer == rank()) continue;
    COHORT_ASSIGN_OR_RETURN(comm::Transport * transport, set.For(peer, transports_));
    const std::string_view name = transport->name();
    used[name == "shm" ? 0 : name == "ucx" ? 1 : name == "tcp" ? 2 : 3] = 1;
  }
  return used;
}

absl::StatusOr<std::string> RankSession::TransportNames() {
  COHORT_ASSIGN_OR_RETURN(Uses used, UsedTransports());
  COHORT_RETURN_IF_ERROR(gate_->Max(used));
  static constexpr const char* kNames[] = {"shm", "ucx", "tcp", "other"};  // as UsedTransports counts them
  std::string names;
  for (size_t i = 0; i < used.size(); ++i) {
    if (used[i] != 0) names += (names.empty() ? "" : "+") + std::string(kNames[i]);
  }
  return names.empty() ? "none" : names;
}

std::string RankSession::LatestAlgorithm() {
  const auto record = runtime_->segment().black_box_of(runtime_->local_rank()).Latest();
  const comm::AlgorithmInfo* algorithm =
      record.has_value() ? comm::FindAlgorithm(record->signature.algorithm) : nullptr;
  return algorithm == nullptr ? "-" : std::string(algorithm->name);
}

absl::Status RankSession::Finish() {
  gate_.reset();
  world_.reset();
  return runtime_->Finalize();
}

}  // namespace cohort::collperf
