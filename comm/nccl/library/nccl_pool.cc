#include "cohort/comm/nccl/library/nccl_pool.h"

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
    for (const Kept& each : *kept) all.push_back(each.named.communicator);
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
  End(std::move(idle_.front().named.communicator));
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

// The members may choose differently, where one has put more than another: they compare names, and make a new one.
void NcclPool::Keep(std::vector<Kept>& kept, size_t most, Kept more) {
  const auto on_device = [device = more.device](const Kept& each) { return each.device == device; };
  kept.push_back(std::move(more));
  if (static_cast<size_t>(std::count_if(kept.begin(), kept.end(), on_device)) <= most) return;
  const auto oldest = std::find_if(kept.begin(), kept.end(), on_device);
  End(std::move(oldest->named.communicator));
  kept.erase(oldest);
}

NcclPool::Named NcclPool::Take(std::vector<Kept>& kept, uint64_t group, int device) {
  const auto found = std::find_if(kept.begin(), kept.end(),
                                  [=](const Kept& each) { return each.group == group && each.device == device; });
  if (found == kept.end()) return {};
  Named named = std::move(found->named);
  kept.erase(found);
  return named;
}

void NcclPool::End(SharedCommunicator communicator) {
  communicator->Close();
  std::erase_if(ending_, [](const SharedCommunicator& each) { return each->Stopped(); });
  ending_.push_back(std::move(communicator));
}

}  // namespace cohort::comm::nccl
