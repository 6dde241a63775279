// Activation checkpointing: what a function saved for backward is computed again instead, after torch.utils.checkpoint.
//
//   x = checkpoint([&](const at::Tensor& in) { return block->forward(in); }, x);
//
//   forward    x ─► f ─► y                 without a graph: only x is kept
//   backward   x ─► f ─► y ─► gradients    the graph is built again, used and dropped
//
// Memory for activations falls from all layers' to the inputs of all and the inside of one; time grows by one forward.
// Random numbers (dropout) and autocasting are those of the first time. Works in modules that are wrapped by
// DistributedDataParallel or FullyShardedDataParallel: those go outside, checkpoint() inside.
//
// Source: Chen et al., "Training Deep Nets with Sublinear Memory Cost" (2016). The form is PyTorch's reentrant one.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "ATen/core/Tensor.h"
#include "cohort/trainer/base/wrapped_name.h"
#include "torch/nn/module.h"

namespace torch::autograd {
struct Node;
}  // namespace torch::autograd

namespace cohort::trainer {

struct ActivationCheckpointOptions {
  // Random numbers are drawn again as they were; without it they are new, which suits functions that draw none.
  bool preserve_rng_state = true;
};

using TensorFunction = std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>&)>;

// What checkpoint() comes to. With grad mode off, just calls `function`.
std::vector<at::Tensor> CheckpointedCall(TensorFunction function, const std::vector<at::Tensor>& inputs,
                                         const ActivationCheckpointOptions& options = {});

namespace internal {

inline void TakeTensor(const at::Tensor& input, std::vector<at::Tensor>& tensors) { tensors.push_back(input); }
template <typename T>
void TakeTensor(const T&, std::vector<at::Tensor>&) {}

inline void PutTensor(at::Tensor& input, const std::vector<at::Tensor>& tensors, size_t& next) {
  input = tensors.at(next++);
}
template <typename T>
void PutTensor(T&, const std::vector<at::Tensor>&, size_t&) {}

inline at::Tensor WithoutTensor(const at::Tensor&) { return {}; }
template <typename T>
T WithoutTensor(const T& input) {
  return input;
}

inline std::vector<at::Tensor> Flatten(at::Tensor result) { return {std::move(result)}; }
inline std::vector<at::Tensor> Flatten(std::vector<at::Tensor> results) { return results; }
template <typename... Ts>
std::vector<at::Tensor> Flatten(const std::tuple<Ts...>& results) {
  return std::apply([](const auto&... result) { return std::vector<at::Tensor>{result...}; }, results);
}

template <typename Result>
struct Unflatten {
  static_assert(std::is_same_v<Result, at::Tensor> || std::is_same_v<Result, std::vector<at::Tensor>>,
                "checkpoint: the function must return a tensor, or a vector or a tuple of tensors");
  static Result From(std::vector<at::Tensor> results) {
    if constexpr (std::is_same_v<Result, at::Tensor>) {
      return std::move(results.front());
    } else {
      return results;
    }
  }
};
template <typename... Ts>
struct Unflatten<std::tuple<Ts...>> {
  static std::tuple<Ts...> From(std::vector<at::Tensor> results) {
    return From(std::move(results), std::index_sequence_for<Ts...>());
  }
  template <size_t... kIndices>
  static std::tuple<Ts...> From(std::vector<at::Tensor> results, std::index_sequence<kIndices...>) {
    return {std::move(results[kIndices])...};
  }
};

}  // namespace internal

// function(inputs...) without keeping what it saves for backward. Tensors that take part in the graph are passed as
// inputs; of those that `function` captures only leaves (parameters) get gradients. Other inputs are copied. `function`
// must do the same when it is called again, and lives as long as the graph. backward() only: autograd::grad through it
// throws c10::Error.
template <typename Function, typename... Inputs>
auto checkpoint(const ActivationCheckpointOptions& options, Function function, const Inputs&... inputs) {
  using Result = std::decay_t<std::invoke_result_t<Function&, Inputs&...>>;
  std::vector<at::Tensor> tensors;
  (internal::TakeTensor(inputs, tensors), ...);
  auto call = [function = std::move(function), others = std::make_tuple(internal::WithoutTensor(inputs)...)](
                  const std::vector<at::Tensor>& given) mutable {
    auto arguments = others;
    size_t next = 0;
    std::apply([&](auto&... argument) { (internal::PutTensor(argument, given, next), ...); }, arguments);
    return internal::Flatten(std::apply(function, arguments));
  };
  return internal::Unflatten<Result>::From(CheckpointedCall(std::move(call), tensors, options));
}
template <typename Function, typename... Inputs>
  requires(!std::is_same_v<std::decay_t<Function>, ActivationCheckpointOptions>)
auto checkpoint(Function function, const Inputs&... inputs) {
  return checkpoint(ActivationCheckpointOptions{}, std::move(function), inputs...);
}

// Whether `node` is a checkpointed function in autograd's graph.
bool IsCheckpoint(const torch::autograd::Node& node);

// The buffers of a module, put back as they were when it goes: running statistics advance once a step, not twice.
class [[nodiscard]] BufferGuard {
 public:
  explicit BufferGuard(const torch::nn::Module& module);
  ~BufferGuard();
  BufferGuard(const BufferGuard&) = delete;
  BufferGuard& operator=(const BufferGuard&) = delete;

 private:
  std::vector<at::Tensor> buffers_, before_;
};

// A module whose forward is checkpointed, after FairScale's checkpoint_wrapper. In checkpoints its parameters
// have the names that they have without it.
template <typename ModuleType>
class CheckpointWrapper : public torch::nn::Module {
 public:
  explicit CheckpointWrapper(std::shared_ptr<ModuleType> module, ActivationCheckpointOptions options = {})
      : module_(std::move(module)), options_(options) {
    register_module(kCheckpointWrapped, module_);
  }

  template <typename... Inputs>
  auto forward(const Inputs&... inputs) {
    auto call = [module = module_, calls = 0](const auto&... arguments) mutable {
      if (calls++ == 0) return module->forward(arguments...);
      const BufferGuard buffers(*module);
      return module->forward(arguments...);
    };
    return checkpoint(options_, std::move(call), inputs...);
  }
  const std::shared_ptr<ModuleType>& module() const { return module_; }

 private:
  std::shared_ptr<ModuleType> module_;
  ActivationCheckpointOptions options_;
};

}  // namespace cohort::trainer
