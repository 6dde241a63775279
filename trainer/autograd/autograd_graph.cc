#include "cohort/trainer/autograd/autograd_graph.h"

#include <memory>
#include <unordered_set>

#include "cohort/trainer/autograd/activation_checkpoint.h"
#include "torch/torch.h"

namespace cohort::trainer {

BackwardReach ReachOf(const std::vector<at::Tensor>& outputs, const std::vector<at::Tensor>& leaves) {
  BackwardReach reach;
  std::unordered_set<torch::autograd::Node*> seen;
  std::vector<torch::autograd::Node*> open;
  for (const at::Tensor& output : outputs) {
    if (!output.defined() || !output.requires_grad()) continue;
    torch::autograd::Node* node = torch::autograd::impl::gradient_edge(output).function.get();
    if (node != nullptr && seen.insert(node).second) open.push_back(node);
  }
  while (!open.empty()) {
    const torch::autograd::Node* node = open.back();
    open.pop_back();
    reach.checkpoints = reach.checkpoints || IsCheckpoint(*node);
    for (const torch::autograd::Edge& edge : node->next_edges()) {
      if (edge.function != nullptr && seen.insert(edge.function.get()).second) open.push_back(edge.function.get());
    }
  }
  reach.leaves.reserve(leaves.size());
  for (const at::Tensor& leaf : leaves) {
    const auto accumulator = torch::autograd::impl::try_get_grad_accumulator(leaf);
    reach.leaves.push_back(accumulator != nullptr && seen.count(accumulator.get()) > 0);
  }
  return reach;
}

}  // namespace cohort::trainer
