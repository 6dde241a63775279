// Pictures of measurements, as text.
#include "tools/measure/plot.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace cohort::measure {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

int Count(const std::string& svg, const std::string& text) {
  int found = 0;
  for (size_t at = svg.find(text); at != std::string::npos; at = svg.find(text, at + 1)) ++found;
  return found;
}

// Two points of one series.
Chart Line(const std::string& title, std::pair<double, double> first, std::pair<double, double> second) {
  return {.title = title,
          .x_label = "size",
          .y_label = "time",
          .y_is_microseconds = true,
          .series = {{"ours", {first, second}}}};
}

TEST(Plot, DrawsAPointForEachValueAndOneLegendEntryForEachName) {
  Chart chart{.title = "a < b", .x_label = "bytes", .y_label = "us"};
  chart.series = {{"ours", {{8, 0.3}, {1024, 1.5}}}, {"theirs", {{8, 0.6}, {1024, 0}}}};
  const std::string svg = DrawCharts({chart, chart}, 2, "caption");
  EXPECT_EQ(Count(svg, "class=\"mark\""), 6 + 2);  // and the legend's; the 0 has no place on a logarithmic axis
  EXPECT_EQ(Count(svg, ">ours<"), 1);
  EXPECT_EQ(Count(svg, "a &lt; b"), 2);
  EXPECT_EQ(Count(svg, "nan"), 0);
  EXPECT_EQ(Count(svg, "inf"), 0);
  EXPECT_THAT(DrawCharts({}, 3, "nothing"), Not(HasSubstr("nan")));
}

TEST(Plot, ChartsOfARowHaveTheSameAxesAndUnit) {
  const Chart low = Line("low", {8, 2}, {64, 20}), high = Line("high", {512, 2e5}, {4096, 2e6});
  const std::string row = DrawCharts({low, high}, 2, "");
  // Each label stands once a chart: both show all sizes and 1 us to 10 s.
  for (const char* label : {">8 B<", ">2 KiB<", ">0.001<", ">10000<", ">time, ms<"})
    EXPECT_EQ(Count(row, label), 2) << label;
  const std::string rows = DrawCharts({low, high}, 1, "");
  for (const char* label : {">8 B<", ">2 KiB<", ">time, us<", ">time, ms<"}) EXPECT_EQ(Count(rows, label), 1) << label;
}

TEST(Plot, OtherLabelsHaveAxesOfTheirOwn) {
  Chart bandwidth = Line("bandwidth", {8, 5}, {64, 6});
  bandwidth.y_label = "GB/s";
  bandwidth.y_is_microseconds = false;
  bandwidth.better = Better::kHigher;
  const std::string svg = DrawCharts({Line("time", {8, 2e6}, {64, 2e7}), bandwidth}, 2, "");
  EXPECT_EQ(Count(svg, ">time, s<"), 1);
  EXPECT_EQ(Count(svg, ">GB/s<"), 1);
  EXPECT_EQ(Count(svg, ">lower is better<"), 1);
  EXPECT_EQ(Count(svg, ">higher is better<"), 1);
  EXPECT_EQ(Count(svg, ">100<"), 1);  // of the times alone
  EXPECT_EQ(Count(svg, ">5<"), 2);
  EXPECT_EQ(Count(svg, ">1<"), 1);  // of the times alone: the bandwidths' axis is from 5 to 10
}

TEST(Plot, ChartsWithoutALineAreOnlyNamed) {
  Chart dots = Line("dots", {8, 1}, {8, 0});
  dots.series.push_back({"theirs", {{8, 2}}});
  const std::string svg = DrawCharts({dots, Line("line", {8, 1}, {16, 2})}, 2, "");
  EXPECT_EQ(Count(svg, "class=\"frame\""), 1);
  EXPECT_EQ(Count(svg, "class=\"mark\""), 2 + 1);  // and the legend's
  EXPECT_THAT(svg, HasSubstr("fewer than two points to join: dots<"));
  EXPECT_EQ(Count(svg, "theirs"), 0);
  EXPECT_THAT(DrawCharts({dots}, 1, "caption"), HasSubstr("caption"));
}

TEST(Plot, NamesBeyondTheColoursHaveOtherDashesAndMarks) {
  Chart chart = Line("many", {8, 1}, {16, 2});
  for (int i = 1; i < 28; ++i) chart.series.push_back({std::to_string(i), {{8, 1}, {16, 2}}});
  const std::string svg = DrawCharts({chart}, 1, "");
  EXPECT_EQ(Count(svg, "<circle"), 21);  // two points a name, and the legend
  EXPECT_EQ(Count(svg, "<path"), 63);
  EXPECT_EQ(Count(svg, "stroke-dasharray=\"6 3\""), 14);  // the lines and the legend
}

}  // namespace
}  // namespace cohort::measure
