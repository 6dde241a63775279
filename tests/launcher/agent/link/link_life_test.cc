#include "cohort/launcher/agent/link/link_life.h"

#include <gtest/gtest.h>

#include <set>
#include <utility>

namespace cohort::launcher {
namespace {

TEST(LinkLife, OnlyTheListedTransitionsAreLegal) {
  using enum LinkLife;
  const std::set<std::pair<LinkLife, LinkLife>> legal = {
      {kApart, kJoining},  {kApart, kJoined},     {kJoining, kJoined},   {kJoining, kWaiting}, {kJoining, kLost},
      {kJoined, kWaiting}, {kJoined, kLeaving},   {kJoined, kDone},      {kJoined, kLost},     {kWaiting, kLeaving},
      {kWaiting, kDone},   {kWaiting, kLost},     {kLeaving, kDialling}, {kLeaving, kLost},    {kDialling, kJoined},
      {kDialling, kLost},  {kDialling, kWaiting}, {kDone, kLeaving},     {kDone, kLost},
  };
  const LinkLife all[] = {kApart, kJoining, kJoined, kWaiting, kLeaving, kDialling, kDone, kLost};
  for (const LinkLife from : all) {
    for (const LinkLife to : all) {
      EXPECT_EQ(MayFollow(from, to), legal.count({from, to}) > 0)
          << static_cast<int>(from) << " -> " << static_cast<int>(to);
    }
  }
}

}  // namespace
}  // namespace cohort::launcher
