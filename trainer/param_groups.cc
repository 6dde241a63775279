#include "trainer/param_groups.h"

#include <set>
#include <type_traits>

#include "nlohmann/json.hpp"
#include "torch/torch.h"

namespace cohort::trainer {
namespace {

using Json = nlohmann::json;
using torch::optim::Optimizer;
using torch::optim::OptimizerOptions;
using torch::optim::OptimizerParamGroup;

template <typename Options, typename Visit>
bool VisitAdam(OptimizerOptions& base, const Visit& visit) {
  auto* own = dynamic_cast<Options*>(&base);
  if (own == nullptr) return false;
  visit("lr", own->lr());
  visit("betas", own->betas());
  visit("eps", own->eps());
  visit("weight_decay", own->weight_decay());
  visit("amsgrad", own->amsgrad());
  return true;
}

// visit(name, value) for each option of a group; the values may be changed.
template <typename Visit>
void VisitOptions(OptimizerOptions& base, const Visit& visit) {
  if (VisitAdam<torch::optim::AdamOptions>(base, visit) || VisitAdam<torch::optim::AdamWOptions>(base, visit)) return;
  if (auto* sgd = dynamic_cast<torch::optim::SGDOptions*>(&base)) {
    visit("lr", sgd->lr());
    visit("momentum", sgd->momentum());
    visit("dampening", sgd->dampening());
    visit("weight_decay", sgd->weight_decay());
    visit("nesterov", sgd->nesterov());
  } else if (auto* adagrad = dynamic_cast<torch::optim::AdagradOptions*>(&base)) {
    visit("lr", adagrad->lr());
    visit("lr_decay", adagrad->lr_decay());
    visit("weight_decay", adagrad->weight_decay());
    visit("initial_accumulator_value", adagrad->initial_accumulator_value());
    visit("eps", adagrad->eps());
  } else if (auto* rmsprop = dynamic_cast<torch::optim::RMSpropOptions*>(&base)) {
    visit("lr", rmsprop->lr());
    visit("alpha", rmsprop->alpha());
    visit("eps", rmsprop->eps());
    visit("weight_decay", rmsprop->weight_decay());
    visit("momentum", rmsprop->momentum());
    visit("centered", rmsprop->centered());
  } else {
    TORCH_CHECK(false,
                "the options of this optimizer can't be kept; those of SGD, Adam, AdamW, Adagrad and RMSprop can");
  }
}

// A parameter that two modules share counts once.
size_t ParametersOf(const OptimizerParamGroup& group) {
  std::set<const void*> distinct;
  for (const at::Tensor& parameter : group.params()) distinct.insert(parameter.unsafeGetTensorImpl());
  return distinct.size();
}

template <typename T>
bool Fits(const Json& value) {
  if constexpr (std::is_same_v<T, bool>) return value.is_boolean();
  if constexpr (std::is_same_v<T, double>) return value.is_number();
  return value.is_array() && value.size() == 2 && value[0].is_number() && value[1].is_number();
}

}  // namespace

std::string ParamGroupsText(const Optimizer& optimizer) {
  Json groups = Json::array();
  for (const OptimizerParamGroup& group : optimizer.param_groups()) {
    Json saved = {{"params", ParametersOf(group)}};
    VisitOptions(*group.options().clone(), [&](const char* name, const auto& value) { saved[name] = value; });
    groups.push_back(std::move(saved));
  }
  return groups.dump();
}

std::vector<std::unique_ptr<OptimizerOptions>> ParamGroupOptions(const Optimizer& optimizer, const std::string& text) {
  const Json groups = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  TORCH_CHECK(groups.is_array(), "the saved param groups are no JSON array");
  TORCH_CHECK(groups.size() == optimizer.param_groups().size(), "the saved optimizer has ", groups.size(),
              " param groups and this one ", optimizer.param_groups().size());
  std::vector<std::unique_ptr<OptimizerOptions>> all;
  for (size_t i = 0; i < groups.size(); ++i) {
    const Json& saved = groups[i];
    const OptimizerParamGroup& group = optimizer.param_groups()[i];
    const Json count = saved.is_object() && saved.contains("params") ? saved["params"] : Json();
    TORCH_CHECK(count == ParametersOf(group), "the saved optimizer has ", count.dump(),
                " parameters in its param group ", i, " and this one ", ParametersOf(group),
                "; was it of another model, or of other groups?");
    all.push_back(group.options().clone());
    VisitOptions(*all.back(), [&](const char* name, auto& value) {
      using T = std::remove_reference_t<decltype(value)>;
      TORCH_CHECK(saved.contains(name) && Fits<T>(saved[name]), "the saved param group ", i, " lacks ", name,
                  "; was it saved by another kind of optimizer?");
      value = saved[name].get<T>();
    });
  }
  return all;
}

}  // namespace cohort::trainer
