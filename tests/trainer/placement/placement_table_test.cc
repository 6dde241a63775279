#include "cohort/trainer/placement/placement_table.h"

#include <thread>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "torch/torch.h"

namespace cohort::trainer {
namespace {

using ::testing::HasSubstr;

Placement Cut(std::vector<int64_t> sizes, int rank) {
  Placement placement(std::move(sizes));
  EXPECT_TRUE(placement.Split({.name = "tensor", .size = 2, .rank = rank}, {.dim = 0}).ok());
  return placement;
}

TEST(PlacementTable, KnowsAParameterByItsTensor) {
  PlacementTable table;
  at::Tensor weight = torch::zeros({2, 3});
  table.Add(weight, Cut({4, 3}, 0));
  const at::Tensor same = weight, copy = weight.clone();
  ASSERT_NE(table.Of(same), nullptr);
  EXPECT_EQ(table.Of(same)->sizes(), (std::vector<int64_t>{4, 3}));
  EXPECT_EQ(table.Of(copy), nullptr);
  EXPECT_TRUE(table.OrWhole(copy)->whole());
  weight.set_data(torch::zeros({2, 3}, at::kDouble));  // as Module::to
  EXPECT_NE(table.Of(weight), nullptr);
  table.Remove(weight);
  EXPECT_EQ(table.Of(weight), nullptr);
}

TEST(PlacementTable, GivesNoEndedTensorsEntryToAnother) {
  PlacementTable table;
  for (int i = 0; i < 1000; ++i) {
    const at::Tensor fresh = torch::zeros({2});
    ASSERT_EQ(table.Of(fresh), nullptr) << "tensor " << i << " has the memory of an ended one";
    table.Add(fresh, Cut({4}, 0));
  }
}

TEST(PlacementTable, KeepsNoMemoryOfTensors) {
  PlacementTable table;
  at::Tensor weight = torch::zeros({2});
  const c10::weak_intrusive_ptr<c10::StorageImpl> storage(
      c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(weight.storage().unsafeGetStorageImpl()));
  table.Add(weight, Cut({4}, 0));
  weight.reset();
  EXPECT_TRUE(storage.expired());
}

TEST(PlacementTable, ServesSeveralThreads) {
  PlacementTable table;
  const auto work = [&table] {
    for (int i = 0; i < 200; ++i) {
      const at::Tensor weight = torch::zeros({2});
      table.Add(weight, Cut({4}, 1));
      EXPECT_EQ(table.Of(weight)->axes().front().rank, 1);
    }
  };
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) threads.emplace_back(work);
  for (std::thread& thread : threads) thread.join();
}

TEST(ShowPlacements, PlacementsAreShownInALineForEachParameter) {
  torch::nn::Linear linear(3, 2);
  Placement placement = Cut({4, 3}, 1);
  placement.set_name("block.up.weight");
  Placements().Add(linear->weight, placement);
  const std::string text = ShowPlacements(*linear, {{"tensor", 1}});
  EXPECT_THAT(text, HasSubstr("block.up.weight  [4, 3]  [2, 3]  yes     tensor 1/2 cuts dim 0"));
  EXPECT_THAT(text, HasSubstr("bias             [2]     [2]     no      whole"));
}

TEST(ModelAxes, ModelAxesAreThoseThatCutOrOwn) {
  const at::Tensor cut = torch::zeros({2}), owned = torch::zeros({2}), partial = torch::zeros({2});
  Placements().Add(cut, Cut({4}, 1));
  Placement stage({2}), sum({2});
  ASSERT_TRUE(stage.Owned({.name = "pipeline", .size = 2, .rank = 1}, 1).ok());
  ASSERT_TRUE(sum.Partial({.name = "context", .size = 2}).ok());
  Placements().Add(owned, stage);
  Placements().Add(partial, sum);
  const std::vector<Axis> axes = ModelAxes({cut, owned, partial, torch::zeros({1})});
  ASSERT_EQ(axes.size(), 2u);
  EXPECT_EQ(axes[0].name, "pipeline");
  EXPECT_EQ(axes[1].name, "tensor");
  EXPECT_EQ(CoordinateOn(axes), (Coordinate{{"pipeline", 1}, {"tensor", 1}}));
  Placements().Add(owned, Cut({4}, 0));
  EXPECT_THROW(ModelAxes({cut, owned}), c10::Error);
}

}  // namespace
}  // namespace cohort::trainer
