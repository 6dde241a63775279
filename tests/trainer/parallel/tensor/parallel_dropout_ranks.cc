// Masks by the place of an element in the whole, and generators by region.
#include <random>

#include "cohort/trainer/autograd/activation_checkpoint.h"
#include "cohort/trainer/autograd/random_place.h"
#include "cohort/trainer/autograd/random_states.h"
#include "cohort/trainer/parallel/tensor/parallel_dropout.h"
#include "cohort/trainer/transfer/tensor_call.h"
#include "tests/trainer/parallel/tensor/tensor_layers.h"

namespace cohort::trainer {
namespace {

at::Tensor Masks(std::vector<int64_t> sizes, const ActivationPart& part, uint64_t layer = 1, double p = 0.4) {
  return DropoutFactors(sizes, p, layer, part, torch::kFloat);
}

TEST(ParallelDropout, DropsTheElementsOfOneProcessOnAnyMesh) {
  const RandomPlaceGuard place({.seed = 5, .step = 2});
  const at::Tensor whole = Masks({4, 7, 6}, {});
  const double kept = whole.ne(0).to(torch::kFloat).mean().item<double>();
  EXPECT_GT(kept, 0.45);
  EXPECT_LT(kept, 0.75);
  EXPECT_NEAR(whole.max().item<double>(), 1 / 0.6, 1e-6);
  int64_t begin = 0;
  for (const int64_t size : ChunkSizes(7, 3)) {  // a cut dimension
    EXPECT_TRUE(
        torch::equal(Masks({4, size, 6}, {.cut_dim = 1, .begin = begin, .whole = 7}), whole.narrow(1, begin, size)));
    begin += size;
  }
  for (int rank = 0; rank < 2; ++rank) {  // rows of the batch that take turns
    const RandomPlaceGuard rows({.seed = 5, .step = 2, .first_row = rank, .row_stride = 2});
    EXPECT_TRUE(torch::equal(Masks({2, 7, 6}, {}), whole.slice(0, rank, 4, 2)));
  }
  EXPECT_TRUE(torch::equal(Masks({7, 4, 6}, {.batch_dim = 1}), whole.transpose(0, 1)));  // the sequence in front
}

// The masks that a device makes, made here.
TEST(ParallelDropout, TensorsDrawTheSameMasks) {
  std::mt19937_64 random(7);
  for (int i = 0; i < 50; ++i) {
    const auto below = [&](uint64_t bound) { return static_cast<int64_t>(random() % bound); };
    const RandomPlaceGuard place({.seed = random(),
                                  .step = below(1 << 30),
                                  .micro_batch = below(5),
                                  .first_row = below(1 << 20),
                                  .row_stride = 1 + below(9)});
    const std::vector<int64_t> sizes = {below(5), 1 + below(7), below(9)};
    const int64_t begin = below(int64_t{1} << 33);
    const ActivationPart part = {
        .batch_dim = below(4) - 1, .cut_dim = below(4) - 1, .begin = begin, .whole = begin + 9};
    const double p = i == 0 ? 0 : i == 1 ? 1 : static_cast<double>(below(1000)) / 1000;
    const auto type = i % 2 == 0 ? torch::kFloat : torch::kBFloat16;
    const uint64_t layer = random();
    EXPECT_TRUE(
        torch::equal(DropoutFactors(sizes, p, layer, part, type), DropoutFactorsByTensors(sizes, p, layer, part, type)))
        << torch::IntArrayRef(sizes) << ", batch " << part.batch_dim << ", cut " << part.cut_dim << ", p " << p;
  }
}

TEST(ParallelDropout, DiffersByStepMicroBatchLayerAndSeed) {
  const auto masks = [](const RandomPlace& at, uint64_t layer) {
    const RandomPlaceGuard place(at);
    return Masks({64}, {}, layer);
  };
  const at::Tensor first = masks({.seed = 1, .step = 0}, 1);
  EXPECT_TRUE(torch::equal(first, masks({.seed = 1, .step = 0}, 1)));
  EXPECT_FALSE(torch::equal(first, masks({.seed = 2, .step = 0}, 1)));
  EXPECT_FALSE(torch::equal(first, masks({.seed = 1, .step = 1}, 1)));
  EXPECT_FALSE(torch::equal(first, masks({.seed = 1, .step = 0, .micro_batch = 1}, 1)));
  EXPECT_FALSE(torch::equal(first, masks({.seed = 1, .step = 0}, 2)));
}

TEST(ParallelDropout, DropsNothingInEvaluationAndEverythingAtOne) {
  const RandomPlaceGuard place({.step = 0});
  ParallelDropout dropout(ParallelDropoutOptions(1.0));
  EXPECT_EQ(dropout(torch::ones({8})).sum().item<float>(), 0);
  dropout->eval();
  EXPECT_EQ(dropout(torch::ones({8})).sum().item<float>(), 8);
  EXPECT_THROW(Masks({1}, {}, 1, 1.5), c10::Error);
}

// One mask for ever, silently, would be worse.
TEST(ParallelDropout, NeedsAPlaceInTraining) {
  const RandomPlaceGuard none({});
  ParallelDropout dropout(ParallelDropoutOptions(0.5));
  try {
    dropout(torch::ones({8}));
    ADD_FAILURE() << "drew without a place";
  } catch (const c10::Error& error) {
    EXPECT_THAT(error.what_without_backtrace(), testing::HasSubstr("call trainer::set_random_place({.seed"));
  }
  dropout->eval();
  EXPECT_EQ(dropout(torch::ones({8})).sum().item<float>(), 8);
  set_random_place({.seed = 1, .step = 4});
  dropout->train();
  dropout(torch::ones({8}));
}

TEST(RandomRegions, RandomRegionsDrawOtherNumbersOnEachRankAndLeaveOthersAlone) {
  model_parallel_manual_seed(1234, world->rank());
  const at::Tensor before = torch::rand({3});
  at::Tensor inside;
  {
    const RandomRegion region;
    inside = torch::rand({3});
    EXPECT_THROW(RandomRegion{}, c10::Error);
  }
  const at::Tensor after = torch::rand({3});
  torch::manual_seed(1234);
  EXPECT_TRUE(torch::equal(before, torch::rand({3})));
  EXPECT_TRUE(torch::equal(after, torch::rand({3})));  // the region has taken none of them
  torch::manual_seed(1234 + 2718 + world->rank());
  EXPECT_TRUE(torch::equal(inside, torch::rand({3})));
  const RandomRegion region;
  EXPECT_TRUE(torch::equal(torch::rand({3}), [] {
    at::Generator generator = at::detail::createCPUGenerator(1234 + 2718 + world->rank());
    torch::rand({3}, generator);
    return torch::rand({3}, generator);
  }()));
}

TEST(RandomRegions, ARecomputationRepeatsRandomRegions) {
  model_parallel_manual_seed(77, world->rank());
  const at::Tensor x = torch::ones({50}).requires_grad_();
  const auto drop = [](const at::Tensor& in) {
    const RandomRegion region;
    return torch::dropout(in, 0.5, true) * in;
  };
  const at::Tensor y = checkpoint(drop, x);
  {
    const RandomRegion region;
    torch::rand({10});  // the region goes on before backward
  }
  const auto states = RegionStates();
  y.sum().backward();
  EXPECT_TRUE(torch::equal(x.grad(), 2 * y.detach()));
  const RandomRegion region;  // and backward leaves it where it was
  const at::Tensor next = torch::rand({3});
  torch::manual_seed(77 + 2718 + world->rank());
  torch::dropout(torch::ones({50}), 0.5, true);
  torch::rand({10});
  EXPECT_TRUE(torch::equal(next, torch::rand({3})));
}

TEST(RandomRegions, UnknownRandomRegionsAreRefused) { EXPECT_THROW(RandomRegion("nowhere"), c10::Error); }

}  // namespace
}  // namespace cohort::trainer
