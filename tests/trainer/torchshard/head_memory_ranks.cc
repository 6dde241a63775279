// The memory of a cut head and its loss: a real step, counted, against the formula.
#include <memory>

#include "cohort/trainer/torchshard/distributed.h"
#include "cohort/trainer/torchshard/head_memory.h"
#include "cohort/trainer/torchshard/layers.h"
#include "tests/trainer/counted_memory.h"
#include "tests/trainer/ranks.h"

namespace cohort::trainer::torchshard {
namespace {

constexpr double kMiB = 1024.0 * 1024.0;

TEST(HeadMemory, AHeadOfAMillionClassesTakesLessThanHalfOfTorchShards) {
  const int64_t bytes = PredictHeadMemory({.classes = 1'000'000, .batch = 256, .ranks = 8});
  EXPECT_LE(bytes / kMiB, 3400);  // TorchShard's figures: 11,167 MiB less 4,141 at 1,000 classes
  EXPECT_NEAR(bytes / kMiB, 3175, 5);
}

// Two steps, because the first makes the momentum.
TEST(HeadMemory, TheMemoryOfAStepIsThatOfTheFormula) {
  torch::manual_seed(1);
  constexpr int64_t kClasses = 100'000, kFeatures = 64, kBatch = 256;
  distributed::init_process_group(*world);
  const int64_t batch = kBatch / world->size() * world->size();
  const at::Tensor x = torch::randn({batch, kFeatures}), target = torch::randint(kClasses, {batch}, torch::kInt64);
  const int64_t predicted =
      PredictHeadMemory({.features = kFeatures, .classes = kClasses, .batch = batch, .ranks = world->size()});
  {
    const CountedMemory memory;
    nn::ParallelLinear head(nn::ParallelLinearOptions(kFeatures, kClasses).dim(1));
    nn::ParallelCrossEntropyLoss loss(VocabParallelCrossEntropyOptions().num_classes(kClasses));
    torch::optim::SGD optimizer(head->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
    for (int step = 0; step < 2; ++step) {
      for (at::Tensor& parameter : head->parameters()) parameter.mutable_grad() = at::Tensor();
      const at::Tensor logits = head(x);
      loss(logits, target).backward();
      optimizer.step();
    }
    EXPECT_NEAR(static_cast<double>(memory.peak()) / predicted, 1, 0.05)
        << memory.peak() / kMiB << " MiB, predicted " << predicted / kMiB;
  }
  distributed::destroy_process_group();
}

}  // namespace
}  // namespace cohort::trainer::torchshard
