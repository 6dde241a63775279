// Model state: bytes of parameters, gradients and optimizer state on a rank, measured and predicted.
//
// With P parameters, d ranks that split them, and Adam in mixed precision (2 bytes of parameter, 2 of gradient, 12 of
// float32 copy and moments) or in float32 (4, 4, 8):
//
//                          mixed                float32
//   DDP                    16 P                 16 P
//   ZeRO-1                 4 P + 12 P / d       8 P + 8 P / d
//   ZeRO-2                 2 P + 14 P / d       4 P + 12 P / d
//   FSDP, HSDP             16 P / d             16 P / d
//
// where FSDP's P counts each parameter's rows rounded up to a multiple of d (row_chunks.h): a parameter with fewer rows
// than ranks is as large as if it had one for each. ZeRO-2's gradients are split once they are reduced: what is
// accumulated under no_sync before that is whole on every rank, as DDP's.
//
// Source: Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models" (SC 2020), 3.1.
// FSDP keeps float32 shards and gathers them as bfloat16: two units of 2 bytes a parameter on top, while computing.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cohort/trainer/state/training_state.h"

namespace cohort::trainer {

struct ModelStateBytes {
  int64_t parameters = 0;
  int64_t gradients = 0;
  int64_t optimizer = 0;
  int64_t buffers = 0;  // by which ZeroRedundancyOptimizer gathers parameters, of a bounded size; not in predictions
  int64_t total() const { return parameters + gradients + optimizer + buffers; }
};

// What this rank has of `state` now; between backward and zero_grad gradients are there. Buckets of
// DistributedDataParallel are not in it (gradient_as_bucket_view saves the second copy). Local.
ModelStateBytes MeasureModelState(const TrainingState& state);

enum class DataParallelMode { kDdp, kZero1, kZero2, kFsdp };
// "ddp", "zero1", "zero2" or "fsdp"; throws c10::Error for others.
DataParallelMode DataParallelModeOf(const std::string& name);

struct ModelStateFormula {
  DataParallelMode mode = DataParallelMode::kDdp;
  int shards = 1;               // ranks that split the state: of HSDP those of a row
  int64_t bytes_parameter = 4;  // of one element; mixed precision: 2
  int64_t bytes_gradient = 4;   // 2
  int64_t bytes_optimizer = 8;  // Adam's moments; 12 with a float32 copy
};

// Of `parameters` elements, spread evenly. For FSDP the sum counts, which mixed precision does not change.
ModelStateBytes PredictModelState(int64_t parameters, const ModelStateFormula& formula);
// Of parameters of these sizes, on one of the ranks that split them: exact for FSDP, which splits rows, and as above
// for the other modes. The first rank has the most; the memory of the others is as large, with padding.
ModelStateBytes PredictModelState(const std::vector<std::vector<int64_t>>& sizes, const ModelStateFormula& formula,
                                  int rank = 0);

// A line for each mode, for people: what the first rank has of parameters of these sizes. `shards` and the bytes are
// those of `formula`, and its mode is marked.
std::string ModelStateTable(const std::vector<std::vector<int64_t>>& sizes, const ModelStateFormula& formula);

}  // namespace cohort::trainer
