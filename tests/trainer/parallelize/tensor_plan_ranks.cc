// Layers that a plan cuts where they are: what their parameters keep, clones, shared parameters, and masks of dropout.
#include <memory>
#include <string>
#include <vector>

#include "cohort/trainer/adapter/lora.h"
#include "cohort/trainer/nn/embedding.h"
#include "cohort/trainer/nn/linear.h"
#include "cohort/trainer/parallelize/parallelize.h"
#include "cohort/trainer/placement/placement_table.h"
#include "cohort/trainer/transfer/autograd_collectives.h"
#include "cohort/trainer/transfer/job.h"
#include "tests/trainer/parallel/tensor/tensor_layers.h"

namespace cohort::trainer {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr int64_t kTextPlaces = 5;

struct PlannedLayers : torch::nn::Cloneable<PlannedLayers> {
  PlannedLayers() { reset(); }
  void reset() override {
    tokens = register_module("tokens", nn::Embedding(13, 6));
    up = register_module("up", nn::Linear(6, 9));
    down = register_module("down", nn::Linear(9, 4));
  }
  at::Tensor forward(const at::Tensor& codes) { return down(torch::tanh(up(tokens(codes)))); }
  nn::Embedding tokens{nullptr};
  nn::Linear up{nullptr}, down{nullptr};
};

TensorPlan CutsOfLayers() {
  return {{"tokens", RowwiseParallel()}, {"up", ColwiseParallel()}, {"down", RowwiseParallel()}};
}

at::Tensor Codes() { return torch::arange(3 * kTextPlaces).remainder(13).view({3, kTextPlaces}); }

TEST(TensorPlan, ClonesComputeWithTheirOwnParameters) {
  for (const bool sequence_parallel : {false, true}) {
    const TensorAxis axis(*world, {.sequence_parallel = sequence_parallel, .sequence_dim = 1});
    axis.set_sequence_length(kTextPlaces);
    torch::manual_seed(4);
    PlannedLayers model;
    CutLayers(model, CutsOfLayers(), axis);
    const auto copy = std::dynamic_pointer_cast<PlannedLayers>(model.clone());
    const at::Tensor y = model.forward(Codes());
    y.pow(2).sum().backward();
    const auto parameters = model.named_parameters();
    std::vector<at::Tensor> gradients;
    for (const auto& item : parameters) {
      gradients.push_back(item.value().grad());
      item.value().mutable_grad() = at::Tensor();
      const at::NoGradGuard no_grad;
      at::Tensor(item.value()).fill_(100);
    }
    const at::Tensor again = copy->forward(Codes());
    ExpectClose(again.detach(), y.detach(), "a clone");
    again.pow(2).sum().backward();
    for (size_t i = 0; const auto& item : copy->named_parameters()) {
      ExpectClose(item.value().grad(), gradients[i++], "a clone's gradient of " + item.key());
      EXPECT_FALSE(parameters[item.key()].grad().defined()) << item.key();
      EXPECT_EQ(Placements().OrWhole(item.value())->Describe(),
                Placements().OrWhole(parameters[item.key()])->Describe())
          << item.key();
    }
  }
}

TEST(TensorPlan, ParametersKeepTypeAndIdentityAndWhetherTheyAreFrozen) {
  const TensorAxis axis(*world, {.sequence_parallel = true, .sequence_dim = 0});
  const auto make = [] {
    torch::manual_seed(5);
    torch::nn::Sequential made(torch::nn::Linear(6, 9), torch::nn::Tanh(), torch::nn::Linear(9, 4));
    made->to(torch::kDouble);
    made->named_parameters()["0.weight"].requires_grad_(false);
    made->named_parameters()["2.bias"].requires_grad_(false);
    return made;
  };
  torch::nn::Sequential cut = make(), whole = make();
  cut->eval();
  const auto before = cut->named_parameters();
  CutLayers(*cut, {{"0", ColwiseParallel()}, {"2", RowwiseParallel()}}, axis);
  EXPECT_FALSE(cut->ptr(0)->is_training());
  for (const auto& item : cut->named_parameters()) {
    EXPECT_TRUE(item.value().is_same(before[item.key()])) << item.key();  // an optimizer knows it
    EXPECT_EQ(item.value().scalar_type(), torch::kDouble) << item.key();
    EXPECT_EQ(item.value().requires_grad(), item.key() != "0.weight" && item.key() != "2.bias") << item.key();
  }
  const at::Tensor x = Random({2 * world->size(), 3, 6}, 6).to(torch::kDouble);
  const at::Tensor y = gather_from_region(cut->forward(scatter_to_region(x, *world, 0)), *world, 0);
  ExpectClose(y.detach(), whole->forward(x).detach(), "in double");
  // A bias that is thawed has the whole gradient.
  cut->named_parameters()["2.bias"].requires_grad_(true);
  cut->forward(scatter_to_region(x, *world, 0)).sum().backward();
  ExpectClose(cut->named_parameters()["2.bias"].grad(), torch::full({4}, 6.0 * world->size(), torch::kDouble),
              "thawed");
}

// An embedding and a head with one weight, as language models have.
struct Tied : torch::nn::Module {
  Tied() {
    tokens = register_module("tokens", nn::Embedding(13, 6));
    torch::nn::Linear out(torch::nn::LinearOptions(6, 13).bias(false));
    out->weight = tokens->weight;
    head = register_module("head", torch::nn::Sequential({{"out", out}, {"same", torch::nn::Identity()}}));
  }
  at::Tensor forward(const at::Tensor& codes) { return head->forward(tokens(codes)); }
  nn::Embedding tokens{nullptr};
  torch::nn::Sequential head{nullptr};
};

TEST(TensorPlan, SharedParametersStayShared) {
  const TensorAxis axis(*world);
  torch::manual_seed(6);
  Tied whole;
  torch::manual_seed(6);
  Tied cut;
  CutLayers(cut, {{"tokens", RowwiseParallel()}, {"head.out", ColwiseParallel().gather_output(true)}}, axis);
  EXPECT_TRUE(cut.named_parameters()["head.out.weight"].is_same(cut.tokens->weight));
  const at::Tensor y = cut.forward(Codes()), expected = whole.forward(Codes());
  ExpectClose(y.detach(), expected.detach(), "tied");
  y.pow(2).sum().backward();
  expected.pow(2).sum().backward();
  ExpectClose(cut.tokens->weight.grad(), OwnPart(cut.tokens->weight, whole.tokens->weight.grad()), "tied", 1e-4);
}

TEST(TensorPlan, SharedParametersThatCannotStaySharedAreNamed) {
  if (world->size() == 1) GTEST_SKIP() << "nothing is cut";
  const TensorAxis axis(*world);
  Tied model;
  EXPECT_THAT(ErrorOf([&] { CutLayers(model, {{"tokens", RowwiseParallel()}}, axis); }),
              AllOf(HasSubstr("tokens.weight"), HasSubstr("head.out.weight"), HasSubstr("names only the first")));
  EXPECT_THAT(
      ErrorOf([&] { CutLayers(model, {{"tokens", RowwiseParallel()}, {"head.out", RowwiseParallel()}}, axis); }),
      AllOf(HasSubstr("tokens.weight"), HasSubstr("head.out.weight"), HasSubstr("different ways")));
  EXPECT_EQ(model.tokens->weight.size(0), 13);  // nothing was cut
}

// One layer under two names.
struct Twice : torch::nn::Module {
  Twice() {
    first = register_module("first", nn::Linear(6, 6));
    register_module("second", first.ptr());
  }
  at::Tensor forward(const at::Tensor& x) { return first(torch::tanh(first(x))); }
  nn::Linear first{nullptr};
};

TEST(TensorPlan, ALayerOfTwoNamesIsCutAndListedOnce) {
  const auto mesh = init_device_mesh(*world, {world->size()}, {"tensor"});
  const auto seeded = [] {
    torch::manual_seed(7);
    return std::make_shared<Twice>();
  };
  auto model = parallelize(seeded(), *mesh, {.tensor = {{"*", ColwiseParallel().gather_output(true)}}});
  EXPECT_EQ(model.parameters().size(), 2);
  EXPECT_EQ(model.module()->parameters().size(), 4);
  const at::Tensor x = Random({3, 6}, 8);
  ExpectClose(model.forward(x).detach(), seeded()->forward(x).detach(), "a layer used twice");
}

TEST(TensorPlan, RefusesLayersThatAreCutOrAdaptedAlready) {
  if (world->size() == 1) GTEST_SKIP() << "nothing is cut";
  const TensorAxis axis(*world);
  PlannedLayers model, adapted;
  CutLayers(model, {{"up", ColwiseParallel()}}, axis);
  EXPECT_THAT(ErrorOf([&] { CutLayers(model, CutsOfLayers(), axis); }), HasSubstr("up.weight is cut already"));
  EXPECT_EQ(model.tokens->weight.size(0), 13);
  const Lora lora(adapted, {.r = 2, .target_modules = {"down"}});
  EXPECT_THAT(ErrorOf([&] { CutLayers(adapted, CutsOfLayers(), axis); }), HasSubstr("down has an adapter"));
}

// Trains adapters with dropout, and returns the outputs of the steps: this rank's part of the sequence, if it is cut.
std::vector<at::Tensor> TrainAdapters(const TensorAxis* axis) {
  torch::manual_seed(8);
  PlannedLayers model;
  if (axis != nullptr) {
    axis->set_sequence_length(3);  // of Codes() along dimension 0
    CutLayers(model, CutsOfLayers(), *axis);
  }
  const Lora lora(model, {.r = 2, .lora_alpha = 4, .lora_dropout = 0.4, .target_modules = {"up", "down"}});
  torch::optim::SGD optimizer(lora.parameters(), torch::optim::SGDOptions(0.1));
  std::vector<at::Tensor> outputs;
  for (int step = 0; step < 3; ++step) {
    set_random_place({.seed = 1, .step = step});
    optimizer.zero_grad();
    const at::Tensor y = model.forward(Codes());
    y.pow(2).sum().backward();
    optimizer.step();
    outputs.push_back(y.detach());
  }
  return outputs;
}

TEST(TensorPlan, MasksOfAdaptersAreThoseOfOneProcessOnAnyMesh) {
  const RandomPlaceGuard restores({});
  const Axis alone = {.name = kTensorAxis};
  const TensorAxis one(alone), all(*world);
  const auto plain = TrainAdapters(nullptr), of_one = TrainAdapters(&one), of_all = TrainAdapters(&all);
  const TensorAxisOptions options = {.sequence_parallel = true, .sequence_dim = 0};
  const TensorAxis sequence_of_one(alone, options), sequence_of_all(*world, options);
  const auto first_of_one = TrainAdapters(&sequence_of_one), first_of_all = TrainAdapters(&sequence_of_all);
  for (size_t step = 0; step < plain.size(); ++step) {
    ExpectClose(of_one[step], plain[step], "one rank", 1e-4);
    ExpectClose(of_all[step], plain[step], "all ranks", 1e-4);
    ExpectClose(gather_from_region(first_of_all[step], *world, 0, 3), first_of_one[step], "sequence first", 1e-4);
  }
}

TEST(TensorPlan, MasksOfAdaptersAreTorchsWithoutAMeshAndAPlace) {
  const RandomPlaceGuard none({});
  PlannedLayers model, cut;
  const Lora lora(model, {.r = 2, .lora_dropout = 0.5, .target_modules = {"up"}});
  {
    const at::NoGradGuard no_grad;
    for (at::Tensor parameter : lora.parameters()) parameter.normal_();
  }
  EXPECT_FALSE(torch::equal(model.forward(Codes()), model.forward(Codes())));
  CutLayers(cut, CutsOfLayers(), TensorAxis(*world));
  const Lora of_cut(cut, {.r = 2, .lora_dropout = 0.5, .target_modules = {"up"}});
  EXPECT_THAT(ErrorOf([&] { cut.forward(Codes()); }), HasSubstr("set_random_place"));
}

}  // namespace
}  // namespace cohort::trainer
