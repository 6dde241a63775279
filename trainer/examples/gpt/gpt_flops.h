// The floating-point operations of a training step, from the sizes of the model. A product of [a, b] and [b, c] takes
// 2 a b c. For B passages of s characters, l blocks of width h, whose hidden features are 4 h, and V characters, a
// forward pass takes
//
//   24 B s h^2   in each block, for its linear layers
//    4 B s^2 h   in each block, for attention; a causal mask saves none
//    2 B s h V   for the head
//
// and a backward pass twice that: the gradients of inputs and of weights. Recomputation of blocks takes another forward
// pass of them. It counts in the operations that the hardware does and not in those of the model, which MFU is about.
//
// Sources: Narayanan et al., "Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM" (SC
// 2021), whose 96 B s l h^2 (1 + s / 6h + V / 16lh) is the sum with recomputation. MFU: Chowdhery et al., "PaLM"
// (2022), appendix B.
#pragma once

#include <string>

#include "cohort/trainer/examples/gpt/gpt_options.h"

namespace cohort::examples {

struct StepFlops {
  double model = 0;
  double hardware = 0;  // with recomputation
};

// The operations of all ranks together. With --lora the base is frozen: its backward pass takes as many as its forward
// pass, and each of the `trainable` numbers of adapters takes 2 a character, three times.
StepFlops FlopsOf(const TrainGptOptions& options, int64_t trainable = 0);

// "1.23 GFLOP/s", and with --peak-flops the share of what `ranks` ranks could do: "1.23 GFLOP/s, MFU 12.30 %".
std::string FlopsText(const TrainGptOptions& options, const StepFlops& step, double steps_a_second, int ranks);

}  // namespace cohort::examples
