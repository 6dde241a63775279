#include "tools/measure/text.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace cohort::measure {
namespace {

TEST(Text, SizesAreParsedAndWritten) {
  EXPECT_EQ(*ParseBytes("8"), 8);
  EXPECT_EQ(*ParseBytes("4K"), 4096);
  EXPECT_EQ(*ParseBytes("128MiB"), 128 << 20);
  EXPECT_EQ(*ParseBytes("2gb"), int64_t{2} << 30);
  for (const char* bad : {"", "K", "-1", "1X", "1KX", "1.5M", "99999999999G", "8bb"}) {
    EXPECT_FALSE(ParseBytes(bad).ok()) << bad;
  }
  EXPECT_EQ(BytesText(8), "8 B");
  EXPECT_EQ(BytesText(1536), "1.5 KiB");
  EXPECT_EQ(MicrosecondsText(0.333), "0.33");
  EXPECT_EQ(MicrosecondsText(8227.4), "8,227");
}

TEST(Text, JsonAndXmlTextsAreQuoted) {
  EXPECT_EQ(JsonString("a\"b\\\n"), "\"a\\\"b\\\\\\n\"");
  EXPECT_EQ(JsonString("a\xff\x01"), "\"a\xef\xbf\xbd\\u0001\"") << "bytes that are no UTF-8";
  EXPECT_EQ(XmlText("a<b & \"c\""), "a&lt;b &amp; &quot;c&quot;");
}

}  // namespace
}  // namespace cohort::measure
