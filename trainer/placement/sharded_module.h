// ShardedModule: a module whose parameters are shards. Checkpoints, initial values and memory accounting use this
// interface.
//
// They know no wrapper. A class that shards parameters derives from this and says which elements of which parameters
// this rank has.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ATen/core/Tensor.h"
#include "cohort/comm/communicator.h"
#include "torch/nn/module.h"

namespace cohort::trainer {

// This rank's part of one parameter.
struct ShardedParameter {
  std::string name;            // in the unwrapped module
  at::Tensor tensor;           // the parameter that optimizers know; while sharded this rank's rows, maybe none
  std::vector<int64_t> sizes;  // of the whole parameter
  int64_t begin = 0;           // elements [begin, end) of the whole, row by row
  int64_t end = 0;
};

class ShardedModule : public torch::nn::Module {
 public:
  // The module whose parameters are sharded, under its own names, without its wrapper.
  virtual const torch::nn::Module& sharded_module() const = 0;
  // This rank's parts of all parameters, in the order of registration. Only the outermost module's list is complete.
  virtual std::vector<ShardedParameter> sharded_parameters() = 0;
  // All buffers by their names in the unwrapped module. Every rank has them whole.
  virtual std::vector<std::pair<std::string, at::Tensor>> unwrapped_buffers() const = 0;
  // Makes parameters shards again if a forward pass has left them whole. Every rank calls it alike. It sends nothing.
  virtual void Reshard() = 0;
  // The ranks that have the same shards as this one. Null when there are no others.
  virtual const comm::Communicator* replicas() = 0;
  // This rank's place among all ranks that take part, row by row of shards, and their number.
  virtual int place() const = 0;
  virtual int places() const = 0;
};

// Returns the ShardedModule that holds `module`'s parameters: `module` itself if it is a wrapper, or the one registered
// for it. Null for a module that is not sharded, or that is only a part of another module's unit.
ShardedModule* ShardedModuleOf(torch::nn::Module& module);

// Registers `shards` for `module`, which was sharded without a wrapper, or forgets it. `shards` lives until then.
void RegisterShards(const torch::nn::Module& module, ShardedModule* shards);
void ForgetShards(const torch::nn::Module& module);

// Registers the modules whose parameters `shards` has in one unit when they are sharded. ForgetUnit forgets them when
// `shards` ends.
void RegisterUnit(ShardedModule& shards, std::vector<std::weak_ptr<const torch::nn::Module>> modules);
void ForgetUnit(ShardedModule& shards);
// Returns the ShardedModule in whose unit `module`'s parameters are: its own, or that of a module around it. Null for
// none.
ShardedModule* UnitOf(const torch::nn::Module& module);
// Returns whether there is one.
bool IsInUnit(const torch::nn::Module& module);

// Refuses modules whose parameters are shards. Called by wrappers that need whole parameters, which would otherwise
// train on shards silently. Throws c10::Error, "<who>: module <its name> is sharded: ...; <instead>", for `module` and
// any module in it. It throws on one rank too, so that a program fails alike on any number of ranks. Local.
void RefuseShards(const torch::nn::Module& module, const std::string& who, const std::string& instead);

}  // namespace cohort::trainer
