#include "trainer/autograd_graph.h"

#include <memory>
#include <unordered_set>

#include "torch/torch.h"

namespace cohort::trainer {

std::vector<bool> ReachedLeaves(const std::vector<at::Tensor>& outputs, const std::vector<at::Tensor>& leaves) {
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
    for (const torch::autograd::Edge& edge : node->next_edges()) {
      if (edge.function != nullptr && seen.insert(edge.function.get()).second) open.push_back(edge.function.get());
    }
  }
  std::vector<bool> reached;
  reached.reserve(leaves.size());
  for (const at::Tensor& leaf : leaves) {
    const auto accumulator = torch::autograd::impl::try_get_grad_accumulator(leaf);
    reached.push_back(accumulator != nullptr && seen.count(accumulator.get()) > 0);
  }
  return reached;
}

}  // namespace cohort::trainer
