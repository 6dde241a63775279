// The states of torch's generators, and regions that draw from generators of their own.
//
// In a model whose layers are cut over ranks, some random numbers must be the same on every rank (dropout of what all
// ranks have) and others must differ (dropout of what each has a part of). A region is a generator state of its own:
//
//   model_parallel_manual_seed(1234, tensor_axis.rank());
//   const at::Tensor same = torch::rand({3});            // the same on every rank
//   {
//     const RandomRegion region;                         // "model-parallel"
//     const at::Tensor other = torch::rand({3});         // other numbers on each rank
//   }
//
// Source: Megatron-LM's tensor_parallel/random.py. checkpoint() repeats the numbers of all regions. Masks that do not
// depend on the number of ranks need another way: parallel_dropout.h.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "ATen/core/Tensor.h"
#include "c10/core/Device.h"

namespace cohort::trainer {

// States of the default generators of some devices.
class RandomStates {
 public:
  // Returns the states of the CPU and of the devices of `inputs`.
  static RandomStates Of(const std::vector<at::Tensor>& inputs);
  // Returns the states of the CPU and of the current CUDA device, if there is one.
  static RandomStates OfThisDevice();
  // The states now, of the same devices.
  RandomStates Current() const;
  // Makes the default generators go on from these.
  void Restore() const;
  // Seeds the default generators of the same devices.
  void Seed(uint64_t seed) const;

 private:
  void Add(at::Device device);

  std::vector<std::pair<at::Device, at::Tensor>> states_;
};

// While it lives, default generators go on from `states`; afterwards from where they were.
class [[nodiscard]] RandomStatesGuard {
 public:
  explicit RandomStatesGuard(const RandomStates& states) : before_(states.Current()) { states.Restore(); }
  ~RandomStatesGuard() { before_.Restore(); }
  RandomStatesGuard(const RandomStatesGuard&) = delete;
  RandomStatesGuard& operator=(const RandomStatesGuard&) = delete;

 private:
  RandomStates before_;
};

// The region of model_parallel_manual_seed.
inline constexpr const char* kModelParallelRegion = "model-parallel";

// Makes a region of this process, or seeds it again. It has the generators of the CPU and of the current CUDA device.
// Default generators stay as they are.
void add_random_region(const std::string& name, uint64_t seed);
// Seeds the default generators with `seed`, the same on all ranks of the tensor axis, and the region "model-parallel"
// with seed + 2718 + tensor_rank, as Megatron-LM does.
void model_parallel_manual_seed(uint64_t seed, int tensor_rank);

// While it lives, torch draws from the region's generators. Regions do not nest. One thread at a time uses regions,
// because torch's default generators are the process's. Throws c10::Error for an unknown region, and inside another.
class [[nodiscard]] RandomRegion {
 public:
  explicit RandomRegion(std::string name = kModelParallelRegion);
  ~RandomRegion();
  RandomRegion(const RandomRegion&) = delete;
  RandomRegion& operator=(const RandomRegion&) = delete;

 private:
  std::string name_;
  RandomStates outside_;
};

// The states of all regions, for who computes something again.
std::map<std::string, RandomStates> RegionStates();
void RestoreRegionStates(const std::map<std::string, RandomStates>& states);

}  // namespace cohort::trainer
