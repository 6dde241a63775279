// How much communication computation hides, in virtual time (SimulatedLink): at most a tenth is exposed when computing
// takes 1.2 times as long as communicating. Computing is what communication can go on beside: the backward pass for DDP
// and ZeRO-2's gradients, forward and backward passes (1 : 2) for FSDP.
#include <cstdio>
#include <functional>
#include <memory>

#include "cohort/trainer/parallel/fsdp/fully_sharded_data_parallel.h"
#include "cohort/trainer/parallel/replicate/distributed_data_parallel.h"
#include "cohort/trainer/parallelize/sharded_data_parallel.h"
#include "cohort/trainer/transfer/simulated_link.h"
#include "tests/trainer/ranks.h"

namespace cohort::trainer {
namespace {

constexpr int kOverlapped = 16;
constexpr int kOverlapWidth = 24;
constexpr int kStepsSeen = 3;

// The computation of a block, in seconds.
struct Cost {
  SimulatedLink* link = nullptr;
  double forward = 0, backward = 0;
};
Cost cost;

struct Computes : torch::autograd::Function<Computes> {
  static at::Tensor forward(torch::autograd::AutogradContext*, const at::Tensor& x) {
    cost.link->Compute(cost.forward);
    return x.clone();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                 torch::autograd::variable_list gradients) {
    cost.link->Compute(cost.backward);
    return gradients;
  }
};

struct Layer : torch::nn::Module {
  Layer() { linear = register_module("linear", torch::nn::Linear(kOverlapWidth, kOverlapWidth)); }
  at::Tensor forward(const at::Tensor& x) { return Computes::apply(torch::tanh(linear(x))); }
  torch::nn::Linear linear{nullptr};
};

struct OverlappedLayers : torch::nn::Module {
  using Forward = std::function<at::Tensor(const at::Tensor&)>;
  explicit OverlappedLayers(const std::function<std::pair<std::shared_ptr<torch::nn::Module>, Forward>()>& make) {
    for (int i = 0; i < kOverlapped; ++i) {
      auto [module, forward] = make();
      register_module("layer" + std::to_string(i), module);
      layers.push_back(forward);
    }
  }
  at::Tensor forward(at::Tensor x) {
    for (const Forward& layer : layers) x = layer(x);
    return x;
  }
  std::vector<Forward> layers;
};

std::shared_ptr<OverlappedLayers> PlainLayers() {
  return std::make_shared<OverlappedLayers>([] {
    auto layer = std::make_shared<Layer>();
    return std::make_pair(layer, [layer](const at::Tensor& x) { return layer->forward(x); });
  });
}

struct Seen {
  double communicated = 0, computed = 0, exposed = 0;
};

// Some steps, after those that settle buckets and orders.
Seen Measure(const std::function<void()>& step, double forward, double backward) {
  SimulatedLink link(1e-4, 1e-6);
  cost = {&link, forward, backward};
  for (int i = 0; i < 3; ++i) step();
  link.Reset();
  for (int i = 0; i < kStepsSeen; ++i) step();
  return {link.communicated(), link.computed(), link.exposed()};
}

// The share that is exposed when computation takes 1.2 times what communication does, `forward` of it in forward.
double Exposed(const std::string& mode, const std::function<void()>& step, double forward) {
  const double compute = 1.2 * Measure(step, 0, 0).communicated / (kStepsSeen * kOverlapped);
  const Seen seen = Measure(step, forward * compute, (1 - forward) * compute);
  EXPECT_NEAR(seen.computed, 1.2 * seen.communicated, 1e-6 * seen.computed);
  const double share = seen.exposed / seen.communicated;
  if (world->rank() == 0) {
    std::printf("%s: of %.1f ms of communication a step %.1f %% are exposed\n", mode.c_str(),
                1e3 * seen.communicated / kStepsSeen, 100 * share);
  }
  return share;
}

at::Tensor Input() { return torch::randn({2, kOverlapWidth}); }

TEST(Overlap, OverlapHidesTheGradientsOfDataParallelism) {
  if (world->size() == 1) GTEST_SKIP() << "nothing moves";
  DistributedDataParallelOptions options;
  constexpr int64_t kLayerBytes = (kOverlapWidth + 1) * kOverlapWidth * 4;
  options.buckets = {.first_bytes = kLayerBytes, .cap_bytes = kLayerBytes};
  {
    DistributedDataParallel<OverlappedLayers> ddp(PlainLayers(), *world, options);
    EXPECT_LE(Exposed("DDP", [&] { ddp.forward(Input()).sum().backward(); }, 0), 0.1);
  }
  auto model = PlainLayers();
  ZeroRedundancyOptimizer<torch::optim::SGD> optimizer(model->parameters(), *world, torch::optim::SGDOptions(0.1));
  ShardedDataParallel<OverlappedLayers> sharded(model, optimizer, *world, options);
  const auto step = [&] {
    optimizer.zero_grad();
    sharded.forward(Input()).sum().backward();
  };
  EXPECT_LE(Exposed("ZeRO-2's gradients", step, 0), 0.1);
}

// `where` is a Communicator or a DeviceMesh.
template <typename Where>
double ExposedByFsdp(const std::string& mode, Where& where) {
  auto layers = std::make_shared<OverlappedLayers>([&] {
    auto layer = std::make_shared<FullyShardedDataParallel<Layer>>(std::make_shared<Layer>(), where);
    return std::make_pair(layer, [layer](const at::Tensor& x) { return layer->forward(x); });
  });
  auto model = std::make_shared<FullyShardedDataParallel<OverlappedLayers>>(layers, where);
  return Exposed(mode, [&] { model->forward(Input()).sum().backward(); }, 1.0 / 3);
}

TEST(Overlap, OverlapHidesTheParametersAndGradientsOfFsdp) {
  if (world->size() == 1) GTEST_SKIP() << "nothing moves";
  EXPECT_LE(ExposedByFsdp("FSDP", *world), 0.1);
  if (world->size() < 4 || world->size() % 2 != 0) return;  // shards of one rank move no parameters
  auto mesh = DeviceMesh::Create(*world, {2, world->size() / 2}, {"replicate", "shard"});
  ASSERT_TRUE(mesh.ok()) << mesh.status();
  EXPECT_LE(ExposedByFsdp("HSDP", **mesh), 0.1);
}

}  // namespace
}  // namespace cohort::trainer
