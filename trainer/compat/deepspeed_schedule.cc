#include "cohort/trainer/compat/deepspeed_schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace cohort::trainer {
namespace {

using Scheduler = DeepSpeedConfig::Scheduler;

constexpr double kCycleBeta2 = 0.99;

// How far OneCycle is from its smallest rate to its largest before step `step`.
double CycleShare(const Scheduler& scheduler, int64_t step) {
  const auto first = static_cast<double>(scheduler.cycle_first_step_size);
  const auto second = static_cast<double>(scheduler.cycle_second_step_size);
  const double total = first + second, turn = first / total;
  const double at = static_cast<double>(step) / total, x = 1 + at - std::floor(1 + at);
  const bool rises = x <= turn;
  const double share = rises ? x / turn : (x - 1) / (turn - 1);
  const int64_t stairs = rises ? scheduler.cycle_first_stair_count : scheduler.cycle_second_stair_count;
  if (stairs <= 0) return share;
  // From whole steps: at the turn the share may lie just below a stair.
  const double in_cycle = std::fmod(static_cast<double>(step), total);
  const double stair = in_cycle <= first ? in_cycle * static_cast<double>(stairs) / first
                                         : (total - in_cycle) * static_cast<double>(stairs) / second;
  return std::floor(stair) / static_cast<double>(stairs);
}

// The steps behind the cycle, in intervals of its decay; none within the cycle.
std::optional<double> CycleDecay(const Scheduler& scheduler, int64_t step) {
  const int64_t behind = step - scheduler.cycle_first_step_size - scheduler.cycle_second_step_size;
  if (behind <= 0) return std::nullopt;
  if (scheduler.decay_step_size == 0) return 0;
  return static_cast<double>(behind) / static_cast<double>(scheduler.decay_step_size);
}

double CycleRate(const Scheduler& scheduler, int64_t step) {
  const double least = scheduler.cycle_min_lr;
  if (const auto decay = CycleDecay(scheduler, step)) return least / (1 + scheduler.decay_lr_rate * *decay);
  return least + (scheduler.cycle_max_lr - least) * CycleShare(scheduler, step);
}

double RangeTestRate(const Scheduler& scheduler, int64_t step) {
  double interval = static_cast<double>(step) / static_cast<double>(scheduler.lr_range_test_step_size);
  if (scheduler.lr_range_test_staircase) interval = std::floor(interval);
  return scheduler.lr_range_test_min_lr * (1 + scheduler.lr_range_test_step_rate * interval);
}

double WarmupRate(const Scheduler& scheduler, int64_t step) {
  const bool cosine = scheduler.type == "WarmupCosineLR";
  if (step == 0) return cosine ? 0 : scheduler.warmup_min_lr;
  const auto at = static_cast<double>(step - 1);
  const auto warmup = static_cast<double>(std::max<int64_t>(scheduler.warmup_num_steps, 2));
  const auto decay = std::max(1.0, static_cast<double>(scheduler.total_num_steps) - warmup);
  double share = 1;  // of the way from the smallest rate to the largest
  double least = cosine ? scheduler.warmup_min_ratio * scheduler.warmup_max_lr : scheduler.warmup_min_lr;
  if (at < warmup) {
    share = scheduler.warmup_type == "log" ? std::log(at + 1) / std::log(warmup) : at / warmup;
  } else if (cosine) {
    share = (1 + std::cos(std::numbers::pi * std::min(1.0, (at - warmup + 1) / decay))) / 2;
    least = scheduler.cos_min_ratio * scheduler.warmup_max_lr;
  } else if (scheduler.type == "WarmupDecayLR") {
    share = std::max(0.0, (static_cast<double>(scheduler.total_num_steps) - at) / decay);
  }
  return least + (scheduler.warmup_max_lr - least) * share;
}

}  // namespace

double LearningRateAt(const DeepSpeedConfig& config, int64_t step) {
  const Scheduler& scheduler = config.scheduler;
  if (scheduler.type.empty()) return config.optimizer.lr;
  if (scheduler.type == "OneCycle") return CycleRate(scheduler, step);
  if (scheduler.type == "LRRangeTest") return RangeTestRate(scheduler, step);
  return WarmupRate(scheduler, step);
}

std::optional<std::pair<double, double>> BetasAt(const DeepSpeedConfig& config, int64_t step) {
  const Scheduler& scheduler = config.scheduler;
  if (scheduler.type != "OneCycle" || !scheduler.cycle_momentum) return std::nullopt;
  const double most = scheduler.cycle_max_mom;
  double first = 0;
  if (const auto decay = CycleDecay(scheduler, step)) {
    first = most * (1 + scheduler.decay_mom_rate * *decay);
  } else {
    first = step == 0 ? scheduler.cycle_min_mom : most - (most - scheduler.cycle_min_mom) * CycleShare(scheduler, step);
  }
  return std::pair(first, kCycleBeta2);
}

}  // namespace cohort::trainer
