// The memory that a block keeps for its backward pass, counted, beside the formula.
#include "cohort/trainer/parallel/tensor/transformer_cost.h"
#include "cohort/trainer/transfer/tensor_call.h"
#include "tests/trainer/counted_memory.h"
#include "tests/trainer/parallel/tensor/tensor_layers.h"

namespace cohort::trainer {
namespace {

TEST(TransformerCost, ActivationsAreThoseOfTheFormula) {
  const RandomPlaceGuard place({.step = 0});
  constexpr int64_t kRows = 4, kLength = 48, kWidth = 64;
  for (const bool sequence_parallel : {false, true}) {
    for (const double dropout : {0.0, 0.1}) {
      const TensorAxis axis(*world, {.sequence_parallel = sequence_parallel, .sequence_dim = 1});
      const auto options = ParallelTransformerBlockOptions(kWidth, 4).dropout(dropout).attention_dropout(dropout);
      ParallelTransformerBlock block(options, axis);
      axis.set_sequence_length(kLength);
      const int64_t own = axis.sequence_parallel() ? ChunkSizes(kLength, axis.size())[axis.rank()] : kLength;
      const at::Tensor x = Random({kRows, own, kWidth}, 5).requires_grad_();
      const at::Tensor warm = block->forward(x);
      int64_t kept = static_cast<int64_t>(x.nbytes());
      {
        const CountedMemory memory;
        const at::Tensor y = block->forward(x);
        kept += memory.bytes() - static_cast<int64_t>(y.nbytes());
      }
      const auto formula = static_cast<double>(BlockActivationBytes(options, axis, {.rows = kRows, .length = kLength}));
      EXPECT_NEAR(static_cast<double>(kept) / formula, 1, 0.05)
          << "sequence parallel " << sequence_parallel << ", dropout " << dropout << ", rank " << world->rank();
    }
  }
}

}  // namespace
}  // namespace cohort::trainer
