#include "tools/collperf/session.h"

#include <sys/random.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <set>
#include <sstream>
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
#include "tools/measure/tcp_gate.h"

namespace cohort::collperf {
namespace {

using measure::GateMemory;
using measure::GateToken;
using measure::SharedMemory;
using measure::SharedMemoryGate;
using measure::TcpGate;
using runtime::Deadline;

constexpr std::chrono::seconds kPatience{60};
constexpr std::chrono::seconds kLook{1};  // at whether the group is whole still

// The memory of a gate, with a token that tells it from another host's file of the same name.
struct GateFile {
  GateToken token;
  GateMemory gate;
};
size_t FileBytes(int ranks) { return sizeof(GateFile) - sizeof(GateMemory) + measure::GateBytes(ranks); }

// The offer of rank 0 as it stands in the job's store.
struct Offer {
  GateToken token{};
  uint16_t port = 0;
  std::string ip;
  std::string path;

  std::string Text() const {
    return std::string(token.data(), token.size()) + std::to_string(port) + ' ' + (ip.empty() ? "-" : ip) + ' ' + path;
  }
  static absl::StatusOr<Offer> Parse(const std::string& text) {
    Offer offer;
    if (text.size() < offer.token.size()) return absl::InvalidArgumentError("the offer of rank 0's gate is damaged");
    std::memcpy(offer.token.data(), text.data(), offer.token.size());
    std::istringstream in(text.substr(offer.token.size()));
    in >> offer.port >> offer.ip >> offer.path;
    return offer;
  }
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

std::string AnswerKey(int rank) { return "collperf/gate/" + std::to_string(rank); }

}  // namespace

absl::StatusOr<std::unique_ptr<Session>> Session::Start(const std::string& transports, comm::MemoryKind memory) {
  COHORT_ASSIGN_OR_RETURN(std::unique_ptr<runtime::Runtime> runtime, runtime::Runtime::Init());
  return Start(std::move(runtime), transports, memory);
}

absl::StatusOr<std::unique_ptr<Session>> Session::Start(std::unique_ptr<runtime::Runtime> runtime,
                                                        const std::string& transports, comm::MemoryKind memory) {
  std::unique_ptr<Session> session(new Session);
  session->transports_ = transports;
  session->runtime_ = std::move(runtime);
  if (memory == comm::MemoryKind::kCuda) COHORT_RETURN_IF_ERROR(session->OpenDevice());
  comm::CommunicatorOptions options;
  options.transports = transports;
  COHORT_ASSIGN_OR_RETURN(session->world_, comm::Communicator::World(*session->runtime_, options));
  COHORT_RETURN_IF_ERROR(session->UsedTransports().status());  // a refusal, before others wait for this rank
  // A rank that has ended is missed here at once. The store would only wait for its keys.
  if (session->ranks() > 1) COHORT_RETURN_IF_ERROR(session->world_->Barrier().Wait());
  COHORT_RETURN_IF_ERROR(session->MakeGate());
  session->gate_->set_idle([session = session.get()] { return session->Look(); });
  return session;
}

absl::Status Session::OpenDevice() {
  COHORT_ASSIGN_OR_RETURN(const runtime::Environment environment, runtime::Environment::Read());
  int ordinal = -1;
  for (const runtime::Device& device : runtime_->devices()) {
    if (device.kind == runtime::DeviceKind::kCuda && ordinal < 0) ordinal = device.index;
  }
  COHORT_ASSIGN_OR_RETURN(device_, CudaDevice::Open(environment.cuda_library, ordinal, runtime_->local_rank()));
  return absl::OkStatus();
}

absl::Status Session::ConnectDevices(const std::string& algorithm) {
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

std::string Session::ExplainOnDevice(comm::CollectiveKind kind, comm::DataType dtype) const {
  const std::string text = world_->Explain(kind, 1, dtype, comm::MemoryKind::kCuda);
  constexpr std::string_view kProvider = "provider nccl: ";
  const size_t at = text.find(kProvider);
  return at == std::string::npos ? text : text.substr(at + kProvider.size());
}

absl::StatusOr<std::string_view> Session::DeviceService(comm::CollectiveKind kind, comm::DataType dtype) {
  if (ranks() == 1) return "copy";
  uint64_t staged[1] = {ExplainOnDevice(kind, dtype).starts_with("through host memory") ? 1u : 0u};
  COHORT_RETURN_IF_ERROR(gate_->Max(staged));
  return staged[0] != 0 ? "staged" : "nccl";
}

std::string Session::DescribeDevice() {
  return "CUDA device " + std::to_string(device_->ordinal()) + ", " +
         ExplainOnDevice(comm::CollectiveKind::kAllReduce, comm::DataType::kFloat32);
}

absl::Status Session::MakeGate() { return rank() == 0 ? MakeLeaderGate() : MakeFollowerGate(); }

// Rank 0 offers a gate in shared memory and one over TCP; if all ranks can map the first, that one it is.
absl::Status Session::MakeLeaderGate() {
  const int spins = measure::GateSpins(ranks());
  COHORT_ASSIGN_OR_RETURN(memory_, SharedMemory::Create(FileBytes(ranks())));
  auto* file = static_cast<GateFile*>(memory_->data());
  if (ranks() == 1) {
    gate_ = std::make_unique<SharedMemoryGate>(&file->gate, 0, 1, spins);
    return absl::OkStatus();
  }
  Offer offer;
  if (getrandom(offer.token.data(), offer.token.size(), 0) != static_cast<ssize_t>(offer.token.size())) {
    return runtime::ErrnoStatus(errno, "no random numbers for the benchmark's gate");
  }
  file->token = offer.token;
  offer.ip = runtime_->identity().data_interface_ip;
  offer.path = memory_->Path();
  COHORT_ASSIGN_OR_RETURN(TcpGate::Listener listener, TcpGate::Listen(offer.ip));
  offer.port = listener.port;
  const Deadline deadline = Deadline::After(kPatience);
  COHORT_RETURN_IF_ERROR(runtime_->Put("collperf/gate", offer.Text(), deadline));
  bool all = true;
  for (int rank = 1; rank < ranks(); ++rank) {
    COHORT_ASSIGN_OR_RETURN(const std::string answer, Await(AnswerKey(rank), deadline));
    all = all && answer == "mapped";
  }
  COHORT_RETURN_IF_ERROR(runtime_->Put("collperf/gate/choice", all ? "memory" : "tcp", deadline));
  if (all) {
    gate_ = std::make_unique<SharedMemoryGate>(&file->gate, 0, ranks(), spins);
    return absl::OkStatus();
  }
  COHORT_ASSIGN_OR_RETURN(
      gate_, TcpGate::Accept(std::move(listener), ranks(), offer.token, {deadline, [this] { return Look(); }}));
  return absl::OkStatus();
}

absl::Status Session::MakeFollowerGate() {
  const Deadline deadline = Deadline::After(kPatience);
  COHORT_ASSIGN_OR_RETURN(const std::string text, Await("collperf/gate", deadline));
  COHORT_ASSIGN_OR_RETURN(const Offer offer, Offer::Parse(text));
  absl::StatusOr<std::unique_ptr<SharedMemory>> memory = SharedMemory::Open(offer.path, FileBytes(ranks()));
  GateFile* file = nullptr;
  if (memory.ok()) {
    memory_ = std::move(*memory);
    file = static_cast<GateFile*>(memory_->data());
    if (file->token != offer.token) file = nullptr;
  }
  COHORT_RETURN_IF_ERROR(runtime_->Put(AnswerKey(rank()), file != nullptr ? "mapped" : "apart", deadline));
  COHORT_ASSIGN_OR_RETURN(const std::string choice, Await("collperf/gate/choice", deadline));
  if (choice == "memory") {
    gate_ = std::make_unique<SharedMemoryGate>(&file->gate, rank(), ranks(), measure::GateSpins(ranks()));
    return absl::OkStatus();
  }
  COHORT_ASSIGN_OR_RETURN(gate_, TcpGate::Connect(offer.ip == "-" ? "" : offer.ip, offer.port, rank(), offer.token,
                                                  {deadline, [this] { return Look(); }}));
  return absl::OkStatus();
}

absl::StatusOr<std::string> Session::Await(const std::string& key, Deadline deadline) {
  while (true) {
    const Deadline look = Deadline::After(std::min<std::chrono::nanoseconds>(deadline.left(), kLook));
    absl::StatusOr<std::string> value = runtime_->Get(key, look);
    const bool late = absl::IsNotFound(value.status()) || absl::IsDeadlineExceeded(value.status());
    if (!late || deadline.passed()) return value;
    COHORT_RETURN_IF_ERROR(Look());
  }
}

absl::Status Session::Look() {
  {
    runtime::EngineLock lock(runtime_->engine());
    (void)runtime_->engine().Poll();
  }
  for (int rank = 0; rank < ranks(); ++rank) COHORT_RETURN_IF_ERROR(runtime_->rank_status(rank));
  return world_->status();
}

absl::StatusOr<Session::Uses> Session::UsedTransports() {
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

absl::StatusOr<std::string> Session::TransportNames() {
  COHORT_ASSIGN_OR_RETURN(Uses used, UsedTransports());
  COHORT_RETURN_IF_ERROR(gate_->Max(used));
  static constexpr const char* kNames[] = {"shm", "ucx", "tcp", "other"};  // as UsedTransports counts them
  std::string names;
  for (size_t i = 0; i < used.size(); ++i) {
    if (used[i] != 0) names += (names.empty() ? "" : "+") + std::string(kNames[i]);
  }
  return names.empty() ? "none" : names;
}

std::string Session::LatestAlgorithm() {
  const auto record = runtime_->segment().black_box_of(runtime_->local_rank()).Latest();
  const comm::AlgorithmInfo* algorithm =
      record.has_value() ? comm::FindAlgorithm(record->signature.algorithm) : nullptr;
  return algorithm == nullptr ? "-" : std::string(algorithm->name);
}

absl::Status Session::Finish() {
  world_.reset();
  return runtime_->Finalize();
}

}  // namespace cohort::collperf
