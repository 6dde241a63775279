// Activation checkpointing, after torch.utils.checkpoint: backward computes a function's saved tensors again.
//
//   x = checkpoint([&](const at::Tensor& in) { return block->forward(in); }, x);
//
//   forward    x ─► f ─► y                 without a graph: only x is kept
//   backward   x ─► f ─► y ─► gradients    the graph is built again, used and dropped
//
// Memory for activations falls from that of all layers to the inputs of all and the inside of one. Time grows by one
// forward pass. Random numbers (dropout) and autocasting repeat those of the first forward pass. Modules wrapped by
// DistributedDataParallel or FullyShardedDataParallel may use it: the wrapper goes outside, checkpoint() inside.
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
  // Draw the same random numbers again. Without it they are new, which suits functions that draw none.
  bool preserve_rng_state = true;
};

using TensorFunction = std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>&)>;

// The untemplated core of checkpoint(). With grad mode off it just calls `function`.
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

// Calls function(inputs...) on the calling thread without keeping the tensors it saves for backward. Pass tensors that
// take part in the graph as inputs. Captured tensors get gradients only if they are leaves (parameters). Other inputs
// are copied. `function` must do the same when it is called again, and lives as long as the graph. Only backward()
// works: autograd::grad through it throws c10::Error.
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

// Returns whether `node` is a checkpointed function in autograd's graph.
bool IsCheckpoint(const torch::autograd::Node& node);

// Goes backward through a recomputed function, in place of backward(). It gets the outputs that require grad with their
// gradients, and the function's inputs, and returns the inputs' gradients.
using RecomputedBackward = std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>& outputs,
                                                                 const std::vector<at::Tensor>& gradients,
                                                                 const std::vector<at::Tensor>& inputs)>;
// Sets that of a checkpointed function. Gradients of chosen tensors may then be computed through it.
void SetRecomputedBackward(torch::autograd::Node& checkpoint, RecomputedBackward backward);

// Restores the buffers of a module when it is destroyed, so that running statistics advance once a step and not twice.
class [[nodiscard]] BufferGuard {
 public:
  explicit BufferGuard(const torch::nn::Module& module);
  ~BufferGuard();
  BufferGuard(const BufferGuard&) = delete;
  BufferGuard& operator=(const BufferGuard&) = delete;

 private:
  std::vector<at::Tensor> buffers_, before_;
};

// A module whose forward pass is checkpointed, after FairScale's checkpoint_wrapper. In checkpoints its parameters have
// the same names as without it.
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
