#include "cohort/trainer/mesh/mesh_shape.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace cohort::trainer {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(ParseMesh, ArrangesAxesByNameNotByPlace) {
  const auto shape = ParseMesh("tensor=2,pipeline=3,shard=4");
  ASSERT_TRUE(shape.ok()) << shape.status();
  EXPECT_THAT(shape->names, ElementsAre("pipeline", "shard", "tensor"));
  EXPECT_THAT(shape->sizes, ElementsAre(3, 4, 2));
  EXPECT_EQ(shape->ranks(), 24);
  EXPECT_EQ(shape->Describe(), "pipeline=3, shard=4, tensor=2");
}

TEST(ParseMesh, RefusesTextsThatAreNoMesh) {
  for (const char* text : {"", "shard", "shard=", "shard=0", "shard=-1", "shard=2x", "shard=2,", "=2",
                           "shard=2,shard=2", "rows=2", "shard=99999999999", "shard = 2"}) {
    const auto shape = ParseMesh(text);
    EXPECT_EQ(shape.status().code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(std::string(shape.status().message()), HasSubstr("\"" + std::string(text) + "\""));
  }
  EXPECT_EQ(ParseMesh("expert=2").status().code(), absl::StatusCode::kUnimplemented);
  EXPECT_TRUE(ParseMesh("context=1,shard=2").ok());
}

TEST(CheckShape, AMeshMustHaveTheRanksOfTheWorld) {
  EXPECT_TRUE(CheckShape({.names = {"a", "b"}, .sizes = {2, 3}}, 6).ok());
  EXPECT_EQ(CheckShape({.names = {"a", "b"}, .sizes = {2, 3}}, 5).message(),
            "mesh a=2, b=3 is of 6 ranks, and this job has 5: start 6 (dlaunch --nproc-per-node 6 on one node), or "
            "change a size");
  EXPECT_FALSE(CheckShape({.names = {"a", "b", "c"}, .sizes = {1 << 30, 1 << 30, 1 << 30}}, 5).ok());
  EXPECT_FALSE(CheckShape({.names = {"a"}, .sizes = {2, 3}}, 6).ok());
  EXPECT_FALSE(CheckShape({.names = {"a", "a"}, .sizes = {2, 3}}, 6).ok());
  EXPECT_FALSE(CheckShape({.names = {"a", ""}, .sizes = {2, 3}}, 6).ok());
  EXPECT_FALSE(CheckShape({.names = {"a", "b"}, .sizes = {-2, -3}}, 6).ok());
  EXPECT_FALSE(CheckShape({}, 1).ok());
}

}  // namespace
}  // namespace cohort::trainer
