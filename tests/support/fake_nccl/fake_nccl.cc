#include "tests/support/fake_nccl/fake_nccl.h"

#include <nccl.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <deque>
#include <map>
#include <set>
#include <thread>
#include <utility>

#include "tests/support/fake_nccl/fake_math.h"
#include "tests/support/fake_nccl/fake_state.h"

namespace fake {
namespace {

using Lock = cohort::runtime::MutexLock;
using TicketPointer = std::shared_ptr<Ticket>;

struct Message {
  const void* data;
  size_t bytes;
  TicketPointer ticket;
};
struct Posted {
  void* data;
  size_t bytes;
  TicketPointer ticket;
};
struct World {
  int size = 0;
  std::set<int> joined;
  std::map<uint64_t, Collective> collectives;
  std::map<std::pair<int, int>, std::deque<Message>> messages;
  std::map<std::pair<int, int>, std::deque<Posted>> receives;
};

struct Configuration {
  FakeNcclMode mode = kFakeWorks;
  int k = 0;
  int rank = -1;
  bool abort_hangs = false;
};
Configuration configuration;
std::map<int, int> calls;  // by rank, since the last configuration
std::map<std::string, std::shared_ptr<World>> worlds;
int next_id = 1;
int live = 0;

}  // namespace
}  // namespace fake

struct ncclComm {
  std::shared_ptr<fake::World> world;
  int rank = 0;
  uint64_t sequence = 0;
  int in_progress = 0;  // polls of the state that still say so; -1: all
  ncclResult_t async = ncclSuccess;
  fake::TicketList pending;
};

namespace fake {
namespace {

// What the configuration says of this call: true when it is the one that goes wrong.
bool Hit(const ncclComm& communicator, FakeNcclMode mode) {
  return configuration.mode == mode && (configuration.rank == -1 || configuration.rank == communicator.rank) &&
         calls[communicator.rank] == configuration.k;
}

// Counts a call and applies its misfortune. True: the caller goes on as usual.
bool Begin(ncclComm* communicator, cudaStream_t stream, TicketPointer* ticket, ncclResult_t* result) {
  ++calls[communicator->rank];
  *ticket = std::make_shared<Ticket>();
  *result = ncclSuccess;
  if (Hit(*communicator, kFakeCallError)) {
    *result = ncclInvalidUsage;
    return false;
  }
  TicketsOf(stream).push_back(*ticket);
  communicator->pending.push_back(*ticket);
  if (Hit(*communicator, kFakeAsyncError)) {
    communicator->async = ncclRemoteError;
    return false;
  }
  if (Hit(*communicator, kFakeSetupHang)) {
    communicator->in_progress = -1;
    *result = ncclInProgress;
    return false;
  }
  if (configuration.mode == kFakeSlowSetup) {
    communicator->in_progress = 3;
    *result = ncclInProgress;
  }
  return !Hit(*communicator, kFakeHang);
}

ncclResult_t Run(ncclComm* communicator, cudaStream_t stream, Part part, CollectiveShape shape) {
  const Lock lock(GlobalState().mutex);
  ncclResult_t result = ncclSuccess;
  TicketPointer ticket;
  const uint64_t sequence = communicator->sequence++;
  if (!Begin(communicator, stream, &ticket, &result)) return result;
  part.rank = communicator->rank;
  part.ticket = ticket;
  Collective& collective = communicator->world->collectives[sequence];
  collective.shape = shape;
  collective.parts.push_back(part);
  if (static_cast<int>(collective.parts.size()) == communicator->world->size) {
    Compute(collective);
    for (Part& each : collective.parts) each.ticket->done = true;
    communicator->world->collectives.erase(sequence);
    GlobalState().changed.NotifyAll();
  }
  return result;
}

void Match(World& world, std::pair<int, int> route) {
  auto& messages = world.messages[route];
  auto& receives = world.receives[route];
  while (!messages.empty() && !receives.empty()) {
    std::memcpy(receives.front().data, messages.front().data, std::min(messages.front().bytes, receives.front().bytes));
    messages.front().ticket->done = receives.front().ticket->done = true;
    messages.pop_front();
    receives.pop_front();
  }
  GlobalState().changed.NotifyAll();
}

}  // namespace
}  // namespace fake

using fake::GlobalState;
using fake::Lock;
using fake::Part;

extern "C" {

void FakeNcclConfigure(FakeNcclMode mode, int k, int rank, bool abort_hangs) {
  const Lock lock(GlobalState().mutex);
  fake::configuration = {mode, k, rank, abort_hangs};
  fake::calls.clear();
}
int FakeNcclLiveCommunicators() {
  const Lock lock(GlobalState().mutex);
  return fake::live;
}

ncclResult_t ncclGetVersion(int* version) {
  *version = NCCL_VERSION_CODE;
  return ncclSuccess;
}
ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  const Lock lock(GlobalState().mutex);
  std::memset(id, 0, sizeof *id);
  const int number = fake::next_id++;
  std::memcpy(id->internal, &number, sizeof number);
  return ncclSuccess;
}
ncclResult_t ncclCommInitRankConfig(ncclComm_t* result, int size, ncclUniqueId id, int rank, ncclConfig_t* config) {
  const Lock lock(GlobalState().mutex);
  if (config->blocking != 0) return ncclInvalidUsage;
  const bool affected = fake::configuration.rank == -1 || fake::configuration.rank == rank;
  if (affected && fake::configuration.mode == kFakeInitError) return ncclSystemError;
  std::shared_ptr<fake::World>& world = fake::worlds[std::string(id.internal, sizeof id.internal)];
  if (world == nullptr) world = std::make_shared<fake::World>();
  world->size = size;
  world->joined.insert(rank);
  auto* communicator = new ncclComm;
  communicator->world = world;
  communicator->rank = rank;
  if (affected && fake::configuration.mode == kFakeInitHang) communicator->in_progress = -1;
  ++fake::live;
  *result = communicator;
  return ncclInProgress;
}
ncclResult_t ncclCommGetAsyncError(ncclComm_t communicator, ncclResult_t* state) {
  const Lock lock(GlobalState().mutex);
  const bool all_joined = static_cast<int>(communicator->world->joined.size()) == communicator->world->size;
  *state = communicator->async;
  if (communicator->in_progress != 0 || !all_joined) *state = ncclInProgress;
  if (communicator->in_progress > 0) --communicator->in_progress;
  return ncclSuccess;
}
ncclResult_t ncclCommFinalize(ncclComm_t) { return ncclSuccess; }
ncclResult_t ncclCommDestroy(ncclComm_t communicator) {
  const Lock lock(GlobalState().mutex);
  --fake::live;
  delete communicator;
  return ncclSuccess;
}
ncclResult_t ncclCommAbort(ncclComm_t communicator) {
  bool hangs = false;
  {
    const Lock lock(GlobalState().mutex);
    hangs = fake::configuration.abort_hangs;
  }
  if (hangs) std::this_thread::sleep_for(std::chrono::seconds(30));
  {
    const Lock lock(GlobalState().mutex);
    for (auto& ticket : communicator->pending) ticket->done = true;
    GlobalState().changed.NotifyAll();
  }
  return ncclCommDestroy(communicator);
}
const char* ncclGetErrorString(ncclResult_t result) {
  switch (result) {
    case ncclInvalidUsage:
      return "invalid usage";
    case ncclRemoteError:
      return "remote process exited or there was a network error";
    case ncclSystemError:
      return "unhandled system error";
    default:
      return "fake NCCL error";
  }
}
const char* ncclGetLastError(ncclComm_t) { return "said by the fake"; }
ncclResult_t ncclGroupStart() { return ncclSuccess; }
ncclResult_t ncclGroupEnd() { return ncclSuccess; }

ncclResult_t ncclAllReduce(const void* in, void* out, size_t count, ncclDataType_t dtype, ncclRedOp_t op,
                           ncclComm_t communicator, cudaStream_t stream) {
  return fake::Run(communicator, stream, Part{in, out, 0, nullptr}, {fake::kAllReduce, count, dtype, op, -1});
}
ncclResult_t ncclBroadcast(const void* in, void* out, size_t count, ncclDataType_t dtype, int root,
                           ncclComm_t communicator, cudaStream_t stream) {
  return fake::Run(communicator, stream, Part{in, out, 0, nullptr}, {fake::kBroadcast, count, dtype, ncclSum, root});
}
ncclResult_t ncclReduce(const void* in, void* out, size_t count, ncclDataType_t dtype, ncclRedOp_t op, int root,
                        ncclComm_t communicator, cudaStream_t stream) {
  return fake::Run(communicator, stream, Part{in, out, 0, nullptr}, {fake::kReduce, count, dtype, op, root});
}
ncclResult_t ncclAllGather(const void* in, void* out, size_t count, ncclDataType_t dtype, ncclComm_t communicator,
                           cudaStream_t stream) {
  return fake::Run(communicator, stream, Part{in, out, 0, nullptr}, {fake::kAllGather, count, dtype, ncclSum, -1});
}
ncclResult_t ncclReduceScatter(const void* in, void* out, size_t count, ncclDataType_t dtype, ncclRedOp_t op,
                               ncclComm_t communicator, cudaStream_t stream) {
  return fake::Run(communicator, stream, Part{in, out, 0, nullptr}, {fake::kReduceScatter, count, dtype, op, -1});
}
ncclResult_t ncclSend(const void* data, size_t count, ncclDataType_t dtype, int peer, ncclComm_t communicator,
                      cudaStream_t stream) {
  const Lock lock(GlobalState().mutex);
  ncclResult_t result = ncclSuccess;
  fake::TicketPointer ticket;
  if (!fake::Begin(communicator, stream, &ticket, &result)) return result;
  const std::pair<int, int> route(communicator->rank, peer);
  communicator->world->messages[route].push_back({data, count * fake::BytesOf(dtype), ticket});
  fake::Match(*communicator->world, route);
  return result;
}
ncclResult_t ncclRecv(void* data, size_t count, ncclDataType_t dtype, int peer, ncclComm_t communicator,
                      cudaStream_t stream) {
  const Lock lock(GlobalState().mutex);
  ncclResult_t result = ncclSuccess;
  fake::TicketPointer ticket;
  if (!fake::Begin(communicator, stream, &ticket, &result)) return result;
  const std::pair<int, int> route(peer, communicator->rank);
  communicator->world->receives[route].push_back({data, count * fake::BytesOf(dtype), ticket});
  fake::Match(*communicator->world, route);
  return result;
}
}
