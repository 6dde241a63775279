// The boxes of all ranks tile the whole, once for each set of ranks with equal parts.
#include "cohort/trainer/placement/placement.h"

#include <algorithm>
#include <functional>
#include <map>
#include <random>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace cohort::trainer {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

Axis Of(const std::string& name, int size, int rank = 0) { return {.name = name, .size = size, .rank = rank}; }

std::vector<Coordinate> AllPlaces(const std::vector<Axis>& axes) {
  std::vector<Coordinate> places = {{}};
  for (const Axis& axis : axes) {
    std::vector<Coordinate> longer;
    for (const Coordinate& place : places) {
      for (int rank = 0; rank < axis.size; ++rank) {
        longer.push_back(place);
        longer.back()[axis.name] = rank;
      }
    }
    places = std::move(longer);
  }
  return places;
}

// Calls `visit` with the flat index, in a tensor of `sizes`, of each element of the box that lies at `offset` there.
void ForElements(const std::vector<int64_t>& sizes, const std::vector<int64_t>& offset, const Box& box,
                 const std::function<void(int64_t)>& visit) {
  for (int64_t element = 0; element < box.numel(); ++element) {
    int64_t rest = element, flat = 0, stride = 1;
    for (size_t dim = sizes.size(); dim-- > 0;) {
      flat += (offset[dim] + rest % box.sizes[dim]) * stride;
      rest /= box.sizes[dim];
      stride *= sizes[dim];
    }
    visit(flat);
  }
}

int64_t Product(const std::vector<int64_t>& sizes) {
  int64_t product = 1;
  for (const int64_t size : sizes) product *= size;
  return product;
}

// Every element of the whole is written by exactly one of all ranks, and every element of a rank's tensor is in one of
// its boxes. Ranks that don't write have the boxes of one that does.
void ExpectTiling(const Placement& placement, const std::vector<Axis>& axes) {
  std::vector<int> written(placement.numel(), 0);
  std::vector<std::vector<Box>> written_boxes, other_boxes;
  for (const Coordinate& at : AllPlaces(axes)) {
    std::vector<int64_t> local = placement.local_sizes(at);
    const std::vector<Box> boxes = placement.boxes(at);
    if (placement.use("pipeline") == AxisUse::kOwned && boxes.empty()) {
      EXPECT_FALSE(placement.writes(at) && at.at("pipeline") != 1);
      continue;
    }
    std::vector<int> filled(Product(local), 0);
    if (placement.sizes().empty()) local.clear();  // boxes of a tensor without dimensions have none
    for (const Box& box : boxes) {
      ForElements(local, box.local, box, [&](int64_t i) { ++filled.at(i); });
      if (placement.writes(at)) {
        ForElements(placement.sizes(), box.offset, box, [&](int64_t i) { ++written.at(i); });
      }
    }
    EXPECT_EQ(std::count(filled.begin(), filled.end(), 1), static_cast<int64_t>(filled.size())) << placement.Describe();
    (placement.writes(at) ? written_boxes : other_boxes).push_back(boxes);
  }
  EXPECT_EQ(std::count(written.begin(), written.end(), 1), placement.numel()) << placement.Describe();
  for (const auto& boxes : other_boxes) {
    EXPECT_NE(std::find(written_boxes.begin(), written_boxes.end(), boxes), written_boxes.end());
  }
}

TEST(Placement, APlacementIsWholeWithoutCuts) {
  const Placement placement({3, 2});
  EXPECT_TRUE(placement.whole());
  EXPECT_THAT(placement.boxes(), ElementsAre(Box{.offset = {0, 0}, .sizes = {3, 2}, .local = {0, 0}}));
  EXPECT_TRUE(placement.writes({{"tensor", 0}}));
  EXPECT_FALSE(placement.writes({{"tensor", 1}})) << "an axis that it does not mention has copies";
}

TEST(Placement, CutsAsTorchChunk) {
  Placement placement({5, 3});
  ASSERT_TRUE(placement.Split(Of("shard", 4), {.dim = 0}).ok());
  EXPECT_THAT(placement.local_sizes({{"shard", 0}}), ElementsAre(2, 3));
  EXPECT_THAT(placement.local_sizes({{"shard", 2}}), ElementsAre(1, 3));
  EXPECT_THAT(placement.local_sizes({{"shard", 3}}), ElementsAre(0, 3));
  EXPECT_THAT(placement.boxes({{"shard", 3}}), IsEmpty());
  EXPECT_TRUE(placement.writes({{"shard", 3}}));
}

TEST(Placement, CutsEachBlockOfAFusedWeight) {
  Placement placement({12, 2});  // Q: 6 rows, K: 3, V: 3
  ASSERT_TRUE(placement.Split(Of("tensor", 2), {.dim = 0, .blocks = {6, 3, 3}}).ok());
  EXPECT_THAT(placement.boxes({{"tensor", 0}}),
              ElementsAre(Box{{0, 0}, {3, 2}, {0, 0}}, Box{{6, 0}, {2, 2}, {3, 0}}, Box{{9, 0}, {2, 2}, {5, 0}}));
  EXPECT_THAT(placement.boxes({{"tensor", 1}}),
              ElementsAre(Box{{3, 0}, {3, 2}, {0, 0}}, Box{{8, 0}, {1, 2}, {3, 0}}, Box{{11, 0}, {1, 2}, {4, 0}}));
}

TEST(Placement, CutsNoUnitInTwo) {
  Placement placement({12});  // 3 heads of 4
  ASSERT_TRUE(placement.Split(Of("tensor", 2), {.dim = 0, .unit = 4}).ok());
  EXPECT_THAT(placement.local_sizes({{"tensor", 0}}), ElementsAre(8));
  EXPECT_THAT(placement.local_sizes({{"tensor", 1}}), ElementsAre(4));
}

TEST(Placement, AppliesAxesInOrderOnOneDimension) {
  Placement placement({6, 4});
  ASSERT_TRUE(placement.Split(Of("tensor", 2), {.dim = 0}).ok());
  ASSERT_TRUE(placement.Split(Of("shard", 2), {.dim = 0}).ok());
  EXPECT_THAT(placement.boxes({{"tensor", 1}, {"shard", 0}}), ElementsAre(Box{{3, 0}, {2, 4}, {0, 0}}));
  EXPECT_THAT(placement.boxes({{"tensor", 0}, {"shard", 1}}), ElementsAre(Box{{2, 0}, {1, 4}, {0, 0}}));
}

TEST(Placement, TakesThisRanksPlaceWhereNoneIsGiven) {
  Placement placement({4});
  ASSERT_TRUE(placement.Split(Of("shard", 2, /*rank=*/1), {.dim = 0}).ok());
  EXPECT_THAT(placement.boxes(), ElementsAre(Box{{2}, {2}, {0}}));
}

TEST(Placement, ATensorWithoutDimensionsIsOneRow) {
  Placement placement({});
  EXPECT_THAT(placement.local_sizes(), IsEmpty());
  ASSERT_TRUE(placement.Split(Of("shard", 3), {.dim = 0}).ok());
  EXPECT_THAT(placement.local_sizes({{"shard", 0}}), ElementsAre(1));
  EXPECT_THAT(placement.local_sizes({{"shard", 1}}), ElementsAre(0));
  EXPECT_EQ(placement.boxes({{"shard", 0}}).size(), 1u);
  EXPECT_THAT(placement.boxes({{"shard", 2}}), IsEmpty());
}

TEST(Placement, AParameterOfAStageLiesOnItsOwner) {
  Placement placement({4});
  ASSERT_TRUE(placement.Owned(Of("pipeline", 3), 1).ok());
  EXPECT_FALSE(placement.whole());
  EXPECT_THAT(placement.boxes({{"pipeline", 0}}), IsEmpty());
  EXPECT_EQ(placement.boxes({{"pipeline", 1}}).size(), 1u);
  EXPECT_FALSE(placement.writes({{"pipeline", 0}}));
  EXPECT_TRUE(placement.writes({{"pipeline", 1}}));
}

TEST(Placement, CountsPartialGradientsOnce) {
  Placement placement({4});
  ASSERT_TRUE(placement.Partial(Of("tensor", 2)).ok());
  EXPECT_EQ(placement.use("tensor"), AxisUse::kPartial);
  EXPECT_TRUE(placement.writes({{"tensor", 0}}));
  EXPECT_FALSE(placement.writes({{"tensor", 1}}));
}

TEST(Placement, TilesTheWholeForRandomCuts) {
  std::mt19937 random(7);
  const auto pick = [&](int least, int most) { return std::uniform_int_distribution<int>(least, most)(random); };
  for (int trial = 0; trial < 400; ++trial) {
    std::vector<int64_t> sizes;
    for (int dims = pick(0, 3); dims > 0; --dims) sizes.push_back(pick(trial % 10 == 0 ? 0 : 1, 7));
    const int last = std::max<int>(static_cast<int>(sizes.size()) - 1, 0);
    Placement placement(sizes);
    std::vector<Axis> axes;
    if (pick(0, 3) == 0) {
      axes.push_back(Of("pipeline", 2));
      ASSERT_TRUE(placement.Owned(axes.back(), 1).ok());
    }
    if (pick(0, 2) > 0) {
      axes.push_back(Of("tensor", pick(1, 4)));
      Cut cut = {.dim = pick(0, last)};
      const int64_t length = sizes.empty() ? 1 : sizes[cut.dim];
      if (pick(0, 1) == 0) {
        const int64_t first = pick(0, static_cast<int>(length)), second = pick(0, static_cast<int>(length - first));
        cut.blocks = {first, second, length - first - second};
      } else if (length % 2 == 0) {
        cut.unit = 2;
      }
      ASSERT_TRUE(placement.Split(axes.back(), cut).ok());
    }
    if (pick(0, 2) > 0) {
      axes.push_back(Of("shard", pick(1, 4)));
      ASSERT_TRUE(placement.Split(axes.back(), {.dim = pick(0, last)}).ok());
    }
    axes.push_back(Of("replicate", pick(1, 3)));
    if (pick(0, 1) == 0) {
      axes.push_back(Of("context", 2));
      ASSERT_TRUE(placement.Partial(axes.back()).ok());
    }
    ExpectTiling(placement, axes);
  }
}

TEST(Placement, RefusesCutsThatDoNotFit) {
  Placement placement({6, 4});
  EXPECT_THAT(placement.Split(Of("tensor", 2), {.dim = 2}).message(), HasSubstr("no such dimension"));
  EXPECT_THAT(placement.Split(Of("tensor", 2), {.dim = 0, .blocks = {4, 4}}).message(), HasSubstr("[4, 4]"));
  EXPECT_THAT(placement.Split(Of("tensor", 2), {.dim = 0, .unit = 4}).message(), HasSubstr("unit of 4"));
  EXPECT_FALSE(placement.Split(Of("tensor", 2, /*rank=*/2), {.dim = 0}).ok());
  EXPECT_FALSE(placement.Owned(Of("pipeline", 2), 2).ok());
  ASSERT_TRUE(placement.Split(Of("tensor", 2), {.dim = 0}).ok());
  EXPECT_THAT(placement.Split(Of("tensor", 2), {.dim = 1}).message(), HasSubstr("twice"));
  EXPECT_THAT(placement.Partial(Of("tensor", 2)).message(), HasSubstr("twice"));
  EXPECT_THAT(placement.Split(Of("shard", 2), {.dim = 0, .blocks = {2, 1}}).message(), HasSubstr("cut it before"));
  EXPECT_EQ(placement.Describe(), "[6, 4]: tensor 0/2 cuts dim 0");
}

}  // namespace
}  // namespace cohort::trainer
