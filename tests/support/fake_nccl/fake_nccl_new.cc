// The functions that NCCL has got since 2.18.1.
#include <algorithm>
#include <atomic>
#include <cstddef>

#include "tests/support/fake_nccl/fake_world.h"

using fake::GlobalState;
using Lock = cohort::runtime::MutexLock;

namespace {

std::atomic<int> registrations{0};

// A split is complete when all ranks of the parent have called it.
void CompleteSplit(fake::World& parent, std::map<int, fake::SplitVote>& votes) {
  if (static_cast<int>(votes.size()) < parent.size) return;
  std::map<int, std::vector<std::pair<std::pair<int, int>, ncclComm_t>>> colors;  // (key, rank), by color
  for (const auto& [rank, vote] : votes) {
    if (vote.color >= 0) colors[vote.color].push_back({{vote.key, rank}, vote.made});
  }
  for (auto& [unused, members] : colors) {
    std::sort(members.begin(), members.end());
    const auto world = std::make_shared<fake::World>();
    world->size = static_cast<int>(members.size());
    for (int rank = 0; rank < world->size; ++rank) {
      members[static_cast<size_t>(rank)].second->world = world;
      members[static_cast<size_t>(rank)].second->rank = rank;
      world->joined.insert(rank);
    }
  }
}

}  // namespace

extern "C" {

ncclResult_t ncclCommSplit(ncclComm_t parent, int color, int key, ncclComm_t* result, ncclConfig_t* config) {
  const Lock lock(GlobalState().mutex);
  if (parent->blocking) return ncclInvalidUsage;  // it would have to wait here for the others
  *result = nullptr;
  ncclComm_t child = nullptr;
  if (color >= 0) {
    child = fake::MakeCommunicator(nullptr, parent->rank);
    child->device = parent->device;
    child->blocking = config->blocking != 0;
    ++fake::made[config->blocking != 0 ? 3 : 1];
    fake::FillIn(parent, result, child);
  }
  parent->in_progress = 2;
  if (fake::configuration.mode == kFakeAlone) {
    if (child != nullptr) child->world = parent->world;
    return ncclInProgress;
  }
  auto& votes = parent->world->splits[parent->splits++];
  votes[parent->rank] = {color, key, child};
  CompleteSplit(*parent->world, votes);
  return ncclInProgress;
}
ncclResult_t ncclCommShrink(ncclComm_t parent, int* excluded, int count, ncclComm_t* result, ncclConfig_t* config,
                            int) {
  const Lock lock(GlobalState().mutex);
  if (config->blocking != 0) return ncclInvalidUsage;
  auto& world = parent->world->shrunk[parent->shrinks++];
  if (world == nullptr) world = std::make_shared<fake::World>();
  world->size = parent->world->size - count;
  const auto before = std::count_if(excluded, excluded + count, [&](int rank) { return rank < parent->rank; });
  ncclComm_t const child = fake::MakeCommunicator(world, parent->rank - static_cast<int>(before));
  child->device = parent->device;
  *result = nullptr;
  fake::FillIn(parent, result, child);
  parent->in_progress = 2;
  ++fake::made[2];
  return ncclInProgress;
}
ncclResult_t ncclCommRevoke(ncclComm_t communicator, int) {
  const Lock lock(GlobalState().mutex);
  communicator->revoked = true;
  communicator->async = ncclSuccess;
  communicator->in_progress = communicator->blocking ? 0 : 2;
  for (const fake::TaskPointer& task : std::vector<fake::TaskPointer>(communicator->pending)) fake::AbortTask(task);
  return communicator->blocking ? ncclSuccess : ncclInProgress;
}
// One that does not block gives the handle later.
ncclResult_t ncclCommWindowRegister(ncclComm_t communicator, void*, size_t, ncclWindow_t* window, int) {
  const Lock lock(GlobalState().mutex);
  if (communicator->in_progress != 0) return ncclInvalidUsage;
  ++registrations;
  if (communicator->blocking) *window = reinterpret_cast<ncclWindow_t>(new char);
  if (communicator->blocking) return ncclSuccess;
  communicator->windows.push_back(reinterpret_cast<void**>(window));
  communicator->in_progress = 2;
  return ncclInProgress;
}
ncclResult_t ncclCommWindowDeregister(ncclComm_t, ncclWindow_t window) {
  delete reinterpret_cast<char*>(window);
  --registrations;
  return ncclSuccess;
}
int FakeNcclLiveRegistrations() { return registrations; }

ncclResult_t ncclGather(const void* in, void* out, size_t count, ncclDataType_t dtype, int root,
                        ncclComm_t communicator, cudaStream_t stream) {
  const size_t bytes = count * fake::BytesOf(dtype);
  ncclGroupStart();
  ncclSend(in, count, dtype, root, communicator, stream);
  for (int rank = 0; communicator->rank == root && rank < communicator->world->size; ++rank) {
    ncclRecv(static_cast<char*>(out) + static_cast<size_t>(rank) * bytes, count, dtype, rank, communicator, stream);
  }
  return ncclGroupEnd();
}
ncclResult_t ncclScatter(const void* in, void* out, size_t count, ncclDataType_t dtype, int root,
                         ncclComm_t communicator, cudaStream_t stream) {
  const size_t bytes = count * fake::BytesOf(dtype);
  ncclGroupStart();
  ncclRecv(out, count, dtype, root, communicator, stream);
  for (int rank = 0; communicator->rank == root && rank < communicator->world->size; ++rank) {
    ncclSend(static_cast<const char*>(in) + static_cast<size_t>(rank) * bytes, count, dtype, rank, communicator,
             stream);
  }
  return ncclGroupEnd();
}
ncclResult_t ncclAlltoAll(const void* in, void* out, size_t count, ncclDataType_t dtype, ncclComm_t communicator,
                          cudaStream_t stream) {
  const size_t bytes = count * fake::BytesOf(dtype);
  if (in == out) return ncclInvalidArgument;
  ncclGroupStart();
  for (int rank = 0; rank < communicator->world->size; ++rank) {
    const auto offset = static_cast<size_t>(rank) * bytes;
    ncclSend(static_cast<const char*>(in) + offset, count, dtype, rank, communicator, stream);
    ncclRecv(static_cast<char*>(out) + offset, count, dtype, rank, communicator, stream);
  }
  return ncclGroupEnd();
}
}
