#include "tests/support/fake_nccl/fake_nccl.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <map>
#include <set>
#include <string>
#include <thread>
#include <utility>

#include "tests/support/fake_nccl/fake_world.h"

namespace fake {

Configuration configuration;
std::atomic<bool> does_nothing{false};  // configured so: read without the lock, which would be in a cost measured
int live = 0;
int made[4] = {};

namespace {

using Lock = cohort::runtime::MutexLock;

constexpr int kHeld = -2;  // ncclComm::in_progress: as long as the configuration says so
std::map<int, int> calls;  // by rank, since the last configuration
size_t most_pending = 0;   // the same
std::map<std::string, std::shared_ptr<World>> worlds;
std::set<ncclComm*> living;
int next_id = 1;
// Pre-multiplied sums, by their ops, which lie beyond NCCL's own.
constexpr int kFirstFactor = 100;
std::map<int, double> factors;
int next_op = 0;

// Operations between ncclGroupStart and ncclGroupEnd of this thread: they go beside each other.
struct Group {
  int depth = 0;
  std::vector<std::pair<Stream*, TaskPointer>> tasks;
  std::map<Stream*, std::vector<Operation>> captured;
  std::vector<ncclComm*> entered;  // blocking ones that are in progress
};
thread_local Group group;

// Returns whether the configuration makes this call the one that goes wrong.
bool Hit(const ncclComm& communicator, FakeNcclMode mode) {
  return configuration.mode == mode && (configuration.rank == -1 || configuration.rank == communicator.rank) &&
         calls[communicator.rank] == configuration.k;
}

void EnqueueGroup() {
  std::map<Stream*, std::vector<TaskPointer>> by_stream;
  for (auto& [stream, task] : group.tasks) by_stream[stream].push_back(task);
  group.tasks.clear();
  for (auto& [stream, tasks] : by_stream) Enqueue(*stream, tasks);
}

// Also a replay runs the operations of a group beside each other.
void SubmitInGroup(Stream& stream, const Operation& operation) {
  if (stream.capture == nullptr || group.depth == 0) return Submit(stream, operation);
  group.captured[&stream].push_back(operation);
}
void CaptureGroup() {
  for (auto& [stream, operations] : group.captured) {
    Submit(*stream, [operations = std::move(operations)](Stream& replay) {
      ++group.depth;
      for (const Operation& operation : operations) operation(replay);
      --group.depth;
      EnqueueGroup();
    });
  }
  group.captured.clear();
}

void Put(Stream& stream, const TaskPointer& task) {
  if (group.depth > 0) {
    group.tasks.emplace_back(&stream, task);
  } else {
    Enqueue(stream, {task});
  }
}

// Puts a call on a stream; `arrive` is called when its turn has come.
ncclResult_t Call(ncclComm* communicator, cudaStream_t handle, bool collective,
                  const std::function<void(uint64_t sequence, const TaskPointer&)>& arrive) {
  if (communicator->revoked || communicator->device != CurrentDevice()) return ncclInvalidUsage;
  ++calls[communicator->rank];
  if (Hit(*communicator, kFakeCallError)) return ncclInvalidUsage;
  const bool silent = configuration.mode == kFakeAlone || Hit(*communicator, kFakeAsyncError) ||
                      Hit(*communicator, kFakeSetupHang) || Hit(*communicator, kFakeHang);
  SubmitInGroup(StreamOf(handle), [communicator, arrive, silent, collective](Stream& stream) {
    const auto task = std::make_shared<Task>();
    task->finished_by_run = false;
    const uint64_t sequence = collective ? communicator->sequence++ : 0;
    if (!silent) task->run = [=, task = task.get()] { arrive(sequence, task->shared_from_this()); };
    std::erase_if(communicator->pending, [](const TaskPointer& old) { return old->done; });
    communicator->pending.push_back(task);
    most_pending = std::max(most_pending, communicator->pending.size());
    Put(stream, task);
  });
  if (Hit(*communicator, kFakeAsyncError)) communicator->async = ncclRemoteError;
  if (Hit(*communicator, kFakeSetupHang)) communicator->in_progress = -1;
  if (configuration.mode == kFakeSlowSetup) communicator->in_progress = 3;
  if (configuration.mode == kFakeHeld) communicator->in_progress = kHeld;
  return communicator->in_progress != 0 ? ncclInProgress : ncclSuccess;
}

// A look at a communicator's state: whether it still makes connections.
bool InProgress(ncclComm* communicator) {
  if (communicator->in_progress == kHeld && configuration.mode != kFakeHeld) communicator->in_progress = 0;
  const bool still = communicator->in_progress != 0;
  if (communicator->in_progress > 0) --communicator->in_progress;
  return still;
}

// As a blocking communicator does: returns when its connections are there, or it has been stopped.
ncclResult_t AwaitConnections(ncclComm* communicator) {
  while (true) {
    {
      const Lock lock(GlobalState().mutex);
      if (communicator->revoked) return ncclInternalError;
      if (!InProgress(communicator)) return ncclSuccess;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

ncclResult_t Entered(ncclComm* communicator, ncclResult_t result) {
  if (!communicator->blocking || result != ncclInProgress) return result;
  if (group.depth == 0) return AwaitConnections(communicator);
  group.entered.push_back(communicator);
  return ncclSuccess;
}

ncclResult_t RunLocked(ncclComm* communicator, cudaStream_t stream, Part part, CollectiveShape shape) {
  const bool float8 = shape.dtype == ncclFloat8e4m3 || shape.dtype == ncclFloat8e5m2;
  if (float8 && COHORT_FAKE_NCCL_VERSION < 22400) return ncclInvalidArgument;
  if (const auto found = factors.find(shape.op); found != factors.end()) {
    part.factor = found->second;
    shape.op = ncclSum;
  }
  return Call(communicator, stream, /*collective=*/true, [=](uint64_t sequence, const TaskPointer& task) {
    Part mine = part;
    mine.rank = communicator->rank;
    mine.task = task;
    World& world = *communicator->world;
    Collective& collective = world.collectives[sequence];
    collective.shape = shape;
    collective.parts.push_back(mine);
    if (static_cast<int>(collective.parts.size()) < world.size) return;
    // A rank that has aborted is not there any more, nor its memory: the others wait for ever.
    if (std::any_of(collective.parts.begin(), collective.parts.end(), [](const Part& each) { return each.task->done; }))
      return;
    Collective whole = std::move(collective);
    world.collectives.erase(sequence);
    Compute(whole);
    for (Part& each : whole.parts) Finish(each.task);
  });
}

ncclResult_t Run(ncclComm* communicator, cudaStream_t stream, const Part& part, const CollectiveShape& shape) {
  if (does_nothing.load(std::memory_order_relaxed)) return ncclSuccess;
  ncclResult_t result = ncclSuccess;
  {
    const Lock lock(GlobalState().mutex);
    result = RunLocked(communicator, stream, part, shape);
  }
  return Entered(communicator, result);
}

void Match(World& world, std::pair<int, int> route) {
  auto& messages = world.messages[route];
  auto& receives = world.receives[route];
  const auto aborted = [](const Message& message) { return message.task->done; };
  std::erase_if(messages, aborted);
  std::erase_if(receives, aborted);
  while (!messages.empty() && !receives.empty()) {
    const Message sent = messages.front(), received = receives.front();
    messages.pop_front();
    receives.pop_front();
    const size_t bytes = std::min(sent.bytes, received.bytes);
    if (bytes > 0) std::memcpy(received.target, sent.data, bytes);
    Finish(sent.task);
    Finish(received.task);
  }
}

ncclResult_t Exchange(ncclComm* communicator, cudaStream_t stream, Message message, int from, int to, bool sends) {
  if (does_nothing.load(std::memory_order_relaxed)) return ncclSuccess;
  ncclResult_t result = ncclSuccess;
  {
    const Lock lock(GlobalState().mutex);
    result = Call(communicator, stream, /*collective=*/false, [=](uint64_t, const TaskPointer& task) {
      Message mine = message;
      mine.task = task;
      World& world = *communicator->world;
      const std::pair<int, int> route(from, to);
      (sends ? world.messages : world.receives)[route].push_back(mine);
      Match(world, route);
    });
  }
  return Entered(communicator, result);
}

}  // namespace

void FillIn(ncclComm* parent, ncclComm** handle, ncclComm* child) {
  parent->children[handle] = child;
  std::thread([parent, handle] {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    const Lock lock(GlobalState().mutex);
    if (living.count(parent) == 0 || parent->children.count(handle) == 0) return;
    __atomic_store_n(handle, parent->children[handle], __ATOMIC_RELEASE);
    parent->children.erase(handle);
  }).detach();
}

ncclComm_t MakeCommunicator(const std::shared_ptr<World>& world, int rank) {
  auto* communicator = new ncclComm;
  communicator->world = world;
  communicator->rank = rank;
  communicator->device = CurrentDevice();
  if (world != nullptr) world->joined.insert(rank);
  ++live;
  living.insert(communicator);
  return communicator;
}

}  // namespace fake

using fake::GlobalState;
using fake::Lock;
using fake::Part;

extern "C" {

void FakeNcclConfigure(FakeNcclMode mode, int k, int rank, bool abort_hangs) {
  const Lock lock(GlobalState().mutex);
  fake::configuration = {mode, k, rank, abort_hangs};
  fake::does_nothing.store(mode == kFakeNothing, std::memory_order_relaxed);
  fake::calls.clear();
  fake::most_pending = 0;
  std::fill(std::begin(fake::made), std::end(fake::made), 0);
}
int FakeNcclLiveCommunicators() {
  const Lock lock(GlobalState().mutex);
  return fake::live;
}
int FakeNcclMostPending() {
  const Lock lock(GlobalState().mutex);
  return static_cast<int>(fake::most_pending);
}
int FakeNcclMade(int how) {
  const Lock lock(GlobalState().mutex);
  return fake::made[how];
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
  ++fake::made[0];
  *result = fake::MakeCommunicator(world, rank);
  if (affected && fake::configuration.mode == kFakeInitHang) (*result)->in_progress = -1;
  return ncclInProgress;
}
ncclResult_t ncclCommGetAsyncError(ncclComm_t communicator, ncclResult_t* state) {
  const Lock lock(GlobalState().mutex);
  const auto& world = communicator->world;
  const bool alone = fake::configuration.mode == kFakeAlone;
  const bool all_joined = alone || (world != nullptr && static_cast<int>(world->joined.size()) == world->size);
  *state = communicator->async;
  if (fake::InProgress(communicator) || !all_joined || !communicator->children.empty()) {
    *state = ncclInProgress;
  } else {
    for (void** window : communicator->windows) *window = new char;
    communicator->windows.clear();
  }
  return ncclSuccess;
}
ncclResult_t ncclCommFinalize(ncclComm_t) { return ncclSuccess; }
ncclResult_t ncclCommDestroy(ncclComm_t communicator) {
  const Lock lock(GlobalState().mutex);
  for (const auto& [handle, child] : communicator->children) {
    --fake::live;
    fake::living.erase(child);
    delete child;
  }
  --fake::live;
  fake::living.erase(communicator);
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
    for (const fake::TaskPointer& task : std::vector<fake::TaskPointer>(communicator->pending)) fake::AbortTask(task);
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
ncclResult_t ncclGroupStart() {
  ++fake::group.depth;
  return ncclSuccess;
}
ncclResult_t ncclGroupEnd() {
  if (--fake::group.depth > 0) return ncclSuccess;
  if (fake::group.tasks.empty() && fake::group.captured.empty()) return ncclSuccess;
  ncclResult_t result = ncclSuccess;
  {
    const Lock lock(GlobalState().mutex);
    fake::CaptureGroup();
    fake::EnqueueGroup();
    if (fake::configuration.mode == kFakeSlowSetup && fake::group.entered.empty()) result = ncclInProgress;
  }
  for (ncclComm* communicator : std::exchange(fake::group.entered, {})) {
    if (const ncclResult_t state = fake::AwaitConnections(communicator); state != ncclSuccess) result = state;
  }
  return result;
}
ncclResult_t ncclRedOpCreatePreMulSum(ncclRedOp_t* op, void* scalar, ncclDataType_t dtype, ncclScalarResidence_t where,
                                      ncclComm_t) {
  if (where != ncclScalarHostImmediate) return ncclInvalidArgument;
  const Lock lock(GlobalState().mutex);
  *op = static_cast<ncclRedOp_t>(fake::kFirstFactor + fake::next_op++);
  fake::factors[*op] = fake::ValueOf(scalar, dtype);
  return ncclSuccess;
}
ncclResult_t ncclRedOpDestroy(ncclRedOp_t op, ncclComm_t) {
  const Lock lock(GlobalState().mutex);
  return fake::factors.erase(op) == 1 ? ncclSuccess : ncclInvalidArgument;
}
int FakeNcclLiveOps() {
  const Lock lock(GlobalState().mutex);
  return static_cast<int>(fake::factors.size());
}

ncclResult_t ncclAllReduce(const void* in, void* out, size_t count, ncclDataType_t dtype, ncclRedOp_t op,
                           ncclComm_t communicator, cudaStream_t stream) {
  return fake::Run(communicator, stream, Part{in, out, 0, nullptr, 1}, {fake::kAllReduce, count, dtype, op, -1});
}
ncclResult_t ncclBroadcast(const void* in, void* out, size_t count, ncclDataType_t dtype, int root,
                           ncclComm_t communicator, cudaStream_t stream) {
  return fake::Run(communicator, stream, Part{in, out, 0, nullptr, 1}, {fake::kBroadcast, count, dtype, ncclSum, root});
}
ncclResult_t ncclReduce(const void* in, void* out, size_t count, ncclDataType_t dtype, ncclRedOp_t op, int root,
                        ncclComm_t communicator, cudaStream_t stream) {
  return fake::Run(communicator, stream, Part{in, out, 0, nullptr, 1}, {fake::kReduce, count, dtype, op, root});
}
ncclResult_t ncclAllGather(const void* in, void* out, size_t count, ncclDataType_t dtype, ncclComm_t communicator,
                           cudaStream_t stream) {
  return fake::Run(communicator, stream, Part{in, out, 0, nullptr, 1}, {fake::kAllGather, count, dtype, ncclSum, -1});
}
ncclResult_t ncclReduceScatter(const void* in, void* out, size_t count, ncclDataType_t dtype, ncclRedOp_t op,
                               ncclComm_t communicator, cudaStream_t stream) {
  return fake::Run(communicator, stream, Part{in, out, 0, nullptr, 1}, {fake::kReduceScatter, count, dtype, op, -1});
}
ncclResult_t ncclSend(const void* data, size_t count, ncclDataType_t dtype, int peer, ncclComm_t communicator,
                      cudaStream_t stream) {
  return fake::Exchange(communicator, stream, {data, nullptr, count * fake::BytesOf(dtype), nullptr},
                        communicator->rank, peer, /*sends=*/true);
}
ncclResult_t ncclRecv(void* data, size_t count, ncclDataType_t dtype, int peer, ncclComm_t communicator,
                      cudaStream_t stream) {
  return fake::Exchange(communicator, stream, {nullptr, data, count * fake::BytesOf(dtype), nullptr}, peer,
                        communicator->rank, /*sends=*/false);
}
}
