#include "cohort/launcher/remedies/remedies.h"

#include <gtest/gtest.h>

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cohort/runtime/base/status_macros.h"

namespace cohort::launcher {
namespace {

absl::Status LoopbackIsDown() {
  return WithRemedy(Remedy::kLoopbackDown, absl::UnavailableError("the loopback interface is down"));
}

absl::StatusOr<int> PassedOn() {
  COHORT_RETURN_IF_ERROR(LoopbackIsDown());
  return 0;
}

TEST(Remedies, ATextShowsTheIdBehindTheMessage) {
  EXPECT_EQ(TextOf(LoopbackIsDown()), "the loopback interface is down [loopback-down]");
  EXPECT_EQ(WithRemedy(Remedy::kNoProgram, "no program given"), "no program given [no-program]");
  EXPECT_EQ(IdOf(Remedy::kNoProgram), "no-program");
}

TEST(Remedies, TheMessageAndTheCodeStayAsTheyAre) {
  EXPECT_EQ(LoopbackIsDown().message(), "the loopback interface is down");
  EXPECT_EQ(LoopbackIsDown().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(InvalidArgumentError(Remedy::kNoProgram, "none"),
            WithRemedy(Remedy::kNoProgram, absl::InvalidArgumentError("none")));
}

TEST(Remedies, WordsGiveNoId) {
  EXPECT_EQ(TextOf(absl::NotFoundError("can't read ./no program given")), "can't read ./no program given");
  EXPECT_EQ(TextOf(Prefixed("no program given: ", absl::NotFoundError("gone"))), "no program given: gone");
}

TEST(Remedies, TheIdGoesWhereTheStatusGoes) {
  EXPECT_EQ(TextOf(PassedOn().status()), "the loopback interface is down [loopback-down]");
}

TEST(Remedies, AnErrorInOtherWordsKeepsTheId) {
  const absl::Status host = Prefixed("host a: ", LoopbackIsDown());
  EXPECT_EQ(TextOf(host), "host a: the loopback interface is down [loopback-down]");
  EXPECT_EQ(host.code(), absl::StatusCode::kUnavailable);
  const absl::Status other = WithRemedyOf(host, absl::InternalError("it does not work"));
  EXPECT_EQ(TextOf(other), "it does not work [loopback-down]");
  EXPECT_EQ(other.code(), absl::StatusCode::kInternal);
  EXPECT_EQ(TextOf(WithRemedyOf(absl::InternalError("no id"), LoopbackIsDown())), "the loopback interface is down");
}

TEST(Remedies, ALaterIdTakesThePlaceOfAnEarlierOne) {
  EXPECT_EQ(TextOf(WithRemedy(Remedy::kNoProgram, LoopbackIsDown())), "the loopback interface is down [no-program]");
}

TEST(Remedies, OkStaysOk) {
  EXPECT_EQ(WithRemedy(Remedy::kNoProgram, absl::OkStatus()), absl::OkStatus());
  EXPECT_EQ(WithRemedyOf(LoopbackIsDown(), absl::OkStatus()), absl::OkStatus());
  EXPECT_EQ(Prefixed("host a: ", absl::OkStatus()), absl::OkStatus());
  EXPECT_EQ(TextOf(absl::OkStatus()), "");
}

TEST(Remedies, OnlyAKnownIdAtTheEndIsOne) {
  EXPECT_TRUE(EndsWithRemedy("it is down [loopback-down]"));
  for (const char* text : {"", "]", " []", "[loopback-down]", "it is down [loopback-down]; wait",
                           "it is down [loopback]", "it is down [loopback-down] [", "it is down loopback-down]"}) {
    EXPECT_FALSE(EndsWithRemedy(text)) << text;
  }
}

}  // namespace
}  // namespace cohort::launcher
