#include "cohort/trainer/adapter/lora.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <set>

#include "cohort/trainer/adapter/layer_pattern.h"
#include "cohort/trainer/adapter/weight_layer.h"
#include "cohort/trainer/base/name_list.h"
#include "cohort/trainer/base/wrapped_name.h"
#include "cohort/trainer/placement/placement_table.h"
#include "cohort/trainer/placement/sharded_module.h"
#include "torch/torch.h"

namespace cohort::trainer {
namespace {

using NamedModules = std::vector<std::pair<std::string, std::shared_ptr<torch::nn::Module>>>;

constexpr const char* kAllLinear = "all-linear";

// The kind of a layer that takes an adapter; none for other modules.
std::optional<nn::LayerKind> KindOf(const std::shared_ptr<torch::nn::Module>& module) {
  if (const auto* layer = dynamic_cast<const nn::AdaptableLayer*>(module.get())) return layer->adaptable_form().kind;
  if (const auto layer = WeightLayer::For(module)) return layer->adaptable_form().kind;
  return std::nullopt;
}

bool IsNamed(const std::string& name, const std::string& target) {
  return name == target || name.ends_with("." + target);
}

NamedModules ModulesOf(const torch::nn::Module& model) {
  NamedModules modules;
  for (const auto& item : model.named_modules(/*name_prefix=*/"", /*include_self=*/false)) {
    modules.emplace_back(UnwrappedName(item.key()), item.value());
  }
  return modules;
}

// A weight, and a module that has it.
struct Holder {
  std::string name;
  const torch::nn::Module* module = nullptr;
  at::Tensor weight;
};

// The elements of the storage from the first to the last of a tensor's.
std::pair<int64_t, int64_t> RangeOf(const at::Tensor& tensor) {
  int64_t end = tensor.storage_offset() + 1;
  for (int64_t dim = 0; dim < tensor.dim(); ++dim) end += (tensor.size(dim) - 1) * tensor.stride(dim);
  return {tensor.storage_offset(), end};
}

bool ShareMemory(const at::Tensor& a, const at::Tensor& b) {
  if (a.is_same(b)) return true;
  if (a.numel() == 0 || b.numel() == 0 || !a.is_alias_of(b)) return false;
  const auto [a_begin, a_end] = RangeOf(a);
  const auto [b_begin, b_end] = RangeOf(b);
  return a_begin < b_end && b_begin < a_end;
}

// The weight that a layer multiplies by, which a tied layer need not have registered; undefined for other modules.
at::Tensor WeightOf(const std::shared_ptr<torch::nn::Module>& module) {
  if (const auto* layer = dynamic_cast<const nn::AdaptableLayer*>(module.get())) return layer->adaptable_weight();
  const auto layer = WeightLayer::For(module);
  return layer == nullptr ? at::Tensor() : layer->adaptable_weight();
}

// The weights of all modules, by their storage.
std::multimap<const void*, Holder> HoldersIn(const torch::nn::Module& model) {
  std::multimap<const void*, Holder> holders;
  const auto add = [&](const std::string& name, const torch::nn::Module* module, const at::Tensor& weight) {
    if (weight.defined()) holders.insert({weight.storage().unsafeGetStorageImpl(), {name, module, weight}});
  };
  for (const auto& item : model.named_parameters(/*recurse=*/false)) add("the model", &model, item.value());
  for (const auto& [name, module] : ModulesOf(model)) {
    for (const at::Tensor& parameter : module->parameters(/*recurse=*/false)) add(name, module.get(), parameter);
    add(name, module.get(), WeightOf(module));
  }
  return holders;
}

// The first of the layers whose weight another module has, and that module; empty for none.
std::string SharedIn(const torch::nn::Module& model, const NamedModules& layers) {
  const auto holders = HoldersIn(model);
  for (const auto& [name, module] : layers) {
    const at::Tensor weight = WeightOf(module);
    const auto [begin, end] = holders.equal_range(weight.storage().unsafeGetStorageImpl());
    for (auto holder = begin; holder != end; ++holder) {
      if (holder->second.module == module.get() || !ShareMemory(holder->second.weight, weight)) continue;
      return name + ", which is also that of " + holder->second.name;
    }
  }
  return "";
}

// The modules that the targets stand for, each once, in the model's order.
NamedModules Targets(const torch::nn::Module& model, const LoraConfig& config) {
  const std::vector<std::string>& targets = config.target_modules;
  const NamedModules modules = ModulesOf(model);
  std::set<std::string> found;
  std::set<const torch::nn::Module*> seen;  // a module may have two names
  NamedModules chosen;
  for (const auto& [name, module] : modules) {
    const std::optional<nn::LayerKind> kind = KindOf(module);
    bool is_target = false;
    for (const std::string& target : targets) {
      const bool fits = config.full_names      ? name == target
                        : target == kAllLinear ? kind == nn::LayerKind::kLinear
                                               : IsNamed(name, target);
      if (!fits) continue;
      found.insert(target);
      is_target = true;
      TORCH_CHECK(kind.has_value(), "Lora: target_modules has ", target, ", but module ", name,
                  " is neither a linear layer nor an embedding; name the layers inside it");
    }
    if (is_target && seen.insert(module.get()).second) chosen.emplace_back(name, module);
  }
  std::vector<std::string> layers;
  for (const auto& [name, module] : modules) {
    if (KindOf(module).has_value()) layers.push_back(name);
  }
  for (const std::string& target : targets) {
    TORCH_CHECK(found.contains(target), "Lora: no layer of the model is named ", target,
                " in target_modules; its layers are ", NameList(layers));
  }
  return chosen;
}

void CheckConfig(const LoraConfig& config) {
  TORCH_CHECK(config.r > 0, "Lora: r must be positive, not ", config.r);
  TORCH_CHECK(std::isfinite(config.lora_alpha), "Lora: lora_alpha must be a finite number");
  for (const auto& [key, r] : config.rank_pattern) {
    CheckLayerPattern(key, "Lora: rank_pattern");
    TORCH_CHECK(r > 0, "Lora: rank_pattern has ", r, " for ", key, ", and r must be positive");
  }
  for (const auto& [key, alpha] : config.alpha_pattern) {
    CheckLayerPattern(key, "Lora: alpha_pattern");
    TORCH_CHECK(std::isfinite(alpha), "Lora: alpha_pattern has no finite number for ", key);
  }
  TORCH_CHECK(config.lora_dropout >= 0 && config.lora_dropout < 1, "Lora: lora_dropout must be in [0, 1), not ",
              config.lora_dropout);
  TORCH_CHECK(!config.target_modules.empty(), "Lora: target_modules is empty");
  TORCH_CHECK(at::isFloatingType(config.dtype), "Lora: dtype must be a floating-point type, not ", config.dtype);
}

}  // namespace

struct Lora::Adapted {
  std::string name;
  std::shared_ptr<torch::nn::Module> module;
  std::unique_ptr<WeightLayer> through_weight;  // null for layers with a place for an adapter
  nn::AdaptableLayer* layer = nullptr;
  std::shared_ptr<LoraLayer> adapter;
  at::Tensor base;  // while merged: the weight's former values
};

Lora::Lora(torch::nn::Module& model, LoraConfig config) : config_(std::move(config)) {
  CheckConfig(config_);
  RefuseShards(model, "Lora", "add adapters first, then shard");
  const NamedModules chosen = Targets(model, config_);
  for (const auto& [name, module] : chosen) Check(name, *module);
  shared_ = SharedIn(model, chosen);
  for (at::Tensor& parameter : model.parameters()) parameter.requires_grad_(false);
  for (const auto& [name, module] : chosen) Add(name, module);
  for (const auto& [name, parameter] : named_parameters()) names_of_model_.push_back(name);
}

Lora::~Lora() = default;

// All that may be wrong with a layer is found before the first one is changed.
void Lora::Check(const std::string& name, torch::nn::Module& module) const {
  const auto* layer = dynamic_cast<const nn::AdaptableLayer*>(&module);
  TORCH_CHECK(layer == nullptr || layer->adapter() == nullptr, "Lora: layer ", name, " has an adapter already");
  TORCH_CHECK(
      !module.named_children().contains("lora_A") && !module.named_parameters(false).contains("lora_embedding_A"),
      "Lora: layer ", name, " has an adapter already");
  TORCH_CHECK(layer != nullptr || config_.lora_dropout == 0, "Lora: layer ", name,
              " is torch's own, which trains through its weight and takes no lora_dropout; declare it as "
              "cohort::trainer::nn::Linear or Embedding");
}

void Lora::Add(const std::string& name, const std::shared_ptr<torch::nn::Module>& module) {
  Adapted adapted;
  adapted.name = name;
  adapted.module = module;
  adapted.layer = dynamic_cast<nn::AdaptableLayer*>(module.get());
  if (adapted.layer == nullptr) {
    adapted.through_weight = WeightLayer::For(module);
    adapted.layer = adapted.through_weight.get();
  }
  adapted.adapter = std::make_shared<LoraLayer>(*adapted.layer, *module, name, config_.For(name));
  Placements().Add(adapted.adapter->a(), adapted.adapter->a_placement());
  Placements().Add(adapted.adapter->b(), adapted.adapter->b_placement());
  if (adapted.through_weight == nullptr) adapted.layer->set_adapter(adapted.adapter);
  layers_.push_back(std::move(adapted));
}

void Lora::Keep(const torch::nn::Module& part) {
  std::set<const torch::nn::Module*> kept;
  for (const auto& module : part.modules(/*include_self=*/false)) kept.insert(module.get());
  layers_.erase(std::remove_if(layers_.begin(), layers_.end(),
                               [&](const Adapted& layer) { return !kept.contains(layer.module.get()); }),
                layers_.end());
}

std::vector<std::string> Lora::adapted() const {
  std::vector<std::string> names;
  for (const Adapted& layer : layers_) names.push_back(layer.name);
  return names;
}

std::vector<std::string> Lora::through_weights() const {
  std::vector<std::string> names;
  for (const Adapted& layer : layers_) {
    if (layer.through_weight != nullptr) names.push_back(layer.name);
  }
  return names;
}

std::vector<at::Tensor> Lora::parameters() const {
  std::vector<at::Tensor> parameters;
  for (const auto& [name, parameter] : named_parameters()) parameters.push_back(parameter);
  return parameters;
}

std::vector<std::pair<std::string, at::Tensor>> Lora::named_parameters() const {
  std::vector<std::pair<std::string, at::Tensor>> parameters;
  for (const Adapted& layer : layers_) {
    parameters.emplace_back(layer.name + "." + layer.adapter->a_name(), layer.adapter->a());
    parameters.emplace_back(layer.name + "." + layer.adapter->b_name(), layer.adapter->b());
  }
  return parameters;
}

void Lora::Reshard() const {
  std::set<ShardedModule*> units;
  for (const Adapted& layer : layers_) {
    ShardedModule* unit = UnitOf(*layer.module);
    if (unit != nullptr && units.insert(unit).second) unit->Reshard();
  }
}

void Lora::refresh_weights() {
  if (merged_) return;
  for (const Adapted& layer : layers_) {
    if (layer.through_weight != nullptr) layer.through_weight->SetDelta(layer.adapter->WeightDelta());
  }
}

void Lora::merge() {
  if (merged_) return;
  TORCH_CHECK(shared_.empty(), "Lora: merge() would change the weight of ", shared_,
              "; go on unmerged, or give each its own weight before Lora is made");
  const at::NoGradGuard no_grad;
  for (const Adapted& layer : layers_) {
    const LoraLayer& adapter = *layer.adapter;
    const bool whole = adapter.a().sizes() == at::IntArrayRef(adapter.a_placement().local_sizes()) &&
                       adapter.b().sizes() == at::IntArrayRef(adapter.b_placement().local_sizes());
    TORCH_CHECK(whole && layer.layer->adaptable_weight().sizes() == adapter.WeightDelta().sizes(),
                "Lora: the weight of ", layer.name,
                " is sharded; merge() needs it whole. Save the adapters, and merge them in a process that loads them");
  }
  for (Adapted& layer : layers_) {
    at::Tensor weight = layer.layer->adaptable_weight();
    layer.base = weight.clone();
    weight.copy_(weight.to(at::kFloat) + layer.adapter->WeightDelta());
    layer.layer->set_adapter(nullptr);
    if (layer.through_weight != nullptr) layer.through_weight->SetDelta(at::Tensor());
  }
  merged_ = true;
}

void Lora::unmerge() {
  if (!merged_) return;
  const at::NoGradGuard no_grad;
  for (Adapted& layer : layers_) {
    layer.layer->adaptable_weight().copy_(layer.base);
    layer.base.reset();
    if (layer.through_weight == nullptr) layer.layer->set_adapter(layer.adapter);
  }
  merged_ = false;
}

}  // namespace cohort::trainer
