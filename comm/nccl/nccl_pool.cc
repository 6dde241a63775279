#include "comm/nccl/nccl_pool.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <utility>

namespace cohort::comm::nccl {
namespace {

// Ends all of them beside each other: one after the other each could take its whole limit.
void CloseAll(const std::vector<SharedCommunicator>& communicators) {
  for (const SharedCommunicator& communicator : communicators) communicator->Close();
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
  for (const Idle& idle : idle_) all.push_back(idle.named.communicator);
  for (const auto* kept : {&children_, &revoked_}) {
    for (const auto& [unused, named] : *kept) all.push_back(named.communicator);
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

void NcclPool::PutIdle(Named named, const std::vector<int>& members, int device) {
  idle_.push_back({std::move(named), members, device});
  if (idle_.size() <= kMostIdle) return;
  idle_.front().named.communicator->Close();
  idle_.erase(idle_.begin());
}

NcclPool::Named NcclPool::TakeIdle(const std::vector<int>& members, int device) {
  const auto fits = [&](const Idle& idle) { return idle.device == device && idle.members == members; };
  const auto found = std::find_if(idle_.rbegin(), idle_.rend(), fits);
  if (found == idle_.rend()) return {};
  Named named = std::move(found->named);
  idle_.erase(std::next(found).base());
  return named;
}

NcclPool::Named NcclPool::TakeChild(uint64_t group, int device) {
  const auto found = children_.find({group, device});
  if (found == children_.end()) return {};
  Named named = std::move(found->second);
  children_.erase(found);
  return named;
}

NcclPool::Named NcclPool::Revoked(uint64_t group, int device) const {
  const auto found = revoked_.find({group, device});
  return found == revoked_.end() ? Named{} : found->second;
}

}  // namespace cohort::comm::nccl
