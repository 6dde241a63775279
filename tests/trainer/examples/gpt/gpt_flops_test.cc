#include "cohort/trainer/examples/gpt/gpt_flops.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace cohort::examples {
namespace {

// One passage of 2 characters, vectors of 4, 3 characters to choose from.
TrainGptOptions Tiny() {
  TrainGptOptions options;
  options.batch_size = 1;
  options.model = {.vocabulary = 3, .context = 2, .layers = 1, .heads = 2, .width = 4};
  return options;
}

constexpr double Product(double rows, double inner, double columns) { return 2 * rows * inner * columns; }

// Queries, keys and values; out; up; down. Of each of 2 heads: scores, and the values' sum.
constexpr double kBlock = Product(2, 4, 12) + Product(2, 4, 4) + Product(2, 4, 16) + Product(2, 16, 4) +
                          2 * (Product(2, 2, 2) + Product(2, 2, 2));
constexpr double kHead = Product(2, 4, 3);

TEST(GptFlops, CountsEachProductOfASmallModel) {
  TrainGptOptions options = Tiny();
  EXPECT_EQ(FlopsOf(options).model, 3 * (kBlock + kHead));
  EXPECT_EQ(FlopsOf(options).hardware, 3 * (kBlock + kHead));
  options.checkpoint_activations = true;
  EXPECT_EQ(FlopsOf(options).model, 3 * (kBlock + kHead));
  EXPECT_EQ(FlopsOf(options).hardware, 4 * kBlock + 3 * kHead);
}

// 96 B s l h^2 (1 + s / 6h + V / 16lh), with recomputation.
TEST(GptFlops, FlopsAreThoseOfMegatronsFormula) {
  TrainGptOptions options;
  options.batch_size = 1536;
  options.model = {.vocabulary = 51200, .context = 2048, .layers = 96, .heads = 96, .width = 12288};
  options.checkpoint_activations = true;
  const double batch = 1536, s = 2048, l = 96, h = 12288, v = 51200;
  const double formula = 96 * batch * s * l * h * h * (1 + s / (6 * h) + v / (16 * l * h));
  EXPECT_NEAR(FlopsOf(options).hardware, formula, 1e-9 * formula);
}

// A frozen base has no gradients of weights: two passes in place of three. Attention has no weights.
TEST(GptFlops, LeavesOutGradientsOfAFrozenBase) {
  TrainGptOptions options = Tiny();
  options.lora = 1;
  const double attention = 4 * Product(2, 2, 2);
  EXPECT_EQ(FlopsOf(options, 10).model, 2 * (kBlock - attention + kHead) + 3 * attention + 3 * 2 * 2 * 10);
}

TEST(GptFlops, TextHasMfuWhereThePeakIsKnown) {
  TrainGptOptions options;
  const StepFlops step = {.model = 3e9, .hardware = 4e9};
  EXPECT_EQ(FlopsText(options, {.model = 3e9, .hardware = 3e9}, 2, 4), "6.00 GFLOP/s");
  options.peak_flops = 1e10;
  EXPECT_EQ(FlopsText(options, step, 2, 4), "6.00 GFLOP/s, 8.00 GFLOP/s with recomputation, MFU 15.00 %");
}

}  // namespace
}  // namespace cohort::examples
