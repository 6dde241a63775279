#include "cohort/launcher/agent/rank/output_rate.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

namespace cohort::launcher {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

class OutputRateTest : public testing::Test {
 protected:
  v1::OutputLine Line(const std::string& text, bool is_error = false) {
    v1::OutputLine line;
    line.set_rank(3);
    line.set_standard_error(is_error);
    line.set_text(text);
    return line;
  }
  OutputRate::Clock::time_point now_{seconds(1000)};
  std::vector<std::string> seen_;
  const OutputRate::Sink sink_ = [this](const v1::OutputLine& line) {
    seen_.push_back((line.standard_error() ? "err " : "out ") + std::string(line.text()));
  };
};

TEST_F(OutputRateTest, WithoutALimitEveryLineGoesAtOnce) {
  OutputRate rate(0, now_);
  for (int i = 0; i < 100'000; ++i) rate.Take(Line("a line"), now_, sink_);
  EXPECT_EQ(seen_.size(), 100'000u);
  EXPECT_FALSE(rate.waiting());
}

TEST_F(OutputRateTest, LinesAboveTheRateWaitAndFollow) {
  OutputRate rate(10, now_);
  rate.Take(Line("123456789"), now_, sink_);  // all of the first second
  rate.Take(Line("second"), now_, sink_);
  rate.Take(Line("third"), now_, sink_);
  EXPECT_EQ(seen_, std::vector<std::string>({"out 123456789"}));
  ASSERT_TRUE(rate.waiting());
  EXPECT_EQ(rate.next(), now_ + milliseconds(100)) << "when there is a byte to spend";
  rate.PassOn(now_ + milliseconds(100), sink_);
  EXPECT_EQ(seen_, std::vector<std::string>({"out 123456789", "out second"}));
  EXPECT_EQ(rate.next(), now_ + milliseconds(100) + milliseconds(700)) << "its 7 bytes are paid for before";
  rate.PassOn(rate.next(), sink_);
  EXPECT_EQ(seen_.size(), 3u);
  EXPECT_FALSE(rate.waiting());
}

TEST_F(OutputRateTest, TheRestOfALineWhoseBeginningWasDroppedGoesToo) {
  OutputRate rate(1, now_);
  rate.Take(Line("x"), now_, sink_);
  v1::OutputLine beginning = Line(std::string(100, 'b'));
  beginning.set_goes_on(true);
  rate.Take(beginning, now_, sink_);
  const std::string large(OutputRate::kRingBytes - 20, 'l');
  rate.Take(Line("rest"), now_, sink_);  // drops nothing yet
  rate.Take(Line(large), now_, sink_);   // drops the beginning
  rate.Finish(sink_);
  for (const std::string& text : seen_) EXPECT_NE(text, "out rest");
}

TEST_F(OutputRateTest, TheOldestLinesAreDroppedAndCountedByStream) {
  OutputRate rate(1, now_);
  rate.Take(Line("x"), now_, sink_);  // saves nothing more for the others
  const std::string kilobyte(1023, 'k');
  for (int i = 0; i < 10; ++i) rate.Take(Line(kilobyte, true), now_, sink_);
  for (int i = 0; i < 64; ++i) rate.Take(Line(kilobyte), now_, sink_);
  rate.Finish(sink_);
  ASSERT_EQ(seen_.size(), 1u + 1 + 64) << "ten lines had no place";
  EXPECT_EQ(seen_[1], "err [dropped 10 lines]");
  EXPECT_EQ(seen_[2], "out " + kilobyte);
  rate.Take(Line("later"), now_, sink_);
  rate.Finish(sink_);
  EXPECT_EQ(seen_.back(), "out later");
  EXPECT_EQ(seen_.size(), 67u) << "told once";
}

// The notice stands on a line of its own, also where the line before it has lost its end.
TEST_F(OutputRateTest, PartsOfLinesAreDroppedWithTheirLine) {
  OutputRate rate(1, now_);
  const auto take = [&](const std::string& text, bool goes_on) {
    v1::OutputLine line = Line(text);
    line.set_goes_on(goes_on);
    rate.Take(std::move(line), now_, sink_);
  };
  take("begin", true);
  for (int i = 0; i < 3; ++i) take(std::string(OutputRate::kRingBytes / 2, 'x'), i < 2);
  take(std::string(OutputRate::kRingBytes / 2, 'y'), false);
  rate.Finish(sink_);
  ASSERT_GE(seen_.size(), 3u);
  EXPECT_EQ(seen_[0], "out begin");
  EXPECT_EQ(seen_[1], "out ");
  EXPECT_EQ(seen_[2], "out [dropped 1 line]");
}

TEST_F(OutputRateTest, ALineLargerThanTheRingIsKept) {
  OutputRate rate(1, now_);
  rate.Take(Line("xx"), now_, sink_);
  rate.Take(Line("small"), now_, sink_);
  rate.Take(Line(std::string(OutputRate::kRingBytes, 'L')), now_, sink_);
  rate.Finish(sink_);
  EXPECT_EQ(seen_, std::vector<std::string>(
                       {"out xx", "out [dropped 1 line]", "out " + std::string(OutputRate::kRingBytes, 'L')}));
}

// Whatever is printed when: nothing is told twice or out of order, every line is either passed on or counted, at no
// time more than permitted (but for the last line), and the last 64 KiB always come.
TEST_F(OutputRateTest, AnyOutputKeepsOrderCountAndEnd) {
  for (uint32_t seed = 0; seed < 200; ++seed) {
    std::mt19937 random(seed);
    const uint64_t limit = 1 + random() % 20'000;
    OutputRate rate(limit, now_);
    const auto begin = now_;
    uint64_t next_expected = 0, passed = 0, lines = 0, dropped = 0;
    size_t largest = 0;
    const OutputRate::Sink check = [&](const v1::OutputLine& line) {
      const std::string text(line.text());
      if (text.starts_with("[dropped ")) {
        dropped += std::stoull(text.substr(9));
        return;
      }
      passed += text.size() + 1;
      const uint64_t number = std::stoull(text);
      ASSERT_EQ(number, next_expected + dropped) << "seed " << seed;
      ++next_expected;
    };
    std::vector<size_t> sizes;
    while (lines < 1000) {
      now_ += milliseconds(random() % 40);
      for (uint32_t burst = random() % 30; burst > 0; --burst) {
        const std::string number = std::to_string(lines++);
        const std::string text = number + std::string(random() % 700, ' ');
        sizes.push_back(text.size() + 1);
        largest = std::max(largest, text.size() + 1);
        rate.Take(Line(text), now_, check);
      }
      if (random() % 2 == 0) rate.PassOn(now_, check);
      const double most = static_cast<double>(limit) * (1 + std::chrono::duration<double>(now_ - begin).count());
      ASSERT_LE(static_cast<double>(passed), most + static_cast<double>(largest)) << "seed " << seed;
    }
    rate.Finish(check);
    EXPECT_EQ(next_expected + dropped, lines) << "seed " << seed;
    size_t kept = 0;
    uint64_t last = 0;
    while (last < sizes.size() && kept + sizes[sizes.size() - 1 - last] <= OutputRate::kRingBytes) {
      kept += sizes[sizes.size() - 1 - last++];
    }
    EXPECT_GE(next_expected, last) << "seed " << seed;
  }
}

}  // namespace
}  // namespace cohort::launcher
