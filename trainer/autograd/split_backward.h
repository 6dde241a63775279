// SplitBackward: a backward pass in two parts, as zero-bubble pipelines need it (Qi et al. 2023).
//
//   I   gradients of the inputs, which the stage before waits for     InputGradients
//   W   gradients of the weights, any time later                      WeightGradients
//
// Both parts together give the bits of backward(). I walks the paths from the outputs to the inputs. A node where a
// weight joins such a path (a join) keeps the gradient that has come to it. Then its edge along the path is cut off,
// and W is one backward pass from all joins: every weight gets all its gradients in the order of backward(), also a
// weight that is used several times (pytorch#180952). Hooks of weights run in W alone. A hook of a tensor on a path
// runs in I, and under libtorch 1.13 again in W where a weight joins; what it does to the gradient counts once.
//
// A checkpointed function (activation_checkpoint.h) on a path is computed again in I; W uses the same graph, in the
// function's place among the joins.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "ATen/core/Tensor.h"
#include "torch/csrc/autograd/edge.h"

namespace cohort::trainer {

class SplitBackward {
 public:
  SplitBackward();
  ~SplitBackward();
  SplitBackward(SplitBackward&&) noexcept;
  SplitBackward& operator=(SplitBackward&&) noexcept;

  // Part I, from edges of the graph (torch::autograd::impl::gradient_edge) with their gradients. Returns the gradient
  // of each input, a leaf that requires grad; undefined where none comes. The graph can't be used otherwise afterwards.
  // Throws what the nodes throw.
  std::vector<at::Tensor> InputGradients(const std::vector<torch::autograd::Edge>& roots,
                                         const std::vector<at::Tensor>& gradients,
                                         const std::vector<at::Tensor>& inputs);
  // Part W: accumulates into .grad, and lets go of the graph. Once, after InputGradients.
  void WeightGradients();

 private:
  struct Later;  // what W starts from
  std::shared_ptr<Later> later_;
};

}  // namespace cohort::trainer
