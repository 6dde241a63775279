// Optimizers of a program's own, and those that call their closure themselves.
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cohort/trainer/state/kept_optimizer.h"
#include "cohort/trainer/state/master_weights.h"
#include "cohort/trainer/transfer/tensor_call.h"
#include "tests/trainer/ranks.h"
#include "tests/trainer/trained.h"

namespace cohort::trainer::own_optimizers {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using torch::optim::LBFGS;
using torch::optim::LBFGSOptions;
using torch::optim::Optimizer;
using torch::optim::OptimizerParamGroup;

struct LionOptions : torch::optim::OptimizerCloneableOptions<LionOptions> {
  explicit LionOptions(double lr) : lr(lr) {}
  double get_lr() const override { return lr; }
  void set_lr(const double rate) override { lr = rate; }
  double lr, beta = 0.9;
};

// Steps by the sign of a mean of gradients.
class Lion : public Optimizer {
 public:
  Lion(std::vector<OptimizerParamGroup> groups, const LionOptions& defaults)
      : Optimizer(std::move(groups), std::make_unique<LionOptions>(defaults)) {}
  Lion(std::vector<at::Tensor> parameters, const LionOptions& defaults)
      : Lion(std::vector<OptimizerParamGroup>{OptimizerParamGroup(std::move(parameters))}, defaults) {}

  at::Tensor step(LossClosure /*closure*/ = nullptr) override {
    const torch::NoGradGuard no_grad;
    for (OptimizerParamGroup& group : param_groups()) {
      const auto& options = static_cast<const LionOptions&>(group.options());
      for (at::Tensor& parameter : group.params()) {
        if (!parameter.grad().defined()) continue;
        at::Tensor& mean = means[parameter.unsafeGetTensorImpl()];
        if (!mean.defined()) mean = torch::zeros_like(parameter);
        mean.lerp_(parameter.grad(), 1 - options.beta);
        parameter.add_(mean.sign(), -options.lr);
      }
    }
    return {};
  }

  std::map<const void*, at::Tensor> means;
};

class KeptLion : public Lion, public KeptOptimizer {
 public:
  using Lion::Lion;
  std::map<std::string, at::Tensor> ParameterState(const at::Tensor& parameter) const override {
    const auto found = means.find(parameter.unsafeGetTensorImpl());
    if (found == means.end()) return {};
    return {{"mean", found->second}};
  }
  void SetParameterState(const at::Tensor& parameter, const std::map<std::string, at::Tensor>& state) override {
    means.erase(parameter.unsafeGetTensorImpl());
    if (!state.empty()) means[parameter.unsafeGetTensorImpl()] = state.at("mean");
  }
  std::map<std::string, double> OptionValues(const torch::optim::OptimizerOptions& options) const override {
    const auto& own = static_cast<const LionOptions&>(options);
    return {{"lr", own.lr}, {"beta", own.beta}};
  }
  void SetOptionValues(torch::optim::OptimizerOptions& options,
                       const std::map<std::string, double>& values) const override {
    auto& own = static_cast<LionOptions&>(options);
    own.lr = values.at("lr");
    own.beta = values.at("beta");
  }
};

class OwnOptimizers : public Checkpoints {};

TEST_F(OwnOptimizers, OwnOptimizersAreRefusedBeforeTheyAreTrained) {
  auto net = std::make_shared<Net>();
  const auto refused = AllOf(HasSubstr("Lion"), HasSubstr("KeptOptimizer"));
  Lion plain(net->parameters(), LionOptions(0.1));
  EXPECT_THAT(ErrorOf([&] { (void)StateOf(*net, plain, *world); }), refused);
  MasterWeights<Lion> copies(net->parameters(), LionOptions(0.1));
  EXPECT_THAT(ErrorOf([&] { (void)StateOf(*net, copies, *world); }), refused);
  ZeroRedundancyOptimizer<Lion> zero(net->parameters(), *world, LionOptions(0.1));
  EXPECT_THAT(ErrorOf([&] { (void)StateOf(*net, zero, *world); }), refused);
  FullyShardedDataParallel<Net> fsdp(net, *world);
  Lion of_shards(fsdp.parameters(), LionOptions(0.1));
  EXPECT_THAT(ErrorOf([&] { (void)StateOf(fsdp, of_shards); }), refused);
}

// Options that derive from known ones have members that nobody would keep.
TEST_F(OwnOptimizers, OptionsOfOwnOptimizersAreRefused) {
  struct Scheduled : torch::optim::SGDOptions {
    explicit Scheduled(double lr) : SGDOptions(lr) {}
    double warm_up = 10;
  };
  Net net;
  torch::optim::SGD plain(net.parameters(), torch::optim::SGDOptions(0.1));
  plain.param_groups()[0].set_options(std::make_unique<Scheduled>(0.1));
  EXPECT_THAT(ErrorOf([&] { (void)StateOf(net, plain, *world); }), HasSubstr("Scheduled"));
  // A class of its own that has torch's options and state is torch's.
  struct Logging : torch::optim::SGD {
    using SGD::SGD;
  };
  Logging derived(net.parameters(), torch::optim::SGDOptions(0.1));
  EXPECT_NO_THROW((void)StateOf(net, derived, *world));
}

struct Kept {
  Kept(const std::string& mode) : net(std::make_shared<Net>(7)) {
    if (mode == "fsdp") {
      fsdp = std::make_shared<FullyShardedDataParallel<Net>>(net, *world);
      optimizer = std::make_unique<KeptLion>(fsdp->parameters(), LionOptions(0.01));
      state = StateOf(*fsdp, *optimizer);
      return;
    }
    ddp = std::make_unique<DistributedDataParallel<Net>>(net, *world);
    if (mode == "zero") {
      auto zero = std::make_unique<ZeroRedundancyOptimizer<KeptLion>>(net->parameters(), *world, LionOptions(0.01));
      state = StateOf(*net, *zero, *world);
      optimizer = std::move(zero);
    } else if (mode == "copies") {
      optimizer = std::make_unique<MasterWeights<KeptLion>>(net->parameters(), LionOptions(0.01));
      state = StateOf(*net, *optimizer, *world);
    } else {
      optimizer = std::make_unique<KeptLion>(net->parameters(), LionOptions(0.01));
      state = StateOf(*net, *optimizer, *world);
    }
  }
  void Train(int from, int to) {
    for (int step = from; step < to; ++step) {
      optimizer->zero_grad();
      const at::Tensor x = InputOf(0, step);
      (fsdp != nullptr ? fsdp->forward(x) : ddp->forward(x)).pow(2).mean().backward();
      optimizer->step();
    }
  }
  std::vector<at::Tensor> Whole() {
    std::unique_ptr<SummonFullParams> whole;
    if (fsdp != nullptr) whole = std::make_unique<SummonFullParams>(*fsdp, /*writeback=*/false);
    std::vector<at::Tensor> copies;
    for (const at::Tensor& parameter : net->parameters()) copies.push_back(parameter.detach().clone());
    return copies;
  }
  std::shared_ptr<Net> net;
  std::shared_ptr<FullyShardedDataParallel<Net>> fsdp;
  std::unique_ptr<DistributedDataParallel<Net>> ddp;
  std::unique_ptr<Optimizer> optimizer;
  TrainingState state;
};

TEST_F(OwnOptimizers, OwnOptimizersThatDescribeTheirStateAreKept) {
  const std::string modes[] = {"ddp", "zero", "copies", "fsdp"};
  for (const std::string& from : modes) {
    Kept saved(from);
    saved.optimizer->param_groups()[0].options().set_lr(0.03);
    saved.Train(0, 3);
    SaveTrainingState(*world, At(from), saved.state, {});
    saved.Train(3, 5);
    const auto expected = saved.Whole();
    for (const std::string& to : modes) {
      SCOPED_TRACE(from + " to " + to);
      Kept loaded(to);
      LoadTrainingState(*world, At(from), loaded.state);
      EXPECT_EQ(loaded.optimizer->param_groups()[0].options().get_lr(), 0.03);
      loaded.Train(3, 5);
      ExpectEqual(loaded.Whole(), expected, /*bits=*/false);
    }
  }
}

TEST_F(OwnOptimizers, LbfgsIsRefusedWhereItWouldSeeAPart) {
  auto net = std::make_shared<Net>();
  EXPECT_THAT(ErrorOf([&] { ZeroRedundancyOptimizer<LBFGS>(net->parameters(), *world, LBFGSOptions(0.1)); }),
              AllOf(HasSubstr("ZeroRedundancyOptimizer"), HasSubstr("LBFGS")));
  EXPECT_THAT(ErrorOf([&] { MasterWeights<LBFGS>(net->parameters(), LBFGSOptions(0.1)); }),
              AllOf(HasSubstr("MasterWeights"), HasSubstr("LBFGS")));
  EXPECT_THAT(
      ErrorOf([&] { ZeroRedundancyOptimizer<MasterWeights<LBFGS>>(net->parameters(), *world, LBFGSOptions(0.1)); }),
      HasSubstr("LBFGS"));
  LBFGS whole(net->parameters(), LBFGSOptions(0.1));
  EXPECT_THAT(ErrorOf([&] { (void)StateOf(*net, whole, *world); }), HasSubstr("LBFGS"));
  FullyShardedDataParallel<Net> fsdp(net, *world);
  LBFGS of_shards(fsdp.parameters(), LBFGSOptions(0.1));
  EXPECT_THAT(ErrorOf([&] { (void)StateOf(fsdp, of_shards); }), AllOf(HasSubstr("LBFGS"), HasSubstr("shards")));
}

// A closure that returns the mean of the ranks' losses makes them decide alike.
TEST_F(OwnOptimizers, LbfgsUnderDdpEqualsOneProcess) {
  const LBFGSOptions options = LBFGSOptions(0.5).max_iter(5).line_search_fn("strong_wolfe");
  auto net = std::make_shared<Net>();
  DistributedDataParallel<Net> ddp(net, *world);
  Net alone;
  {
    const torch::NoGradGuard no_grad;
    for (size_t i = 0; i < net->parameters().size(); ++i) alone.parameters()[i].copy_(net->parameters()[i]);
  }
  LBFGS optimizer(net->parameters(), options), own(alone.parameters(), options);
  for (int step = 0; step < 2; ++step) {
    optimizer.step([&] {
      optimizer.zero_grad();
      const at::Tensor loss = ddp.forward(InputOf(world->rank())).pow(2).mean();
      loss.backward();
      return StartAllReduce(loss, *world).Wait() / world->size();
    });
    own.step([&] {
      own.zero_grad();
      at::Tensor sum = torch::zeros({});
      for (int rank = 0; rank < world->size(); ++rank) {
        sum = sum + alone.forward(InputOf(rank)).pow(2).mean() / world->size();
      }
      sum.backward();
      return sum.detach();
    });
  }
  ExpectEqual(net->parameters(), alone.parameters(), /*bits=*/false);
}

TEST_F(OwnOptimizers, AClosureReturnsThisRanksLoss) {
  for (const bool zero : {false, true}) {
    auto net = std::make_shared<Net>();
    DistributedDataParallel<Net> ddp(net, *world);
    std::unique_ptr<Optimizer> optimizer;
    const torch::optim::SGDOptions options(0.1);
    if (zero) {
      optimizer = std::make_unique<ZeroRedundancyOptimizer<torch::optim::SGD>>(net->parameters(), *world, options);
    } else {
      optimizer = std::make_unique<torch::optim::SGD>(net->parameters(), options);
    }
    const double expected = net->forward(InputOf(world->rank())).pow(2).mean().item<double>();
    const at::Tensor loss = optimizer->step([&] {
      optimizer->zero_grad();
      const at::Tensor found = ddp.forward(InputOf(world->rank())).pow(2).mean();
      found.backward();
      return found;
    });
    EXPECT_NEAR(loss.item<double>(), expected, 1e-6);
  }
}

}  // namespace
}  // namespace cohort::trainer::own_optimizers
