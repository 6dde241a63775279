// The reminders of a gate while nobody comes.
#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <vector>

#include "cohort/launcher/join/gate.h"

namespace cohort::launcher {
namespace {

using runtime::Deadline;
using std::chrono::milliseconds;

TEST(Reminder, TheReminderSaysHowLongItHasWaitedAndWillWait) {
  absl::StatusOr<JoinGate> gate = JoinGate::Open({0, 0});
  ASSERT_TRUE(gate.ok()) << gate.status();
  std::vector<std::string> said;
  const auto nodes = gate->Await(MakeJoinKey("key"), {.count = 2,
                                                      .deadline = Deadline::After(milliseconds(700)),
                                                      .say = [&](const std::string& line) { said.push_back(line); },
                                                      .remind = milliseconds(100)});
  EXPECT_EQ(nodes.status().code(), absl::StatusCode::kDeadlineExceeded);
  ASSERT_FALSE(said.empty());
  EXPECT_TRUE(said[0].starts_with("waiting for ")) << said[0];  // 0 s, unless this machine is busy
  EXPECT_NE(said[0].find(" s by now: 1 of 3 nodes are here, "), std::string::npos) << said[0];
  EXPECT_LE(said.size(), 7u);
}

}  // namespace
}  // namespace cohort::launcher
