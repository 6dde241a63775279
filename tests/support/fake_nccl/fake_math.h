// The arithmetic of the fake's collectives.
#pragma once

#include <nccl.h>

#include <cstddef>
#include <memory>
#include <vector>

#include "cohort/comm/types.h"
#include "tests/support/fake_nccl/fake_state.h"

namespace fake {

enum CollectiveKind { kAllReduce, kBroadcast, kReduce, kAllGather, kReduceScatter };

struct CollectiveShape {
  CollectiveKind kind = kAllReduce;
  size_t count = 0;
  ncclDataType_t dtype = ncclFloat32;
  ncclRedOp_t op = ncclSum;
  int root = -1;
};
// The contribution of one rank.
struct Part {
  const void* in = nullptr;
  void* out = nullptr;
  int rank = 0;
  TaskPointer task;
  double factor = 1;  // of a pre-multiplied sum
};
struct Collective {
  CollectiveShape shape;
  std::vector<Part> parts;
};

// One element of a type.
double ValueOf(const void* scalar, ncclDataType_t dtype);
size_t BytesOf(ncclDataType_t dtype);
// All parts are there: writes every rank's output.
void Compute(Collective& collective);

}  // namespace fake
