// A collective call as a value: filled by the Communicator, validated once, handed to exactly one provider.
#pragma once

#include <chrono>
#include <cstdint>
#include <source_location>
#include <string>

#include "absl/status/status.h"
#include "comm/types.h"

namespace cohort::comm {

// Per-call options.
struct CallOptions {
  // After this long without completion the operation fails, on every member of the group.
  std::chrono::nanoseconds timeout = std::chrono::minutes(10);
  // Forces an algorithm by its name in algorithms.def; all members must force the same one. Empty: the selector's.
  std::string algorithm;
  // CUDA buffers: the cudaStream_t that the operation is enqueued on; null is the default stream.
  void* stream = nullptr;
};

struct CollectiveRequest {
  CollectiveKind kind = CollectiveKind::kBarrier;
  const void* in = nullptr;
  void* out = nullptr;
  // The block of the call, in elements: all-reduce, broadcast, reduce: the whole vector; gather, scatter, all-gather,
  // reduce-scatter, all-to-all: one rank's part.
  int64_t count = 0;
  DataType dtype = DataType::kUint8;
  ReduceOp op = ReduceOp::kSum;
  int root = -1;  // group rank
  int peer = -1;  // send/recv
  MemoryKind memory = MemoryKind::kHost;
  int device = 0;
  std::source_location site;

  // True where input and output are the same memory in the way that NCCL defines for the kind.
  bool in_place = false;
};

}  // namespace cohort::comm
