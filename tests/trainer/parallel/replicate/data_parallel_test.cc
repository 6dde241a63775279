// DataParallel on pretended devices, which are all the CPU, against the plain module.
#include "cohort/trainer/parallel/replicate/data_parallel.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <system_error>
#include <tuple>
#include <utility>
#include <vector>

#include "cohort/runtime/base/mutex.h"
#include "cohort/trainer/autograd/autocast.h"
#include "cohort/trainer/parallel/tensor/parallel_dropout.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/trainer/few_threads.h"
#include "torch/torch.h"

namespace cohort::trainer {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

// The inputs of forward passes, from all replicas.
struct Log {
  runtime::Mutex mutex;
  std::vector<int64_t> sizes COHORT_GUARDED_BY(mutex);
  void Add(int64_t size) {
    runtime::MutexLock lock(mutex);
    sizes.push_back(size);
  }
  std::vector<int64_t> Take() {
    runtime::MutexLock lock(mutex);
    std::sort(sizes.begin(), sizes.end());
    return std::exchange(sizes, {});
  }
};

struct Net : torch::nn::Cloneable<Net> {
  explicit Net(std::shared_ptr<Log> log = std::make_shared<Log>()) : log(std::move(log)) { Net::reset(); }
  void reset() override {
    first = register_module("first", torch::nn::Linear(4, 5));
    norm = register_module("norm", torch::nn::BatchNorm1d(torch::nn::BatchNormOptions(5).momentum(1.0)));
    second = register_module("second", torch::nn::Linear(5, 3));
  }
  at::Tensor forward(const at::Tensor& x) {
    log->Add(x.size(0));
    return second(torch::tanh(norm(first(x))));
  }
  std::shared_ptr<Log> log;
  torch::nn::Linear first{nullptr}, second{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
};

DataParallelOptions Devices(size_t count) {
  return {.devices = std::vector<c10::Device>(count, c10::Device(c10::kCPU))};
}

std::shared_ptr<Net> MakeNet() {
  torch::manual_seed(1);
  auto net = std::make_shared<Net>();
  net->eval();  // batch normalisation by chunks is another function
  return net;
}

at::Tensor Input(int64_t rows) { return torch::randn({rows, 4}, at::detail::createCPUGenerator(rows)); }

void ExpectGradients(const torch::nn::Module& module, const std::vector<at::Tensor>& expected) {
  const auto parameters = module.parameters();
  ASSERT_EQ(parameters.size(), expected.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    ASSERT_TRUE(parameters[i].grad().defined()) << i;
    EXPECT_TRUE(torch::allclose(parameters[i].grad(), expected[i], 1e-4, 1e-6)) << i;
  }
}

TEST(DataParallel, GivesTheOutputsAndGradientsOfTheModuleAlone) {
  const std::map<int64_t, std::vector<int64_t>> pieces = {{12, {4, 4, 4}}, {7, {1, 3, 3}}, {2, {1, 1}}, {1, {1}}};
  for (const auto& [rows, sizes] : pieces) {  // as chunk() cuts; small batches leave devices without work
    auto net = MakeNet();
    const at::Tensor input = Input(rows);
    const auto expected = torch::autograd::grad({net->forward(input).pow(2).mean()}, net->parameters());
    const at::Tensor output = net->forward(input);
    net->log->Take();
    DataParallel<Net> parallel(net, Devices(3));
    const at::Tensor gathered = parallel.forward(input);
    EXPECT_TRUE(torch::allclose(gathered, output, 1e-5, 1e-6)) << rows;
    gathered.pow(2).mean().backward();
    ExpectGradients(*net, expected);
    EXPECT_EQ(net->log->Take(), sizes) << rows;
  }
}

TEST(DataParallel, EqualsThePlainModuleWithoutDevices) {
  auto net = MakeNet();
  DataParallel<Net> parallel(net, Devices(0));
  const at::Tensor input = Input(6);
  EXPECT_TRUE(torch::equal(parallel.forward(input), net->forward(input)));
  EXPECT_EQ(net->log->Take(), (std::vector<int64_t>{6, 6}));
  if (torch::cuda::device_count() == 0) {
    EXPECT_THAT(DataParallel<Net>(net).devices(), IsEmpty());
  }
  DataParallel<Net> one(net, Devices(1));
  EXPECT_TRUE(torch::equal(one.forward(input), net->forward(input)));
}

TEST(DataParallel, TrainsAsTheModuleAlone) {
  auto net = MakeNet(), alone = MakeNet();
  DataParallel<Net> parallel(net, Devices(2));
  torch::optim::SGD optimizer(parallel.parameters(), 0.1), alone_optimizer(alone->parameters(), 0.1);
  for (int step = 0; step < 4; ++step) {
    const auto train = [&](auto& model, torch::optim::SGD& sgd) {
      sgd.zero_grad();
      model.forward(Input(8 + step)).pow(2).mean().backward();
      sgd.step();
    };
    train(parallel, optimizer);
    train(*alone, alone_optimizer);
  }
  for (size_t i = 0; i < net->parameters().size(); ++i) {
    EXPECT_TRUE(torch::allclose(net->parameters()[i], alone->parameters()[i], 1e-4, 1e-6)) << i;
  }
}

TEST(DataParallel, KeepsTheBuffersOfTheFirstDeviceOnly) {
  auto net = MakeNet(), alone = MakeNet();
  net->train();
  alone->train();
  DataParallel<Net> parallel(net, Devices(2));
  const at::Tensor input = Input(8);
  parallel.forward(input);
  alone->forward(input.slice(0, 0, 4));
  EXPECT_TRUE(torch::equal(net->norm->running_mean, alone->norm->running_mean));
  EXPECT_TRUE(torch::equal(net->norm->running_var, alone->norm->running_var));
  EXPECT_EQ(net->norm->num_batches_tracked.item<int64_t>(), 1);
}

TEST(DataParallel, KeepsGraphsOfSeveralForwardPasses) {
  auto net = MakeNet();
  const auto loss = [](const at::Tensor& output) { return output.pow(2).sum(); };
  const auto expected =
      torch::autograd::grad({loss(net->forward(Input(4))) + loss(net->forward(Input(9)))}, net->parameters());
  DataParallel<Net> parallel(net, Devices(3));
  const at::Tensor first = loss(parallel.forward(Input(4))), second = loss(parallel.forward(Input(9)));
  {
    const torch::NoGradGuard no_grad;
    EXPECT_FALSE(parallel.forward(Input(5)).requires_grad());
  }
  first.backward();
  second.backward();
  ExpectGradients(*net, expected);

  // A result computed with weights that have changed since cannot be derived, as in any module.
  const at::Tensor stale = loss(parallel.forward(Input(6)));
  {
    const torch::NoGradGuard no_grad;
    for (at::Tensor& parameter : net->parameters()) parameter.mul_(2);
  }
  parallel.forward(Input(6));
  EXPECT_THROW(stale.backward(), c10::Error);
}

TEST(DataParallel, GivesGradientsToAutogradGradAndLeavesFrozenParametersAlone) {
  auto net = MakeNet();
  net->first->weight.requires_grad_(false);
  DataParallel<Net> parallel(net, Devices(2));
  const at::Tensor input = Input(6);
  const auto gradients = torch::autograd::grad({parallel.forward(input).sum()}, {net->second->weight});
  const auto expected = torch::autograd::grad({net->forward(input).sum()}, {net->second->weight});
  EXPECT_TRUE(torch::allclose(gradients[0], expected[0], 1e-5, 1e-6));
  EXPECT_FALSE(net->second->weight.grad().defined());
  parallel.forward(input).sum().backward();
  EXPECT_FALSE(net->first->weight.grad().defined());
}

// Takes and gives more than one tensor, and has no clone().
struct Several : torch::nn::Module {
  Several() { weight = register_parameter("weight", torch::ones({2})); }
  std::tuple<at::Tensor, std::vector<at::Tensor>, std::optional<at::Tensor>> forward(
      const std::vector<at::Tensor>& inputs, double factor) {
    const at::Tensor sum = (inputs.at(0) + inputs.at(1)) * weight * factor;
    return {sum, {inputs.at(0) * 2, inputs.at(1)}, sum.mean()};
  }
  at::Tensor weight;
};

TEST(DataParallel, ScattersAndGathersStructures) {
  auto module = std::make_shared<Several>();
  DataParallel<Several> parallel(module, Devices(2), [] { return std::make_shared<Several>(); });
  const at::Tensor a = torch::arange(8, torch::kFloat).view({4, 2}), b = torch::ones({4, 2});
  const auto [sum, list, mean] = parallel.forward(std::vector<at::Tensor>{a, b}, 3.0);
  EXPECT_TRUE(torch::equal(sum, (a + b) * 3));
  ASSERT_EQ(list.size(), 2);
  EXPECT_TRUE(torch::equal(list[0], a * 2));
  EXPECT_TRUE(torch::equal(list[1], b));
  ASSERT_TRUE(mean.has_value());
  EXPECT_TRUE(torch::allclose(*mean, ((a + b) * 3).view({2, 4}).mean(1))) << "scalars of two devices";
}

TEST(DataParallel, NamesModulesThatItCannotReplicate) {
  try {
    DataParallel<Several> parallel(std::make_shared<Several>(), Devices(2));
    FAIL() << "a module without clone() was accepted";
  } catch (const c10::Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("make_replica"));
  }
  const std::vector<c10::Device> elsewhere(2, c10::Device(c10::kMeta));
  DataParallel<Net> parallel(MakeNet(), {.devices = elsewhere});
  try {
    parallel.forward(Input(4));
    FAIL() << "parameters on another device were accepted";
  } catch (const c10::Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("parameter first.weight is on cpu"));
  }
}

struct Failing : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x) {
    TORCH_CHECK(x.min().item<float>() >= 0, "a negative number");
    return x;
  }
};

TEST(DataParallel, ThrowsTheExceptionOfAReplica) {
  DataParallel<Failing> parallel(std::make_shared<Failing>(), Devices(3), [] { return std::make_shared<Failing>(); });
  const at::Tensor input = torch::tensor({{1.0f}, {2.0f}, {-3.0f}});
  try {
    parallel.forward(input);
    FAIL() << "the failure of a replica was lost";
  } catch (const c10::Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("a negative number"));
    EXPECT_THAT(error.what(), HasSubstr("in replica 2 on device cpu"));
  }
  EXPECT_TRUE(torch::equal(parallel.forward(input.abs()), input.abs()));
}

TEST(DataParallel, ThrowsWhereTheSystemGivesNoMoreThreads) {
  auto net = MakeNet();
  DataParallel<Net> parallel(net, Devices(FewThreads::kTooMany));
  const at::Tensor input = Input(FewThreads::kTooMany);
  {
    const FewThreads few;
    EXPECT_THROW(parallel.forward(input), std::system_error);
  }
  EXPECT_TRUE(torch::allclose(parallel.forward(input), net->forward(input), 1e-5, 1e-6)) << "it was no harm";
}

TEST(DataParallel, ComputesInTheCallersModes) {
  auto linear = std::make_shared<torch::nn::LinearImpl>(4, 3);
  DataParallel<torch::nn::LinearImpl> parallel(linear, Devices(2));
  const Autocast autocast(at::kCPU);
  const at::Tensor output = parallel.forward(Input(4));
  EXPECT_EQ(output.scalar_type(), torch::kBFloat16);
  EXPECT_TRUE(torch::equal(output, linear->forward(Input(4))));
}

TEST(DataParallel, GivesEachPartOfAReplicaItsMode) {
  struct Modes : torch::nn::Module {
    Modes() { inner = register_module("inner", torch::nn::Dropout(0.5)); }
    at::Tensor forward(const at::Tensor& x) {
      return x * 2 + (is_training() ? 10 : 0) + (inner->is_training() ? 1 : 0);
    }
    torch::nn::Dropout inner{nullptr};
  };
  auto module = std::make_shared<Modes>();
  DataParallel<Modes> parallel(module, Devices(2), [] { return std::make_shared<Modes>(); });
  module->inner->eval();
  EXPECT_TRUE(torch::equal(parallel.forward(torch::zeros({2})), torch::full({2}, 10.0f)));
  parallel.eval();
  module->inner->train();
  EXPECT_TRUE(torch::equal(parallel.forward(torch::zeros({2})), torch::full({2}, 1.0f)));
}

// Drops the elements that one process would: a device has some rows of the batch.
struct Dropping : torch::nn::Cloneable<Dropping> {
  Dropping() { Dropping::reset(); }
  void reset() override { dropout = ParallelDropout(ParallelDropoutOptions(0.5)); }
  at::Tensor forward(const at::Tensor& x) { return dropout(x); }
  ParallelDropout dropout{nullptr};
};

TEST(DataParallel, MasksOfDropoutAreThoseOfOneProcess) {
  const RandomPlaceGuard place({.seed = 1, .step = 2, .first_row = 1, .row_stride = 2});
  const auto module = std::make_shared<Dropping>();
  const at::Tensor x = torch::ones({7, 9});
  DataParallel<Dropping> parallel(module, Devices(3));
  EXPECT_TRUE(torch::equal(parallel.forward(x), module->forward(x)));
}

}  // namespace
}  // namespace cohort::trainer
