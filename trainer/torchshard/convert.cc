#include "cohort/trainer/torchshard/convert.h"

#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <utility>

#include "cohort/trainer/base/wrapped_name.h"
#include "cohort/trainer/placement/box_copy.h"
#include "cohort/trainer/placement/placement_table.h"
#include "cohort/trainer/state/load_state_dict.h"
#include "cohort/trainer/torchshard/cut_parameters.h"
#include "cohort/trainer/torchshard/distributed.h"
#include "cohort/trainer/torchshard/layers.h"
#include "cohort/trainer/transfer/tensor_call.h"
#include "torch/torch.h"

namespace cohort::trainer::torchshard {
namespace {

std::string Joined(const std::string& prefix, const std::string& name) {
  return prefix.empty() ? name : prefix + "." + name;
}

std::shared_ptr<nn::ParallelLinearImpl> Whole(const torch::nn::LinearImpl& layer) {
  return std::make_shared<nn::ParallelLinearImpl>(
      nn::ParallelLinearOptions(layer.options.in_features(), layer.options.out_features()).bias(layer.options.bias()),
      layer.weight, layer.bias);
}

std::shared_ptr<nn::ParallelEmbeddingImpl> Whole(const torch::nn::EmbeddingImpl& layer) {
  nn::ParallelEmbeddingOptions options(layer.options.num_embeddings(), layer.options.embedding_dim());
  if (layer.options.padding_idx().has_value()) options.padding_idx(*layer.options.padding_idx());
  return std::make_shared<nn::ParallelEmbeddingImpl>(options, layer.weight);
}

// Options of torch's embedding that a cut one has not.
bool Convertible(const torch::nn::LinearImpl&) { return true; }
bool Convertible(const torch::nn::EmbeddingImpl& layer) {
  return !layer.options.max_norm().has_value() && !layer.options.scale_grad_by_freq() && !layer.options.sparse();
}

// Converts torch's `Plain` layers and our `Parallel` ones of a model.
template <typename Plain, typename Parallel>
class Converter {
 public:
  Converter(torch::nn::Module& model, ParallelDim dim) : dim_(dim) {
    FindKept(model, /*replaceable=*/false);
    seen_.clear();
    Convert(model, "");
  }
  Conversion& conversion() { return conversion_; }

 private:
  // Finds the parameters of modules that stay as they are: a layer that shares one of them can't be cut. `replaceable`:
  // the module is an element of a Sequential.
  void FindKept(const torch::nn::Module& module, bool replaceable) {
    const auto* plain = dynamic_cast<const Plain*>(&module);
    const bool ours = dynamic_cast<const nn::ParallelLinearImpl*>(&module) != nullptr ||
                      dynamic_cast<const nn::ParallelEmbeddingImpl*>(&module) != nullptr;
    if (!ours && !(plain != nullptr && replaceable && Convertible(*plain))) {
      for (const at::Tensor& parameter : module.parameters(/*recurse=*/false)) {
        kept_.insert(parameter.unsafeGetTensorImpl());
      }
    }
    if (!seen_.insert(&module).second) return;
    const bool elements = dynamic_cast<const torch::nn::SequentialImpl*>(&module) != nullptr;
    for (const auto& child : module.children()) FindKept(*child, elements);
  }

  bool Replaceable(const Plain& layer) const {
    const auto parameters = layer.parameters(/*recurse=*/false);
    return Convertible(layer) && std::none_of(parameters.begin(), parameters.end(), [this](const at::Tensor& each) {
             return kept_.contains(each.unsafeGetTensorImpl());
           });
  }

  void Convert(torch::nn::Module& module, const std::string& prefix) {
    if (!seen_.insert(&module).second) return;
    if (auto* parallel = dynamic_cast<Parallel*>(&module)) {
      if (parallel->options.dim().has_value()) return;
      parallel->parallelize(dim_);
      conversion_.converted.push_back(prefix.empty() ? "itself" : prefix);
      return;
    }
    if (dynamic_cast<Plain*>(&module) != nullptr) {
      conversion_.not_converted.push_back(prefix.empty() ? "itself" : prefix);
      return;
    }
    auto* sequential = dynamic_cast<torch::nn::SequentialImpl*>(&module);
    size_t place = 0;
    for (const auto& child : module.named_children()) {
      const std::string name = Joined(prefix, child.key());
      auto plain = std::dynamic_pointer_cast<Plain>(child.value());
      if (sequential != nullptr && plain != nullptr && Replaceable(*plain)) {
        const std::shared_ptr<Parallel> made = MadeFrom(plain);
        *(sequential->begin() + static_cast<std::ptrdiff_t>(place)) = torch::nn::AnyModule(made);
        module.replace_module(child.key(), std::static_pointer_cast<torch::nn::Module>(made));
        conversion_.converted.push_back(name);
      } else {
        Convert(*child.value(), name);
      }
      ++place;
    }
  }

  // The cut layer in the place of `plain`: the same for each of its places.
  std::shared_ptr<Parallel> MadeFrom(const std::shared_ptr<Plain>& plain) {
    std::shared_ptr<Parallel>& made = made_[plain];
    if (made == nullptr) {
      made = Whole(*plain);
      made->parallelize(dim_);
    }
    return made;
  }

  const ParallelDim dim_;
  std::set<const void*> seen_;  // modules
  std::set<const void*> kept_;  // parameters
  std::map<std::shared_ptr<Plain>, std::shared_ptr<Parallel>> made_;
  Conversion conversion_;
};

// Gathers a cut parameter: the boxes of each rank come in its own order.
at::Tensor Gathered(const at::Tensor& part, const Placement& placement) {
  const TensorAxis& axis = distributed::get_axis();
  std::vector<int64_t> counts;
  for (int rank = 0; rank < axis.size(); ++rank) {
    int64_t count = 1;
    for (const int64_t size : placement.local_sizes({{axis.axis().name, rank}})) count *= size;
    counts.push_back(count);
  }
  const at::Tensor flat = StartAllGather(part.detach().reshape({-1}), axis.group(), counts).Wait();
  at::Tensor whole = at::empty(placement.sizes(), part.options().requires_grad(false));
  int64_t begin = 0;
  for (int rank = 0; rank < axis.size(); ++rank) {
    const Coordinate at = {{axis.axis().name, rank}};
    PutBoxes(flat.narrow(0, begin, counts[rank]).view(placement.local_sizes(at)), placement.boxes(at), whole);
    begin += counts[rank];
  }
  return whole;
}

// Calls apply(name, tensor, placement) for the entries of `state`; placement is null for whole tensors.
template <typename Apply>
void ForEachEntry(const torch::nn::Module& model, const StateDict& state, Apply apply) {
  const auto parameters = model.named_parameters();
  for (const auto& item : state) {
    const at::Tensor* parameter = parameters.find(item.key());
    const auto placement = parameter == nullptr ? nullptr : Placements().Of(*parameter);
    if (placement != nullptr) check_process_group(item.key().c_str(), *parameter);
    apply(item.key(), item.value(), placement != nullptr && !placement->whole() ? placement.get() : nullptr);
  }
}

}  // namespace

Conversion convert_parallel_linear(torch::nn::Module& model, ParallelDim dim) {
  return Converter<torch::nn::LinearImpl, nn::ParallelLinearImpl>(model, dim).conversion();
}

Conversion convert_parallel_embedding(torch::nn::Module& model, ParallelDim dim) {
  return Converter<torch::nn::EmbeddingImpl, nn::ParallelEmbeddingImpl>(model, dim).conversion();
}

std::vector<at::Tensor> register_ddp_parameters_to_ignore(torch::nn::Module& model) {
  std::vector<at::Tensor> ignored;
  comm::Communicator& replicas = distributed::get_replicas();
  for (const at::Tensor& parameter : model.parameters()) {
    const auto placement = Placements().Of(parameter);
    if (placement == nullptr || placement->whole()) continue;
    check_process_group("register_ddp_parameters_to_ignore", parameter);
    ignored.push_back(parameter);
    if (replicas.size() == 1 || !parameter.requires_grad()) continue;
    parameter.register_hook([&replicas](const at::Tensor& gradient) {
      return StartAllReduce(gradient, replicas, comm::ReduceOp::kAvg).Wait();
    });
  }
  return ignored;
}

StateDict state_dict(const torch::nn::Module& model) {
  StateDict state;
  for (const auto& item : model.named_parameters()) state.insert(item.key(), item.value().detach());
  for (const auto& item : model.named_buffers()) state.insert(item.key(), item.value());
  return state;
}

StateDict collect_state_dict(const torch::nn::Module& model, const StateDict& state) {
  const at::NoGradGuard no_grad;
  StateDict whole;
  ForEachEntry(model, state, [&](const std::string& name, const at::Tensor& tensor, const Placement* placement) {
    whole.insert(name, placement == nullptr ? tensor : Gathered(tensor, *placement));
  });
  return whole;
}

StateDict relocate_state_dict(const torch::nn::Module& model, const StateDict& whole) {
  const at::NoGradGuard no_grad;
  StateDict parts;
  ForEachEntry(model, whole, [&](const std::string& name, const at::Tensor& tensor, const Placement* placement) {
    if (placement == nullptr) {
      parts.insert(name, tensor);
      return;
    }
    TORCH_CHECK(tensor.sizes() == at::IntArrayRef(placement->sizes()), "relocate_state_dict: ", name, " has sizes ",
                tensor.sizes(), ", and the whole parameter has ", at::IntArrayRef(placement->sizes()));
    at::Tensor part = at::empty(placement->local_sizes(), tensor.options());
    TakeBoxes(tensor, placement->boxes(), part);
    parts.insert(name, part);
  });
  return parts;
}

void load_state_dict(torch::nn::Module& model, const StateDict& state) {
  std::map<std::string, at::Tensor> tensors;
  for (const auto& item : state) tensors[item.key()] = item.value();
  try {
    trainer::load_state_dict(model, tensors);
  } catch (const c10::Error& error) {
    TORCH_CHECK(false, error.what_without_backtrace(), "; relocate_state_dict cuts whole parameters");
  }
}

}  // namespace cohort::trainer::torchshard
