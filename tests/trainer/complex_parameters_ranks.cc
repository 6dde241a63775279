// Complex parameters under every wrapper, in norms, scalers and checkpoints, against a single process.
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "cohort/trainer/parallel/fsdp/fully_shard.h"
#include "cohort/trainer/parallel/pipeline/pipeline.h"
#include "cohort/trainer/parallel/pipeline/schedule/registry.h"
#include "cohort/trainer/parallel/replicate/powersgd_hook.h"
#include "cohort/trainer/state/grad_norm.h"
#include "cohort/trainer/state/grad_scaler.h"
#include "cohort/trainer/state/master_weights.h"
#include "cohort/trainer/transfer/tensor_call.h"
#include "tests/trainer/ranks.h"
#include "tests/trainer/trained.h"

namespace cohort::trainer::complex_parameters {
namespace {

using torch::optim::SGD;
using torch::optim::SGDOptions;

constexpr int kSteps = 4;

// A filter in the frequency domain, as Fourier layers have it. Its parameters are complex.
struct Filter : Shardable<Filter> {
  explicit Filter(at::ScalarType type) : type(type) {
    const auto random = [&](at::IntArrayRef sizes) {
      const at::TensorOptions real(c10::toRealValueType(type));
      return at::complex(torch::randn(sizes, real), torch::randn(sizes, real)) * 0.3;
    };
    weight = register_parameter("weight", random({5, 4}));
    strided = register_parameter("strided", random({4, 5}).t());
    scale = register_parameter("scale", random({}));
    none = register_parameter("none", random({0, 3}));
    phase = register_buffer("phase", random({4}));
  }
  at::Tensor call(const at::Tensor& x) {
    const at::Tensor input = x.to(type);
    const at::Tensor y = input.matmul((weight + strided.conj()).t()) * scale + none.sum();
    return torch::cat({at::real(y), at::imag(y.conj() * phase.select(0, 1))}, 1).to(at::kFloat);
  }
  at::ScalarType type;
  at::Tensor weight, strided, scale, none, phase;
};

struct Spectral : Shardable<Spectral> {
  explicit Spectral(at::ScalarType type) {
    torch::manual_seed(7 + world->rank());
    filter = register_module("filter", std::make_shared<Filter>(type));
    linear = register_module("linear", torch::nn::Linear(10, 3));
  }
  at::Tensor call(const at::Tensor& x) { return linear(torch::tanh(filter->forward(x))); }
  std::shared_ptr<Filter> filter;
  torch::nn::Linear linear{nullptr};
};

std::vector<at::Tensor> Copies(const torch::nn::Module& module) {
  std::vector<at::Tensor> copies;
  for (const at::Tensor& parameter : module.parameters()) copies.push_back(parameter.detach().clone());
  return copies;
}

void SetAll(const torch::nn::Module& module, const std::vector<at::Tensor>& values) {
  const torch::NoGradGuard no_grad;
  const auto parameters = module.parameters();
  for (size_t i = 0; i < values.size(); ++i) parameters[i].copy_(values[i]);
}

// Parameters that one process trains from `start` on the inputs of all ranks.
std::vector<at::Tensor> TrainedAlone(at::ScalarType type, const std::vector<at::Tensor>& start,
                                     const at::Tensor& phase) {
  Spectral net(type);
  SetAll(net, start);
  net.filter->phase.copy_(phase);
  SGD optimizer(net.parameters(), SGDOptions(0.05).momentum(0.9));
  for (int step = 0; step < kSteps; ++step) {
    optimizer.zero_grad();
    for (int rank = 0; rank < world->size(); ++rank) {
      (net.forward(InputOf(rank, step)).pow(2).mean() / world->size()).backward();
    }
    optimizer.step();
  }
  return Copies(net);
}

void ExpectSame(const std::vector<at::Tensor>& found, const std::vector<at::Tensor>& expected, double rtol,
                const std::string& what) {
  ASSERT_EQ(found.size(), expected.size()) << what;
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_TRUE(torch::allclose(found[i], expected[i], rtol, rtol * 0.1)) << what << ", parameter " << i;
  }
}

template <typename Model>
void Train(Model& model, torch::optim::Optimizer& optimizer) {
  for (int step = 0; step < kSteps; ++step) {
    optimizer.zero_grad();
    model.forward(InputOf(world->rank(), step)).pow(2).mean().backward();
    optimizer.step();
  }
}

class ComplexParameters : public Checkpoints, public testing::WithParamInterface<at::ScalarType> {
 protected:
  // Rank 0's values, which wrappers give to all.
  void SetUp() override {
    Checkpoints::SetUp();
    Spectral net(GetParam());
    const DistributedDataParallel<Spectral> spreads(std::shared_ptr<Spectral>(&net, [](Spectral*) {}), *world);
    start_ = Copies(net);
    phase_ = net.filter->phase.clone();
    expected_ = TrainedAlone(GetParam(), start_, phase_);
  }
  std::vector<at::Tensor> start_, expected_;
  at::Tensor phase_;
};

TEST_P(ComplexParameters, ComplexParametersAreReplicatedAsInOneProcess) {
  for (const bool view : {false, true}) {
    auto net = std::make_shared<Spectral>(GetParam());
    DistributedDataParallelOptions options;
    options.gradient_as_bucket_view = view;
    DistributedDataParallel<Spectral> ddp(net, *world, options);
    EXPECT_TRUE(torch::equal(net->filter->phase, phase_));
    SGD optimizer(net->parameters(), SGDOptions(0.05).momentum(0.9));
    Train(ddp, optimizer);
    ExpectSame(Copies(*net), expected_, 1e-4, view ? "views" : "DDP");
  }
  const std::pair<std::shared_ptr<CommHook>, double> hooks[] = {
      {std::make_shared<AllReduceHook>(), 1e-4},
      {std::make_shared<Fp16CompressHook>(), 3e-2},
      {std::make_shared<Bf16CompressHook>(), 1e-1},
      {std::make_shared<PowerSGDHook>(PowerSGDState{.start_powerSGD_iter = 2}), 1e-4}};
  for (const auto& [hook, rtol] : hooks) {
    auto net = std::make_shared<Spectral>(GetParam());
    DistributedDataParallel<Spectral> ddp(net, *world);
    ddp.register_comm_hook(hook);
    SGD optimizer(net->parameters(), SGDOptions(0.05).momentum(0.9));
    Train(ddp, optimizer);
    ExpectSame({net->filter->weight}, {expected_[0]}, rtol, "with a hook");
  }
}

TEST_P(ComplexParameters, ComplexParametersAreSteppedByTheirOwners) {
  for (const bool views : {false, true}) {
    for (const int64_t bucket : {int64_t{16} << 20, int64_t{64}}) {
      for (const bool second_stage : {false, true}) {
        auto net = std::make_shared<Spectral>(GetParam());
        SetAll(*net, start_);
        ZeroRedundancyOptimizer<SGD> optimizer(net->parameters(), *world, SGDOptions(0.05).momentum(0.9),
                                               {.parameters_as_bucket_view = views, .allgather_bucket_bytes = bucket});
        std::unique_ptr<DistributedDataParallel<Spectral>> ddp;
        if (second_stage) {
          ddp = std::make_unique<ShardedDataParallel<Spectral>>(net, optimizer, *world);
        } else {
          ddp = std::make_unique<DistributedDataParallel<Spectral>>(net, *world);
        }
        Train(*ddp, optimizer);
        ExpectSame(Copies(*net), expected_, 1e-4, second_stage ? "ZeRO-2" : "ZeRO-1");
      }
    }
  }
}

TEST_P(ComplexParameters, ComplexParametersAreSharded) {
  auto net = std::make_shared<Spectral>(GetParam());
  fully_shard(*net->filter, *world);
  FullyShardedModule& outer = fully_shard(*net, *world);
  SGD optimizer(net->parameters(), SGDOptions(0.05).momentum(0.9));
  Train(*net, optimizer);
  const SummonFullParams whole(outer, /*writeback=*/false);
  ExpectSame(Copies(*net), expected_, 1e-4, "FSDP");
}

TEST_P(ComplexParameters, ComplexParametersAreShardedAmongReplicas) {
  if (world->size() % 2 != 0) GTEST_SKIP() << "needs an even number of ranks";
  auto mesh = DeviceMesh::Create(*world, {2, world->size() / 2}, {"replicate", "shard"});
  ASSERT_TRUE(mesh.ok()) << mesh.status();
  for (const bool over_world : {false, true}) {
    auto net = std::make_shared<Spectral>(GetParam());
    FullyShardedDataParallelOptions options;
    options.reduce_over_world = over_world;
    fully_shard(*net->filter, **mesh, options);
    FullyShardedModule& outer = fully_shard(*net, **mesh, options);
    SGD optimizer(net->parameters(), SGDOptions(0.05).momentum(0.9));
    Train(*net, optimizer);
    const SummonFullParams whole(outer, /*writeback=*/false);
    ExpectSame(Copies(*net), expected_, 1e-4, "HSDP");
  }
}

// Both parts of a number count.
TEST_P(ComplexParameters, ComplexParametersCountInNormsAndScalers) {
  auto net = std::make_shared<Spectral>(GetParam());
  DistributedDataParallel<Spectral> ddp(net, *world);
  ddp.forward(InputOf(world->rank())).pow(2).mean().backward();
  double squares = 0;
  std::vector<at::Tensor> before;
  for (const at::Tensor& parameter : net->parameters()) {
    squares += parameter.grad().abs().pow(2).sum().to(at::kDouble).item<double>();
    before.push_back(parameter.grad().clone());
  }
  const double norm = clip_grad_norm_(net->parameters(), 1e-3).item<double>();
  EXPECT_NEAR(norm, std::sqrt(squares), 1e-5 * norm);
  EXPECT_TRUE(torch::allclose(net->filter->weight.grad(), before[0] * (1e-3 / norm), 1e-3, 1e-7));
  GradScaler scaler({.init_scale = 1024});
  SGD optimizer(net->parameters(), SGDOptions(0.05));
  optimizer.zero_grad();
  scaler.scale(ddp.forward(InputOf(world->rank())).pow(2).mean()).backward();
  scaler.unscale_(optimizer);
  EXPECT_TRUE(torch::allclose(net->filter->weight.grad(), before[0], 1e-4, 1e-6));
  const torch::NoGradGuard no_grad;
  at::imag(net->filter->weight.grad()).fill_(std::numeric_limits<double>::infinity());
  EXPECT_TRUE(scaler.step(optimizer));  // they were looked at before
  scaler.update();
  EXPECT_FALSE(scaler.step(optimizer)) << "an infinite imaginary part was not found";
}

TEST_P(ComplexParameters, ComplexParametersNeedNoMasterCopies) {
  auto net = std::make_shared<Spectral>(GetParam());
  DistributedDataParallel<Spectral> ddp(net, *world);
  MasterWeights<SGD> optimizer(net->parameters(), SGDOptions(0.05).momentum(0.9));
  Train(ddp, optimizer);
  ExpectSame(Copies(*net), expected_, 1e-4, "MasterWeights");
}

TEST_P(ComplexParameters, ComplexParametersAreKeptInCheckpoints) {
  auto net = std::make_shared<Spectral>(GetParam());
  DistributedDataParallel<Spectral> ddp(net, *world);
  SGD optimizer(net->parameters(), SGDOptions(0.05).momentum(0.9));
  Train(ddp, optimizer);
  SaveTrainingState(*world, At("step-1"), StateOf(*net, optimizer, *world), {});
  const auto saved = Copies(*net);
  Train(ddp, optimizer);
  auto other = std::make_shared<Spectral>(GetParam());
  fully_shard(*other->filter, *world);
  FullyShardedModule& outer = fully_shard(*other, *world);
  SGD resumed(other->parameters(), SGDOptions(0.05).momentum(0.9));
  const TrainingState state = StateOf(outer, resumed);
  LoadTrainingState(*world, At("step-1"), state);
  EXPECT_TRUE(torch::equal(other->filter->phase, net->filter->phase));
  {
    const SummonFullParams whole(outer, /*writeback=*/false);
    ExpectSame(Copies(*other), saved, 0, "loaded");
  }
  Train(*other, resumed);
  {
    const SummonFullParams whole(outer, /*writeback=*/false);
    ExpectSame(Copies(*other), Copies(*net), 1e-4, "trained on");
  }
  SaveTrainingState(*world, At("step-2"), state, {});
  LoadTrainingState(*world, At("step-2"), StateOf(*net, optimizer, *world));
}

TEST_P(ComplexParameters, ComplexTensorsTravelInCollectives) {
  const at::Tensor x = at::complex(torch::full({3, 2}, 1.0 + world->rank()), torch::full({3, 2}, 2.0)).to(GetParam());
  const int size = world->size();
  const double real = 0.5 * size * (size + 1);
  const at::Tensor sum = StartAllReduce(x, *world).Wait();
  EXPECT_TRUE(
      torch::allclose(sum, at::complex(torch::full({3, 2}, real), torch::full({3, 2}, 2.0 * size)).to(GetParam())));
  std::vector<int64_t> rows(static_cast<size_t>(size), 3);
  if (size > 1) rows.back() = 1;
  const int64_t mine = rows[static_cast<size_t>(world->rank())];
  const at::Tensor all = StartAllGather(x.narrow(0, 0, mine), *world, rows).Wait();
  EXPECT_EQ(at::real(all.select(1, 0)).select(0, -1).item<double>(), size);
  EXPECT_THAT(ErrorOf([&] { (void)StartAllReduce(x, *world, comm::ReduceOp::kMax); }), testing::HasSubstr("complex"));
}

// Stages may send each other complex numbers, and get the gradients of them.
TEST_P(ComplexParameters, ComplexTensorsTravelBetweenStages) {
  struct Stage : torch::nn::Module {
    Stage(at::ScalarType type, int index, bool last) : type(type), last(last) {
      torch::manual_seed(90 + index);
      weight = register_parameter("weight", at::complex(torch::randn({4, 4}), torch::randn({4, 4})).to(type) * 0.4);
    }
    at::Tensor forward(const at::Tensor& x) {
      const at::Tensor y = x.to(type).matmul(weight).conj();
      return last ? y.abs().to(at::kFloat) : y;
    }
    at::ScalarType type;
    bool last;
    at::Tensor weight;
  };
  const int stages = world->size();
  const auto make = [&](int index) { return std::make_shared<Stage>(GetParam(), index, index == stages - 1); };
  const auto own = make(world->rank());
  const auto loss = [](const at::Tensor& output, const at::Tensor& target) { return (output - target).pow(2).mean(); };
  Pipeline pipeline({PipelineStage(world->rank(), own)}, *BuildSchedule("1f1b", {stages, stages, 2}), *world,
                    {.loss = loss});
  pipeline.step(InputOf(0), InputOf(1));
  std::vector<std::shared_ptr<Stage>> alone;
  at::Tensor x = InputOf(0);
  for (int index = 0; index < stages; ++index) x = alone.emplace_back(make(index))->forward(x);
  loss(x, InputOf(1)).backward();
  EXPECT_TRUE(
      torch::allclose(own->weight.grad(), alone[static_cast<size_t>(world->rank())]->weight.grad(), 1e-4, 1e-6));
}

INSTANTIATE_TEST_SUITE_P(Types, ComplexParameters, testing::Values(at::kComplexFloat, at::kComplexDouble),
                         [](const auto& type) { return std::string(at::toString(type.param)); });

}  // namespace
}  // namespace cohort::trainer::complex_parameters
