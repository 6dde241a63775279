#include "cohort/runtime/base/checked_state.h"

#include <gtest/gtest.h>

namespace cohort::runtime {
namespace {

enum class Door { kOpen, kClosed, kLocked };
constexpr bool MayFollow(Door from, Door to) {
  return to == Door::kLocked ? from == Door::kClosed : from == Door::kOpen && to == Door::kClosed;
}

TEST(CheckedState, FollowsLegalTransitions) {
  CheckedState<Door> door(Door::kOpen);
  door.Enter(Door::kClosed);
  door.Enter(Door::kLocked);
  EXPECT_EQ(door, Door::kLocked);
}

TEST(CheckedStateDeathTest, EndsTheProcessAtAnIllegalTransition) {
  CheckedState<Door> door(Door::kOpen);
  EXPECT_DEATH(door.Enter(Door::kLocked), "MayFollow");
}

}  // namespace
}  // namespace cohort::runtime
