// Initial values that do not depend on the rank that computes them. Element i of a parameter is a function of (seed,
// name, i). Each rank therefore makes its own part, nothing is sent, and no rank needs the whole. The values equal
// those of a single process, whatever the mesh, the units or the order of wrapping.
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

#include "cohort/trainer/placement/placement.h"
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

// Returns the rule for a parameter's name and sizes in the unsplit model.
using InitRules = std::function<InitRule(const std::string& name, const std::vector<int64_t>& sizes)>;

// Initialises weights as torch's Linear and Conv do. With two dimensions or more: uniform within 1 / sqrt(elements of a
// row). Weights of norms are 1, everything else of one dimension is 0.
InitRule LikeTorch(const std::string& name, const std::vector<int64_t>& sizes);

// Initialises this rank's parts of all parameters of the outermost `model`, as their placements say. It sends nothing.
// All ranks call it alike, because it gives modules their shards back (ShardedModule::Reshard).
void init_parameters(ShardedModule& model, uint64_t seed, const InitRules& rules);
// Initialises all parameters of `model`, of cut ones this rank's part (placement_table.h). The call is local. If
// fully_shard has sharded them, the rules above apply. Throws c10::Error, naming the module, if only a module inside
// `model` is sharded.
void init_parameters(torch::nn::Module& model, uint64_t seed, const InitRules& rules);

// Initialises this rank's part of one parameter, a dense tensor of the placement's local sizes. Local.
void InitPart(at::Tensor part, const Placement& placement, const std::string& name, uint64_t seed,
              const InitRule& rule);

// Returns the number that stands for a name in random numbers: its FNV-1a hash.
uint64_t HashOfName(const std::string& name);

// Returns four random numbers.
std::array<uint32_t, 4> Philox(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key);

}  // namespace cohort::trainer
