// Wrappers that replicate, around layers of which ranks have parts: groups that would mix the parts are refused, and
// norms are those of the whole model.
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "cohort/trainer/mesh/device_mesh.h"
#include "cohort/trainer/parallel/fsdp/fully_sharded_data_parallel.h"
#include "cohort/trainer/parallel/replicate/distributed_data_parallel.h"
#include "cohort/trainer/parallel/tensor/column_parallel_linear.h"
#include "cohort/trainer/parallel/tensor/row_parallel_linear.h"
#include "cohort/trainer/parallel/zero/zero_redundancy_optimizer.h"
#include "cohort/trainer/parallelize/sharded_data_parallel.h"
#include "cohort/trainer/state/grad_scaler.h"
#include "tests/trainer/parallel/tensor/tensor_layers.h"

namespace cohort::trainer {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using torch::optim::SGD;
using torch::optim::SGDOptions;

// Sizes that divide by 2 and by 3: parts have equal sizes, and only their placements tell them apart.
struct CutNet : torch::nn::Module {
  explicit CutNet(const TensorAxis& axis) {
    up = register_module("up", ColumnParallelLinear(ColumnParallelLinearOptions(4, 12), axis));
    down = register_module("down", RowParallelLinear(RowParallelLinearOptions(12, 3), axis));
  }
  at::Tensor forward(const at::Tensor& x) { return down(torch::tanh(up(x))); }
  ColumnParallelLinear up{nullptr};
  RowParallelLinear down{nullptr};
};

auto CutAndWholeNet(const TensorAxis& axis) {
  return CutAndWhole([](const TensorAxis& on) { return std::make_shared<CutNet>(on); }, axis);
}

// tensor=2 beside replicas where the ranks are even in number, else all ranks.
std::unique_ptr<DeviceMesh> Mesh() {
  const int tensor = world->size() % 2 == 0 ? 2 : world->size();
  auto mesh = DeviceMesh::Create(*world, {world->size() / tensor, tensor}, {"replicate", "tensor"});
  EXPECT_TRUE(mesh.ok()) << mesh.status();
  return *std::move(mesh);
}

TEST(PartsAmongReplicas, WrappersThatNeedEqualCopiesRefuseParts) {
  if (world->size() == 1) GTEST_SKIP() << "one rank has everything";
  const auto [net, whole] = CutAndWholeNet(TensorAxis(*world));
  const auto before = net->parameters()[0].detach().clone();
  const auto names = AllOf(HasSubstr("up.weight"), HasSubstr("'tensor'"));
  EXPECT_THAT(ErrorOf([&net = net] { DistributedDataParallel<CutNet> ddp(net, *world); }), names);
  EXPECT_THAT(ErrorOf([&net = net] { FullyShardedDataParallel<CutNet> fsdp(net, *world); }), names);
  EXPECT_THAT(ErrorOf([&net = net] { ZeroRedundancyOptimizer<SGD> zero(net->parameters(), *world, SGDOptions(0.1)); }),
              AllOf(HasSubstr("number 0"), HasSubstr("'tensor'")));
  EXPECT_TRUE(torch::equal(net->parameters()[0], before)) << "nothing was broadcast";
}

TEST(PartsAmongReplicas, PartsAreTakenWhereTheyAreEqualOrIgnored) {
  const auto mesh = Mesh();
  const auto [net, whole] = CutAndWholeNet(TensorAxis(mesh->axis("tensor").value()));
  comm::Communicator& replicas = **mesh->get_group("replicate");
  EXPECT_EQ(ErrorOf([&net = net, &replicas] { DistributedDataParallel<CutNet> ddp(net, replicas); }), "");
  EXPECT_EQ(ErrorOf([&net = net, &replicas] {
              ZeroRedundancyOptimizer<SGD> zero(net->parameters(), replicas, SGDOptions(0.1));
            }),
            "");
  DistributedDataParallelOptions options;
  for (const at::Tensor& parameter : net->parameters()) {
    if (!Placements().OrWhole(parameter)->whole()) options.ignored_parameters.push_back(parameter);
  }
  EXPECT_EQ(ErrorOf([&net = net, &options] { DistributedDataParallel<CutNet> ddp(net, *world, options); }), "");
  EXPECT_EQ(ErrorOf([&net = net, &replicas] { FullyShardedDataParallel<CutNet> fsdp(net, replicas); }), "");
}

TEST(PartsAmongReplicas, ZeroClipsPartsToTheNormOfTheWholeModel) {
  const auto mesh = Mesh();
  const auto [net, whole] = CutAndWholeNet(TensorAxis(mesh->axis("tensor").value()));
  ZeroRedundancyOptimizer<SGD> zero(net->parameters(), **mesh->get_group("replicate"), SGDOptions(0.1));
  net->forward(InputOf(0)).pow(2).sum().backward();
  whole->forward(InputOf(0)).pow(2).sum().backward();
  const double expected = torch::nn::utils::clip_grad_norm_(whole->parameters(), 0.5);
  EXPECT_NEAR(zero.clip_grad_norm_(0.5).item<double>(), expected, 1e-4 * expected);
  ExpectParts(*net, *whole, "clipped");
}

// ZeRO-2: of the ranks of a group each gradient is on one, and of those of the axis each has a part or a copy.
TEST(PartsAmongReplicas, PartsHaveOneNormUnderAScalerWhereOwnersHaveTheGradients) {
  const auto mesh = Mesh();
  comm::Communicator& replicas = **mesh->get_group("replicate");
  const auto [net, whole] = CutAndWholeNet(TensorAxis(mesh->axis("tensor").value()));
  ZeroRedundancyOptimizer<SGD> zero(net->parameters(), replicas, SGDOptions(0.1));
  ShardedDataParallel<CutNet> sharded(net, zero, replicas);
  GradScaler scaler({.init_scale = 8}, {&replicas});
  scaler.scale(sharded.forward(InputOf(0)).pow(2).sum()).backward();
  whole->forward(InputOf(0)).pow(2).sum().backward();
  const double expected = torch::nn::utils::clip_grad_norm_(whole->parameters(), 0.5);
  EXPECT_NEAR(scaler.unscale_and_clip_(zero, 0.5).item<double>(), expected, 1e-4 * expected);
  EXPECT_TRUE(scaler.step(zero));
}

// Stage 0 has no cut layers and stage 1 has: an infinity in one column of stage 1 concerns every rank.
TEST(PartsAmongReplicas, AScalerThatHasTheMeshSkipsAllParts) {
  if (world->size() != 4) GTEST_SKIP() << "needs 2 stages of 2 ranks";
  auto mesh = DeviceMesh::Create(*world, {2, 2}, {"pipeline", "tensor"});
  ASSERT_TRUE(mesh.ok());
  const Axis stages = (*mesh)->axis("pipeline").value(), tensor = (*mesh)->axis("tensor").value();
  torch::manual_seed(7);
  const auto net = std::make_shared<CutNet>(stages.rank == 0 ? TensorAxis() : TensorAxis(tensor));
  for (const at::Tensor& parameter : net->parameters()) {
    Placement placement = *Placements().OrWhole(parameter);
    ASSERT_TRUE(placement.Owned(stages, stages.rank).ok());
    Placements().Add(parameter, placement);
  }
  SGD optimizer(net->parameters(), SGDOptions(0.1));
  for (const bool clips : {false, true}) {
    GradScaler scaler({.init_scale = 8}, {}, mesh->get());
    for (const bool odd : {true, false}) {
      optimizer.zero_grad();
      for (const at::Tensor& parameter : net->parameters()) {
        parameter.mutable_grad() = torch::full_like(parameter, odd && world->rank() == 3 ? INFINITY : 1);
      }
      if (clips) scaler.unscale_and_clip_(optimizer, 1);
      EXPECT_EQ(scaler.step(optimizer), !odd) << "rank " << world->rank();
      scaler.update();
    }
  }
}

}  // namespace
}  // namespace cohort::trainer
