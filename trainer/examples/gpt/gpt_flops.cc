#include "cohort/trainer/examples/gpt/gpt_flops.h"

#include <cstdio>

namespace cohort::examples {

StepFlops FlopsOf(const TrainGptOptions& options, int64_t trainable) {
  const GptOptions& model = options.model;
  const auto characters = static_cast<double>(options.batch_size * model.context);
  const auto width = static_cast<double>(model.width), layers = static_cast<double>(model.layers);
  const double linear = layers * 24 * characters * width * width;
  const double attention = layers * 4 * characters * static_cast<double>(model.context) * width;
  const double head = 2 * characters * width * static_cast<double>(model.vocabulary);
  const double adapters = options.lora > 0 ? 2 * characters * static_cast<double>(trainable) : 0;
  StepFlops flops;
  flops.model = (options.lora > 0 ? 2 : 3) * (linear + head) + 3 * (attention + adapters);
  flops.hardware = flops.model + (options.checkpoint_activations ? linear + attention + adapters : 0);
  return flops;
}

namespace {

std::string PerSecond(double flops) {
  constexpr const char* kUnits[] = {"FLOP/s", "kFLOP/s", "MFLOP/s", "GFLOP/s", "TFLOP/s", "PFLOP/s", "EFLOP/s"};
  size_t unit = 0;
  for (; flops >= 1000 && unit < 6; ++unit) flops /= 1000;
  char text[48];
  std::snprintf(text, sizeof text, "%.2f %s", flops, kUnits[unit]);
  return text;
}

}  // namespace

std::string FlopsText(const TrainGptOptions& options, const StepFlops& step, double steps_a_second, int ranks) {
  std::string text = PerSecond(step.model * steps_a_second);
  if (step.hardware > step.model) text += ", " + PerSecond(step.hardware * steps_a_second) + " with recomputation";
  if (options.peak_flops <= 0) return text;
  char share[32];
  std::snprintf(share, sizeof share, ", MFU %.2f %%", 100 * step.model * steps_a_second / options.peak_flops / ranks);
  return text + share;
}

}  // namespace cohort::examples
