// Column and row parallel layers, embeddings and blocks against the same layers of one process.
#include <string>
#include <vector>

#include "cohort/trainer/autograd/activation_checkpoint.h"
#include "cohort/trainer/autograd/autocast.h"
#include "cohort/trainer/autograd/random_place.h"
#include "cohort/trainer/parallel/tensor/column_parallel_linear.h"
#include "cohort/trainer/parallel/tensor/parallel_transformer_block.h"
#include "cohort/trainer/parallel/tensor/row_parallel_linear.h"
#include "cohort/trainer/parallel/tensor/vocab_parallel_embedding.h"
#include "cohort/trainer/transfer/autograd_collectives.h"
#include "cohort/trainer/transfer/communication_ledger.h"
#include "tests/trainer/parallel/tensor/tensor_layers.h"

namespace cohort::trainer {
namespace {

using torch::nn::Linear;

// Column, activation, row: what Megatron makes of two linear layers.
struct Mlp : torch::nn::Module {
  Mlp(int64_t in, int64_t hidden, int64_t out, const TensorAxis& axis)
      : up(register_module("up", ColumnParallelLinear(ColumnParallelLinearOptions(in, hidden), axis))),
        down(register_module("down", RowParallelLinear(RowParallelLinearOptions(hidden, out), axis))) {
    const at::NoGradGuard no_grad;
    const auto draw = [](at::Tensor bias) { DrawPart(bias, *Placements().OrWhole(bias), InitRule::Uniform(-1, 1)); };
    draw(up->bias);  // zeros would hide that it is added too often
    draw(down->bias);
  }
  at::Tensor forward(const at::Tensor& x) { return down(torch::tanh(up(x))); }
  ColumnParallelLinear up;
  RowParallelLinear down;
};

at::Tensor LossOf(const at::Tensor& y, int seed = 77) { return (y * Random(y.sizes().vec(), seed)).pow(2).sum(); }

class TensorParallel : public testing::TestWithParam<std::tuple<bool, int>> {
 protected:
  bool sequence() const { return std::get<0>(GetParam()); }
  int chunks() const { return std::get<1>(GetParam()); }
  TensorAxis AxisOf(int64_t sequence_dim) const {
    return TensorAxis(*world, {.sequence_parallel = sequence(), .sequence_dim = sequence_dim, .chunks = chunks()});
  }
  // This rank's part of the sequence where it is cut, or all of it.
  at::Tensor Part(const at::Tensor& x, const TensorAxis& axis) const {
    return axis.sequence_parallel() ? scatter_to_region(x, *world, axis.options().sequence_dim) : x;
  }
  at::Tensor Whole(const at::Tensor& y, const TensorAxis& axis, int64_t length) const {
    return axis.sequence_parallel() ? gather_from_region(y, *world, axis.options().sequence_dim, length) : y;
  }
};

TEST_P(TensorParallel, AnMlpEqualsThatOfOneProcess) {
  // in, hidden, out, sequence, its dimension; hidden features and sequence that do not divide, and fewer than ranks
  const std::vector<std::vector<int64_t>> cases = {
      {4, 12, 3, 12, 0}, {4, 10, 3, 7, 1}, {5, 3, 4, 5, 0}, {3, 2, 2, 2, 1}};
  for (const auto& sizes : cases) {
    const TensorAxis axis = AxisOf(sizes[4]);
    const int64_t length = sizes[3];
    axis.set_sequence_length(length);
    const std::string what = "hidden " + std::to_string(sizes[1]) + ", sequence " + std::to_string(length);
    auto [cut, whole] = CutAndWhole(
        [&](const TensorAxis& on) { return std::make_shared<Mlp>(sizes[0], sizes[1], sizes[2], on); }, axis);
    const std::vector<int64_t> shape =
        sizes[4] == 0 ? std::vector<int64_t>{length, 3, sizes[0]} : std::vector<int64_t>{3, length, sizes[0]};
    const at::Tensor x = Random(shape, 1).requires_grad_(), plain = x.detach().clone().requires_grad_();
    const at::Tensor y = Whole(cut->forward(Part(x, axis)), axis, length);
    ExpectClose(y.detach(), whole->forward(plain).detach(), what);
    LossOf(y).backward();
    LossOf(whole->forward(plain)).backward();
    ExpectParts(*cut, *whole, what, 1e-4);
    ExpectClose(x.grad(), plain.grad(), what + ": gradient of the input", 1e-4);
  }
}

TEST_P(TensorParallel, ABlockEqualsThatOfOneProcess) {
  for (const auto& [heads, length] : std::vector<std::pair<int64_t, int64_t>>{{4, 8}, {3, 5}, {1, 4}}) {
    for (const int64_t sequence_dim : {0, 1}) {
      const TensorAxis axis = AxisOf(sequence_dim);
      axis.set_sequence_length(length);
      const std::string what = std::to_string(heads) + " heads, sequence " + std::to_string(length);
      auto [cut, whole] = CutAndWhole(
          [heads = heads](const TensorAxis& on) {
            return ParallelTransformerBlock(ParallelTransformerBlockOptions(heads * 4, heads).hidden(10), on);
          },
          axis);
      const bool first = axis.sequence_parallel() && sequence_dim == 0;
      const at::Tensor x = Random({2, length, heads * 4}, 2).requires_grad_();
      const at::Tensor plain = x.detach().clone().requires_grad_();
      const auto run = [&, &block = cut](const at::Tensor& in) {
        const at::Tensor y = Whole(block(Part(first ? in.transpose(0, 1) : in, axis)), axis, length);
        return first ? y.transpose(0, 1) : y;
      };
      const at::Tensor y = run(x);
      ExpectClose(y.detach(), whole(plain).detach(), what);
      LossOf(y).backward();
      LossOf(whole(plain)).backward();
      ExpectParts(*cut, *whole, what, 1e-4);
      ExpectClose(x.grad(), plain.grad(), what + ": gradient of the input", 1e-4);
    }
  }
}

TEST_P(TensorParallel, RecomputationRepeatsTheMasksOfOneProcess) {
  const TensorAxis axis = AxisOf(1);
  axis.set_sequence_length(7);
  auto [cut, whole] = CutAndWhole(
      [](const TensorAxis& on) {
        return ParallelTransformerBlock(
            ParallelTransformerBlockOptions(12, 3).dropout(0.3).attention_dropout(0.2).layer(5), on);
      },
      axis);
  const RandomPlaceGuard place({.seed = 3, .step = 11});
  const at::Tensor x = Random({2, 7, 12}, 3).requires_grad_(), plain = x.detach().clone().requires_grad_();
  const at::Tensor y =
      Whole(checkpoint([&, &block = cut](const at::Tensor& in) { return block(in); }, Part(x, axis)), axis, 7);
  const at::Tensor expected = whole(plain);
  ExpectClose(y.detach(), expected.detach(), "with dropout");
  set_random_place({.seed = 3, .step = 12});  // the next step has begun when backward computes again
  LossOf(y).backward();
  LossOf(expected).backward();
  ExpectParts(*cut, *whole, "with dropout", 1e-4);
  ExpectClose(x.grad(), plain.grad(), "with dropout: gradient of the input", 1e-4);
}

INSTANTIATE_TEST_SUITE_P(All, TensorParallel, testing::Combine(testing::Bool(), testing::Values(1, 3)));

// A model that is written for sequence parallelism computes the same on a mesh whose axis has one rank.
TEST(TensorParallelLayers, LayersKeepTheLayoutOfActivationsOnAnAxisOfOneRank) {
  const RandomPlaceGuard place({.seed = 3, .step = 11});
  for (const int64_t sequence_dim : {0, 1}) {
    const TensorAxisOptions options = {.sequence_parallel = true, .sequence_dim = sequence_dim};
    const TensorAxis one(Axis{.name = kTensorAxis}, options), all(*world, options);
    all.set_sequence_length(5);
    EXPECT_TRUE(one.sequence_parallel());
    EXPECT_EQ(one.batch_dim(), 1 - sequence_dim);
    const auto make = [](const TensorAxis& axis) {
      return ParallelTransformerBlock(
          ParallelTransformerBlockOptions(12, 3).dropout(0.3).attention_dropout(0.2).layer(5), axis);
    };
    auto [alone, whole] = CutAndWhole(make, one);
    auto cut = CutAndWhole(make, all).first;
    const at::Tensor x = Random({2, 5, 12}, 2), in = sequence_dim == 0 ? x.transpose(0, 1) : x;
    const at::Tensor expected = whole(x), y = alone(in);
    ExpectClose(y.detach(), (sequence_dim == 0 ? expected.transpose(0, 1) : expected).detach(), "one rank");
    const at::Tensor gathered =
        gather_from_region(cut(scatter_to_region(in, *world, sequence_dim)), *world, sequence_dim, 5);
    ExpectClose(y.detach(), gathered.detach(), "all ranks");
    EXPECT_TRUE(one.SharedParameter(x).is_same(x));
  }
}

TEST(TensorParallelLayers, AnEmbeddingEqualsThatOfOneProcess) {
  for (const int64_t vocabulary : {12, 7, 2}) {
    for (const bool sequence : {false, true}) {
      const std::string what = std::to_string(vocabulary) + " tokens";
      const TensorAxis axis(*world, {.sequence_parallel = sequence, .sequence_dim = 1});
      auto [cut, whole] = CutAndWhole(
          [&](const TensorAxis& on) {
            return VocabParallelEmbedding(VocabParallelEmbeddingOptions(vocabulary, 3).padding_idx(1), on);
          },
          axis);
      EXPECT_EQ(whole->weight[1].abs().sum().item<float>(), 0);
      const at::Tensor tokens = torch::randint(vocabulary, {4, 5}, at::detail::createCPUGenerator(4), torch::kInt64);
      at::Tensor y = cut(tokens);
      if (axis.sequence_parallel()) y = gather_from_region(y, *world, 1, 5);
      ExpectClose(y.detach(), torch::embedding(whole->weight, tokens, 1).detach(), what);
      LossOf(y).backward();
      LossOf(torch::embedding(whole->weight, tokens, 1)).backward();
      ExpectParts(*cut, *whole, what);
      EXPECT_THROW(cut(torch::tensor({vocabulary})), c10::Error);
    }
  }
}

TEST(TensorParallelLayers, GatheredOutputHasAGradient) {
  const TensorAxis axis(*world);
  auto [cut, whole] = CutAndWhole([](const TensorAxis& on) { return TensorParallelLinear(5, 7, on); }, axis);
  const at::Tensor x = Random({3, 5}, 5).requires_grad_(), plain = x.detach().clone().requires_grad_();
  const at::Tensor y = cut(x);
  ExpectClose(y.detach(), whole(plain).detach(), "output");
  LossOf(y).backward();
  LossOf(whole(plain)).backward();
  ExpectParts(*cut, *whole, "tutorial's layer");
  ExpectClose(x.grad(), plain.grad(), "gradient of the input", 1e-4);
}

TEST(TensorParallelLayers, RowTakesItsFeaturesOfAWholeInput) {
  const TensorAxis axis(*world);
  auto [cut, whole] = CutAndWhole(
      [](const TensorAxis& on) {
        return RowParallelLinear(RowParallelLinearOptions(7, 3).input_is_parallel(false), on);
      },
      axis);
  const at::Tensor x = Random({7}, 6).requires_grad_(), plain = x.detach().clone().requires_grad_();
  ExpectClose(cut(x).detach(), whole(plain).detach(), "a vector");
  LossOf(cut(x)).backward();
  LossOf(whole(plain)).backward();
  ExpectParts(*cut, *whole, "whole input");
  ExpectClose(x.grad(), plain.grad(), "gradient of the input", 1e-4);
}

TEST(TensorParallelLayers, LayersCastUnderAutocast) {
  const TensorAxis axis(*world, {.sequence_parallel = true});
  axis.set_sequence_length(6);
  auto [cut, whole] = CutAndWhole([](const TensorAxis& on) { return std::make_shared<Mlp>(4, 10, 3, on); }, axis);
  const at::Tensor x = Random({6, 2, 4}, 8);
  at::Tensor y, expected;
  {
    const Autocast autocast(at::kCPU);
    y = cut->forward(axis.sequence_parallel() ? scatter_to_region(x, *world, 0) : x);
    expected = whole->forward(x);
  }
  if (axis.sequence_parallel()) y = gather_from_region(y, *world, 0, 6);
  ExpectClose(y.detach().to(torch::kFloat), expected.detach().to(torch::kFloat), "bfloat16", 5e-2);
  LossOf(y.to(torch::kFloat)).backward();
  EXPECT_EQ(cut->up->weight.grad().scalar_type(), torch::kFloat);
}

TEST(TensorParallelLayers, ParametersStandInTheTable) {
  const TensorAxis axis(*world, {.sequence_parallel = true});
  const ParallelTransformerBlock block(ParallelTransformerBlockOptions(12, 3), axis);
  if (world->size() == 1) return;
  const auto parameters = block->named_parameters();
  EXPECT_EQ(Placements().Of(parameters["qkv.weight"])->use("tensor"), AxisUse::kSplit);
  EXPECT_EQ(Placements().Of(parameters["out.bias"])->use("tensor"), AxisUse::kPartial);
  EXPECT_EQ(Placements().Of(parameters["norm1.weight"])->use("tensor"), AxisUse::kPartial);
  EXPECT_EQ(Placements().Of(parameters["qkv.weight"])->sizes(), (std::vector<int64_t>{36, 12}));
}

TEST(TensorParallelLayers, InitialValuesAreThoseOfOneProcessByName) {
  const TensorAxis axis(*world);
  auto [cut, whole] = CutAndWhole(
      [](const TensorAxis& on) { return ParallelTransformerBlock(ParallelTransformerBlockOptions(12, 3), on); }, axis);
  init_parameters(*cut, 99, LikeTorch);
  init_parameters(*whole, 99, LikeTorch);
  ExpectParts(*cut, *whole, "by name", 0);
}

// Sequence parallelism moves as many bytes as plain tensor parallelism: 4 (n - 1) B forward and backward a block, where
// B is an activation. Backward gathers the input of column layers again.
TEST(TensorParallelLayers, TheLedgerHasTheFormulasBytes) {
  if (world->size() == 1) return;
  const int n = world->size();
  const int64_t batch = 2, length = 2 * n, width = 4 * n;
  const int64_t bytes = batch * length * width * 4;
  for (const bool sequence : {false, true}) {
    const TensorAxis axis(*world, {.sequence_parallel = sequence, .sequence_dim = 1});
    Mlp mlp(width, 4 * width, width, axis);
    const at::Tensor x = Random({batch, sequence ? 2 : length, width}, 9).requires_grad_();
    const CommunicationLedger ledger;
    mlp.forward(x).sum().backward();
    auto entries = ledger.entries();
    if (sequence) {
      const int64_t bias = width * 4;  // its gradient is partial
      EXPECT_EQ((entries[{comm::CollectiveKind::kAllGather, n}].sent_by_group), 3 * (n - 1) * bytes);
      EXPECT_EQ((entries[{comm::CollectiveKind::kReduceScatter, n}].sent_by_group), 2 * (n - 1) * bytes);
      EXPECT_EQ((entries[{comm::CollectiveKind::kAllReduce, n}].sent_by_group), 2 * (n - 1) * bias);
    } else {
      EXPECT_EQ(ledger.total().sent_by_group, 2 * 2 * (n - 1) * bytes);
    }
  }
}

TEST(TensorParallelLayers, LayersThatDoNotFitTheAxisAreRefused) {
  const TensorAxis axis(*world);
  EXPECT_THROW(TensorAxis(*world, {.chunks = 0}), c10::Error);
  EXPECT_THROW(ColumnParallelLinear(ColumnParallelLinearOptions(4, 6).unit(2).gather_output(true), axis), c10::Error);
  if (world->size() == 1) return;
  EXPECT_THROW(ColumnParallelLinear(ColumnParallelLinearOptions(4, 6).blocks({4, 4}), axis), std::exception);
  ColumnParallelLinear column(ColumnParallelLinearOptions(4, 6), axis);
  EXPECT_THROW(column(torch::ones({2, 3})), c10::Error);
  const TensorAxis sequence(*world, {.sequence_parallel = true});
  sequence.set_sequence_length(100);
  ColumnParallelLinear cut(ColumnParallelLinearOptions(4, 6), sequence);
  EXPECT_THROW(cut(torch::ones({2, 3, 4})), c10::Error);
}

}  // namespace
}  // namespace cohort::trainer
