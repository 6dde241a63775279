// TorchScript modules under every wrapper and in checkpoints, against a single process.
#include <memory>
#include <sstream>
#include <string>
#include <tuple>
#include <vector>

#include "cohort/trainer/compat/script_module.h"
#include "tests/trainer/ranks.h"
#include "tests/trainer/trained.h"
#include "torch/script.h"

namespace cohort::trainer::script_modules {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using torch::optim::SGD;
using torch::optim::SGDOptions;

constexpr int kSteps = 4;

torch::jit::Module Made() {
  torch::manual_seed(80 + world->rank());
  const auto part = [](int64_t rows, int64_t columns) {
    torch::jit::Module made("Part");
    made.register_parameter("weight", (torch::randn({rows, columns}) * 0.5).requires_grad_(), /*is_buffer=*/false);
    made.register_parameter("bias", torch::zeros({columns}).requires_grad_(), /*is_buffer=*/false);
    made.define("def forward(self, x):\n  return torch.matmul(x, self.weight) + self.bias\n");
    return made;
  };
  torch::jit::Module net("Net");
  net.register_attribute("training", c10::BoolType::get(), true);
  net.register_module("first", part(4, 5));
  net.register_module("second", part(5, 3));
  net.register_parameter("scale", torch::ones({}).requires_grad_(), /*is_buffer=*/false);
  net.register_buffer("steps", torch::zeros({1}));
  net.define(R"(
def forward(self, x):
  if self.training:
    self.steps = self.steps + 1
  return self.second.forward(torch.tanh(self.first.forward(x))) * self.scale
def both(self, x):
  return x, x * 2
)");
  return net;
}

// The module that torch::jit::load reads from a file.
torch::jit::Module Loaded(const torch::jit::Module& module) {
  std::stringstream file;
  module.save(file);
  return torch::jit::load(file);
}

using Script = ScriptModule<>;

std::vector<at::Tensor> Copies(const torch::nn::Module& module) {
  std::vector<at::Tensor> copies;
  for (const at::Tensor& parameter : module.parameters()) copies.push_back(parameter.detach().clone());
  return copies;
}

template <typename Model>
void Train(Model& model, torch::optim::Optimizer& optimizer, int from = 0, int to = kSteps) {
  for (int step = from; step < to; ++step) {
    optimizer.zero_grad();
    model.forward(InputOf(world->rank(), step)).pow(2).mean().backward();
    optimizer.step();
  }
}

SGDOptions Sgd() { return SGDOptions(0.1).momentum(0.9); }

class ScriptModules : public Checkpoints {
 protected:
  void SetUp() override {
    Checkpoints::SetUp();
    auto start = std::make_shared<Script>(Loaded(Made()));
    const DistributedDataParallel<Script> spreads(start, *world);
    SGD optimizer(start->parameters(), Sgd());
    for (int step = 0; step < kSteps; ++step) {
      optimizer.zero_grad();
      for (int rank = 0; rank < world->size(); ++rank) {
        (start->script().get_method("forward")({InputOf(rank, step)}).toTensor().pow(2).mean() / world->size())
            .backward();
      }
      optimizer.step();
    }
    expected_ = Copies(*start);
  }
  std::vector<at::Tensor> expected_;
};

TEST_F(ScriptModules, ScriptModulesHaveTheScriptsNamesAndMode) {
  torch::jit::Module made = Made();
  made.eval();
  Script model(Loaded(made));
  EXPECT_FALSE(model.is_training());
  model.train();
  EXPECT_TRUE(model.script().is_training());
  EXPECT_THAT(model.named_parameters().keys(),
              ElementsAre("scale", "first.weight", "first.bias", "second.weight", "second.bias"));
  EXPECT_THAT(model.named_buffers().keys(), ElementsAre("steps"));
  model.forward(InputOf(0));
  model.forward(InputOf(0));
  EXPECT_EQ(model.named_buffers()["steps"].item<float>(), 2) << "a buffer that the script assigns";
  model.to(torch::kDouble);
  EXPECT_EQ(model.forward(InputOf(0).to(torch::kDouble)).scalar_type(), torch::kDouble);
}

TEST_F(ScriptModules, ScriptModulesMayReturnOtherTypes) {
  torch::jit::Module made("Two");
  made.register_parameter("weight", torch::ones({2}).requires_grad_(), /*is_buffer=*/false);
  made.define("def forward(self, x, factor: float):\n  return x * self.weight, x * factor\n");
  ScriptModule<std::tuple<at::Tensor, at::Tensor>> two(Loaded(made));
  const auto [a, b] = two.forward(torch::ones({2}), 3.0);
  EXPECT_TRUE(a.requires_grad());
  EXPECT_EQ(b.sum().item<float>(), 6);
  Script other(Loaded(made));
  EXPECT_THROW(other.forward(torch::ones({2}), 3.0), c10::Error);
}

TEST_F(ScriptModules, AFrozenScriptModuleIsRefused) {
  torch::jit::Module made = Made();
  made.eval();
  EXPECT_THAT(ErrorOf([&] { const Script frozen(torch::jit::freeze(made)); }), HasSubstr("torch.jit.freeze"));
}

TEST_F(ScriptModules, ScriptModulesAreTrainedAsInOneProcess) {
  for (const bool unused : {false, true}) {
    auto model = std::make_shared<Script>(Loaded(Made()));
    DistributedDataParallelOptions options;
    options.find_unused_parameters = unused;
    DistributedDataParallel<Script> ddp(model, *world, options);
    SGD optimizer(model->parameters(), Sgd());
    Train(ddp, optimizer);
    ExpectEqual(Copies(*model), expected_, /*bits=*/false);
  }
  {
    auto model = std::make_shared<Script>(Loaded(Made()));
    ZeroRedundancyOptimizer<SGD> optimizer(model->parameters(), *world, Sgd());
    ShardedDataParallel<Script> sharded(model, optimizer, *world);
    Train(sharded, optimizer);
    ExpectEqual(Copies(*model), expected_, /*bits=*/false);
  }
  FullyShardedDataParallel<Script> fsdp(std::make_shared<Script>(Loaded(Made())), *world);
  SGD optimizer(fsdp.parameters(), Sgd());
  Train(fsdp, optimizer);
  const SummonFullParams whole(fsdp, /*writeback=*/false);
  ExpectEqual(Copies(*fsdp.module()), expected_, /*bits=*/false);
}

// Also of a module that was sharded, and back to Python.
TEST_F(ScriptModules, ScriptModulesAreKeptInCheckpoints) {
  auto model = std::make_shared<Script>(Loaded(Made()));
  DistributedDataParallel<Script> ddp(model, *world);
  SGD optimizer(model->parameters(), Sgd());
  Train(ddp, optimizer, 0, 2);
  SaveTrainingState(*world, At("script"), StateOf(*model, optimizer, *world), {});
  FullyShardedDataParallel<Script> fsdp(std::make_shared<Script>(Loaded(Made())), *world);
  SGD other(fsdp.parameters(), Sgd());
  LoadTrainingState(*world, At("script"), StateOf(fsdp, other));
  Train(fsdp, other, 2, kSteps);
  const SummonFullParams whole(fsdp, /*writeback=*/false);
  ExpectEqual(Copies(*fsdp.module()), expected_, /*bits=*/false);
  const Script exported(Loaded(fsdp.module()->script()));
  ExpectEqual(exported.parameters(), expected_, /*bits=*/false);
}

}  // namespace
}  // namespace cohort::trainer::script_modules
