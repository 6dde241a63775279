#include "cohort/trainer/state/grad_scaler.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include "cohort/trainer/base/distinct_parameters.h"
#include "cohort/trainer/base/error.h"
#include "cohort/trainer/base/tensor_values.h"
#include "cohort/trainer/placement/placement_table.h"
#include "cohort/trainer/state/grad_norm.h"
#include "cohort/trainer/state/master_weights.h"
#include "cohort/trainer/transfer/collectives.h"
#include "cohort/trainer/transfer/join.h"
#include "torch/torch.h"

namespace cohort::trainer {
namespace {

constexpr const char* kScale = "grad_scaler.scale";
constexpr const char* kTracker = "grad_scaler.growth_tracker";

// Multiplies the gradients of one device by `factor`; whether one of them was not finite. (The operation that torch has
// for this knows no CPU in 1.13.)
bool UnscaleOn(std::vector<at::Tensor>& gradients, double factor) {
  if (gradients.front().is_cuda()) {
    const auto options = at::TensorOptions(gradients.front().device()).dtype(at::kFloat);
    at::Tensor found = at::zeros({1}, options);
    std::vector<at::Tensor> values;
    for (const at::Tensor& gradient : gradients) values.push_back(ValuesOf(gradient));
    at::_amp_foreach_non_finite_check_and_unscale_(values, found, at::full({1}, factor, options));
    return found.item<float>() > 0;
  }
  bool found = false;
  for (at::Tensor& gradient : gradients) {
    found = found || !at::isfinite(ValuesOf(gradient)).all().item<bool>();
    if (factor != 1) gradient.mul_(factor);
  }
  return found;
}

// As in torch, where the scale is a float32 and the factors are doubles.
double Rounded(double scale) { return static_cast<double>(static_cast<float>(scale)); }

double NumberOf(const std::map<std::string, std::string>& state, const std::string& key) {
  const auto entry = state.find(key);
  TORCH_CHECK(entry != state.end(), "GradScaler: the saved state lacks ", key);
  char* end = nullptr;
  const double number = std::strtod(entry->second.c_str(), &end);
  TORCH_CHECK(!entry->second.empty() && *end == '\0' && std::isfinite(number), "GradScaler: ", key, " is \"",
              entry->second, "\", which is no number");
  return number;
}

}  // namespace

GradScaler::GradScaler(GradScalerOptions options, std::vector<comm::Communicator*> groups, DeviceMesh* mesh)
    : options_(options), groups_(std::move(groups)), mesh_(mesh), scale_(Rounded(options.init_scale)) {
  TORCH_CHECK(options.growth_factor > 1, "GradScaler: growth_factor must be greater than 1, got ",
              options.growth_factor);
  TORCH_CHECK(options.backoff_factor > 0 && options.backoff_factor < 1,
              "GradScaler: backoff_factor must lie between 0 and 1, got ", options.backoff_factor);
  TORCH_CHECK(scale_ > 0 && std::isfinite(scale_), "GradScaler: init_scale is ", options.init_scale,
              ", which is no positive float32");
  TORCH_CHECK(options.growth_interval > 0, "GradScaler: growth_interval is ", options.growth_interval);
}

at::Tensor GradScaler::scale(const at::Tensor& loss) const {
  return options_.enabled ? loss * at::scalar_tensor(scale_, loss.options().dtype(at::kFloat)) : loss;
}

void GradScaler::unscale_(torch::optim::Optimizer& optimizer) {
  if (!options_.enabled) return;
  const Stage stage = optimizers_[&optimizer].stage;
  TORCH_CHECK(stage == Stage::kReady, "GradScaler: unscale_() was called ",
              stage == Stage::kUnscaled ? "twice" : "after step()", " for an optimizer since the last update()");
  if (MasterWeightsOf(optimizer) != nullptr) WidenGradients(optimizer);
  Unscale(optimizer, Rounded(1 / scale_));
}

at::Tensor GradScaler::unscale_and_clip_(torch::optim::Optimizer& optimizer, double max_norm, double norm_type) {
  std::vector<at::Tensor> parameters;
  for (const auto& group : DistinctParameters(optimizer.param_groups())) {
    parameters.insert(parameters.end(), group.params().begin(), group.params().end());
  }
  if (!options_.enabled) return clip_grad_norm_(parameters, max_norm, norm_type);
  const Stage stage = optimizers_[&optimizer].stage;
  TORCH_CHECK(stage == Stage::kReady,
              "GradScaler: unscale_and_clip_() was called after unscale_() or step() for an "
              "optimizer since the last update()");
  if (MasterWeightsOf(optimizer) != nullptr) WidenGradients(optimizer);
  at::Tensor norm;
  Unscale(optimizer, Rounded(1 / scale_), [&](const ModelRanks& ranks, double* found) {
    norm = ShardedNorm(CountedGradients(parameters, ranks.at), norm_type, ranks.groups, found);
  });
  std::vector<at::Tensor> gradients;
  for (const at::Tensor& parameter : parameters) {
    if (parameter.grad().defined()) gradients.push_back(parameter.grad());
  }
  if (std::isfinite(norm.item<double>())) ClipByNorm(gradients, norm, max_norm);
  return norm;
}

ModelRanks GradScaler::RanksFor(torch::optim::Optimizer& optimizer) const {
  std::vector<at::Tensor> parameters;
  for (const auto& group : optimizer.param_groups()) {
    parameters.insert(parameters.end(), group.params().begin(), group.params().end());
  }
  ModelRanks ranks = RanksOfModel(parameters, mesh_, "GradScaler");
  // A group that another one holds has nothing to add to it.
  const auto holds = [](const comm::Communicator& outer, const comm::Communicator& inner) {
    const auto all = outer.members();
    const auto some = inner.members();
    return std::all_of(some.begin(), some.end(),
                       [&](int member) { return std::find(all.begin(), all.end(), member) != all.end(); });
  };
  std::vector<comm::Communicator*> groups = groups_;
  for (comm::Communicator* group : ranks.groups) {
    const auto holds_it = [&](const comm::Communicator* given) { return holds(*given, *group); };
    if (std::none_of(groups_.begin(), groups_.end(), holds_it)) groups.push_back(group);
  }
  ranks.groups = std::move(groups);
  return ranks;
}

void GradScaler::Unscale(torch::optim::Optimizer& optimizer, double factor, const Share& share) {
  const ModelRanks ranks = RanksFor(optimizer);
  const std::vector<comm::Communicator*>& groups = ranks.groups;
  TORCH_CHECK(groups.empty() || Join::Running() == nullptr,
              "GradScaler: over groups it can't be used under Join, because ranks without inputs don't answer it");
  const at::NoGradGuard no_grad;
  const bool takes_halves = !groups.empty() || MasterWeightsOf(optimizer) != nullptr;
  std::map<std::pair<std::string, int>, std::vector<at::Tensor>> by_kind;  // device, type
  for (const auto& group : DistinctParameters(optimizer.param_groups())) {
    for (const at::Tensor& parameter : group.params()) {
      const at::Tensor& gradient = parameter.grad();
      if (!gradient.defined() || gradient.numel() == 0) continue;
      TORCH_CHECK(
          takes_halves || gradient.scalar_type() != at::kHalf,
          "GradScaler: attempting to unscale float16 gradients, which would lose what the scale has saved; keep "
          "the parameters in float32 under Autocast, or step them by MasterWeights");
      by_kind[{gradient.device().str(), static_cast<int>(gradient.scalar_type())}].push_back(gradient);
    }
  }
  double found = 0;
  for (auto& [kind, gradients] : by_kind) found += UnscaleOn(gradients, factor) ? 1 : 0;
  if (share != nullptr) {
    share(ranks, &found);
  } else {
    for (comm::Communicator* group : groups) {
      const comm::Buffer buffer(&found, 1);
      ThrowUnlessOk(AllReduce(*group, buffer, buffer, comm::ReduceOp::kMax).Wait(),
                    "agreeing on whether gradients are finite");
    }
  }
  optimizers_[&optimizer] = {
      .stage = Stage::kUnscaled, .has_gradients = !by_kind.empty() || !groups.empty(), .found_infinity = found > 0};
}

bool GradScaler::step(torch::optim::Optimizer& optimizer) {
  if (!options_.enabled) {
    optimizer.step();
    return true;
  }
  TORCH_CHECK(optimizers_[&optimizer].stage != Stage::kStepped,
              "GradScaler: step() was called twice for an optimizer since the last update()");
  MasterWeightsBase* masters = MasterWeightsOf(optimizer);
  double rest = 1;  // of unscaling, for the copies
  if (optimizers_[&optimizer].stage == Stage::kReady && masters != nullptr) {
    rest = Rounded(1 / scale_);
    Unscale(optimizer, 1);
  } else if (optimizers_[&optimizer].stage == Stage::kReady) {
    unscale_(optimizer);
  }
  Seen& seen = optimizers_[&optimizer];
  TORCH_CHECK(seen.has_gradients,
              "GradScaler: step() for an optimizer none of whose parameters has a gradient; call backward() on "
              "scale(loss) before it");
  seen.stage = Stage::kStepped;
  if (masters != nullptr && !seen.found_infinity) masters->set_gradient_factor(rest);
  if (!seen.found_infinity) optimizer.step();
  if (masters != nullptr) NarrowGradients(optimizer);
  return !seen.found_infinity;
}

std::optional<bool> GradScaler::found_inf(const torch::optim::Optimizer& optimizer) const {
  const auto seen = optimizers_.find(&optimizer);
  if (seen == optimizers_.end() || seen->second.stage == Stage::kReady) return std::nullopt;
  return seen->second.found_infinity;
}

void GradScaler::update(std::optional<double> new_scale) {
  if (!options_.enabled) return;
  bool unscaled = false, found = false;
  for (const auto& [optimizer, seen] : optimizers_) {
    unscaled = unscaled || (seen.stage != Stage::kReady && seen.has_gradients);
    found = found || seen.found_infinity;
  }
  TORCH_CHECK(unscaled || new_scale.has_value(), "GradScaler: update() without a step() before it");
  if (new_scale.has_value()) {
    const double rounded = Rounded(*new_scale);
    TORCH_CHECK(rounded > 0 && std::isfinite(rounded), "GradScaler: a scale of ", *new_scale,
                ", which is no positive float32");
    scale_ = rounded;
  } else if (found) {
    scale_ = Rounded(scale_ * options_.backoff_factor);
    growth_tracker_ = 0;
  } else if (++growth_tracker_ == options_.growth_interval) {
    const double grown = Rounded(scale_ * options_.growth_factor);
    if (std::isfinite(grown)) scale_ = grown;
    growth_tracker_ = 0;
  }
  optimizers_.clear();
}

std::map<std::string, std::string> GradScaler::state_dict() const {
  if (!options_.enabled) return {};
  char scale[64];
  std::snprintf(scale, sizeof scale, "%.17g", scale_);
  return {{kScale, scale}, {kTracker, std::to_string(growth_tracker_)}};
}

void GradScaler::load_state_dict(const std::map<std::string, std::string>& state) {
  if (!options_.enabled) return;
  const double scale = NumberOf(state, kScale), tracker = NumberOf(state, kTracker);
  TORCH_CHECK(scale > 0 && tracker >= 0, "GradScaler: the saved state says a scale of ", scale, " for ", tracker,
              " steps");
  scale_ = Rounded(scale);
  growth_tracker_ = static_cast<int64_t>(tracker);
}

}  // namespace cohort::trainer
