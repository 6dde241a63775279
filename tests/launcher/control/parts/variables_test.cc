#include "cohort/launcher/control/parts/variables.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <map>
#include <random>

namespace cohort::launcher {
namespace {

using Request = v1::VariableRequest;
using Waiter = Variables::Waiter;
using TimePoint = Variables::TimePoint;
using std::chrono::milliseconds;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class VariablesTest : public ::testing::Test {
 protected:
  v1::VariableReply Do(Request::Kind kind, const std::string& key, const std::string& value = "",
                       const std::string& expected = "", int64_t amount = 0) {
    Request request;
    request.set_kind(kind);
    request.set_key(key);
    request.set_value(value);
    request.set_expected(expected);
    request.set_amount(amount);
    answered.clear();
    return *variables.Do(request, {}, TimePoint{}, TimePoint{}, &answered);
  }
  bool Wait(const std::string& key, Waiter waiter, TimePoint until) {
    Request request;
    request.set_kind(Request::KIND_GET);
    request.set_key(key);
    return !variables.Do(request, waiter, TimePoint{}, until, &answered).has_value();
  }

  Variables variables;
  std::vector<Waiter> answered;
};

TEST_F(VariablesTest, VariablesAreSetAgainAndDeleted) {
  EXPECT_FALSE(Do(Request::KIND_GET, "k").found());
  EXPECT_EQ(Do(Request::KIND_SET, "k", "one").error(), "");
  EXPECT_EQ(Do(Request::KIND_SET, "k", "two").value(), "one");  // the former value
  EXPECT_EQ(Do(Request::KIND_GET, "k").value(), "two");
  EXPECT_EQ(Do(Request::KIND_COUNT, "").number(), 1);
  EXPECT_TRUE(Do(Request::KIND_DELETE, "k").found());
  EXPECT_FALSE(Do(Request::KIND_DELETE, "k").found());
  EXPECT_EQ(Do(Request::KIND_COUNT, "").number(), 0);
}

TEST_F(VariablesTest, VariablesCountInDecimals) {
  EXPECT_EQ(Do(Request::KIND_ADD, "n", "", "", 5).number(), 5);
  EXPECT_EQ(Do(Request::KIND_ADD, "n", "", "", -7).number(), -2);
  EXPECT_EQ(Do(Request::KIND_GET, "n").value(), "-2");
  EXPECT_EQ(Do(Request::KIND_SET, "n", "40").error(), "");
  EXPECT_EQ(Do(Request::KIND_ADD, "n", "", "", 2).number(), 42);
  EXPECT_EQ(Do(Request::KIND_SET, "n", "4x").error(), "");
  EXPECT_THAT(Do(Request::KIND_ADD, "n", "", "", 2).error(), HasSubstr("no number"));
  EXPECT_EQ(Do(Request::KIND_SET, "n", std::to_string(std::numeric_limits<int64_t>::max())).error(), "");
  EXPECT_THAT(Do(Request::KIND_ADD, "n", "", "", 1).error(), HasSubstr("64 bits"));
}

// As PyTorch's TCPStore: an absent variable is set if nothing is expected, and else the answer is what was expected.
TEST_F(VariablesTest, CompareSetSetsAVariableThatIsAsExpected) {
  EXPECT_EQ(Do(Request::KIND_COMPARE_SET, "k", "new", "old").value(), "old");
  EXPECT_FALSE(Do(Request::KIND_GET, "k").found());
  EXPECT_EQ(Do(Request::KIND_COMPARE_SET, "k", "first", "").value(), "first");
  EXPECT_EQ(Do(Request::KIND_COMPARE_SET, "k", "second", "").value(), "first");
  EXPECT_EQ(Do(Request::KIND_COMPARE_SET, "k", "first", "").number(), 0);  // is that value, and did not set it
  EXPECT_EQ(Do(Request::KIND_COMPARE_SET, "k", "second", "first").number(), 1);
  EXPECT_EQ(Do(Request::KIND_GET, "k").value(), "second");
}

TEST_F(VariablesTest, WaitersForAVariableAreAnsweredOnce) {
  const TimePoint later = TimePoint{} + milliseconds(10);
  EXPECT_TRUE(Wait("k", {1, 11}, later));
  EXPECT_TRUE(Wait("k", {2, 22}, later));
  EXPECT_TRUE(Wait("other", {3, 33}, later));
  EXPECT_TRUE(Wait("k", {4, 44}, later));
  variables.Forget(4);
  Do(Request::KIND_ADD, "k", "", "", 1);
  EXPECT_THAT(answered, SizeIs(2));
  Do(Request::KIND_SET, "k", "2");
  EXPECT_THAT(answered, IsEmpty());
  EXPECT_EQ(variables.NextExpiry(), later);
  EXPECT_THAT(variables.Expire(later), SizeIs(1));
  EXPECT_FALSE(variables.NextExpiry().has_value());
}

TEST_F(VariablesTest, VariablesAreBounded) {
  EXPECT_THAT(Do(Request::KIND_SET, "", "v").error(), HasSubstr("0 bytes"));
  EXPECT_THAT(Do(Request::KIND_SET, std::string(1025, 'k'), "v").error(), HasSubstr("1025"));
  EXPECT_THAT(Do(Request::KIND_SET, "k", std::string((48 << 10) + 1, 'v')).error(), HasSubstr("49153"));
  EXPECT_THAT(Do(Request::KIND_UNSPECIFIED, "k").error(), HasSubstr("knows no such call"));
  const std::string value(48 << 10, 'v');
  size_t stored = 0;
  while (Do(Request::KIND_SET, std::to_string(stored), value).error().empty()) ++stored;
  EXPECT_LE(stored * value.size(), Variables::kMaxTotalBytes);
  EXPECT_GT(stored, size_t{1000});
  EXPECT_EQ(Do(Request::KIND_SET, "0", value).error(), "");  // another value of the same size fits
  EXPECT_THAT(Do(Request::KIND_COMPARE_SET, "new", value, "").error(), HasSubstr("full"));
  EXPECT_THAT(Do(Request::KIND_ADD, "new", std::string(), "", 1).error(), IsEmpty());  // a short one does
  EXPECT_TRUE(Do(Request::KIND_DELETE, "1").found());
  EXPECT_EQ(Do(Request::KIND_SET, "new", value).error(), "");
}

TEST_F(VariablesTest, VariablesAgreeWithAModel) {
  const uint32_t seed = std::random_device()();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  std::map<std::string, std::string> model;
  for (int step = 0; step < 20'000; ++step) {
    const std::string key = "k" + std::to_string(random() % 20);
    const std::string value = std::to_string(random() % 3),
                      expected = random() % 4 == 0 ? "" : std::to_string(random() % 3);
    const auto kind = static_cast<Request::Kind>(1 + random() % 6);
    const v1::VariableReply reply = Do(kind, key, value, expected, 1);
    ASSERT_EQ(reply.error(), "");
    const auto found = model.find(key);
    if (kind == Request::KIND_GET) {
      ASSERT_EQ(reply.found(), found != model.end());
      ASSERT_EQ(reply.value(), found == model.end() ? "" : found->second);
    } else if (kind == Request::KIND_SET) {
      ASSERT_EQ(reply.found(), found != model.end());
      ASSERT_EQ(reply.value(), found == model.end() ? "" : found->second);
      model[key] = value;
    } else if (kind == Request::KIND_ADD) {
      model[key] = std::to_string(std::stoll(found == model.end() ? "0" : found->second) + 1);
      ASSERT_EQ(std::to_string(reply.number()), model[key]);
    } else if (kind == Request::KIND_COMPARE_SET) {
      const bool sets = found == model.end() ? expected.empty() : found->second == expected;
      ASSERT_EQ(reply.number(), sets ? 1 : 0);
      if (sets) model[key] = value;
      ASSERT_EQ(reply.value(), model.contains(key) ? model[key] : expected);
    } else if (kind == Request::KIND_DELETE) {
      ASSERT_EQ(reply.found(), model.erase(key) > 0);
    } else {
      ASSERT_EQ(reply.number(), static_cast<int64_t>(model.size()));
    }
  }
}

}  // namespace
}  // namespace cohort::launcher
