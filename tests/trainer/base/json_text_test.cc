#include "cohort/trainer/base/json_text.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace cohort::trainer {
namespace {

using testing::HasSubstr;

TEST(JsonText, AKeyStandsOnceInItsObject) {
  EXPECT_EQ(ParseJson(R"({"a": {"b": 1}, "b": [{"b": 1}, {"b": 2}]})").why, "");
  EXPECT_EQ(ParseJson(R"({"a": 1, "b": 2, "a": 1})").why, "it has the key a twice; keep one of them");
  EXPECT_EQ(ParseJson(R"({"a": [1, {"b": {"c": 1, "c": 2}}]})").why, "it has the key a.b.c twice; keep one of them");
  EXPECT_THAT(ParseJson(R"({"a": {"x": 1}, "a": {"y": 1}})").why, HasSubstr("key a twice"));
  EXPECT_THAT(ParseJson(R"({"a": 1, "\u0061": 1})").why, HasSubstr("key a twice")) << "however it is written";
}

TEST(JsonText, NestingHasALimit) {
  const auto nested = [](size_t depth) { return std::string(depth, '[') + std::string(depth, ']'); };
  EXPECT_EQ(ParseJson(nested(100)).why, "");
  EXPECT_THAT(ParseJson(nested(101)).why, HasSubstr("nested too deep"));
  EXPECT_THAT(ParseJson("// \"\n" + nested(1'000'000), /*comments=*/true).why, HasSubstr("nested too deep"));
}

TEST(JsonText, NamesThePlaceThatIsNoJson) {
  EXPECT_THAT(ParseJson("{\"a\":\n }").why, HasSubstr("no JSON: parse error at line 2, column 2"));
  EXPECT_THAT(ParseJson("").why, HasSubstr("no JSON"));
  EXPECT_THAT(ParseJson("{} x").why, HasSubstr("no JSON"));
  EXPECT_THAT(ParseJson("{} // x").why, HasSubstr("no JSON"));
  EXPECT_EQ(ParseJson("{} // x", /*comments=*/true).why, "");
  EXPECT_THAT(ParseJson("[1e999]").why, HasSubstr("no JSON"));
  EXPECT_THAT(ParseJson("[\"\xff\"]").why, HasSubstr("no JSON"));
}

TEST(JsonText, ShortTextIsCutWithAnEllipsis) {
  EXPECT_EQ(ShortText("abc"), "\"abc\"");
  EXPECT_EQ(ShortText(std::string(500, 'x'), 4), "\"xxx...");
  EXPECT_THAT(ShortText("a\xff"), HasSubstr("a")) << "no exception";
}

}  // namespace
}  // namespace cohort::trainer
