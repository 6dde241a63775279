// Readers of placements: norms, the scaler and FSDP, over layers that are cut before FSDP cuts them.
#include <cmath>
#include <limits>
#include <map>

#include "cohort/trainer/base/error.h"
#include "cohort/trainer/parallel/fsdp/fully_sharded_data_parallel.h"
#include "cohort/trainer/placement/placement_table.h"
#include "cohort/trainer/state/grad_norm.h"
#include "cohort/trainer/state/grad_scaler.h"
#include "tests/trainer/tower.h"

namespace cohort::trainer {
namespace {

using testing::HasSubstr;

// A layer cut by hand, as a tensor-parallel one: columns, rows with fused blocks, and a bias that all have.
struct CutModel : torch::nn::Module {
  explicit CutModel(const Axis& axis) {
    const auto add = [&](const std::string& name, std::vector<int64_t> sizes, const trainer::Cut& cut) {
      Placement placement(std::move(sizes));
      ThrowUnlessOk(placement.Split(axis, cut), name);
      Placements().Add(register_parameter(name, torch::ones(placement.local_sizes())), placement);
    };
    add("fused", {9, 4}, {.dim = 0, .blocks = {5, 2, 2}});
    add("rows", {4, 7}, {.dim = 1});
    register_parameter("bias", torch::ones({5}));
    register_parameter("scale", torch::ones({}));
  }
  at::Tensor forward(const at::Tensor& x) { return x; }
};

// The gradient of the unsplit parameter: its elements differ.
at::Tensor WholeGradient(const std::string& name, const std::vector<int64_t>& sizes) {
  const at::Tensor numbers = torch::arange(1, torch::zeros(sizes).numel() + 1, torch::kFloat32).view(sizes);
  return numbers * (name == "rows" ? 0.25 : 1);
}

// Gives each parameter its part of the whole gradient.
void SetGradients(const std::vector<std::pair<std::string, at::Tensor>>& parameters) {
  for (const auto& [name, parameter] : parameters) {
    const auto placement = Placements().OrWhole(parameter);
    const at::Tensor whole = WholeGradient(name, placement->sizes());
    at::Tensor part = torch::zeros(placement->local_sizes());
    for (const Box& box : placement->boxes()) {
      at::Tensor to = part, from = whole;
      for (size_t dim = 0; dim < box.sizes.size(); ++dim) {
        to = to.narrow(static_cast<int64_t>(dim), box.local[dim], box.sizes[dim]);
        from = from.narrow(static_cast<int64_t>(dim), box.offset[dim], box.sizes[dim]);
      }
      to.copy_(from.reshape(to.sizes()));
    }
    at::Tensor(parameter).mutable_grad() = part;
  }
}

double WholeNorm() {
  double squares = 0;
  const std::map<std::string, std::vector<int64_t>> whole = {
      {"fused", {9, 4}}, {"rows", {4, 7}}, {"bias", {5}}, {"scale", {}}};
  for (const auto& [name, sizes] : whole) squares += WholeGradient(name, sizes).pow(2).sum().item<double>();
  return std::sqrt(squares);
}

// tensor=2 where the ranks are even in number, beside replicas.
std::unique_ptr<DeviceMesh> MeshOfTensors(const std::string& other) {
  const int tensor = world->size() % 2 == 0 ? 2 : world->size();
  auto mesh = DeviceMesh::Create(*world, {world->size() / tensor, tensor}, {other, "tensor"});
  EXPECT_TRUE(mesh.ok()) << mesh.status();
  return *std::move(mesh);
}

// Also where replicas have it (NeMo-RL#3788).
TEST(PlacedNorm, TheNormCountsEachElementOfTheWholeModelOnce) {
  for (const bool joined : {false, true}) {
    const auto mesh = MeshOfTensors("replicate");
    CutModel cut(mesh->axis("tensor").value());
    const auto named = cut.named_parameters().pairs();
    SetGradients(named);
    const at::Tensor norm = clip_grad_norm_(cut.parameters(), 1, 2, joined ? mesh.get() : nullptr);
    EXPECT_NEAR(norm.item<double>(), WholeNorm(), 1e-4);
    const at::Tensor bias = cut.named_parameters()["bias"].grad();
    EXPECT_NEAR(bias[4].item<double>(), 5 / WholeNorm(), 1e-5) << "copies are clipped alike";
  }
}

TEST(PlacedNorm, TensorParallelLayersUnderFsdpHaveOneNorm) {
  const auto mesh = MeshOfTensors("shard");
  const auto cut = std::make_shared<CutModel>(mesh->axis("tensor").value());
  const auto shards = mesh->Slice({"shard"}).value();
  FullyShardedDataParallel<CutModel> fsdp(cut, *shards);
  SetGradients(cut->named_parameters().pairs());
  EXPECT_NEAR(fsdp.clip_grad_norm_(1).item<double>(), WholeNorm(), 1e-4);
  double squares = 0;
  for (const at::Tensor& gradient : CountedGradients(cut->parameters(), mesh->coordinate())) {
    squares += gradient.pow(2).sum().item<double>();
  }
  const comm::Buffer buffer(&squares, 1);
  ASSERT_TRUE(world->AllReduce(buffer, buffer, comm::ReduceOp::kSum).Wait().ok());
  EXPECT_NEAR(std::sqrt(squares), 1, 1e-3) << "of the clipped gradients";
}

// A joined name stands for its axes, which are what placements name.
TEST(PlacedNorm, TheNormIsTheSameOverASliceByAJoinedName) {
  const auto mesh = MeshOfTensors("shard");
  ASSERT_TRUE(mesh->Join("data", {"shard"}).ok());
  const auto cut = std::make_shared<CutModel>(mesh->axis("tensor").value());
  const auto shards = mesh->Slice({"shard"}).value(), joined = mesh->Slice({"data", "tensor"}).value();
  FullyShardedDataParallel<CutModel> fsdp(cut, *shards);
  SetGradients(cut->named_parameters().pairs());
  EXPECT_NEAR(clip_grad_norm_(cut->parameters(), 1, 2, joined.get()).item<double>(), WholeNorm(), 1e-4);
  if (shards->world().size() > 1) {
    EXPECT_THROW(clip_grad_norm_(cut->parameters(), 1, 2, mesh->Slice({"tensor"}).value().get()), c10::Error);
  }
}

TEST(PlacedNorm, KeepsThePlacementsOfLayersWhenFsdpEnds) {
  const auto mesh = MeshOfTensors("shard");
  const auto cut = std::make_shared<CutModel>(mesh->axis("tensor").value());
  const at::Tensor fused = cut->named_parameters()["fused"], bias = cut->named_parameters()["bias"];
  const std::string before = Placements().Of(fused)->Describe();
  {
    FullyShardedDataParallel<CutModel> fsdp(cut, *mesh->Slice({"shard"}).value());
    EXPECT_THAT(Placements().Of(fused)->Describe(), HasSubstr("shard"));
    EXPECT_EQ(Placements().Of(bias)->sizes(), std::vector<int64_t>{5});
  }
  EXPECT_EQ(Placements().Of(fused)->Describe(), before);
  EXPECT_EQ(Placements().Of(bias), nullptr);
}

TEST(PlacedScaler, AScalerSkipsOnAllRanksOfFsdpWithoutBeingTold) {
  auto model = Shard(*world);
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  GradScaler scaler({.init_scale = 8});
  for (const bool odd : {true, false}) {
    optimizer.zero_grad();
    scaler.scale(model->forward(InputOf(world->rank())).pow(2).mean()).backward();
    if (odd && world->rank() == world->size() - 1) {
      for (const at::Tensor& parameter : model->parameters()) {
        if (parameter.grad().defined()) parameter.mutable_grad().fill_(std::numeric_limits<float>::infinity());
      }
    }
    const at::Tensor norm = scaler.unscale_and_clip_(optimizer, 1);
    EXPECT_EQ(std::isfinite(norm.item<double>()), !odd);
    EXPECT_EQ(scaler.step(optimizer), !odd);
    scaler.update();
  }
  EXPECT_EQ(scaler.get_scale(), 4);
}

TEST(PlacedScaler, TheScalersNormIsThatOfFsdp) {
  auto model = Shard(*world);
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  model->forward(InputOf(world->rank())).pow(2).mean().backward();
  const double expected = model->clip_grad_norm_(1e9).item<double>();
  for (const at::Tensor& parameter : model->parameters()) {
    if (parameter.grad().defined()) parameter.mutable_grad().mul_(16);
  }
  GradScaler scaler({.init_scale = 16});
  EXPECT_NEAR(scaler.unscale_and_clip_(optimizer, 1e9).item<double>(), expected, 1e-6);
}

TEST(FsdpMesh, TakesItsAxesByNameInWhateverOrder) {
  if (world->size() % 2 != 0) GTEST_SKIP() << "needs an even number of ranks";
  auto mesh = DeviceMesh::Create(*world, {world->size() / 2, 2}, {"shard", "replicate"});
  ASSERT_TRUE(mesh.ok());
  auto model = Shard(**mesh);
  EXPECT_EQ(model->root().units().front()->shards(), world->size() / 2);
  EXPECT_EQ(model->replicas()->size(), 2);
  torch::optim::Adam optimizer(model->parameters(), torch::optim::AdamOptions(0.02));
  Train(*model, optimizer);
  ExpectSame(Whole(*model), TrainedByDdp(*world), false);
}

TEST(FsdpMesh, RefusesAxesThatItWouldShardOverByPlace) {
  const auto error_over = [](const std::vector<std::string>& names) -> std::string {
    auto mesh = DeviceMesh::Create(*world, {1, world->size()}, names);
    EXPECT_TRUE(mesh.ok());
    try {
      Shard(**mesh);
    } catch (const c10::Error& error) {
      return error.what_without_backtrace();
    }
    return "";
  };
  EXPECT_THAT(error_over({"pipeline", "tensor"}), HasSubstr("no axis \"shard\""));
  EXPECT_THAT(error_over({"shard", "tensor"}), HasSubstr("mesh.Slice({\"shard\"})"));
  EXPECT_THAT(error_over({"rows", "columns"}), HasSubstr("no axis \"shard\""));
  EXPECT_EQ(error_over({"replicate", "shard"}), "");
}

}  // namespace
}  // namespace cohort::trainer
