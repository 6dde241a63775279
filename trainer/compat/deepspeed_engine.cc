#include "cohort/trainer/compat/deepspeed_engine.h"

#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "cohort/trainer/base/distinct_parameters.h"
#include "cohort/trainer/base/error.h"
#include "cohort/trainer/base/tensor_values.h"
#include "cohort/trainer/compat/deepspeed_schedule.h"
#include "cohort/trainer/state/grad_norm.h"
#include "cohort/trainer/state/master_weights.h"
#include "cohort/trainer/transfer/collectives.h"
#include "torch/torch.h"

namespace cohort::trainer {
namespace {

using torch::optim::Optimizer;

constexpr const char* kGlobalSteps = "deepspeed.global_steps";
constexpr const char* kSkippedSteps = "deepspeed.skipped_steps";
constexpr const char* kLossScale = "deepspeed.loss_scale";
constexpr const char* kHysteresis = "deepspeed.loss_scale.hysteresis";
constexpr const char* kScaleStep = "deepspeed.loss_scale.step";
constexpr const char* kLastOverflow = "deepspeed.loss_scale.last_overflow";

double NumberOf(const CheckpointValues& state, const std::string& key) {
  const auto entry = state.find(key);
  TORCH_CHECK(entry != state.end(), "DeepSpeedEngine: the saved state lacks ", key);
  char* end = nullptr;
  const double number = std::strtod(entry->second.c_str(), &end);
  TORCH_CHECK(!entry->second.empty() && *end == '\0' && std::isfinite(number), "DeepSpeedEngine: ", key, " is \"",
              entry->second, "\", which is no number");
  return number;
}

int64_t WholeOf(const CheckpointValues& state, const std::string& key) {
  const double number = NumberOf(state, key);
  TORCH_CHECK(number == std::floor(number) && std::abs(number) <= 1e15, "DeepSpeedEngine: ", key, " is ", number);
  return static_cast<int64_t>(number);
}

// DeepSpeed counts elements, of parameters and gradients.
int64_t BytesOf(int64_t elements, const DeepSpeedConfig& config) { return elements * (HasSmallType(config) ? 2 : 4); }

std::unique_ptr<Optimizer> MakeOptimizer(const torch::nn::Module& module, const DeepSpeedConfig& config,
                                         comm::Communicator& world) {
  const DeepSpeedConfig::Optimizer& chosen = config.optimizer;
  const std::tuple<double, double> betas(chosen.beta1, chosen.beta2);
  if (chosen.type == "SGD") {
    const auto options = torch::optim::SGDOptions(chosen.lr)
                             .momentum(chosen.momentum)
                             .dampening(chosen.dampening)
                             .nesterov(chosen.nesterov)
                             .weight_decay(chosen.weight_decay);
    return MakeDeepSpeedOptimizer<torch::optim::SGD>(module, options, config, world);
  }
  if (chosen.type == "AdamW" || chosen.adam_w_mode) {
    const auto options = torch::optim::AdamWOptions(chosen.lr)
                             .betas(betas)
                             .eps(chosen.eps)
                             .weight_decay(chosen.weight_decay)
                             .amsgrad(chosen.amsgrad);
    return MakeDeepSpeedOptimizer<torch::optim::AdamW>(module, options, config, world);
  }
  const auto options = torch::optim::AdamOptions(chosen.lr)
                           .betas(betas)
                           .eps(chosen.eps)
                           .weight_decay(chosen.weight_decay)
                           .amsgrad(chosen.amsgrad);
  return MakeDeepSpeedOptimizer<torch::optim::Adam>(module, options, config, world);
}

template <typename Options>
void SetBetas(torch::optim::OptimizerOptions& options, const std::pair<double, double>& betas) {
  auto* const adam = dynamic_cast<Options*>(&options);
  if (adam != nullptr) adam->betas(std::tuple(betas.first, betas.second));
}

// As Python's half() and bfloat16(): libtorch's Module::to takes integers and flags along.
void ConvertFloats(torch::nn::Module& module, at::ScalarType type) {
  const at::NoGradGuard no_grad;
  const auto convert = [type](at::Tensor tensor) {
    if (tensor.defined() && tensor.is_floating_point()) tensor.set_data(tensor.to(type));
  };
  for (const at::Tensor& parameter : module.parameters()) convert(parameter);
  for (const at::Tensor& buffer : module.buffers()) convert(buffer);
}

}  // namespace

bool HasSmallType(const DeepSpeedConfig& config) { return config.fp16.enabled || config.bf16_enabled; }

int64_t AllgatherBucketBytes(const DeepSpeedConfig& config) {
  return BytesOf(config.zero_optimization.allgather_bucket_size, config);
}

DeepSpeedEngineBase::DeepSpeedEngineBase(torch::nn::Module& module, DeepSpeedConfig config, comm::Communicator& world,
                                         const DeepSpeedOptimizer& optimizer)
    : config_(std::move(config)),
      module_(module),
      world_(world),
      own_rate_(optimizer != nullptr && config_.scheduler.type.empty()),
      loss_scale_(config_.fp16) {
  TORCH_CHECK(optimizer != nullptr || !config_.optimizer.type.empty(),
              "DeepSpeedEngine: the configuration names no optimizer; name one there: \"optimizer\": {\"type\": "
              "\"AdamW\", \"params\": {\"lr\": 1e-3}}, or give the engine the program's own: "
              "ClientOptimizer<torch::optim::RMSprop>(options)");
  if (config_.fp16.enabled) ConvertFloats(module_, torch::kHalf);
  if (config_.bf16_enabled) ConvertFloats(module_, torch::kBFloat16);
  optimizer_ = optimizer != nullptr ? optimizer(module_, config_, world_) : MakeOptimizer(module_, config_, world_);
  zero_ = dynamic_cast<ZeroRedundancyOptimizerBase*>(optimizer_.get());
  if (optimizer != nullptr && config_.scheduler.up_to_optimizer_lr) {
    config_.scheduler.warmup_max_lr = optimizer_->param_groups().front().options().get_lr();
  }
  SetSchedule();
  if (world_.rank() != 0) return;
  for (const std::string& key : config_.without_effect) {
    std::fprintf(stderr, "DeepSpeedEngine: %s has no effect\n", key.c_str());
  }
}

DistributedDataParallelOptions DeepSpeedEngineBase::DataParallelOptions() const {
  DistributedDataParallelOptions options;
  options.find_unused_parameters = config_.zero_optimization.ignore_unused_parameters;
  if (config_.zero_optimization.stage > 0) {
    const int64_t bytes = BytesOf(config_.zero_optimization.reduce_bucket_size, config_);
    options.buckets = {.first_bytes = bytes, .cap_bytes = bytes};
  }
  return options;
}

void DeepSpeedEngineBase::ChooseSync() { data_parallel_->set_sync(is_gradient_accumulation_boundary()); }

at::Tensor DeepSpeedEngineBase::CastInput(const at::Tensor& input) const {
  const bool casts = config_.bf16_enabled || (config_.fp16.enabled && config_.fp16.auto_cast);
  if (!casts || !input.defined() || !at::isFloatingType(input.scalar_type())) return input;
  return input.to(config_.bf16_enabled ? torch::kBFloat16 : torch::kHalf);
}

void DeepSpeedEngineBase::backward(const at::Tensor& loss) {
  if (is_gradient_accumulation_boundary()) last_loss_ = loss.item<double>();
  const double factor = loss_scale_.scale() / static_cast<double>(config_.gradient_accumulation_steps);
  try {
    (factor == 1 ? loss : loss.to(torch::kFloat32) * factor).backward();
  } catch (const c10::Error& error) {
    ExplainHalves(error);
    throw;
  }
}

// Whether a gradient was not finite, on any rank.
bool DeepSpeedEngineBase::Overflows() {
  const at::NoGradGuard no_grad;
  double found = 0;
  for (const at::Tensor& parameter : module_.parameters()) {
    const at::Tensor& gradient = parameter.grad();
    if (!gradient.defined() || gradient.numel() == 0) continue;
    if (!at::isfinite(ValuesOf(gradient)).all().item<bool>()) found = 1;
  }
  const comm::Buffer buffer(&found, 1);
  ThrowUnlessOk(AllReduce(world_, buffer, buffer, comm::ReduceOp::kMax).Wait(),
                "agreeing on whether gradients are finite");
  return found > 0;
}

// The factor that undoes the scale of the loss and clips, as DeepSpeed's unscale_and_clip_grads.
double DeepSpeedEngineBase::GradientFactor() {
  const double unscale = 1 / loss_scale_.scale();
  if (config_.gradient_clipping == 0) return unscale;
  const std::vector<at::Tensor> parameters = DistinctParameters(module_.parameters());
  std::vector<at::Tensor> own;
  for (size_t i = 0; i < parameters.size(); ++i) {
    const bool counts = zero_ == nullptr || zero_->owners()[i] == world_.rank();
    if (counts && parameters[i].grad().defined()) own.push_back(parameters[i].grad());
  }
  std::vector<comm::Communicator*> split;
  if (zero_ != nullptr) split.push_back(&world_);
  const double norm = ShardedNorm(own, 2, split).item<double>() * unscale;
  const double clip = config_.gradient_clipping / (norm + 1e-6);
  return clip >= 1 ? unscale : unscale * clip;
}

// Float32 copies take it: in the small types, what the scale has saved would be lost.
void DeepSpeedEngineBase::ScaleGradients(double factor) {
  if (MasterWeightsBase* masters = MasterWeightsOf(*optimizer_)) return masters->set_gradient_factor(factor);
  if (factor == 1) return;
  const at::NoGradGuard no_grad;
  for (const at::Tensor& parameter : DistinctParameters(module_.parameters())) {
    if (parameter.grad().defined()) parameter.mutable_grad().mul_(factor);
  }
}

double DeepSpeedEngineBase::get_lr() const {
  if (own_rate_) return optimizer_->param_groups().front().options().get_lr();
  return LearningRateAt(config_, global_steps_ - skipped_steps_);
}

void DeepSpeedEngineBase::ExplainHalves(const c10::Error& error) const {
  const std::string text = error.what_without_backtrace();
  if (!config_.fp16.enabled || text.find("not implemented for 'Half'") == std::string::npos) return;
  TORCH_CHECK(false,
              "DeepSpeedEngine: fp16 is enabled, and libtorch does not compute this in float16 on the CPU: ", text,
              "; enable bf16 instead (\"bf16\": {\"enabled\": true}), or put the module on a GPU");
}

void DeepSpeedEngineBase::SetSchedule() {
  if (own_rate_) return;
  const auto betas = BetasAt(config_, global_steps_ - skipped_steps_);
  for (auto& group : optimizer_->param_groups()) {
    group.options().set_lr(get_lr());
    if (!betas.has_value()) continue;
    SetBetas<torch::optim::AdamOptions>(group.options(), *betas);
    SetBetas<torch::optim::AdamWOptions>(group.options(), *betas);
  }
}

TrainingState DeepSpeedEngineBase::training_state() {
  return zero_ != nullptr ? StateOf(module_, *zero_, world_) : StateOf(module_, *optimizer_, world_);
}

CheckpointValues DeepSpeedEngineBase::state_dict() const {
  TORCH_CHECK(micro_steps_ % config_.gradient_accumulation_steps == 0, "DeepSpeedEngine: state_dict() after ",
              micro_steps_ % config_.gradient_accumulation_steps, " of ", config_.gradient_accumulation_steps,
              " micro batches, whose gradients would be lost; save after the last");
  CheckpointValues state = {{kGlobalSteps, std::to_string(global_steps_)},
                            {kSkippedSteps, std::to_string(skipped_steps_)}};
  if (!loss_scale_.dynamic()) return state;
  const DeepSpeedLossScale::State scale = loss_scale_.state();
  char text[64];
  std::snprintf(text, sizeof text, "%.17g", scale.scale);
  state[kLossScale] = text;
  state[kHysteresis] = std::to_string(scale.hysteresis);
  state[kScaleStep] = std::to_string(scale.step);
  state[kLastOverflow] = std::to_string(scale.last_overflow);
  return state;
}

void DeepSpeedEngineBase::load_state_dict(const CheckpointValues& state) {
  const auto global = WholeOf(state, kGlobalSteps), skipped = WholeOf(state, kSkippedSteps);
  TORCH_CHECK(skipped >= 0 && global >= skipped && global <= int64_t{1} << 50, "DeepSpeedEngine: the saved state says ",
              global, " steps, of which ", skipped, " were skipped");
  if (loss_scale_.dynamic()) {
    loss_scale_.set_state({.scale = NumberOf(state, kLossScale),
                           .hysteresis = WholeOf(state, kHysteresis),
                           .step = WholeOf(state, kScaleStep),
                           .last_overflow = WholeOf(state, kLastOverflow)});
  }
  global_steps_ = global;
  skipped_steps_ = skipped;
  micro_steps_ = global_steps_ * config_.gradient_accumulation_steps;
  ClearGradients();  // of a batch that was not whole
  SetSchedule();
}

void DeepSpeedEngineBase::ClearGradients() {
  for (at::Tensor parameter : module_.parameters()) parameter.mutable_grad() = at::Tensor();
}

void DeepSpeedEngineBase::step() {
  const bool boundary = is_gradient_accumulation_boundary();
  ++micro_steps_;
  if (!boundary) return;
  const bool checks = config_.fp16.enabled || (config_.bf16_enabled && config_.bf16_check_grad_overflow);
  const bool overflow = checks && Overflows();
  if (overflow) {
    ++skipped_steps_;
  } else {
    ScaleGradients(GradientFactor());
    optimizer_->step();
  }
  loss_scale_.Update(overflow);
  ClearGradients();
  ++global_steps_;
  SetSchedule();
  const bool prints = config_.steps_per_print > 0 && global_steps_ % config_.steps_per_print == 0;
  if (world_.rank() == 0 && prints) {
    std::printf("step %lld, loss %.4f, lr %.3g, skipped %lld\n", static_cast<long long>(global_steps_), last_loss_,
                get_lr(), static_cast<long long>(skipped_steps_));
    std::fflush(stdout);
  }
}

}  // namespace cohort::trainer
