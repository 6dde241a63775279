// train_gpt begins with the weights of another run, and trains adapters in place of weights (trainer/adapter).
#pragma once

#include <memory>
#include <string>

#include "cohort/trainer/examples/gpt/gpt_model.h"
#include "cohort/trainer/examples/gpt/gpt_training.h"

namespace cohort::examples {

// Makes the model of the options, its blocks in what `wrap` returns. Adapters come before wrappers, and need the whole
// model on each rank for a moment. Collective, as is the next. Throws c10::Error, and UsageError for --lora-targets.
std::shared_ptr<Gpt> MakeGpt(Training& training, const Gpt::WrapBlock& wrap);
// Gives `whole`, which nothing wraps yet, the weights of --base and the adapters of --lora, and counts its parameters.
void Adapt(Training& training, Gpt& whole);

// "LoRA of rank 8: 24576 of 186369 parameters train (13.2 %)"; empty without --lora.
std::string AdapterText(const Training& training);
// Writes --export-adapter if it is given. Collective.
void ExportAdapter(Training& training);

}  // namespace cohort::examples
