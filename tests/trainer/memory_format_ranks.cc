// Parameters whose elements do not lie in the order of their indices.
#include <memory>
#include <string>

#include "cohort/trainer/state/sharded_init.h"
#include "tests/trainer/trained.h"

namespace cohort::trainer {
namespace {

using torch::optim::SGD;
using torch::optim::SGDOptions;

class MemoryFormatCheckpoints : public Checkpoints {};

struct Convolution : torch::nn::Module {
  explicit Convolution(at::MemoryFormat format) {
    torch::manual_seed(30);
    conv = register_module("conv", torch::nn::Conv2d(torch::nn::Conv2dOptions(3, 4, 3)));
    for (at::Tensor& parameter : parameters()) {
      if (parameter.dim() == 4) parameter.set_data(parameter.contiguous(format));
    }
    mean = register_buffer("mean", torch::rand({2, 3, 4, 5}).contiguous(format));
  }
  at::Tensor forward(const at::Tensor& x) { return conv(x - mean.mean()); }
  torch::nn::Conv2d conv{nullptr};
  at::Tensor mean;
};

constexpr at::MemoryFormat kFormats[] = {at::MemoryFormat::Contiguous, at::MemoryFormat::ChannelsLast};

TEST_F(MemoryFormatCheckpoints, CheckpointsAreLoadedIntoAnyMemoryFormat) {
  for (const auto from : kFormats) {
    auto saved = std::make_shared<Convolution>(from);
    DistributedDataParallel<Convolution> ddp(saved, *world);
    SGD optimizer(saved->parameters(), SGDOptions(0.1).momentum(0.9));
    const auto step = [](auto& model, SGD& sgd) {
      sgd.zero_grad();
      model.forward(torch::ones({2, 3, 5, 5})).pow(2).mean().backward();
      sgd.step();
    };
    step(ddp, optimizer);
    const std::string place = At("from-" + std::to_string(static_cast<int>(from)));
    SaveTrainingState(*world, place, StateOf(*saved, optimizer, *world), {});
    for (const auto to : kFormats) {
      auto loaded = std::make_shared<Convolution>(to);
      SGD other(loaded->parameters(), SGDOptions(0.1).momentum(0.9));
      {
        const torch::NoGradGuard no_grad;
        for (at::Tensor& parameter : loaded->parameters()) parameter.zero_();
        loaded->mean.zero_();
      }
      LoadTrainingState(*world, place, StateOf(*loaded, other, *world));
      ExpectEqual(loaded->parameters(), saved->parameters(), /*bits=*/true);
      EXPECT_TRUE(torch::equal(loaded->mean, saved->mean));
      EXPECT_TRUE(loaded->conv->weight.is_contiguous(to)) << "it keeps its own format";
      auto undisturbed = std::make_shared<Convolution>(from);
      SGD third(undisturbed->parameters(), SGDOptions(0.1).momentum(0.9));
      LoadTrainingState(*world, place, StateOf(*undisturbed, third, *world));
      step(*loaded, other);
      step(*undisturbed, third);
      ExpectEqual(loaded->parameters(), undisturbed->parameters(), /*bits=*/false);
    }
  }
}

TEST_F(MemoryFormatCheckpoints, InitialValuesDoNotDependOnTheMemoryFormat) {
  Convolution contiguous(at::MemoryFormat::Contiguous), channels_last(at::MemoryFormat::ChannelsLast);
  init_parameters(contiguous, 4, LikeTorch);
  init_parameters(channels_last, 4, LikeTorch);
  EXPECT_FALSE(channels_last.conv->weight.is_contiguous());
  ExpectEqual(channels_last.parameters(), contiguous.parameters(), /*bits=*/true);
}

}  // namespace
}  // namespace cohort::trainer
