// Initial values that do not depend on who computes them: element i of a parameter is a function of (seed, name, i), so
// each rank makes its own part, nothing is sent, nobody has the whole, and the values are those of a single process,
// whatever the mesh, the units or the order of wrapping.
//
//   init_parameters(*model, seed, LikeTorch);
//   init_parameters(*model, seed, [](const std::string& name, const std::vector<int64_t>& sizes) {
//     return sizes.size() > 1 ? InitRule::Normal(0, 0.02) : InitRule::Constant(name.ends_with("bias") ? 0 : 1);
//   });
//
// Random numbers: Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3" (SC 2011), Philox4x32-10. Four numbers
// for elements 4 k to 4 k + 3: counter (k, hash of the name), key seed.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "cohort/trainer/placement/sharded_module.h"
#include "torch/nn/module.h"

namespace cohort::trainer {

struct InitRule {
  enum class Kind { kConstant, kUniform, kNormal };
  Kind kind = Kind::kConstant;
  double first = 0;   // the value; the lower bound; the mean
  double second = 0;  // the upper bound, which is left out; the standard deviation

  static InitRule Constant(double value) { return {Kind::kConstant, value, 0}; }
  static InitRule Uniform(double low, double high) { return {Kind::kUniform, low, high}; }
  static InitRule Normal(double mean, double deviation) { return {Kind::kNormal, mean, deviation}; }
};

// Of a parameter's name and the sizes of the whole.
using InitRules = std::function<InitRule(const std::string& name, const std::vector<int64_t>& sizes)>;

// Weights of two dimensions or more as torch's Linear and Conv: uniform within 1 / sqrt(elements of a row); weights of
// norms 1, everything else of one dimension 0.
InitRule LikeTorch(const std::string& name, const std::vector<int64_t>& sizes);

// Every parameter of the outermost `model`, of this rank's parts. Sends nothing, but is called on all ranks alike,
// since it gives modules their shards back (ShardedModule::Reshard).
void init_parameters(ShardedModule& model, uint64_t seed, const InitRules& rules);
// Every parameter of `model`, which is whole (Local), or was sharded by fully_shard (the same as above). Throws
// c10::Error, which names it, where a module in it is sharded and it is not.
void init_parameters(torch::nn::Module& model, uint64_t seed, const InitRules& rules);

// Four random numbers.
std::array<uint32_t, 4> Philox(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key);

}  // namespace cohort::trainer
