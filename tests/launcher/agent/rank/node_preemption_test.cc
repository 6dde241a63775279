// A node's one answer to a notice of a preemption: what counts for it, and when it is given.
#include "cohort/launcher/agent/rank/node_preemption.h"

#include <gtest/gtest.h>

#include <csignal>

namespace cohort::launcher {
namespace {

v1::PreemptionNotice Notice() {
  v1::PreemptionNotice notice;
  notice.set_signal(SIGUSR1);
  return notice;
}

TEST(NodePreemption, ARankThatFailsAfterItsAnswerIsCountedWithIt) {
  NodePreemption node(3);
  node.OnNotice(Notice());
  node.OnStep(0, 12);
  node.OnEnd(0, /*in_order=*/false);
  EXPECT_FALSE(node.TakeAnswer().has_value()) << "its end stood for another rank's answer";
  node.OnStep(1, 9);
  EXPECT_FALSE(node.TakeAnswer().has_value());
  node.OnStep(2, 11);
  const auto answer = node.TakeAnswer();
  ASSERT_TRUE(answer.has_value());
  EXPECT_EQ(answer->step(), 12u) << "others may have begun what it had";
  EXPECT_FALSE(answer->left());
  EXPECT_FALSE(node.TakeAnswer().has_value()) << "once";
}

TEST(NodePreemption, ARankThatJoinsAgainHasNotLeft) {
  NodePreemption node(1);
  EXPECT_TRUE(node.OnWish(0));
  node.OnEnd(0, /*in_order=*/true);
  node.OnJoin(0);
  EXPECT_FALSE(node.wished(0)) << "its new runtime asks for itself";
  node.OnNotice(Notice());
  EXPECT_FALSE(node.TakeAnswer().has_value());
  node.OnStep(0, 3);
  const auto answer = node.TakeAnswer();
  ASSERT_TRUE(answer.has_value());
  EXPECT_EQ(answer->step(), 3u);
  EXPECT_FALSE(answer->left());
}

TEST(NodePreemption, ARankThatEndsInOrderAfterItsAnswerHasNotLeftBefore) {
  NodePreemption node(2);
  node.OnNotice(Notice());
  node.OnStep(0, 12);
  node.OnEnd(0, /*in_order=*/true);
  node.OnStep(1, 12);
  const auto answer = node.TakeAnswer();
  ASSERT_TRUE(answer.has_value());
  EXPECT_FALSE(answer->left());
}

TEST(NodePreemption, AFailureBeforeTheAnswerIsNoAnswerAndAnEndInOrderIsOne) {
  for (const bool in_order : {false, true}) {
    SCOPED_TRACE(in_order);
    NodePreemption node(2);
    node.OnEnd(0, in_order);
    node.OnEnd(0, !in_order);  // goodbye, and then the process: the first counts
    node.OnNotice(Notice());
    EXPECT_FALSE(node.TakeAnswer().has_value());
    node.OnStep(1, 5);
    const auto answer = node.TakeAnswer();
    ASSERT_TRUE(answer.has_value());
    EXPECT_EQ(answer->step(), 5u);
    EXPECT_EQ(answer->left(), in_order);
  }
}

TEST(NodePreemption, AnswersWithoutRanksThatHaveAllFailed) {
  NodePreemption node(2);
  node.OnNotice(Notice());
  node.OnStep(0, 7);
  node.OnEnd(0, false);
  node.OnEnd(1, false);
  const auto answer = node.TakeAnswer();
  ASSERT_TRUE(answer.has_value());
  EXPECT_EQ(answer->step(), 7u);
  EXPECT_FALSE(answer->left());
}

}  // namespace
}  // namespace cohort::launcher
