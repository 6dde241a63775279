// FsdpParameter: one parameter of a unit, its place in the unit's flat vectors, and this rank's rows of it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ATen/core/Tensor.h"
#include "cohort/trainer/placement/row_chunks.h"

namespace cohort::trainer {

struct FsdpParameter {
  std::string name;                 // within the unit's module
  at::Tensor tensor;                // the module's
  std::vector<int64_t> sizes = {};  // of the whole
  int64_t numel = 0;                // of the whole
  int64_t chunk = 0;                // elements of a rank's chunk, padding included
  int64_t offset = 0;               // of the chunk in a shard
  RowChunk own = {};                // this rank's rows, without padding
};

// One line for CheckSameOnAllRanks. It says whether the parameter is frozen, because ranks that differ in that make
// different calls.
std::string Describe(const FsdpParameter& parameter, const std::vector<int64_t>& sizes);

// This rank's rows of the parameter in `shard`, a vector that is laid out as the unit's shards are. The view skips
// torch's dispatch, which would cost several microseconds a step for each parameter. It is no view to autograd, so
// that zero_grad can detach it where it is a gradient.
at::Tensor LocalView(const at::Tensor& shard, const FsdpParameter& parameter);

}  // namespace cohort::trainer
