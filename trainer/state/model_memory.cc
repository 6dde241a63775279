#include "cohort/trainer/state/model_memory.h"

#include <array>
#include <cstdio>
#include <functional>
#include <numeric>
#include <utility>

#include "cohort/trainer/base/bytes_text.h"
#include "cohort/trainer/placement/row_chunks.h"
#include "cohort/trainer/state/optimizer_state.h"
#include "torch/torch.h"

namespace cohort::trainer {
namespace {

constexpr std::array<std::pair<const char*, DataParallelMode>, 4> kModes = {{{"ddp", DataParallelMode::kDdp},
                                                                             {"zero1", DataParallelMode::kZero1},
                                                                             {"zero2", DataParallelMode::kZero2},
                                                                             {"fsdp", DataParallelMode::kFsdp}}};

int64_t Numel(const std::vector<int64_t>& sizes) {
  return std::accumulate(sizes.begin(), sizes.end(), int64_t{1}, std::multiplies<>());
}

}  // namespace

ModelStateBytes MeasureModelState(const TrainingState& state) {
  ModelStateBytes bytes;
  const auto* zero = dynamic_cast<const PartitionedOptimizer*>(state.groups);
  if (zero != nullptr) bytes.buffers = zero->buffer_bytes();
  for (size_t i = 0; i < state.parameters.size(); ++i) {
    const at::Tensor& parameter = state.parameters[i].data;
    bytes.parameters += static_cast<int64_t>(parameter.nbytes());
    if (parameter.grad().defined()) bytes.gradients += static_cast<int64_t>(parameter.grad().nbytes());
    if (state.optimizer == nullptr || !state.states[i].has_value()) continue;
    for (const auto& [key, tensor] : OptimizerStateOf(*state.optimizer, parameter)) {
      if (key != "step") bytes.optimizer += static_cast<int64_t>(tensor.nbytes());  // a number, not a tensor, in torch
    }
  }
  return bytes;
}

DataParallelMode DataParallelModeOf(const std::string& name) {
  for (const auto& [known, mode] : kModes) {
    if (name == known) return mode;
  }
  TORCH_CHECK(false, "unknown data-parallel mode ", name, "; there are ddp, zero1, zero2 and fsdp");
}

ModelStateBytes PredictModelState(int64_t parameters, const ModelStateFormula& formula) {
  TORCH_CHECK(parameters >= 0 && formula.shards >= 1, "model state of ", parameters, " parameters over ",
              formula.shards, " ranks");
  const auto split = [&](int64_t bytes, DataParallelMode from) {
    const int64_t all = bytes * parameters;
    return formula.mode >= from ? (all + formula.shards - 1) / formula.shards : all;
  };
  return {.parameters = split(formula.bytes_parameter, DataParallelMode::kFsdp),
          .gradients = split(formula.bytes_gradient, DataParallelMode::kZero2),
          .optimizer = split(formula.bytes_optimizer, DataParallelMode::kZero1)};
}

ModelStateBytes PredictModelState(const std::vector<std::vector<int64_t>>& sizes, const ModelStateFormula& formula,
                                  int rank) {
  TORCH_CHECK(rank >= 0 && rank < formula.shards, "model state of rank ", rank, " of ", formula.shards);
  int64_t all = 0, own = 0;
  for (const auto& each : sizes) {
    const RowChunk chunk = RowChunkOf(each, formula.shards, rank);
    all += Numel(each);
    own += chunk.end - chunk.begin;
  }
  if (formula.mode != DataParallelMode::kFsdp) return PredictModelState(all, formula);
  return {.parameters = own * formula.bytes_parameter,
          .gradients = own * formula.bytes_gradient,
          .optimizer = own * formula.bytes_optimizer};
}

std::string ModelStateTable(const std::vector<std::vector<int64_t>>& sizes, const ModelStateFormula& formula) {
  int64_t parameters = 0;
  for (const auto& each : sizes) parameters += Numel(each);
  char line[160];
  std::snprintf(line, sizeof line, "model state a rank, %lld parameters over %d ranks\n%-8s %14s %14s %14s %14s\n",
                static_cast<long long>(parameters), formula.shards, "", "parameters", "gradients", "optimizer",
                "together");
  std::string table = line;
  for (const auto& [name, mode] : kModes) {
    ModelStateFormula row = formula;
    row.mode = mode;
    const ModelStateBytes bytes = PredictModelState(sizes, row);
    std::snprintf(line, sizeof line, "%-6s%s %14s %14s %14s %14s\n", name, mode == formula.mode ? " <" : "  ",
                  BytesText(bytes.parameters).c_str(), BytesText(bytes.gradients).c_str(),
                  BytesText(bytes.optimizer).c_str(), BytesText(bytes.total()).c_str());
    table += line;
  }
  if (formula.mode == DataParallelMode::kZero2) {
    table +=
        "zero2's gradients are split once they are reduced; while no_sync accumulates they are as large as ddp's\n";
  }
  return table;
}

}  // namespace cohort::trainer
