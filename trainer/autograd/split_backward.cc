#include "cohort/trainer/autograd/split_backward.h"

#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "cohort/trainer/autograd/activation_checkpoint.h"
#include "cohort/trainer/base/torch_compat.h"
#include "torch/csrc/autograd/engine.h"
#include "torch/csrc/autograd/function.h"
#include "torch/csrc/autograd/variable.h"
#include "torch/torch.h"

namespace cohort::trainer {
namespace {

using torch::autograd::Edge;
using torch::autograd::edge_list;
using torch::autograd::Node;
using torch::autograd::variable_list;
using Nodes = std::unordered_set<Node*>;

variable_list Execute(const edge_list& roots, const variable_list& gradients, bool keep_graph, bool accumulate,
                      const edge_list& outputs) {
  return torch::autograd::Engine::get_default_engine().execute(roots, gradients, keep_graph, /*create_graph=*/false,
                                                               accumulate, outputs);
}

// The nodes from which some of `ends` can be reached, themselves among them.
Nodes PathsTo(const edge_list& roots, const Nodes& ends) {
  std::unordered_map<Node*, std::vector<Node*>> parents;
  Nodes seen;
  std::vector<Node*> open;
  for (const Edge& root : roots) {
    if (root.is_valid() && seen.insert(root.function.get()).second) open.push_back(root.function.get());
  }
  while (!open.empty()) {
    Node* const node = open.back();
    open.pop_back();
    for (const Edge& edge : std::as_const(*node).next_edges()) {
      if (!edge.is_valid()) continue;
      parents[edge.function.get()].push_back(node);
      if (seen.insert(edge.function.get()).second) open.push_back(edge.function.get());
    }
  }
  Nodes path;
  for (Node* const end : ends) {
    if (seen.count(end) > 0 && path.insert(end).second) open.push_back(end);
  }
  while (!open.empty()) {
    Node* const node = open.back();
    open.pop_back();
    for (Node* const parent : parents[node]) {
      if (path.insert(parent).second) open.push_back(parent);
    }
  }
  return path;
}

}  // namespace

struct SplitBackward::Later {
  edge_list roots;
  variable_list gradients;

  void Add(const Edge& root, const at::Tensor& gradient) {
    if (!root.is_valid() || !gradient.defined()) return;
    roots.push_back(root);
    gradients.push_back(gradient);
  }
};

SplitBackward::SplitBackward() = default;
SplitBackward::~SplitBackward() = default;
SplitBackward::SplitBackward(SplitBackward&&) noexcept = default;
SplitBackward& SplitBackward::operator=(SplitBackward&&) noexcept = default;

namespace {

// Part W of a checkpointed function, in its place among the other nodes of W: backward() runs nodes by their numbers,
// and so a weight that is used inside and outside gets its gradients in one order.
struct CheckpointWeights : Node {
  // `edges` lead to weights that the function gets as inputs, and `edge_gradients` go along them.
  CheckpointWeights(uint64_t sequence_nr, edge_list edges, variable_list edge_gradients, SplitBackward inner_pass)
      : Node(sequence_nr, std::move(edges)), gradients(std::move(edge_gradients)), inner(std::move(inner_pass)) {}
  variable_list apply(variable_list&& /*inputs*/) override {
    inner.WeightGradients();
    return std::move(gradients);
  }
  variable_list gradients;
  SplitBackward inner;
};

// Gives the node of a checkpointed function a backward pass in parts. `path`: as PathsTo.
template <typename Later>
void SplitCheckpoint(Node& node, const Nodes& path, const std::shared_ptr<Later>& later) {
  // The inputs' edges come after that of the function's own anchor. Those off the path lead to weights.
  edge_list off_path;
  const edge_list& edges = std::as_const(node).next_edges();
  for (size_t i = 1; i < edges.size(); ++i) {
    off_path.push_back(edges[i].is_valid() && path.count(edges[i].function.get()) == 0 ? edges[i] : Edge());
  }
  const uint64_t number = node.sequence_nr();
  SetRecomputedBackward(node, [later, number, off_path = std::move(off_path)](const variable_list& outputs,
                                                                              const variable_list& gradients,
                                                                              const variable_list& inputs) {
    edge_list roots;
    for (const at::Tensor& output : outputs) roots.push_back(torch::autograd::impl::gradient_edge(output));
    SplitBackward inner;
    variable_list wanted;
    for (const at::Tensor& input : inputs) {
      if (input.defined() && input.requires_grad()) wanted.push_back(input);
    }
    const variable_list found = inner.InputGradients(roots, gradients, wanted);
    variable_list result, to_weights(off_path.size());
    for (size_t i = 0, next = 0; i < inputs.size(); ++i) {
      const bool has = inputs[i].defined() && inputs[i].requires_grad();
      result.push_back(has ? found[next++] : at::Tensor());
      if (i < off_path.size() && off_path[i].is_valid()) to_weights[i] = result.back();
    }
    const auto weights = std::make_shared<CheckpointWeights>(number, off_path, std::move(to_weights), std::move(inner));
    const at::Tensor start = at::zeros({}, gradients.front().options());  // it runs where the function did
    weights->add_input_metadata(start);
    later->Add(Edge(weights, 0), start);
    return result;
  });
}

}  // namespace

std::vector<at::Tensor> SplitBackward::InputGradients(const edge_list& roots, const variable_list& gradients,
                                                      const variable_list& inputs) {
  later_ = std::make_shared<Later>();
  variable_list result(inputs.size());
  Nodes ends;
  std::vector<std::shared_ptr<Node>> accumulators;
  for (const at::Tensor& input : inputs) {
    accumulators.push_back(torch::autograd::impl::grad_accumulator(input));
    ends.insert(accumulators.back().get());
  }
  const Nodes path = PathsTo(roots, ends);
  edge_list path_roots;
  variable_list path_gradients;
  for (size_t i = 0; i < roots.size(); ++i) {
    if (!roots[i].is_valid() || !gradients[i].defined()) continue;
    if (path.count(roots[i].function.get()) == 0) {
      later_->Add(roots[i], gradients[i]);  // depends on weights alone
    } else {
      path_roots.push_back(roots[i]);
      path_gradients.push_back(gradients[i]);
    }
  }
  if (path_roots.empty()) return result;

  edge_list outputs;
  std::vector<size_t> reached;
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (path.count(accumulators[i].get()) == 0) continue;
    reached.push_back(i);
    outputs.emplace_back(accumulators[i], 0);
  }
  std::vector<std::shared_ptr<Node>> joins;
  for (Node* const node : path) {
    if (ends.count(node) > 0) continue;
    if (IsCheckpoint(*node)) {
      SplitCheckpoint(*node, path, later_);
      continue;
    }
    bool joins_weights = false;
    for (const Edge& edge : std::as_const(*node).next_edges()) {
      joins_weights = joins_weights || (edge.is_valid() && path.count(edge.function.get()) == 0);
    }
    if (!joins_weights) continue;
    joins.push_back(node->shared_from_this());
    for (uint32_t i = 0; i < node->num_inputs(); ++i) outputs.emplace_back(joins.back(), i);
  }
  // Every node is run once more at the most, so what it saved stays until W.
  const variable_list found = Execute(path_roots, path_gradients, /*keep_graph=*/true, /*accumulate=*/false, outputs);
  for (size_t i = 0; i < reached.size(); ++i) result[reached[i]] = found[i];
  for (size_t i = reached.size(); i < outputs.size(); ++i) later_->Add(outputs[i], found[i]);
  for (const std::shared_ptr<Node>& join : joins) {
    compat::DropTensorHooks(*join);
    for (Edge& edge : join->next_edges()) {
      if (edge.is_valid() && path.count(edge.function.get()) > 0) edge = Edge();
    }
  }
  return result;
}

void SplitBackward::WeightGradients() {
  TORCH_CHECK(later_ != nullptr, "SplitBackward: weights' gradients come after those of the inputs, and once");
  const std::shared_ptr<Later> later = std::move(later_);
  if (later->roots.empty()) return;
  Execute(later->roots, later->gradients, /*keep_graph=*/false, /*accumulate=*/true, {});
}

}  // namespace cohort::trainer
