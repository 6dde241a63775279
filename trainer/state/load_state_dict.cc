#include "cohort/trainer/state/load_state_dict.h"

#include <algorithm>
#include <set>
#include <sstream>
#include <string_view>
#include <utility>

#include "cohort/trainer/base/name_list.h"
#include "cohort/trainer/base/wrapped_name.h"
#include "torch/torch.h"

namespace cohort::trainer {
namespace {

using Tensors = std::map<std::string, at::Tensor>;

constexpr std::string_view kDataParallel = "module";  // also a name that a model may have for a part of itself
constexpr std::string_view kCompiled = "_orig_mod";

// A name without the parts that say `dropped`: "a.module.b" and "module" give "a.b".
std::string Without(const std::string& name, std::string_view dropped) {
  std::string kept;
  for (size_t begin = 0; begin <= name.size();) {
    const size_t end = std::min(name.find('.', begin), name.size());
    if (std::string_view(name).substr(begin, end - begin) != dropped) {
      kept += (kept.empty() ? "" : ".") + name.substr(begin, end - begin);
    }
    begin = end + 1;
  }
  return kept;
}

std::string Unwrapped(const std::string& name) { return Without(UnwrappedName(name), kCompiled); }

Tensors TargetsOf(const torch::nn::Module& module) {
  Tensors tensors;
  for (const auto& item : module.named_parameters()) tensors[item.key()] = item.value();
  for (const auto& item : module.named_buffers()) {
    if (item.value().defined()) tensors[item.key()] = item.value();
  }
  return tensors;
}

// The state's names that begin with the prefix, without it.
Tensors Behind(const Tensors& state, const std::string& prefix) {
  if (prefix.empty()) return state;
  Tensors behind;
  for (const auto& [name, tensor] : state) {
    if (name.starts_with(prefix)) behind[name.substr(prefix.size())] = tensor;
  }
  std::vector<std::string> names;
  for (const auto& [name, tensor] : state) names.push_back(name);
  TORCH_CHECK(!behind.empty(), "load_state_dict: no name of the state begins with ", prefix, "; its names are ",
              NameList(names));
  return behind;
}

// Which tensor of the state goes into which of the module, by the module's names, and what is left over on both sides.
struct Match {
  Tensors found;
  StateNames apart;
};

Match MatchNames(const Tensors& targets, const Tensors& state) {
  Match match;
  std::map<std::string, std::string> unwrapped;  // the module's names, by those without wrappers
  for (const auto& [name, target] : targets) unwrapped.emplace(Unwrapped(name), name);
  // The exact name first, so that no other takes its place.
  std::vector<std::string> rest;
  for (const auto& [name, tensor] : state) {
    if (targets.contains(name)) {
      match.found[name] = tensor;
    } else {
      rest.push_back(name);
    }
  }
  for (const std::string& name : rest) {
    const std::string plain = Unwrapped(name);
    auto target = unwrapped.find(plain);
    if (target == unwrapped.end()) target = unwrapped.find(Without(plain, kDataParallel));
    if (target == unwrapped.end() || !match.found.emplace(target->second, state.at(name)).second) {
      match.apart.unexpected.push_back(name);
    }
  }
  std::set<const void*> loaded;
  for (const auto& [name, tensor] : match.found) loaded.insert(targets.at(name).unsafeGetTensorImpl());
  for (const auto& [name, target] : targets) {
    if (!loaded.contains(target.unsafeGetTensorImpl())) match.apart.missing.push_back(name);
  }
  return match;
}

// The part before `name` in the first of `names` that ends with it; empty for none.
std::string PrefixOf(const std::string& name, const std::vector<std::string>& names) {
  for (const std::string& longer : names) {
    if (longer.ends_with("." + name)) return longer.substr(0, longer.size() - name.size());
  }
  return "";
}

size_t CountWith(const std::string& prefix, const std::vector<std::string>& names,
                 const std::vector<std::string>& longer) {
  const std::set<std::string> known(longer.begin(), longer.end());
  return static_cast<size_t>(
      std::count_if(names.begin(), names.end(), [&](const auto& name) { return known.contains(prefix + name); }));
}

// Says what the names that differ have in common; empty for nothing.
std::string Advice(const StateNames& apart, const LoadStateOptions& options) {
  if (apart.missing.empty() || apart.unexpected.empty()) return "";
  const std::string before = PrefixOf(apart.missing.front(), apart.unexpected);
  if (!before.empty()) {
    return "; the state has " + std::to_string(CountWith(before, apart.missing, apart.unexpected)) + " of the " +
           std::to_string(apart.missing.size()) + " missing names behind \"" + before +
           "\": call load_state_dict with .prefix = \"" + options.prefix + before + "\"";
  }
  const std::string within = PrefixOf(apart.unexpected.front(), apart.missing);
  if (within.empty()) return "";
  return "; the module has " + std::to_string(CountWith(within, apart.unexpected, apart.missing)) + " of the " +
         std::to_string(apart.unexpected.size()) + " other names behind \"" + within + "\": load into that part of it";
}

// Types between which a copy keeps what a number says: 0 integers and truth values, 1 floating-point, 2 complex.
int KindOf(at::ScalarType type) { return at::isComplexType(type) ? 2 : at::isFloatingType(type) ? 1 : 0; }

// Why a tensor can't be copied into the module's; empty where it can.
std::string WhyNot(const at::Tensor& tensor, const at::Tensor& target) {
  std::ostringstream why;
  if (!tensor.defined() || tensor.layout() != at::kStrided || tensor.is_quantized()) {
    why << "is no dense tensor in the state";
  } else if (target.is_meta()) {
    why << "has no memory in the module yet; initialise it first";
  } else if (tensor.sizes() != target.sizes()) {
    why << "is of shape " << tensor.sizes() << " in the state and " << target.sizes() << " in the module";
  } else if (KindOf(tensor.scalar_type()) != KindOf(target.scalar_type())) {
    why << "is of type " << tensor.scalar_type() << " in the state and " << target.scalar_type() << " in the module";
  }
  return why.str();
}

// "up.weight is of shape [4] in the state and [5] in the module; ..."; empty where all can be copied.
std::string Unfit(const Tensors& found, const Tensors& targets) {
  constexpr size_t kMost = 20;
  std::vector<std::string> unfit;
  for (const auto& [name, tensor] : found) {
    const std::string why = WhyNot(tensor, targets.at(name));
    if (!why.empty()) unfit.push_back(name + " " + why);
  }
  std::string text;
  for (size_t i = 0; i < std::min(unfit.size(), kMost); ++i) text += (i > 0 ? "; " : "") + unfit[i];
  if (unfit.size() > kMost) text += "; and " + std::to_string(unfit.size() - kMost) + " others";
  return text;
}

}  // namespace

StateNames load_state_dict(torch::nn::Module& module, const Tensors& state, const LoadStateOptions& options) {
  const Tensors targets = TargetsOf(module);
  const auto [found, apart] = MatchNames(targets, Behind(state, options.prefix));
  const std::string unfit = Unfit(found, targets);
  std::string names;
  if (options.strict) names = NameDifference(apart.missing, apart.unexpected, "the module");
  if (!names.empty()) names += Advice(apart, options) + "; .strict = false loads in part";
  TORCH_CHECK(names.empty() && unfit.empty(), "load_state_dict: the state is of another module: ", names,
              !names.empty() && !unfit.empty() ? "; " : "", unfit);
  const at::NoGradGuard no_grad;
  for (const auto& [name, tensor] : found) at::Tensor(targets.at(name)).copy_(tensor);
  return apart;
}

}  // namespace cohort::trainer
