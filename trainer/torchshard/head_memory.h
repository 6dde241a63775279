// The memory that a cut head and its loss take on one rank, by formula. tests/trainer/torchshard measures a real step
// with a counting allocator and holds it to this within 5 %.
#pragma once

#include <cstdint>

namespace cohort::trainer::torchshard {

struct HeadMemoryFormula {
  int64_t features = 2048;
  int64_t classes = 0;  // of all ranks
  int64_t batch = 0;    // examples of the group together
  int ranks = 1;        // of the group
  int replicas = 1;     // groups that share the optimizer's state (ZeRO)
  bool autocast = false;
};

// Bytes at the peak of a step of SGD with momentum on float32 weights, whose gradients are let go before each forward
// pass (zero_grad with set_to_none). Weight, gradient and momentum are 4 bytes an element each. Beside them lie two
// buffers of the logits' size: the logits, which the caller holds, and the exponentials, which become the gradient.
// Under autocast logits have 2 bytes, the weight is copied in 2 bytes, and so is its gradient until it is cast back.
int64_t PredictHeadMemory(const HeadMemoryFormula& formula);

}  // namespace cohort::trainer::torchshard
