#include "cohort/trainer/state/param_groups.h"

#include <cmath>
#include <limits>
#include <set>
#include <tuple>
#include <typeinfo>

#include "cohort/trainer/base/json_text.h"
#include "cohort/trainer/state/kept_optimizer.h"
#include "nlohmann/json.hpp"
#include "torch/torch.h"

namespace cohort::trainer {
namespace {

using Json = nlohmann::json;
using torch::optim::Optimizer;
using torch::optim::OptimizerOptions;
using torch::optim::OptimizerParamGroup;

// The options if they are of this class; null also for a derived one.
template <typename Options>
Options* Exactly(OptimizerOptions& base) {
  return typeid(base) == typeid(Options) ? static_cast<Options*>(&base) : nullptr;
}

template <typename Options, typename Visit>
bool VisitAdam(OptimizerOptions& base, const Visit& visit) {
  auto* own = Exactly<Options>(base);
  if (own == nullptr) return false;
  visit("lr", own->lr());
  visit("betas", own->betas());
  visit("eps", own->eps());
  visit("weight_decay", own->weight_decay());
  visit("amsgrad", own->amsgrad());
  return true;
}

// visit(name, value) for each option of a group; the values may be changed. False for options that are not known.
template <typename Visit>
bool VisitOptions(OptimizerOptions& base, const Visit& visit) {
  if (VisitAdam<torch::optim::AdamOptions>(base, visit) || VisitAdam<torch::optim::AdamWOptions>(base, visit)) {
    return true;
  }
  if (auto* sgd = Exactly<torch::optim::SGDOptions>(base)) {
    visit("lr", sgd->lr());
    visit("momentum", sgd->momentum());
    visit("dampening", sgd->dampening());
    visit("weight_decay", sgd->weight_decay());
    visit("nesterov", sgd->nesterov());
  } else if (auto* adagrad = Exactly<torch::optim::AdagradOptions>(base)) {
    visit("lr", adagrad->lr());
    visit("lr_decay", adagrad->lr_decay());
    visit("weight_decay", adagrad->weight_decay());
    visit("initial_accumulator_value", adagrad->initial_accumulator_value());
    visit("eps", adagrad->eps());
  } else if (auto* rmsprop = Exactly<torch::optim::RMSpropOptions>(base)) {
    visit("lr", rmsprop->lr());
    visit("alpha", rmsprop->alpha());
    visit("eps", rmsprop->eps());
    visit("weight_decay", rmsprop->weight_decay());
    visit("momentum", rmsprop->momentum());
    visit("centered", rmsprop->centered());
  } else {
    return false;
  }
  return true;
}

constexpr const char* kUnknown =
    "the options of this optimizer can't be kept; those of SGD, Adam, AdamW, Adagrad, RMSprop and KeptOptimizers can";

// A parameter that two modules share counts once.
size_t ParametersOf(const OptimizerParamGroup& group) {
  std::set<const void*> distinct;
  for (const at::Tensor& parameter : group.params()) distinct.insert(parameter.unsafeGetTensorImpl());
  return distinct.size();
}

// JSON has no numbers for what isn't finite, and would lose it as null. By the names that Python's json has for them.
constexpr double kInfinity = std::numeric_limits<double>::infinity();

Json Saved(bool value) { return value; }
Json Saved(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "Infinity" : "-Infinity";
  return value;
}
Json Saved(const std::tuple<double, double>& value) { return {Saved(std::get<0>(value)), Saved(std::get<1>(value))}; }

// Restores a value that Saved wrote. Returns false for any other JSON.
bool Restore(const Json& saved, bool& value) {
  if (saved.is_boolean()) value = saved.get<bool>();
  return saved.is_boolean();
}
bool Restore(const Json& saved, double& value) {
  if (saved.is_number()) {
    value = saved.get<double>();
  } else if (saved == "NaN") {
    value = std::numeric_limits<double>::quiet_NaN();
  } else if (saved == "Infinity" || saved == "-Infinity") {
    value = saved == "Infinity" ? kInfinity : -kInfinity;
  } else {
    return false;
  }
  return true;
}
bool Restore(const Json& saved, std::tuple<double, double>& value) {
  return saved.is_array() && saved.size() == 2 && Restore(saved[0], std::get<0>(value)) &&
         Restore(saved[1], std::get<1>(value));
}

}  // namespace

bool HasKnownOptions(OptimizerOptions& options) {
  return VisitOptions(options, [](const char* /*name*/, const auto& /*value*/) {});
}

std::string ParamGroupsText(Optimizer& optimizer) {
  const KeptOptimizer* const kept = KeptOptimizerOf(optimizer);
  Json groups = Json::array();
  for (const OptimizerParamGroup& group : optimizer.param_groups()) {
    Json saved = {{"params", ParametersOf(group)}};
    const auto save = [&](const char* name, const auto& value) { saved[name] = Saved(value); };
    if (kept != nullptr) {
      for (const auto& [name, value] : kept->OptionValues(group.options())) save(name.c_str(), value);
    } else {
      TORCH_CHECK(VisitOptions(*group.options().clone(), save), kUnknown);
    }
    groups.push_back(std::move(saved));
  }
  return groups.dump();
}

int64_t ParametersIn(const std::string& text) {
  const auto [groups, why] = ParseJson(text);
  int64_t parameters = 0;
  if (!groups.is_array()) return 0;
  for (const Json& group : groups) {
    if (group.is_object() && group.contains("params") && group["params"].is_number_integer()) {
      parameters += group["params"].get<int64_t>();
    }
  }
  return parameters;
}

std::vector<std::unique_ptr<OptimizerOptions>> ParamGroupOptions(Optimizer& optimizer, const std::string& text,
                                                                 bool of_same_parameters) {
  const KeptOptimizer* const kept = KeptOptimizerOf(optimizer);
  const auto [groups, why] = ParseJson(text);
  TORCH_CHECK(groups.is_array(), "the saved param groups are no JSON array", why.empty() ? "" : ": " + why);
  TORCH_CHECK(groups.size() == optimizer.param_groups().size(), "the saved optimizer has ", groups.size(),
              " param groups and this one ", optimizer.param_groups().size());
  std::vector<std::unique_ptr<OptimizerOptions>> all;
  for (size_t i = 0; i < groups.size(); ++i) {
    const Json& saved = groups[i];
    const OptimizerParamGroup& group = optimizer.param_groups()[i];
    const Json count = saved.is_object() && saved.contains("params") ? saved["params"] : Json();
    TORCH_CHECK(!of_same_parameters || count == ParametersOf(group), "the saved optimizer has ", count.dump(),
                " parameters in its param group ", i, " and this one ", ParametersOf(group),
                "; was it of another model, or of other groups?");
    all.push_back(group.options().clone());
    const auto restore = [&](const char* name, auto& value) {
      TORCH_CHECK(saved.contains(name) && Restore(saved[name], value), "the saved param group ", i, " lacks ", name,
                  "; was it saved by another kind of optimizer?");
    };
    if (kept != nullptr) {
      auto values = kept->OptionValues(*all.back());
      for (auto& [name, value] : values) restore(name.c_str(), value);
      kept->SetOptionValues(*all.back(), values);
    } else {
      TORCH_CHECK(VisitOptions(*all.back(), restore), kUnknown);
    }
  }
  return all;
}

}  // namespace cohort::trainer
