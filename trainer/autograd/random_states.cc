#include "cohort/trainer/autograd/random_states.h"

#include <utility>

#include "c10/core/impl/DeviceGuardImplInterface.h"
#include "cohort/runtime/base/mutex.h"
#include "torch/torch.h"

namespace cohort::trainer {
namespace {

// A generator's lock is torch's own.
class GeneratorLock {
 public:
  explicit GeneratorLock(at::Generator& generator) : generator_(generator) { generator_.mutex().lock(); }
  ~GeneratorLock() { generator_.mutex().unlock(); }
  GeneratorLock(const GeneratorLock&) = delete;
  GeneratorLock& operator=(const GeneratorLock&) = delete;

 private:
  at::Generator& generator_;
};

struct Regions {
  std::map<std::string, RandomStates> states;
  bool inside = false;
};

runtime::Mutex mutex;
Regions& AllRegions() COHORT_REQUIRES(mutex) {
  static auto* regions = new Regions;  // for ever: threads may outlive main()
  return *regions;
}

}  // namespace

RandomStates RandomStates::Of(const std::vector<at::Tensor>& inputs) {
  RandomStates states;
  states.Add(at::kCPU);
  for (const at::Tensor& input : inputs) {
    if (input.defined() && input.is_cuda()) states.Add(input.device());
  }
  return states;
}

RandomStates RandomStates::OfThisDevice() {
  RandomStates states;
  states.Add(at::kCPU);
  if (at::hasCUDA() && c10::impl::hasDeviceGuardImpl(c10::kCUDA)) {
    states.Add(c10::impl::getDeviceGuardImpl(c10::kCUDA)->getDevice());
  }
  return states;
}

RandomStates RandomStates::Current() const {
  RandomStates states;
  for (const auto& [device, state] : states_) states.Add(device);
  return states;
}

void RandomStates::Restore() const {
  for (const auto& [device, state] : states_) {
    at::Generator generator = at::globalContext().defaultGenerator(device);
    const GeneratorLock lock(generator);
    generator.set_state(state);
  }
}

void RandomStates::Seed(uint64_t seed) const {
  for (const auto& [device, state] : states_) {
    at::Generator generator = at::globalContext().defaultGenerator(device);
    const GeneratorLock lock(generator);
    generator.set_current_seed(seed);
  }
}

void RandomStates::Add(at::Device device) {
  for (const auto& [known, state] : states_) {
    if (known == device) return;
  }
  at::Generator generator = at::globalContext().defaultGenerator(device);
  const GeneratorLock lock(generator);
  states_.emplace_back(device, generator.get_state());
}

void add_random_region(const std::string& name, uint64_t seed) {
  const RandomStates outside = RandomStates::OfThisDevice();
  outside.Seed(seed);
  RandomStates inside = outside.Current();
  outside.Restore();
  runtime::MutexLock lock(mutex);
  AllRegions().states.insert_or_assign(name, std::move(inside));
}

void model_parallel_manual_seed(uint64_t seed, int tensor_rank) {
  torch::manual_seed(seed);
  add_random_region(kModelParallelRegion, seed + 2718 + static_cast<uint64_t>(tensor_rank));
}

RandomRegion::RandomRegion(std::string name) : name_(std::move(name)), outside_(RandomStates::OfThisDevice()) {
  runtime::MutexLock lock(mutex);
  Regions& regions = AllRegions();
  TORCH_CHECK(!regions.inside, "RandomRegion: ", name_, " is inside of another region; regions do not nest");
  const auto found = regions.states.find(name_);
  TORCH_CHECK(found != regions.states.end(), "RandomRegion: there is no region '", name_,
              "'; add_random_region or model_parallel_manual_seed makes it");
  found->second.Restore();
  regions.inside = true;
}

RandomRegion::~RandomRegion() {
  runtime::MutexLock lock(mutex);
  Regions& regions = AllRegions();
  regions.states.insert_or_assign(name_, outside_.Current());
  regions.inside = false;
  outside_.Restore();
}

std::map<std::string, RandomStates> RegionStates() {
  runtime::MutexLock lock(mutex);
  return AllRegions().states;
}

void RestoreRegionStates(const std::map<std::string, RandomStates>& states) {
  runtime::MutexLock lock(mutex);
  for (const auto& [name, state] : states) AllRegions().states.insert_or_assign(name, state);
}

}  // namespace cohort::trainer
