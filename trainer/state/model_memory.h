// Model state: measured and predicted bytes of parameters, gradients and optimizer state on a rank.
//
// P is the number of parameters, and d is the number of ranks that split them. Adam takes 2 bytes of parameter, 2 of
// gradient, 12 of float32 copy and moments in mixed precision, or 4, 4, 8 in float32. A rank keeps:
//
//                          mixed                float32
//   DDP                    16 P                 16 P
//   ZeRO-1                 4 P + 12 P / d       8 P + 8 P / d
//   ZeRO-2                 2 P + 14 P / d       4 P + 12 P / d
//   FSDP, HSDP             16 P / d             16 P / d
//
// FSDP's P counts each parameter's rows rounded up to a multiple of d (row_chunks.h). A parameter with fewer rows than
// ranks is as large as if it had one row for each. ZeRO-2 splits gradients once they are reduced. Gradients accumulated
// under no_sync before that are whole on every rank, as DDP's.
//
// Source: Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models" (SC 2020), 3.1.
// FSDP keeps float32 shards and gathers them as bfloat16. That adds two units of 2 bytes a parameter while computing.
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
  int64_t buffers = 0;  // with which ZeroRedundancyOptimizer gathers parameters, of a bounded size; not in predictions
  int64_t total() const { return parameters + gradients + optimizer + buffers; }
};

// Returns the bytes that this rank has of `state` now. Gradients count between backward and zero_grad. Buckets of
// DistributedDataParallel do not count (gradient_as_bucket_view saves the second copy). Local.
ModelStateBytes MeasureModelState(const TrainingState& state);

enum class DataParallelMode { kDdp, kZero1, kZero2, kFsdp };
// Parses "ddp", "zero1", "zero2" or "fsdp". Throws c10::Error for other names.
DataParallelMode DataParallelModeOf(const std::string& name);

struct ModelStateFormula {
  DataParallelMode mode = DataParallelMode::kDdp;
  int shards = 1;               // number of ranks that split the state; for HSDP those of a row
  int64_t bytes_parameter = 4;  // for one element; mixed precision: 2
  int64_t bytes_gradient = 4;   // mixed precision: 2
  int64_t bytes_optimizer = 8;  // Adam's moments; 12 with a float32 copy
};

// Predicts for `parameters` elements that are spread evenly. For FSDP only the sum of the bytes matters, which mixed
// precision does not change.
ModelStateBytes PredictModelState(int64_t parameters, const ModelStateFormula& formula);
// Predicts for parameters of these sizes, on one of the ranks that split them. It is exact for FSDP, which splits rows,
// and as above for the other modes. The first rank has the most. With padding, the other ranks need as much memory.
ModelStateBytes PredictModelState(const std::vector<std::vector<int64_t>>& sizes, const ModelStateFormula& formula,
                                  int rank = 0);

// Returns a line for each mode, for people: the bytes on the first rank for parameters of these sizes. `shards` and the
// bytes are those of `formula`, and its mode is marked.
std::string ModelStateTable(const std::vector<std::vector<int64_t>>& sizes, const ModelStateFormula& formula);

}  // namespace cohort::trainer
