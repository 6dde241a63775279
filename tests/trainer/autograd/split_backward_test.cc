#include "cohort/trainer/autograd/split_backward.h"

#include <functional>
#include <memory>
#include <vector>

#include "cohort/trainer/autograd/activation_checkpoint.h"
#include "gtest/gtest.h"
#include "torch/csrc/autograd/variable.h"
#include "torch/torch.h"

namespace cohort::trainer {
namespace {

using torch::autograd::impl::gradient_edge;
using Function = std::function<at::Tensor(const at::Tensor& x)>;

struct Found {
  at::Tensor input;
  std::vector<at::Tensor> weights;
  std::vector<at::Tensor> after_input;  // weights' gradients between the two parts
};

std::vector<at::Tensor> TakeGradients(const std::vector<at::Tensor>& weights) {
  std::vector<at::Tensor> gradients;
  for (const at::Tensor& weight : weights) {
    gradients.push_back(weight.grad().defined() ? weight.grad().clone() : at::Tensor());
  }
  return gradients;
}

// Gradients begin with something, so that a different order of sums would show.
void Begin(const std::vector<at::Tensor>& weights) {
  for (at::Tensor weight : weights) weight.mutable_grad() = torch::full_like(weight, 0.3);
}

Found Whole(const Function& f, const std::vector<at::Tensor>& weights, const at::Tensor& x,
            const at::Tensor& gradient) {
  Begin(weights);
  const at::Tensor leaf = x.detach().requires_grad_();
  f(leaf).backward(gradient);
  return {leaf.grad(), TakeGradients(weights), {}};
}

Found InParts(const Function& f, const std::vector<at::Tensor>& weights, const at::Tensor& x,
              const at::Tensor& gradient) {
  Begin(weights);
  const at::Tensor leaf = x.detach().requires_grad_();
  SplitBackward split;
  Found found;
  found.input = split.InputGradients({gradient_edge(f(leaf))}, {gradient}, {leaf})[0];
  found.after_input = TakeGradients(weights);
  split.WeightGradients();
  found.weights = TakeGradients(weights);
  EXPECT_FALSE(leaf.grad().defined());
  return found;
}

void ExpectSameBits(const Function& f, const std::vector<at::Tensor>& weights, const at::Tensor& x) {
  at::Tensor gradient;
  {
    const at::NoGradGuard no_grad;
    gradient = torch::randn_like(f(x));
  }
  const Found whole = Whole(f, weights, x, gradient), parts = InParts(f, weights, x, gradient);
  ASSERT_TRUE(parts.input.defined());
  EXPECT_TRUE(torch::equal(whole.input, parts.input));
  for (size_t i = 0; i < weights.size(); ++i) {
    EXPECT_TRUE(torch::equal(whole.weights[i], parts.weights[i])) << i;
    EXPECT_TRUE(torch::equal(parts.after_input[i], torch::full_like(weights[i], 0.3))) << i << " changed in part I";
  }
}

at::Tensor Weight(at::IntArrayRef sizes) { return torch::randn(sizes).requires_grad_(); }

TEST(SplitBackward, BlocksHaveTheBitsOfTheWholePass) {
  torch::manual_seed(1);
  torch::nn::Sequential blocks;
  std::vector<std::tuple<torch::nn::LayerNorm, torch::nn::Linear, torch::nn::Linear>> layers;
  std::vector<at::Tensor> weights;
  for (int i = 0; i < 4; ++i) {
    layers.emplace_back(torch::nn::LayerNorm(torch::nn::LayerNormOptions({8})), torch::nn::Linear(8, 16),
                        torch::nn::Linear(16, 8));
    for (const auto& module : {std::get<0>(layers.back())->parameters(), std::get<1>(layers.back())->parameters(),
                               std::get<2>(layers.back())->parameters()}) {
      weights.insert(weights.end(), module.begin(), module.end());
    }
  }
  const Function f = [&](const at::Tensor& x) {
    at::Tensor y = x;
    for (auto& [norm, up, down] : layers) y = y + down(torch::gelu(up(norm(y))));
    return y;
  };
  ExpectSameBits(f, weights, torch::randn({5, 3, 8}));
}

TEST(SplitBackward, ConvolutionsHaveTheBitsOfTheWholePass) {
  torch::manual_seed(2);
  torch::nn::Conv2d conv(torch::nn::Conv2dOptions(3, 4, 3).padding(1)), second(torch::nn::Conv2dOptions(4, 2, 3));
  torch::nn::BatchNorm2d norm(4);
  std::vector<at::Tensor> weights = conv->parameters();
  for (const auto& more : {norm->parameters(), second->parameters()})
    weights.insert(weights.end(), more.begin(), more.end());
  ExpectSameBits([&](const at::Tensor& x) { return second(torch::relu(norm(conv(x)))); }, weights,
                 torch::randn({2, 3, 6, 6}));
}

// pytorch#180952: the weight's gradient was counted twice.
TEST(SplitBackward, AWeightThatIsUsedSeveralTimesCountsOnceForEachUse) {
  torch::manual_seed(3);
  const at::Tensor w = Weight({4, 4}), v = Weight({4, 4});
  ExpectSameBits([&](const at::Tensor& x) { return x.mm(w).mm(w); }, {w}, torch::randn({3, 4}));
  ExpectSameBits([&](const at::Tensor& x) { return x.mm(w).tanh().mm(v).mm(w.t()).mm(w); }, {w, v},
                 torch::randn({3, 4}));
  // Through one node off the path.
  ExpectSameBits(
      [&](const at::Tensor& x) {
        const at::Tensor scaled = w * v;
        return x.mm(scaled).sigmoid().mm(scaled) + scaled.sum();
      },
      {w, v}, torch::randn({3, 4}));
}

TEST(SplitBackward, ViewsSplitsAndConcatenationsOfThePathAreFollowed) {
  torch::manual_seed(4);
  const at::Tensor w = Weight({4, 4}), bias = Weight({8});
  ExpectSameBits(
      [&](const at::Tensor& x) {
        const auto parts = x.chunk(2, 1);
        return torch::cat({parts[0].mm(w), parts[1]}, 1) * parts[0].sum() + bias;
      },
      {w, bias}, torch::randn({3, 8}));
}

TEST(SplitBackward, CheckpointedBlocksHaveTheBitsOfTheWholePass) {
  torch::manual_seed(5);
  const at::Tensor w = Weight({4, 6}), v = Weight({6, 4}), u = Weight({4, 4}), p = Weight({3, 4});
  const auto block = [&](const at::Tensor& x, const at::Tensor& extra) {
    return torch::dropout(torch::tanh(x.mm(w)).mm(v), 0.5, true) + extra;
  };
  int calls = 0;
  const Function f = [&](const at::Tensor& x) {
    const at::Tensor extra = p * 2;  // off the path, into the checkpoint
    const auto counted = [&](const at::Tensor& a, const at::Tensor& b) {
      ++calls;
      return block(a, b);
    };
    at::manual_seed(77);
    at::Tensor y = checkpoint(counted, x.mm(u), extra);
    return checkpoint(counted, y, extra).mm(u);
  };
  // u is used before and after; the blocks' weights twice.
  ExpectSameBits(f, {w, v, u, p}, torch::randn({3, 4}));
  EXPECT_EQ(calls, 2 + 4 + 4);  // shape; whole: twice, once again each; parts: the same
}

// A weight's gradients from inside and outside come in the order of backward(), whichever is used first.
TEST(SplitBackward, AWeightInsideAndOutsideOfACheckpointHasTheBitsOfTheWholePass) {
  torch::manual_seed(6);
  const at::Tensor w = Weight({4, 4}), v = Weight({4, 4});
  const auto inside = [&](const at::Tensor& a) { return a.mm(w).tanh().mm(v); };
  const auto given = [&](const at::Tensor& a, const at::Tensor& b) { return a.mm(b).tanh().mm(w); };
  const at::Tensor x = torch::randn({3, 4});
  ExpectSameBits([&](const at::Tensor& a) { return checkpoint(inside, a).mm(w); }, {w, v}, x);
  ExpectSameBits([&](const at::Tensor& a) { return checkpoint(inside, a.mm(w)); }, {w, v}, x);
  ExpectSameBits([&](const at::Tensor& a) { return checkpoint(inside, checkpoint(inside, a.mm(v)).mm(w)).mm(v); },
                 {w, v}, x);
  ExpectSameBits([&](const at::Tensor& a) { return checkpoint(given, a, w); }, {w}, x);
  ExpectSameBits([&](const at::Tensor& a) { return checkpoint(given, a.mm(v), w).mm(w); }, {w, v}, x);
}

TEST(SplitBackward, HooksOfTensorsChangeGradientsOnce) {
  torch::manual_seed(7);
  const at::Tensor w = Weight({4, 4}), v = Weight({4, 4});
  ExpectSameBits(
      [&](const at::Tensor& x) {
        const at::Tensor y = x.mm(w);
        if (y.requires_grad()) y.register_hook([](const at::Tensor& gradient) { return gradient * 3; });
        return y.mm(v);
      },
      {w, v}, torch::randn({3, 4}));
}

TEST(SplitBackward, AnOutputThatDependsOnWeightsAloneIsLeftToTheSecondPart) {
  const at::Tensor w = Weight({4});
  const at::Tensor leaf = torch::randn({4}).requires_grad_();
  SplitBackward split;
  const auto found = split.InputGradients({gradient_edge(w * 2)}, {torch::ones({4})}, {leaf});
  EXPECT_FALSE(found[0].defined());
  EXPECT_FALSE(w.grad().defined());
  split.WeightGradients();
  EXPECT_TRUE(torch::equal(w.grad(), torch::full({4}, 2.0)));
  EXPECT_THROW(split.WeightGradients(), c10::Error);
}

TEST(SplitBackward, HooksOfWeightsRunOnceInTheSecondPart) {
  const at::Tensor w = Weight({4, 4});
  int hooks = 0;
  w.register_hook([&](const at::Tensor&) { ++hooks; });
  const at::Tensor leaf = torch::randn({3, 4}).requires_grad_();
  SplitBackward split;
  (void)split.InputGradients({gradient_edge(leaf.mm(w).mm(w).sum())}, {torch::ones({})}, {leaf});
  EXPECT_EQ(hooks, 0);
  split.WeightGradients();
  EXPECT_EQ(hooks, 1);
}

}  // namespace
}  // namespace cohort::trainer
