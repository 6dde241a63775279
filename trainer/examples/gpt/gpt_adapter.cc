#include "cohort/trainer/examples/gpt/gpt_adapter.h"

#include <cstdio>

#include "cohort/trainer/adapter/lora_files.h"
#include "cohort/trainer/placement/placement_table.h"
#include "cohort/trainer/state/training_state.h"
#include "torch/torch.h"

namespace cohort::examples {
namespace {

// The weights of the newest checkpoint of another run, without its optimizer.
void LoadBase(Training& training, const Gpt& whole) {
  torch::optim::SGD none(whole.parameters(), 0.0);
  trainer::TrainingState state = trainer::StateOf(whole, none, *training.world);
  state.optimizer = state.groups = nullptr;
  state.states.assign(state.parameters.size(), std::nullopt);
  const auto loaded = trainer::LoadLatestTrainingState(*training.world, training.options.base, state);
  TORCH_CHECK(loaded.has_value(), "--base ", training.options.base, " has no checkpoint");
}

void CountParameters(Training& training, const Gpt& whole) {
  training.parameters = training.trainable = 0;
  for (const at::Tensor& parameter : whole.parameters()) {
    const int64_t elements = trainer::Placements().OrWhole(parameter)->numel();
    training.parameters += elements;
    if (parameter.requires_grad()) training.trainable += elements;
  }
}

}  // namespace

void Adapt(Training& training, Gpt& whole) {
  const TrainGptOptions& options = training.options;
  if (!options.base.empty()) LoadBase(training, whole);
  if (options.lora > 0) {
    AsUsage([&] {
      training.lora = std::make_unique<trainer::Lora>(
          whole, trainer::LoraConfig{
                     .r = options.lora,
                     .lora_alpha = options.lora_alpha > 0 ? options.lora_alpha : 2 * static_cast<double>(options.lora),
                     .target_modules = options.lora_targets,
                     .seed = options.seed});
    });
  }
  CountParameters(training, whole);
}

std::shared_ptr<Gpt> MakeGpt(Training& training, const Gpt::WrapBlock& wrap) {
  const TrainGptOptions& options = training.options;
  if (options.base.empty() && options.lora == 0) {  // each block is wrapped before the next one is made
    const auto gpt = std::make_shared<Gpt>(options.model, training.tensor, [&](const std::shared_ptr<GptBlock>& block) {
      MoveToDevice(training, *block);
      return wrap(block);
    });
    MoveToDevice(training, *gpt);
    return gpt;
  }
  Gpt whole(options.model, training.tensor,
            [](const std::shared_ptr<GptBlock>& block) { return std::make_pair(block, Gpt::Forward()); });
  Adapt(training, whole);
  MoveToDevice(training, whole);
  return std::make_shared<Gpt>(whole, GptPart{0, static_cast<int>(options.model.layers) + 2}, wrap);
}

std::string AdapterText(const Training& training) {
  if (training.lora == nullptr) return "";
  char text[160];
  std::snprintf(text, sizeof text, "LoRA of rank %lld: %lld of %lld parameters train (%.2f %%)",
                static_cast<long long>(training.options.lora), static_cast<long long>(training.trainable),
                static_cast<long long>(training.parameters),
                100 * static_cast<double>(training.trainable) / static_cast<double>(training.parameters));
  return text;
}

void ExportAdapter(Training& training) {
  if (training.options.export_adapter.empty()) return;
  trainer::save_pretrained(*training.lora, *training.world, training.options.export_adapter);
  if (training.prints()) std::printf("wrote the adapters to %s\n", training.options.export_adapter.c_str());
}

}  // namespace cohort::examples
