#include "comm/nccl/nccl_pool.h"

#include <algorithm>
#include <array>

namespace cohort::comm::nccl {
namespace {

// Ends all of them beside each other: one after the other each could take its whole limit.
void CloseAll(const std::vector<SharedCommunicator>& communicators) {
  for (const SharedCommunicator& communicator : communicators) communicator->Close();
}

SharedCommunicator Take(std::map<std::pair<uint64_t, int>, SharedCommunicator>& from, uint64_t group, int index) {
  const auto found = from.find({group, index});
  if (found == from.end()) return nullptr;
  SharedCommunicator result = std::move(found->second);
  from.erase(found);
  return result;
}

}  // namespace

runtime::Mutex& IssuerOf(int device) {
  static std::array<runtime::Mutex, 64> mutexes;
  return mutexes[static_cast<size_t>(device) % mutexes.size()];
}

std::shared_ptr<NcclPool> NcclPool::Of(runtime::Runtime& runtime) {
  static runtime::Mutex mutex;
  static std::map<runtime::Engine*, std::weak_ptr<NcclPool>> pools;
  const runtime::MutexLock lock(mutex);
  std::erase_if(pools, [](const auto& entry) { return entry.second.expired(); });
  std::weak_ptr<NcclPool>& known = pools[&runtime.engine()];
  std::shared_ptr<NcclPool> pool = known.lock();
  if (pool == nullptr) known = pool = std::make_shared<NcclPool>(&runtime.engine());
  return pool;
}

NcclPool::~NcclPool() {
  waker_->Detach();
  std::vector<SharedCommunicator> all;
  for (const Idle& idle : idle_) all.push_back(idle.communicator);
  for (const auto* kept : {&children_, &revoked_}) {
    for (const auto& [unused, communicator] : *kept) all.push_back(communicator);
  }
  CloseAll(all);
  for (auto& [device, loaded] : kernels_) {
    const cuda::DeviceScope current(*loaded.api, device);
    loaded.kernels.reset();
  }
}

cuda::ReductionKernels* NcclPool::KernelsOf(const cuda::CudaApi& api, int device) {
  const auto [found, missing] = kernels_.try_emplace(device);
  if (missing) {
    found->second.api = &api;
    absl::StatusOr<std::unique_ptr<cuda::ReductionKernels>> kernels = cuda::ReductionKernels::Load(&api);
    if (kernels.ok()) found->second.kernels = *std::move(kernels);
  }
  return found->second.kernels.get();
}

void NcclPool::PutIdle(const std::string& name, const std::vector<int>& members, int device,
                       SharedCommunicator communicator) {
  idle_.push_back({name, members, device, std::move(communicator)});
  if (idle_.size() <= kMostIdle) return;
  idle_.front().communicator->Close();
  idle_.erase(idle_.begin());
}

std::string NcclPool::IdleName(const std::vector<int>& members, int device) const {
  const auto fits = [&](const Idle& idle) { return idle.device == device && idle.members == members; };
  const auto found = std::find_if(idle_.rbegin(), idle_.rend(), fits);
  return found == idle_.rend() ? std::string() : found->name;
}

SharedCommunicator NcclPool::TakeIdle(const std::string& name) {
  const auto found = std::find_if(idle_.begin(), idle_.end(), [&](const Idle& idle) { return idle.name == name; });
  if (found == idle_.end()) return nullptr;
  SharedCommunicator communicator = std::move(found->communicator);
  idle_.erase(found);
  return communicator;
}

void NcclPool::PutChild(uint64_t group, int index, SharedCommunicator communicator) {
  children_[{group, index}] = std::move(communicator);
}
SharedCommunicator NcclPool::TakeChild(uint64_t group, int index) { return Take(children_, group, index); }

void NcclPool::PutRevoked(uint64_t group, int index, SharedCommunicator communicator) {
  revoked_[{group, index}] = std::move(communicator);
}
SharedCommunicator NcclPool::Revoked(uint64_t group, int index) const {
  const auto found = revoked_.find({group, index});
  return found == revoked_.end() ? nullptr : found->second;
}
void NcclPool::DropRevoked(uint64_t group, int index) { (void)Take(revoked_, group, index); }

}  // namespace cohort::comm::nccl
