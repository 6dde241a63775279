#include "trainer/grad_scaler.h"

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include "torch/torch.h"
#include "trainer/collectives.h"
#include "trainer/error.h"
#include "trainer/join.h"

namespace cohort::trainer {
namespace {

constexpr const char* kScale = "grad_scaler.scale";
constexpr const char* kTracker = "grad_scaler.growth_tracker";

// Multiplies the gradients of one device by `factor`; whether one of them was not finite. (The operation that torch has
// for this knows no CPU in 1.13.)
bool UnscaleOn(std::vector<at::Tensor>& gradients, double factor) {
  if (gradients.front().is_cuda()) {
    const auto options = gradients.front().options().dtype(at::kFloat);
    at::Tensor found = at::zeros({1}, options);
    at::_amp_foreach_non_finite_check_and_unscale_(gradients, found, at::full({1}, factor, options));
    return found.item<float>() > 0;
  }
  bool found = false;
  for (at::Tensor& gradient : gradients) {
    found = found || !at::isfinite(gradient).all().item<bool>();
    gradient.mul_(factor);
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

GradScaler::GradScaler(GradScalerOptions options, std::vector<comm::Communicator*> groups)
    : options_(options), groups_(std::move(groups)), scale_(Rounded(options.init_scale)) {
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
  Seen& seen = optimizers_[&optimizer];
  TORCH_CHECK(seen.stage == Stage::kReady, "GradScaler: unscale_() was called ",
              seen.stage == Stage::kUnscaled ? "twice" : "after step()", " for an optimizer since the last update()");
  TORCH_CHECK(groups_.empty() || Join::Running() == nullptr,
              "GradScaler: over groups it can't be used under Join, because ranks without inputs don't answer it");
  const at::NoGradGuard no_grad;
  std::map<std::pair<std::string, int>, std::vector<at::Tensor>> by_kind;  // device, type
  for (const auto& group : optimizer.param_groups()) {
    for (const at::Tensor& parameter : group.params()) {
      const at::Tensor& gradient = parameter.grad();
      if (!gradient.defined() || gradient.numel() == 0) continue;
      by_kind[{gradient.device().str(), static_cast<int>(gradient.scalar_type())}].push_back(gradient);
    }
  }
  seen.has_gradients = !by_kind.empty();
  double found = 0;
  for (auto& [kind, gradients] : by_kind) found += UnscaleOn(gradients, Rounded(1 / scale_)) ? 1 : 0;
  for (comm::Communicator* group : groups_) {
    const comm::Buffer buffer(&found, 1);
    ThrowUnlessOk(AllReduce(*group, buffer, buffer, comm::ReduceOp::kMax).Wait(),
                  "agreeing on whether gradients are finite");
  }
  seen.found_infinity = found > 0;
  seen.stage = Stage::kUnscaled;
}

bool GradScaler::step(torch::optim::Optimizer& optimizer) {
  if (!options_.enabled) {
    optimizer.step();
    return true;
  }
  TORCH_CHECK(optimizers_[&optimizer].stage != Stage::kStepped,
              "GradScaler: step() was called twice for an optimizer since the last update()");
  if (optimizers_[&optimizer].stage == Stage::kReady) unscale_(optimizer);
  Seen& seen = optimizers_[&optimizer];
  TORCH_CHECK(seen.has_gradients || !groups_.empty(),
              "GradScaler: step() for an optimizer none of whose parameters has a gradient; call backward() on "
              "scale(loss) before it");
  seen.stage = Stage::kStepped;
  if (!seen.found_infinity) optimizer.step();
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
    unscaled = unscaled || (seen.stage != Stage::kReady && (seen.has_gradients || !groups_.empty()));
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
