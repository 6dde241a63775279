#include "cohort/trainer/parallelize/tensor_plan.h"

#include <map>
#include <memory>
#include <set>
#include <utility>

#include "cohort/trainer/nn/embedding.h"
#include "cohort/trainer/nn/linear.h"
#include "cohort/trainer/parallel/tensor/column_parallel_linear.h"
#include "cohort/trainer/parallel/tensor/cut_parameter.h"
#include "cohort/trainer/parallel/tensor/row_parallel_linear.h"
#include "cohort/trainer/parallel/tensor/vocab_parallel_embedding.h"
#include "cohort/trainer/parallelize/sequential_element.h"
#include "cohort/trainer/placement/placement_table.h"
#include "cohort/trainer/state/deferred_init.h"
#include "torch/torch.h"

namespace cohort::trainer {
namespace {

constexpr const char* kParallelize = "parallelize";

using Style = std::variant<ColwiseParallel, RowwiseParallel>;

// A parallel layer with values of its own, which are of no use: it has no memory for them, and leaves torch's generator
// as it was.
template <typename Layer, typename Options>
std::shared_ptr<Layer> Made(const Options& options, const TensorAxis& axis) {
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  const at::Tensor before = generator.get_state();
  std::shared_ptr<Layer> layer;
  {
    const DeferredInit deferred;
    layer = std::make_shared<Layer>(options, axis);
  }
  generator.set_state(before);
  return layer;
}

// Enters a parameter in the table as the one that it takes the place of.
void PlaceAs(const Placement& placement, const at::Tensor& parameter, const TensorAxis& axis) {
  if (placement.use(axis.axis().name) == AxisUse::kPartial) {
    SumGradientOver(axis, parameter);
  } else {
    Placements().Add(parameter, placement);
  }
}

// A parallel layer that computes for another one, with that one's parameters.
template <typename Layer>
class CutAs : public nn::CutLayer {
 public:
  explicit CutAs(std::shared_ptr<Layer> layer) : layer_(std::move(layer)) {}
  at::Tensor forward(const at::Tensor& input) override { return layer_->forward(input); }
  nn::AdaptableLayer& layer() override { return *layer_; }
  std::shared_ptr<CutLayer> ForClone(const at::Tensor& weight, const at::Tensor& bias) const override {
    auto copy = Made<Layer>(layer_->options, layer_->axis);
    PlaceAs(*Placements().OrWhole(layer_->weight), weight, layer_->axis);
    copy->weight = weight;
    if constexpr (requires { copy->bias; }) {
      if (bias.defined()) PlaceAs(*Placements().OrWhole(layer_->bias), bias, layer_->axis);
      copy->bias = bias;
    }
    return std::make_shared<CutAs>(std::move(copy));
  }

 private:
  std::shared_ptr<Layer> layer_;
};

using ParallelLayer = std::variant<std::shared_ptr<ColumnParallelLinearImpl>, std::shared_ptr<RowParallelLinearImpl>,
                                   std::shared_ptr<VocabParallelEmbeddingImpl>>;

ParallelLayer LinearLike(const torch::nn::LinearOptions& options, const Style& style, const TensorAxis& axis) {
  if (const auto* columns = std::get_if<ColwiseParallel>(&style)) {
    return Made<ColumnParallelLinearImpl>(ColumnParallelLinearOptions(options.in_features(), options.out_features())
                                              .bias(options.bias())
                                              .gather_output(columns->gather_output())
                                              .blocks(columns->blocks())
                                              .unit(columns->unit()),
                                          axis);
  }
  const auto& rows = std::get<RowwiseParallel>(style);
  return Made<RowParallelLinearImpl>(RowParallelLinearOptions(options.in_features(), options.out_features())
                                         .bias(options.bias())
                                         .input_is_parallel(rows.input_is_parallel())
                                         .unit(rows.unit()),
                                     axis);
}

// A parallel layer in the place of `module`, one of those that CheckKind takes.
ParallelLayer LayerLike(const torch::nn::Module& module, const Style& style, const TensorAxis& axis) {
  if (const auto* layer = dynamic_cast<const nn::LinearImpl*>(&module)) return LinearLike(layer->options, style, axis);
  if (const auto* layer = dynamic_cast<const torch::nn::LinearImpl*>(&module)) {
    return LinearLike(layer->options, style, axis);
  }
  const auto& layer = dynamic_cast<const nn::EmbeddingImpl&>(module);
  VocabParallelEmbeddingOptions options(layer.options.num_embeddings(), layer.options.embedding_dim());
  if (layer.options.padding_idx().has_value()) options.padding_idx(*layer.options.padding_idx());
  return Made<VocabParallelEmbeddingImpl>(options, axis);
}

// Gives access to the parameters that a module has registered.
struct Registered : torch::nn::Module {
  static torch::OrderedDict<std::string, at::Tensor>& Of(torch::nn::Module& module) {
    return module.*(&Registered::parameters_);
  }
};

// A layer that a plan names.
struct Chosen {
  std::string name;
  std::shared_ptr<torch::nn::Module> module;
  torch::nn::SequentialImpl* sequential = nullptr;  // that it is an element of
  const Style* style = nullptr;
  ParallelLayer parallel = {};  // that it is to compute as; one for all names of a module
  bool first = true;            // of these names
};

// The parameters that the layer `module` computes with. They need not be the registered ones.
std::vector<std::pair<std::string, at::Tensor>> MembersOf(const torch::nn::Module& module) {
  if (const auto* layer = dynamic_cast<const nn::LinearImpl*>(&module)) {
    return {{"weight", layer->weight}, {"bias", layer->bias}};
  }
  if (const auto* layer = dynamic_cast<const torch::nn::LinearImpl*>(&module)) {
    return {{"weight", layer->weight}, {"bias", layer->bias}};
  }
  if (const auto* layer = dynamic_cast<const nn::EmbeddingImpl*>(&module)) return {{"weight", layer->weight}};
  if (const auto* layer = dynamic_cast<const torch::nn::EmbeddingImpl*>(&module)) return {{"weight", layer->weight}};
  return {};
}

// Gives a parallel layer the parameters of the layer that it is made from. They stay the same tensors, and keep type,
// device, whether they are frozen, and who shares them. `done` has those that are cut already, for another layer.
template <typename Layer>
void Adopt(Layer& parallel, const torch::nn::Module& module, const TensorAxis& axis, std::set<const void*>& done) {
  for (const auto& [name, own] : MembersOf(module)) {
    if (!own.defined()) continue;
    at::Tensor* member = &parallel.weight;
    if constexpr (requires { parallel.bias; }) {
      if (name == "bias") member = &parallel.bias;
    }
    const auto placement = Placements().OrWhole(*member);
    if (done.insert(own.unsafeGetTensorImpl()).second) {
      if (!placement->whole()) {
        CutInPlace(own, *placement);
      } else if (placement->use(axis.axis().name) == AxisUse::kPartial) {
        SumGradientOver(axis, own);
      }
    }
    *member = own;
    Registered::Of(parallel)[name] = own;
  }
}

// Lets a layer compute as its parallel layer: inside of it, or in its place in a Sequential.
template <typename Layer>
void Install(const Chosen& chosen, const std::shared_ptr<Layer>& parallel) {
  auto* linear = dynamic_cast<nn::LinearImpl*>(chosen.module.get());
  auto* embedding = dynamic_cast<nn::EmbeddingImpl*>(chosen.module.get());
  if (linear != nullptr || embedding != nullptr) {
    if (!chosen.first) return;
    auto cut = std::make_shared<CutAs<Layer>>(parallel);
    linear != nullptr ? linear->set_cut(std::move(cut)) : embedding->set_cut(std::move(cut));
    return;
  }
  const std::string child = chosen.name.substr(chosen.name.rfind('.') + 1);
  parallel->train(chosen.module->is_training());
  ElementOf(*chosen.sequential, child) = torch::nn::AnyModule(parallel);
  chosen.sequential->replace_module(child, std::static_pointer_cast<torch::nn::Module>(parallel));
}

void CheckKind(const Chosen& chosen, const TensorAxis& axis) {
  const bool column = std::holds_alternative<ColwiseParallel>(*chosen.style);
  const bool embedding = dynamic_cast<const nn::EmbeddingImpl*>(chosen.module.get()) != nullptr;
  TORCH_CHECK(!embedding || !column, kParallelize, ": ", chosen.name,
              " is an embedding, whose rows are cut: RowwiseParallel");
  if (const auto* layer = dynamic_cast<const nn::AdaptableLayer*>(chosen.module.get());
      layer != nullptr && (embedding || dynamic_cast<const nn::LinearImpl*>(chosen.module.get()) != nullptr)) {
    TORCH_CHECK(axis.size() == 1 || layer->adapter() == nullptr, kParallelize, ": ", chosen.name,
                " has an adapter, which is not cut: call CutLayers before Lora");
    return;
  }
  const auto* linear = dynamic_cast<const torch::nn::LinearImpl*>(chosen.module.get());
  TORCH_CHECK(linear != nullptr && chosen.sequential != nullptr, kParallelize, ": ", chosen.name, " of type ",
              chosen.module->name(),
              " can't be cut: C++ replaces no typed member. Declare it as cohort::trainer::nn::Linear or Embedding, or "
              "put torch::nn::Linear into a Sequential");
  TORCH_CHECK(linear->weight.is_leaf(), kParallelize, ": ", chosen.name,
              " computes with a weight that is made from others (Lora's): call CutLayers before");
}

std::vector<Chosen> Choose(torch::nn::Module& model, const TensorPlan& plan, const TensorAxis& axis) {
  std::vector<Chosen> chosen;
  std::set<size_t> used;
  const auto modules = model.named_modules(/*name_prefix=*/"", /*include_self=*/false);
  for (const auto& item : modules) {
    for (size_t i = 0; i < plan.size(); ++i) {
      if (!FitsPattern(plan[i].first, item.key())) continue;
      used.insert(i);
      const size_t dot = item.key().rfind('.');
      torch::nn::Module* parent = dot == std::string::npos ? &model : modules[item.key().substr(0, dot)].get();
      chosen.push_back({.name = item.key(),
                        .module = item.value(),
                        .sequential = dynamic_cast<torch::nn::SequentialImpl*>(parent),
                        .style = &plan[i].second});
      CheckKind(chosen.back(), axis);
      break;
    }
  }
  for (size_t i = 0; i < plan.size(); ++i) {
    TORCH_CHECK(used.contains(i), kParallelize, ": no module of the model has a name that fits \"", plan[i].first,
                "\"");
  }
  return chosen;
}

// Makes the parallel layers. A module that has several names gets one.
void MakeLayers(std::vector<Chosen>& chosen, const TensorAxis& axis) {
  std::map<const torch::nn::Module*, const Chosen*> made;
  for (Chosen& each : chosen) {
    const auto [at, first] = made.emplace(each.module.get(), &each);
    each.first = first;
    TORCH_CHECK(first || at->second->style == each.style, kParallelize, ": ", at->second->name, " and ", each.name,
                " are one module, and the plan cuts it in two ways");
    each.parallel = first ? LayerLike(*each.module, *each.style, axis) : at->second->parallel;
  }
}

// How a plan uses a parameter.
struct Use {
  std::string name;
  std::string placement = {};  // text; empty for modules that the plan does not name
  bool changes = false;        // the plan cuts it, or sums its gradients
};

// Refuses parameters that are shared by layers that the plan cuts in different ways, or leaves alone.
void CheckShared(const torch::nn::Module& model, const std::vector<Chosen>& chosen, const TensorAxis& axis) {
  std::map<const torch::nn::Module*, const Chosen*> by_module;
  for (const Chosen& each : chosen) by_module.emplace(each.module.get(), &each);
  std::map<const void*, size_t> places;
  std::vector<std::vector<Use>> uses;  // by parameter
  std::vector<std::pair<std::string, const torch::nn::Module*>> modules = {{"", &model}};
  for (const auto& item : model.named_modules(/*name_prefix=*/"", /*include_self=*/false)) {
    modules.emplace_back(item.key() + ".", item.value().get());
  }
  std::set<const torch::nn::Module*> seen;
  for (const auto& [prefix, address] : modules) {
    const torch::nn::Module& module = *address;
    if (!seen.insert(&module).second) continue;
    auto parameters = MembersOf(module);
    for (const auto& own : module.named_parameters(/*recurse=*/false)) parameters.emplace_back(own.key(), own.value());
    const auto found = by_module.find(&module);
    std::set<const void*> of_module;
    for (const auto& [name, parameter] : parameters) {
      if (!parameter.defined() || !of_module.insert(parameter.unsafeGetTensorImpl()).second) continue;
      Use use = {.name = prefix + name};
      if (found != by_module.end() && (name == "weight" || name == "bias")) {
        const auto placement =
            std::visit([&name = name](const auto& layer) { return Placements().OrWhole(Registered::Of(*layer)[name]); },
                       found->second->parallel);
        TORCH_CHECK(axis.size() == 1 || Placements().OrWhole(parameter)->whole(), kParallelize, ": ", use.name,
                    " is cut already");
        use.changes = !placement->whole() || placement->use(axis.axis().name) == AxisUse::kPartial;
        use.placement = placement->Describe();
      }
      const auto [place, is_new] = places.emplace(parameter.unsafeGetTensorImpl(), uses.size());
      if (is_new) uses.emplace_back();
      uses[place->second].push_back(std::move(use));
    }
  }
  for (const std::vector<Use>& of_one : uses) {
    for (const Use& use : of_one) {
      if (!use.changes) continue;
      for (const Use& other : of_one) {
        TORCH_CHECK(other.placement == use.placement, kParallelize, ": ", use.name, " and ", other.name,
                    " are one parameter, and the plan ",
                    other.placement.empty() ? "names only the first: name both, or share nothing"
                                            : "cuts them in different ways: cut both alike, or share nothing");
      }
    }
  }
}

}  // namespace

bool FitsPattern(const std::string& pattern, const std::string& name) {
  // Tries each length of what a star stands for.
  const auto fits = [&](const auto& self, size_t p, size_t n) -> bool {
    if (p == pattern.size()) return n == name.size();
    if (pattern[p] != '*') return n < name.size() && pattern[p] == name[n] && self(self, p + 1, n + 1);
    for (size_t end = n;; ++end) {
      if (self(self, p + 1, end)) return true;
      if (end == name.size() || name[end] == '.') return false;
    }
  };
  return fits(fits, 0, 0);
}

std::vector<std::string> CutLayers(torch::nn::Module& model, const TensorPlan& plan, const TensorAxis& axis) {
  std::vector<Chosen> chosen = Choose(model, plan, axis);
  MakeLayers(chosen, axis);
  CheckShared(model, chosen, axis);
  std::vector<std::string> names;
  std::set<const void*> done;
  for (const Chosen& each : chosen) {
    names.push_back(each.name);
    std::visit(
        [&](const auto& parallel) {
          if (each.first) Adopt(*parallel, *each.module, axis, done);
          Install(each, parallel);
        },
        each.parallel);
  }
  return names;
}

}  // namespace cohort::trainer
