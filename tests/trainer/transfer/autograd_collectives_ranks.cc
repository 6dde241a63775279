// Collectives with a gradient against one process's autograd, which computes all ranks' parts and their losses.
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "cohort/trainer/base/error.h"
#include "cohort/trainer/transfer/autograd_collectives.h"
#include "cohort/trainer/transfer/communication_ledger.h"
#include "cohort/trainer/transfer/tensor_call.h"
#include "tests/trainer/ranks.h"

namespace cohort::trainer {
namespace {

using Tensors = std::vector<at::Tensor>;

at::Tensor Sample(std::vector<int64_t> sizes, int seed) {
  return torch::randn(sizes, at::detail::createCPUGenerator(seed), torch::kFloat64);
}

// The blocks of all ranks, also the empty ones.
Tensors Blocks(const at::Tensor& whole, int64_t dim) {
  return whole.split_with_sizes(ChunkSizes(whole.size(dim), world->size()), dim);
}

double LossWeight(int rank) { return 1.0 + rank; }
// A loss that no rank computes alike.
at::Tensor WeightedLoss(const at::Tensor& y, int rank) {
  return (y * y * Sample(y.sizes().vec(), 500 + rank)).sum() * LossWeight(rank);
}
// A loss of the same output on every rank, which all compute alike.
at::Tensor SharedLoss(const at::Tensor& y) { return (y * y * Sample(y.sizes().vec(), 400)).sum(); }

void ExpectRounded(const at::Tensor& actual, const at::Tensor& expected, const std::string& what) {
  ASSERT_TRUE(actual.defined()) << what;
  ASSERT_EQ(actual.sizes(), expected.sizes()) << what;
  EXPECT_TRUE(torch::allclose(actual, expected, 1e-10, 1e-12)) << what << "\n" << actual << "\nexpected\n" << expected;
}

TEST(AutogradCollectives, ChunksAreThoseOfTorch) {
  EXPECT_EQ(ChunkSizes(10, 4), (std::vector<int64_t>{3, 3, 3, 1}));
  EXPECT_EQ(ChunkSizes(5, 4), (std::vector<int64_t>{2, 2, 1, 0}));
  EXPECT_EQ(ChunkSizes(0, 3), (std::vector<int64_t>{0, 0, 0}));
}

TEST(AutogradCollectives, CopyAddsUpTheGradientsOfAllRanks) {
  const at::Tensor x = Sample({3, 4}, 1).requires_grad_(), plain = x.detach().clone().requires_grad_();
  const at::Tensor y = copy_to_region(x, *world);
  EXPECT_TRUE(torch::equal(y, x));
  WeightedLoss(y, world->rank()).backward();
  at::Tensor loss = torch::zeros({}, torch::kFloat64);
  for (int rank = 0; rank < world->size(); ++rank) loss = loss + WeightedLoss(plain, rank);
  loss.backward();
  ExpectRounded(x.grad(), plain.grad(), "gradient");
}

TEST(AutogradCollectives, ReduceAddsUpTheRanksAndHandsTheGradientOn) {
  const at::Tensor x = Sample({3, 4}, 10 + world->rank()).requires_grad_();
  const at::Tensor y = reduce_from_region(x, *world);
  Tensors plain;
  at::Tensor sum = torch::zeros({3, 4}, torch::kFloat64);
  for (int rank = 0; rank < world->size(); ++rank) {
    plain.push_back(Sample({3, 4}, 10 + rank).requires_grad_());
    sum = sum + plain.back();
  }
  ExpectRounded(y.detach(), sum.detach(), "output");
  SharedLoss(y).backward();
  SharedLoss(sum).backward();
  ExpectRounded(x.grad(), plain[world->rank()].grad(), "gradient");
}

// Sizes, and the dimension that is split.
const std::vector<std::pair<std::vector<int64_t>, int64_t>> kSplits = {
    {{12, 5}, 0}, {{7, 5}, 0}, {{3, 12, 2}, 1}, {{3, 5, 2}, -2}, {{4, 3, 13}, -1}, {{2, 1}, 0}};

TEST(AutogradCollectives, ScatterTakesTheOwnBlockAndGathersItsGradient) {
  for (const auto& [sizes, dim] : kSplits) {
    const std::string what = "dimension " + std::to_string(dim) + " of " + std::to_string(sizes[0]);
    const at::Tensor x = Sample(sizes, 2).requires_grad_(), plain = x.detach().clone().requires_grad_();
    const at::Tensor y = scatter_to_region(x, *world, dim);
    const Tensors blocks = Blocks(plain, dim);
    ExpectRounded(y.detach(), blocks[world->rank()].detach(), what);
    EXPECT_TRUE(y.is_contiguous());
    WeightedLoss(y, world->rank()).backward();
    at::Tensor loss = torch::zeros({}, torch::kFloat64);
    for (int rank = 0; rank < world->size(); ++rank) loss = loss + WeightedLoss(blocks[rank], rank);
    loss.backward();
    ExpectRounded(x.grad(), plain.grad(), what);
  }
}

TEST(AutogradCollectives, GatherTakesTheOwnBlockOfAGradientThatAllShare) {
  for (const auto& [sizes, dim] : kSplits) {
    const std::string what = "dimension " + std::to_string(dim) + " of " + std::to_string(sizes[0]);
    const at::Tensor whole = Sample(sizes, 3);
    const at::Tensor plain = whole.clone().requires_grad_();
    const at::Tensor x = Blocks(whole, dim)[world->rank()].clone().requires_grad_();
    const at::Tensor y = gather_from_region(x, *world, dim, whole.size(dim));
    ExpectRounded(y.detach(), whole, what);
    SharedLoss(y).backward();
    SharedLoss(plain).backward();
    ExpectRounded(x.grad(), Blocks(plain.grad(), dim)[world->rank()], what);
  }
}

TEST(AutogradCollectives, SequenceGatherAddsUpTheGradientsOfAllRanks) {
  for (const auto& [sizes, dim] : kSplits) {
    const std::string what = "dimension " + std::to_string(dim) + " of " + std::to_string(sizes[0]);
    const at::Tensor whole = Sample(sizes, 4);
    const at::Tensor plain = whole.clone().requires_grad_();
    const at::Tensor x = Blocks(whole, dim)[world->rank()].clone().requires_grad_();
    const at::Tensor y = gather_from_sequence_region(x, *world, dim, whole.size(dim));
    ExpectRounded(y.detach(), whole, what);
    WeightedLoss(y, world->rank()).backward();
    at::Tensor loss = torch::zeros({}, torch::kFloat64);
    for (int rank = 0; rank < world->size(); ++rank) loss = loss + WeightedLoss(plain, rank);
    loss.backward();
    ExpectRounded(x.grad(), Blocks(plain.grad(), dim)[world->rank()], what);
  }
}

TEST(AutogradCollectives, ReduceScatterAddsUpAndGathersItsGradient) {
  for (const auto& [sizes, dim] : kSplits) {
    const std::string what = "dimension " + std::to_string(dim) + " of " + std::to_string(sizes[0]);
    const at::Tensor x = Sample(sizes, 20 + world->rank()).requires_grad_();
    const at::Tensor y = reduce_scatter_to_sequence_region(x, *world, dim);
    Tensors plain;
    at::Tensor sum = torch::zeros(sizes, torch::kFloat64);
    for (int rank = 0; rank < world->size(); ++rank) {
      plain.push_back(Sample(sizes, 20 + rank).requires_grad_());
      sum = sum + plain.back();
    }
    const Tensors blocks = Blocks(sum, dim);
    ExpectRounded(y.detach(), blocks[world->rank()].detach(), what);
    WeightedLoss(y, world->rank()).backward();
    at::Tensor loss = torch::zeros({}, torch::kFloat64);
    for (int rank = 0; rank < world->size(); ++rank) loss = loss + WeightedLoss(blocks[rank], rank);
    loss.backward();
    ExpectRounded(x.grad(), plain[world->rank()].grad(), what);
  }
}

TEST(AutogradCollectives, AllToAllMovesTheSplitFromOneDimensionToAnother) {
  for (const auto& [sequence, heads] : std::vector<std::pair<int64_t, int64_t>>{{12, 12}, {7, 5}, {2, 3}}) {
    const std::string what = std::to_string(sequence) + " by " + std::to_string(heads);
    const at::Tensor whole = Sample({2, sequence, heads, 3}, 5);
    const at::Tensor plain = whole.clone().requires_grad_();
    const at::Tensor x = Blocks(whole, 1)[world->rank()].clone().requires_grad_();
    const at::Tensor y = all_to_all(x, *world, /*split_dim=*/2, /*concat_dim=*/1, sequence);
    const Tensors blocks = Blocks(plain, 2);
    ExpectRounded(y.detach(), blocks[world->rank()].detach(), what);
    WeightedLoss(y, world->rank()).backward();
    at::Tensor loss = torch::zeros({}, torch::kFloat64);
    for (int rank = 0; rank < world->size(); ++rank) loss = loss + WeightedLoss(blocks[rank], rank);
    loss.backward();
    ExpectRounded(x.grad(), Blocks(plain.grad(), 1)[world->rank()], what);
    ExpectRounded(all_to_all(y.detach(), *world, 1, 2, heads), Blocks(whole, 1)[world->rank()], "back: " + what);
  }
}

TEST(AutogradCollectives, CollectivesHaveGradientsOfGradients) {
  const at::Tensor whole = Sample({7, 2}, 6);
  const at::Tensor plain = whole.clone().requires_grad_();
  const at::Tensor x = Blocks(whole, 0)[world->rank()].clone().requires_grad_();
  const auto third_power = [](const at::Tensor& y) { return y.pow(3).sum(); };
  const at::Tensor y = third_power(gather_from_sequence_region(x, *world, 0, 7)) / world->size();
  const at::Tensor first = torch::autograd::grad({y}, {x}, {}, true, /*create_graph=*/true)[0];
  third_power(gather_from_sequence_region(first, *world, 0, 7)).div(world->size()).backward();
  const at::Tensor expected = torch::autograd::grad({third_power(plain)}, {plain}, {}, true, true)[0];
  third_power(expected).backward();
  ExpectRounded(x.grad(), Blocks(plain.grad(), 0)[world->rank()], "gradient of gradients");
}

TEST(AutogradCollectives, CollectivesStandInTheLedger) {
  const int ranks = world->size();
  const at::Tensor x = Sample({2, 3}, 7).requires_grad_();
  const CommunicationLedger ledger;
  gather_from_sequence_region(x, *world, 0).sum().backward();
  all_to_all(torch::ones({4, ranks}, torch::kFloat64), *world, 1, 0);
  if (ranks == 1) {
    EXPECT_TRUE(ledger.entries().empty());
    return;
  }
  auto entries = ledger.entries();
  const int64_t bytes = int64_t{8} * 2 * 3 * ranks;
  EXPECT_EQ((entries[{comm::CollectiveKind::kAllGather, ranks}].sent_by_group), (ranks - 1) * bytes);
  EXPECT_EQ((entries[{comm::CollectiveKind::kReduceScatter, ranks}].sent_by_group), (ranks - 1) * bytes);
  EXPECT_EQ((entries[{comm::CollectiveKind::kAllToAll, ranks}].sent_by_group), (ranks - 1) * int64_t{8} * 4 * ranks);
}

TEST(AutogradCollectives, TensorsThatDoNotFitAreRefused) {
  if (world->size() == 1) return;
  EXPECT_THROW(gather_from_region(torch::ones({3, 2}), *world, 0, 100), c10::Error);
  EXPECT_THROW(scatter_to_region(torch::ones({3, 2}), *world, 2), c10::Error);
  EXPECT_THROW(all_to_all(torch::ones({3, 2}), *world, 0, 0), c10::Error);
}

}  // namespace
}  // namespace cohort::trainer
