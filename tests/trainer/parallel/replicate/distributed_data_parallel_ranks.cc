// The promises of DistributedDataParallel, seen from inside a job: run as `dlaunch --nproc-per-node N <this>`, every
// rank runs all tests. Each rank computes the expected values for itself.
#include <chrono>
#include <memory>
#include <stdexcept>
#include <utility>
#include <vector>

#include "cohort/trainer/base/error.h"
#include "cohort/trainer/parallel/replicate/data_parallel.h"
#include "cohort/trainer/parallel/replicate/distributed_data_parallel.h"
#include "tests/trainer/ranks.h"

namespace cohort::trainer {
namespace {

using std::chrono::steady_clock;
using testing::HasSubstr;

TEST(DistributedDataParallel, StartsFromRankZerosWeightsAndBuffers) {
  auto model = std::make_shared<Net>();
  DistributedDataParallel<Net> ddp(model, *world);
  torch::manual_seed(100);
  torch::nn::Linear reference(4, 5);
  EXPECT_TRUE(torch::equal(model->first->weight, reference->weight));
  EXPECT_TRUE(torch::equal(model->count, torch::zeros({2})));
}

TEST(DistributedDataParallel, AveragesGradientsAlsoAfterTheRebuild) {
  auto model = std::make_shared<Net>();
  DistributedDataParallelOptions options;
  options.buckets = {.first_bytes = 8, .cap_bytes = 70};  // several buckets
  DistributedDataParallel<Net> ddp(model, *world, options);
  EXPECT_GT(ddp.reducer().buckets().size(), 1u);
  for (int step = 0; step < 3; ++step) {
    model->zero_grad();
    const auto expected = ExpectedGradients(*model, step);
    ddp.forward(InputOf(world->rank(), step)).pow(2).mean().backward();
    ExpectGradients(*model, expected);
    EXPECT_EQ(ddp.reducer().rebuilt(), step > 0);
  }
}

// Large ones go another way into their buckets than small ones, and out of them.
TEST(DistributedDataParallel, AveragesLargeGradientsAsSmallOnes) {
  auto model = std::make_shared<Net>(/*hidden=*/9000);
  DistributedDataParallel<Net> ddp(model, *world);
  for (int step = 0; step < 2; ++step) {
    model->zero_grad();
    const auto expected = ExpectedGradients(*model, step);
    ddp.forward(InputOf(world->rank(), step)).pow(2).mean().backward();
    ExpectGradients(*model, expected, 1e-4, 1e-5);
  }
}

TEST(DistributedDataParallel, SpansTheDevicesOfDataParallel) {
  const auto make = [] { return std::make_shared<Net>(); };
  auto net = make();
  const std::vector<c10::Device> devices(2, c10::Device(c10::kCPU));
  auto parallel = std::make_shared<DataParallel<Net>>(net, DataParallelOptions{.devices = devices}, make);
  DistributedDataParallel<DataParallel<Net>> ddp(parallel, *world);
  for (int step = 0; step < 2; ++step) {
    ddp.module()->zero_grad();
    const auto expected = ExpectedGradients(*net, step);
    ddp.forward(InputOf(world->rank(), step)).pow(2).mean().backward();
    ExpectGradients(*net, expected);
  }
}

TEST(DistributedDataParallel, NoSyncAccumulatesAndTheNextBackwardAverages) {
  auto model = std::make_shared<Net>();
  DistributedDataParallel<Net> ddp(model, *world);
  auto expected = ExpectedGradients(*model, 0);
  const auto second = ExpectedGradients(*model, 1);
  const auto local = torch::autograd::grad({model->forward(InputOf(world->rank())).pow(2).mean()}, model->parameters());
  {
    const auto guard = ddp.no_sync();
    ddp.forward(InputOf(world->rank(), 0)).pow(2).mean().backward();
    ExpectGradients(*model, local);
  }
  ddp.forward(InputOf(world->rank(), 1)).pow(2).mean().backward();
  for (size_t i = 0; i < expected.size(); ++i) expected[i] += second[i];
  ExpectGradients(*model, expected);
}

TEST(DistributedDataParallel, BuffersFollowRankZeroInTrainingOnly) {
  auto model = std::make_shared<Net>();
  DistributedDataParallel<Net> ddp(model, *world);
  model->count.fill_(7 + world->rank());
  model->eval();
  {
    const torch::NoGradGuard no_grad;
    ddp.forward(InputOf(0));
  }
  EXPECT_EQ(model->count[0].item<float>(), 7 + world->rank());
  model->train();
  ddp.forward(InputOf(0)).sum().backward();
  EXPECT_EQ(model->count[0].item<float>(), 7);
}

TEST(DistributedDataParallel, PartsOnSeveralDevicesHaveBucketsOfTheirOwn) {
  auto model = std::make_shared<Net>();
  DistributedDataParallelOptions options;
  options.parts = {{model->first.get(), LocalDevice{0}}, {model->second.get(), LocalDevice{1}}};
  DistributedDataParallel<Net> ddp(model, *world, options);
  EXPECT_EQ(ddp.reducer().buckets().size(), 2u);
  const auto expected = ExpectedGradients(*model);
  ddp.forward(InputOf(world->rank())).pow(2).mean().backward();
  ExpectGradients(*model, expected);
}

TEST(DistributedDataParallel, EvaluationInBetweenIsLeftAlone) {
  auto model = std::make_shared<Net>();
  DistributedDataParallel<Net> ddp(model, *world);
  const auto expected = ExpectedGradients(*model);
  const at::Tensor loss = ddp.forward(InputOf(world->rank())).pow(2).mean();
  loss.backward();
  {
    const torch::NoGradGuard no_grad;
    ddp.forward(InputOf(3));
  }
  ExpectGradients(*model, expected);
}

// Its gradients would stay each rank's own, and the ranks' parameters drift apart.
TEST(DistributedDataParallel, RefusesASecondBackwardPassOfOneForwardPass) {
  for (const bool of_another : {false, true}) {
    auto model = std::make_shared<Net>();
    DistributedDataParallel<Net> ddp(model, *world);
    const auto expected = ExpectedGradients(*model);
    const at::Tensor x = InputOf(world->rank()).requires_grad_();
    const at::Tensor loss = ddp.forward(x).pow(2).mean();
    if (of_another) {  // of the first of two forward passes, when that of the other has been averaged
      const at::Tensor other = ddp.forward(x).pow(2).mean();
      other.backward();
      ExpectGradients(*model, expected);
    } else {
      loss.backward({}, /*retain_graph=*/true);
      ExpectGradients(*model, expected);
      // A pass that gives parameters no gradients may look into the graph, and say nothing of later passes.
      EXPECT_TRUE(torch::autograd::grad({loss}, {x}, {}, /*retain_graph=*/true)[0].defined());
      const auto guard = ddp.no_sync();
      ddp.forward(InputOf(2)).pow(2).mean().backward();
    }
    ASSERT_TRUE(world->Barrier().Wait().ok());  // lest the error meets a rank in its first pass
    try {
      loss.backward();
      ADD_FAILURE() << "gradients that differ from rank to rank";
    } catch (const c10::Error& error) {
      EXPECT_THAT(error.what_without_backtrace(), HasSubstr("once after each forward()"));
    }
  }
}

// Nobody would average what follows it: the end of that pass never comes. Nor must that of the next forward pass be
// taken for it, also where all of it has left already.
TEST(DistributedDataParallel, RefusesABackwardPassAfterOneThatAnExceptionHasEnded) {
  for (const auto& [early, forward_between] : {std::pair(true, false), {true, true}, {false, false}, {false, true}}) {
    DistributedDataParallel<Net> ddp(std::make_shared<Net>(), *world);
    const at::Tensor input = InputOf(world->rank()).requires_grad_();
    const at::Tensor output = ddp.forward(input);
    const at::Tensor loss = output.pow(2).mean();
    bool tired = true;
    (early ? output : input).register_hook([&](const at::Tensor& gradient) {
      if (std::exchange(tired, false)) throw std::runtime_error("a gradient that is none");
      return gradient;
    });
    EXPECT_THROW(loss.backward({}, /*retain_graph=*/true), std::runtime_error);
    ASSERT_TRUE(world->Barrier().Wait().ok());  // lest the error meets a rank in its first pass
    try {
      if (forward_between) {
        ddp.forward(InputOf(world->rank()));
      } else {
        loss.backward();
      }
      ADD_FAILURE() << "gradients that nobody averages";
    } catch (const c10::Error& error) {
      EXPECT_THAT(error.what_without_backtrace(), HasSubstr("an exception has ended the last backward pass"));
    }
  }
}

// A pass that averages nothing itself takes nothing from the backward pass that is to come.
TEST(DistributedDataParallel, AveragesAfterOtherPassesBetweenForwardAndBackward) {
  for (const bool finds_unused : {false, true}) {
    auto model = std::make_shared<Net>();
    DistributedDataParallelOptions options;
    options.find_unused_parameters = finds_unused;
    DistributedDataParallel<Net> ddp(model, *world, options);
    for (int step = 0; step < 3; ++step) {
      model->zero_grad();
      const auto expected = ExpectedGradients(*model, step);
      const at::Tensor loss = ddp.forward(InputOf(world->rank(), step)).pow(2).mean();
      {
        const torch::NoGradGuard no_grad;
        ddp.forward(InputOf(3));
      }
      if (step == 1) {
        const auto guard = ddp.no_sync();
        ddp.forward(InputOf(2));
      }
      if (step == 2) {  // the earlier one of two
        const at::Tensor later = ddp.forward(InputOf(2)).sum();
      }
      loss.backward();
      ExpectGradients(*model, expected);
    }
  }
}

std::vector<at::Tensor> LocalGradients(Net& model, int step) {
  return torch::autograd::grad({model.forward(InputOf(world->rank(), step)).pow(2).mean()}, model.parameters());
}

std::vector<at::Tensor> Sum(std::vector<at::Tensor> a, const std::vector<at::Tensor>& b) {
  for (size_t i = 0; i < a.size(); ++i) a[i] = a[i] + b[i];
  return a;
}

// A loss that was NaN everywhere, or an evaluation of one rank that records a graph: what follows is under no_sync all
// the same.
TEST(DistributedDataParallel, AccumulatesAfterAForwardPassWithoutABackwardPass) {
  for (const bool evaluation : {false, true}) {
    SCOPED_TRACE(evaluation);
    auto model = std::make_shared<Net>();
    DistributedDataParallel<Net> ddp(model, *world);
    for (int step = 0; step < 2; ++step) ddp.forward(InputOf(world->rank(), step)).sum().backward();
    model->zero_grad();
    const auto expected = Sum(ExpectedGradients(*model, 0), ExpectedGradients(*model, 1));
    const auto local = LocalGradients(*model, 0);
    model->train(!evaluation);
    if (!evaluation || world->rank() == 0) ddp.forward(InputOf(3));
    model->train();
    {
      const auto guard = ddp.no_sync();
      ddp.forward(InputOf(world->rank(), 0)).pow(2).mean().backward();
      ExpectGradients(*model, local);
    }
    ddp.forward(InputOf(world->rank(), 1)).pow(2).mean().backward();
    ExpectGradients(*model, expected);
  }
}

// A forward pass that waits for its backward pass averages with the gradients that no_sync has accumulated meanwhile,
// or in the same pass.
TEST(DistributedDataParallel, AveragesWhatWasAccumulatedBeforeItsBackwardPass) {
  for (const char* order : {"after", "before", "together"}) {
    SCOPED_TRACE(order);
    auto model = std::make_shared<Net>();
    DistributedDataParallel<Net> ddp(model, *world);
    const auto expected = Sum(ExpectedGradients(*model, 0), ExpectedGradients(*model, 1));
    const auto accumulating = [&] {
      const auto guard = ddp.no_sync();
      return ddp.forward(InputOf(world->rank(), 1)).pow(2).mean();
    };
    const auto averaging = [&] { return ddp.forward(InputOf(world->rank(), 0)).pow(2).mean(); };
    const bool before = std::string(order) == "before";
    const at::Tensor first = before ? accumulating() : averaging(), second = before ? averaging() : accumulating();
    if (std::string(order) == "together") {
      (first + second).backward();
    } else {
      const auto local = LocalGradients(*model, 1);
      (before ? first : second).backward();  // no_sync's
      ExpectGradients(*model, local);
      (before ? second : first).backward();
    }
    ExpectGradients(*model, expected);
  }
}

struct TwoHeads : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x, bool second) { return (second ? b : a)->forward(x); }
  torch::nn::Linear a = register_module("a", torch::nn::Linear(6, 4));
  torch::nn::Linear b = register_module("b", torch::nn::Linear(6, 4));
};

// The second pass' gradients come before the pass is known to be one that averages.
TEST(DistributedDataParallel, AveragesAHeadThatOnlyTheForwardPassUnderNoSyncHasUsed) {
  auto model = std::make_shared<TwoHeads>();
  DistributedDataParallel<TwoHeads> ddp(model, *world);
  for (int step = 0; step < 3; ++step) {
    model->zero_grad();
    const at::Tensor x = at::full({2, 6}, static_cast<double>(world->rank() + step));
    const at::Tensor first = ddp.forward(x, false);
    at::Tensor second;
    {
      const auto guard = ddp.no_sync();
      second = ddp.forward(x, true);
    }
    (first.sum() + second.sum()).backward();
    const double mean = (world->size() - 1) / 2.0 + step;  // of the inputs
    for (const auto& head : {model->a, model->b}) {
      EXPECT_TRUE(at::allclose(head->weight.grad(), at::full({4, 6}, 2 * mean))) << head->weight.grad();
    }
  }
}

// A penalty on the gradients of the inputs, as of critics (WGAN-GP): they are asked for before backward begins.
TEST(DistributedDataParallel, AveragesAfterGradientsOfItsInputsWereAskedFor) {
  const auto loss_of = [](const auto& forward, int rank, int step) {
    const at::Tensor x = InputOf(rank, step).requires_grad_();
    const at::Tensor y = forward(x);
    const auto gradients = torch::autograd::grad({y.sum()}, {x}, {}, /*retain_graph=*/true, /*create_graph=*/true);
    return y.pow(2).mean() + gradients[0].pow(2).mean();
  };
  for (const char* mode : {"plain", "finds unused", "static graph"}) {
    SCOPED_TRACE(mode);
    auto model = std::make_shared<Net>();
    DistributedDataParallelOptions options;
    options.find_unused_parameters = std::string(mode) == "finds unused";
    options.static_graph = std::string(mode) == "static graph";
    DistributedDataParallel<Net> ddp(model, *world, options);
    for (int step = 0; step < 3; ++step) {
      model->zero_grad();
      std::vector<at::Tensor> expected;
      for (int rank = 0; rank < world->size(); ++rank) {
        const at::Tensor loss = loss_of([&](const at::Tensor& x) { return model->forward(x); }, rank, step);
        const auto own = torch::autograd::grad({loss / world->size()}, model->parameters());
        for (size_t i = 0; i < own.size(); ++i) {
          if (rank == 0) expected.push_back(torch::zeros_like(own[i]));
          expected[i] += own[i];
        }
      }
      loss_of([&](const at::Tensor& x) { return ddp.forward(x); }, world->rank(), step).backward();
      ExpectGradients(*model, expected);
    }
  }
}

TEST(DistributedDataParallel, AveragesGradientsThatHaveAGraph) {
  auto model = std::make_shared<Net>();
  DistributedDataParallel<Net> ddp(model, *world);
  const auto expected = ExpectedGradients(*model);
  const at::Tensor loss = ddp.forward(InputOf(world->rank())).pow(2).mean();
  loss.backward({}, /*retain_graph=*/true, /*create_graph=*/true);
  ExpectGradients(*model, expected);
}

// After the first backward pass a forward pass agrees on the order of buckets; an evaluation must not, since the others
// may not take part in it.
TEST(DistributedDataParallel, OneRankMayEvaluateAlone) {
  auto model = std::make_shared<Net>();
  DistributedDataParallel<Net> ddp(model, *world);
  ddp.forward(InputOf(world->rank())).pow(2).mean().backward();
  if (world->rank() == 0) {
    model->eval();
    const torch::NoGradGuard no_grad;
    ddp.forward(InputOf(3));
    model->train();
  }
  ASSERT_TRUE(world->Barrier().Wait().ok());
  ddp.forward(InputOf(world->rank())).pow(2).mean().backward();
  EXPECT_TRUE(ddp.reducer().rebuilt());
}

// Gives its argument's gradient on rank 0 only.
struct GradientOnRankZero : torch::autograd::Function<GradientOnRankZero> {
  static at::Tensor forward(torch::autograd::AutogradContext*, const at::Tensor& x) { return x.sum(); }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                 torch::autograd::variable_list grads) {
    if (world->rank() == 0) return {grads[0].expand({4})};
    return {at::Tensor()};
  }
};

// Parameters of several types, one used by two modules, one without elements, one whose gradient may be undefined; and
// buffers of types that no collective knows.
struct OddNet : torch::nn::Module {
  OddNet() {
    doubles = register_parameter("doubles", torch::ones({3}, torch::kFloat64));
    halves = register_parameter("halves", torch::ones({2}, torch::kBFloat16));
    empty = register_parameter("empty", torch::zeros({0}, torch::kFloat16));  // a bucket of its own
    partial = register_parameter("partial", torch::ones({4}));
    shared = register_parameter("shared", torch::ones({5}));
    tied = register_module("tied", std::make_shared<torch::nn::Module>());
    tied->register_parameter("weight", shared);
    mask = register_buffer("mask", torch::full({3}, world->rank() == 0, torch::kBool));
    phase = register_buffer("phase", torch::full({2}, c10::complex<float>(1.0f, world->rank()), torch::kComplexFloat));
  }
  at::Tensor forward(double factor) {
    return (doubles.sum() + halves.sum().to(torch::kFloat64) + empty.sum() + GradientOnRankZero::apply(partial) +
            2 * shared.sum()) *
           factor;
  }
  at::Tensor doubles, halves, empty, partial, shared, mask, phase;
  std::shared_ptr<torch::nn::Module> tied;
};

TEST(DistributedDataParallel, CarriesOddParametersAndBuffers) {
  auto model = std::make_shared<OddNet>();
  DistributedDataParallel<OddNet> ddp(model, *world);
  EXPECT_TRUE(torch::equal(model->mask, torch::ones({3}, torch::kBool)));
  EXPECT_TRUE(torch::equal(at::imag(model->phase), torch::zeros({2})));
  size_t parameters = 0;
  for (const auto& bucket : ddp.reducer().buckets()) parameters += bucket.size();
  EXPECT_EQ(parameters, 5u) << "the tied one once";
  const int size = world->size();
  const double mean = (size + 1) / 2.0;  // of 1 .. size
  for (int step = 0; step < 2; ++step) {
    model->zero_grad();
    for (auto& parameter : model->parameters()) parameter.mutable_grad() = at::Tensor();
    ddp.forward(world->rank() + 1).backward();
    EXPECT_TRUE(torch::allclose(model->doubles.grad(), torch::full({3}, mean, torch::kFloat64)));
    EXPECT_TRUE(torch::allclose(model->halves.grad().to(torch::kFloat32), torch::full({2}, mean), 8e-3));
    EXPECT_TRUE(torch::allclose(model->shared.grad(), torch::full({5}, 2 * mean)));
    ASSERT_TRUE(model->partial.grad().defined());
    EXPECT_TRUE(torch::allclose(model->partial.grad(), torch::full({4}, 1.0 / size)));
  }
}

TEST(DistributedDataParallel, DifferentModulesAreRefusedOnEveryRank) {
  if (world->size() == 1) GTEST_SKIP() << "needs two ranks to differ";
  auto model = std::make_shared<Net>(world->rank() == 1 ? 6 : 5);
  try {
    DistributedDataParallel<Net> ddp(model, *world);
    FAIL() << "accepted";
  } catch (const DistributedError& error) {
    EXPECT_EQ(error.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(error.what_without_backtrace(), HasSubstr("rank 1"));
    if (world->rank() == 1) {
      EXPECT_THAT(error.what_without_backtrace(), HasSubstr("first.weight"));
    }
  }
}

// One rank leaves a layer out of its loss: every rank must get an error with its name, instead of waiting ten minutes.
TEST(DistributedDataParallel, AParameterWithoutGradientIsAnErrorEverywhere) {
  if (world->size() == 1) GTEST_SKIP() << "needs two ranks to differ";
  auto model = std::make_shared<Net>();
  DistributedDataParallel<Net> ddp(model, *world);
  ASSERT_TRUE(world->Barrier().Wait().ok());  // lest the error meets a rank that is still wrapping
  const auto start = steady_clock::now();
  try {
    const at::Tensor output = ddp.forward(InputOf(world->rank()));
    const at::Tensor loss = world->rank() == 1 ? model->first->forward(InputOf(1)).sum() : output.sum();
    loss.backward();
    FAIL() << "rank " << world->rank() << " noticed nothing";
  } catch (const c10::Error& error) {
    EXPECT_THAT(error.what_without_backtrace(), HasSubstr("second.weight"));
  }
  EXPECT_LT(steady_clock::now() - start, std::chrono::seconds(30));
}

struct EmbeddingNet : torch::nn::Module {
  EmbeddingNet() {
    const bool sparse = world->rank() == world->size() - 1;
    embedding = register_module("embedding", torch::nn::Embedding(torch::nn::EmbeddingOptions(7, 3).sparse(sparse)));
  }
  at::Tensor forward(const at::Tensor& ids) { return embedding(ids); }
  torch::nn::Embedding embedding{nullptr};
};

// Its gradient travels in another way than theirs.
TEST(DistributedDataParallel, ATableThatIsSparseOnOneRankIsRefusedEverywhere) {
  if (world->size() == 1) GTEST_SKIP() << "needs two ranks to differ";
  try {
    DistributedDataParallel<EmbeddingNet> ddp(std::make_shared<EmbeddingNet>(), *world);
    FAIL() << "rank " << world->rank() << " noticed nothing";
  } catch (const c10::Error& error) {
    EXPECT_THAT(error.what_without_backtrace(), HasSubstr("(sparse gradient)"));
  }
}

}  // namespace
}  // namespace cohort::trainer
