// The vocabulary-parallel loss against torch's on whole logits, and what memory it takes.
#include <string>
#include <vector>

#include "cohort/trainer/parallel/tensor/vocab_parallel_cross_entropy.h"
#include "cohort/trainer/transfer/communication_ledger.h"
#include "cohort/trainer/transfer/tensor_call.h"
#include "tests/trainer/parallel/tensor/tensor_layers.h"

namespace cohort::trainer {
namespace {

using torch::nn::functional::cross_entropy;
using torch::nn::functional::CrossEntropyFuncOptions;

at::Tensor OwnClasses(const at::Tensor& logits) {
  return logits.split_with_sizes(ChunkSizes(logits.size(-1), world->size()), -1)[world->rank()];
}

CrossEntropyFuncOptions TorchOptions(const VocabParallelCrossEntropyOptions& options) {
  CrossEntropyFuncOptions torch_options;
  torch_options.weight(options.weight()).ignore_index(options.ignore_index());
  torch_options.label_smoothing(options.label_smoothing());
  if (options.reduction() == at::Reduction::None) torch_options.reduction(torch::kNone);
  if (options.reduction() == at::Reduction::Sum) torch_options.reduction(torch::kSum);
  return torch_options;
}

void ExpectLossOfTorch(int64_t classes, const VocabParallelCrossEntropyOptions& options, const std::string& what) {
  const TensorAxis axis(*world);
  const at::Tensor whole = Random({9, classes}, 20).mul_(4).requires_grad_();
  at::Tensor target = torch::randint(classes, {9}, at::detail::createCPUGenerator(21), torch::kInt64);
  target[2] = options.ignore_index();
  target[7] = options.ignore_index();
  const at::Tensor own = OwnClasses(whole.detach()).clone().requires_grad_();
  const at::Tensor loss = vocab_parallel_cross_entropy(own, target, axis, options);
  const at::Tensor expected = cross_entropy(whole, target, TorchOptions(options));
  ExpectClose(loss.detach(), expected.detach(), what);
  const at::Tensor upstream = Random(loss.sizes().vec(), 22);
  loss.backward(upstream);
  expected.backward(upstream);
  ExpectClose(own.grad(), OwnClasses(whole.grad()), what + ": gradient", 1e-5);
}

TEST(VocabParallelCrossEntropy, EqualsTorchsCrossEntropyWithEveryOption) {
  for (const int64_t classes : {12, 7, 2}) {
    for (const bool weighted : {false, true}) {
      for (const double smoothing : {0.0, 0.1, 1.0}) {
        for (const auto reduction : {at::Reduction::None, at::Reduction::Mean, at::Reduction::Sum}) {
          for (const int64_t ignore : {int64_t{-100}, int64_t{1}}) {
            VocabParallelCrossEntropyOptions options;
            options.num_classes(classes).label_smoothing(smoothing).reduction(reduction).ignore_index(ignore);
            if (weighted) options.weight(Random({classes}, 23).abs().add(0.1));
            ExpectLossOfTorch(classes, options,
                              std::to_string(classes) + " classes, " + (weighted ? "weighted" : "not weighted") +
                                  ", smoothing " + std::to_string(smoothing) + ", reduction " +
                                  std::to_string(reduction) + ", ignored " + std::to_string(ignore));
          }
        }
      }
    }
  }
}

TEST(VocabParallelCrossEntropy, SmoothsOverTheWholeVocabulary) {
  // By the local vocabulary (Megatron-LM#737) the loss would depend on the number of ranks.
  const TensorAxis axis(*world);
  const at::Tensor whole = Random({4, 12}, 24), target = torch::tensor({0, 3, 7, 11});
  VocabParallelCrossEntropyOptions options;
  options.num_classes(12).label_smoothing(0.2);
  ExpectClose(vocab_parallel_cross_entropy(OwnClasses(whole), target, axis, options),
              cross_entropy(whole, target, CrossEntropyFuncOptions().label_smoothing(0.2)), "smoothing");
}

TEST(VocabParallelCrossEntropy, SurvivesLargeLogitsAndManyDimensions) {
  const TensorAxis axis(*world);
  const at::Tensor whole = (Random({2, 3, 10}, 25) * 1e4).requires_grad_();
  const at::Tensor target = torch::randint(10, {2, 3}, at::detail::createCPUGenerator(26), torch::kInt64);
  const at::Tensor own = OwnClasses(whole.detach()).clone().requires_grad_();
  VocabParallelCrossEntropyOptions options;
  options.num_classes(10);
  const at::Tensor loss = vocab_parallel_cross_entropy(own, target, axis, options);
  const at::Tensor expected = cross_entropy(whole.flatten(0, 1), target.flatten());
  ExpectClose(loss.detach(), expected.detach(), "loss");
  loss.backward();
  expected.backward();
  ExpectClose(own.grad(), OwnClasses(whole.grad()), "gradient");
}

TEST(VocabParallelCrossEntropy, SumsSmallTypesInFloat) {
  const TensorAxis axis(*world);
  const at::Tensor whole = Random({5, 3000}, 27).to(torch::kBFloat16).requires_grad_();
  const at::Tensor target = torch::randint(3000, {5}, at::detail::createCPUGenerator(28), torch::kInt64);
  const at::Tensor own = OwnClasses(whole.detach()).clone().requires_grad_();
  VocabParallelCrossEntropyOptions options;
  options.num_classes(3000);
  const at::Tensor loss = vocab_parallel_cross_entropy(own, target, axis, options);
  EXPECT_EQ(loss.scalar_type(), torch::kFloat);
  const at::Tensor expected = cross_entropy(whole.to(torch::kFloat), target);
  ExpectClose(loss.detach(), expected.detach(), "loss");
  loss.backward();
  expected.backward();
  EXPECT_EQ(own.grad().scalar_type(), torch::kBFloat16);
  ExpectClose(own.grad().to(torch::kFloat), OwnClasses(whole.grad()).to(torch::kFloat), "gradient", 1e-2);
}

// Gradients of small types are those of float, rounded once: p - 1 is no zero while p is below 1.
TEST(VocabParallelCrossEntropy, RoundsGradientsOfSmallTypesOnce) {
  const TensorAxis axis(*world);
  constexpr int64_t kClasses = 41;
  for (const at::ScalarType type : {at::kBFloat16, at::kHalf}) {
    for (const double smoothing : {0.0, 0.1}) {
      for (const bool weighted : {false, true}) {
        at::Tensor logits = torch::zeros({8, kClasses});
        const at::Tensor target = torch::arange(8) * 5;
        for (int64_t row = 0; row < 8; ++row) logits[row][5 * row] = 2.0 * static_cast<double>(row);  // p to 0.99997
        logits = logits.to(type);
        VocabParallelCrossEntropyOptions options;
        options.num_classes(kClasses).label_smoothing(smoothing);
        if (weighted) options.weight(Random({kClasses}, 23).abs().add(0.1));
        const auto run = [&](at::ScalarType as) {
          const at::Tensor own = OwnClasses(logits).to(as, /*non_blocking=*/false, /*copy=*/true).requires_grad_();
          const at::Tensor loss = vocab_parallel_cross_entropy(own, target, axis, options);
          loss.backward();
          return std::make_pair(loss.detach(), own.grad());
        };
        const auto [loss, gradient] = run(type);
        const auto [exact_loss, exact] = run(at::kFloat);
        const std::string what = c10::str(type, ", smoothing ", smoothing, ", weighted ", weighted);
        ExpectClose(loss, exact_loss, what);
        EXPECT_EQ(gradient.scalar_type(), type);
        const double unit = type == at::kBFloat16 ? 0x1p-8 : 0x1p-11, least = type == at::kBFloat16 ? 1e-30 : 0x1p-24;
        const at::Tensor off = (gradient.to(at::kFloat) - exact).abs() - exact.abs() * unit * 1.01 - least;
        EXPECT_LE(off.numel() == 0 ? 0 : off.max().item<double>(), 0) << what << ", rank " << world->rank();
      }
    }
  }
}

TEST(VocabParallelCrossEntropy, SendsNothingOfTheLogitsSize) {
  const TensorAxis axis(*world);
  const at::Tensor own = Random({6, 1000}, 29).requires_grad_();
  VocabParallelCrossEntropyOptions options;
  options.label_smoothing(0.1);
  const CommunicationLedger ledger;
  vocab_parallel_cross_entropy(own, torch::zeros({6}, torch::kInt64), axis, options).backward();
  EXPECT_EQ(ledger.total().bytes, world->size() == 1 ? 0 : 4 * 6 * (1 + 3));
}

TEST(VocabParallelCrossEntropy, RefusesTargetsThatDoNotFit) {
  const TensorAxis axis(*world);
  const at::Tensor own = Random({2, 4}, 30).requires_grad_();
  EXPECT_THROW(vocab_parallel_cross_entropy(own, torch::zeros({3}, torch::kInt64), axis), c10::Error);
  EXPECT_THROW(vocab_parallel_cross_entropy(own, torch::full({2}, 1000), axis), c10::Error);
  VocabParallelCrossEntropyOptions options;
  options.num_classes(1000);
  EXPECT_THROW(vocab_parallel_cross_entropy(own, torch::zeros({2}, torch::kInt64), axis, options), c10::Error);
  const at::Tensor loss = vocab_parallel_cross_entropy(own, torch::zeros({2}, torch::kInt64), axis);
  loss.backward({}, /*keep_graph=*/true);
  EXPECT_THROW(loss.backward(), c10::Error);
}

}  // namespace
}  // namespace cohort::trainer
