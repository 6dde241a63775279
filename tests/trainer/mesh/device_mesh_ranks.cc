// Meshes, their slices and joined axes, and what ranks must have in common.
#include <chrono>
#include <functional>

#include "cohort/trainer/base/error.h"
#include "cohort/trainer/mesh/device_mesh.h"
#include "cohort/trainer/transfer/job.h"
#include "cohort/trainer/transfer/same_on_all_ranks.h"
#include "tests/trainer/ranks.h"

namespace cohort::trainer {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::ElementsAreArray;
using testing::HasSubstr;

int SumOverRanks(comm::Communicator& group, int value) {
  int32_t sum = value;
  const comm::Buffer buffer(&sum, 1);
  EXPECT_TRUE(group.AllReduce(buffer, buffer, comm::ReduceOp::kSum).Wait().ok());
  return sum;
}

// The error of `work`, which comes soon.
std::string MeshErrorOf(const std::function<void()>& work) {
  const auto begin = std::chrono::steady_clock::now();
  try {
    work();
  } catch (const DistributedError& error) {
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(10));  // 1 s on an idle machine
    EXPECT_EQ(error.code(), absl::StatusCode::kFailedPrecondition);
    return error.what_without_backtrace();
  }
  return "";
}

TEST(DeviceMesh, KnowsItsAxesByName) {
  const int size = world->size();
  auto mesh = DeviceMesh::Create(*world, {size, 1}, {"shard", "tensor"});
  ASSERT_TRUE(mesh.ok()) << mesh.status();
  EXPECT_EQ((*mesh)->size("shard").value(), size);
  EXPECT_EQ((*mesh)->get_local_rank("shard").value(), world->rank());
  EXPECT_THAT((*mesh)->get_coordinate(), ElementsAre(world->rank(), 0));
  EXPECT_EQ((*mesh)->coordinate(), (Coordinate{{"shard", world->rank()}, {"tensor", 0}}));
  const Axis axis = (*mesh)->axis("shard").value();
  EXPECT_EQ(axis.size, size);
  EXPECT_EQ(axis.rank, world->rank());
  EXPECT_EQ(axis.group->size(), size);
  EXPECT_EQ(axis.group, (*mesh)->get_group("shard").value()) << "made once";
  EXPECT_THAT(std::string((*mesh)->get_group("rows").status().message()), HasSubstr("it has: shard, tensor"));
}

TEST(DeviceMesh, HasSlicesAndJoinedAxes) {
  if (world->size() != 4) GTEST_SKIP() << "needs 4 ranks";
  auto made = DeviceMesh::Create(*world, {2, 1, 2}, {"replicate", "shard", "tensor"});
  ASSERT_TRUE(made.ok());
  DeviceMesh& mesh = **made;
  const int replica = world->rank() / 2, tensor = world->rank() % 2;

  auto data = mesh.Slice({"shard", "replicate"});  // in whatever order
  ASSERT_TRUE(data.ok()) << data.status();
  EXPECT_THAT((*data)->dim_names(), ElementsAre("replicate", "shard"));
  EXPECT_THAT((*data)->shape(), ElementsAre(2, 1));
  EXPECT_THAT((*data)->world().members(), ElementsAre(tensor, 2 + tensor));
  EXPECT_EQ(SumOverRanks((*data)->world(), world->rank()), 2 + 2 * tensor);
  EXPECT_FALSE((*data)->has("tensor"));
  EXPECT_FALSE((*data)->Slice({"tensor"}).ok()) << "outside of the slice";

  ASSERT_TRUE(mesh.Join("data", {"shard", "replicate"}).ok());
  EXPECT_EQ(mesh.size("data").value(), 2);
  EXPECT_EQ(mesh.get_local_rank("data").value(), replica);
  EXPECT_EQ(&(*data)->world(), mesh.get_group("data").value()) << "the same ranks, the same group";
  ASSERT_TRUE(mesh.Join("data", {"replicate", "shard"}).ok()) << "as before";
  EXPECT_FALSE(mesh.Join("data", {"replicate", "tensor"}).ok());
  EXPECT_FALSE(mesh.Join("shard", {"replicate", "tensor"}).ok());
  EXPECT_FALSE(mesh.Slice({"data", "shard"}).ok()) << "twice";
  EXPECT_FALSE(mesh.Slice({}).ok());

  auto joined = mesh.Slice({"data", "tensor"});
  ASSERT_TRUE(joined.ok()) << joined.status();
  EXPECT_THAT((*joined)->shape(), ElementsAre(2, 2));
  EXPECT_EQ(&(*joined)->world(), world.get()) << "all ranks in the world's order";
  EXPECT_TRUE((*joined)->has("shard")) << "a part of data";
  std::vector<std::string> base;
  for (const Axis& axis : (*joined)->base_axes()) base.push_back(axis.name);
  EXPECT_THAT(base, ElementsAre("replicate", "shard", "tensor"));
  EXPECT_THAT(mesh.Show(),
              AllOf(HasSubstr("replicate=2, shard=1, tensor=2\n"), HasSubstr("replicate 1, shard 0  rank 2     rank 3"),
                    HasSubstr("data = replicate x shard\n")));
}

// The canonical order decides about ranks of a joined axis, not the order of the mesh.
TEST(DeviceMesh, OrdersJoinedRanksByName) {
  if (world->size() != 4) GTEST_SKIP() << "needs 4 ranks";
  auto mesh = DeviceMesh::Create(*world, {2, 2}, {"shard", "replicate"});
  ASSERT_TRUE(mesh.ok());
  auto slice = (*mesh)->Slice({"shard", "replicate"});
  ASSERT_TRUE(slice.ok());
  EXPECT_THAT((*slice)->world().members(), ElementsAre(0, 2, 1, 3)) << "replica by replica";
  EXPECT_EQ(SumOverRanks((*slice)->world(), 1), 4);
}

TEST(DeviceMesh, ASliceOutlivesItsMesh) {
  auto mesh = DeviceMesh::Create(*world, {1, world->size()}, {"replicate", "shard"});
  ASSERT_TRUE(mesh.ok());
  auto slice = (*mesh)->Slice({"shard"});
  ASSERT_TRUE(slice.ok());
  mesh->reset();
  EXPECT_EQ(SumOverRanks((*slice)->world(), 1), world->size());
}

TEST(DeviceMesh, AMeshThatDiffersBetweenRanksIsNamedOnAllOfThem) {
  if (world->size() == 1) GTEST_SKIP() << "one rank can't differ";
  const bool odd = world->rank() == world->size() - 1;
  const std::string all = std::to_string(world->size());
  EXPECT_THAT(MeshErrorOf([&] { init_device_mesh(*world, odd ? "shard=" + all : "replicate=" + all); }),
              AllOf(HasSubstr("rank " + std::to_string(world->size() - 1)), HasSubstr("mesh \"shard=" + all + "\""),
                    HasSubstr("\"replicate=" + all + "\" on rank 0")));
  EXPECT_THAT(MeshErrorOf([&] { init_device_mesh(*world, {world->size()}, {odd ? "rows" : "shard"}); }),
              HasSubstr("\"rows=" + all + "\""));
  EXPECT_EQ(init_device_mesh(*world, "shard=" + all)->ndim(), 1) << "the world goes on";
}

TEST(SameSetup, EverythingThatDiffersBetweenRanksIsNamed) {
  const auto check = [](const std::string& schedule, const std::string& seed) {
    CheckSameSetup(*world, "a test", {{"mesh", "shard=2"}, {"schedule", schedule}, {"seed", seed}});
  };
  check("one_f_one_b", "7");
  if (world->size() == 1) return;
  const bool odd = world->rank() == 1;
  const std::string error = MeshErrorOf([&] { check(odd ? "F0\nF1\nB1" : "F0\nB0", odd ? "8" : "7"); });
  EXPECT_EQ(
      error,
      "a test: rank 1 was set up otherwise than rank 0: schedule \"F1\" there, \"B0\" on rank 0; seed \"8\" there, "
      "\"7\" on rank 0");
}

}  // namespace
}  // namespace cohort::trainer
