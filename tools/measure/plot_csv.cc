// plot_csv: draws rows of chart,series,x,y as logarithmic line charts, for the benchmarks that are scripts.
#include <charconv>
#include <iostream>
#include <iterator>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_split.h"
#include "tools/measure/plot.h"
#include "tools/program/arguments.h"
#include "tools/program/program.h"

namespace cohort::measure {
namespace {

std::optional<double> Positive(std::string_view text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || !(value > 0) || value > 1e300) return std::nullopt;
  return value;
}

// The element with this name, made at the end where there is none.
template <typename Element, typename Name>
Element& Named(std::vector<Element>& all, Name Element::* name, const std::string& wanted) {
  for (Element& element : all) {
    if (element.*name == wanted) return element;
  }
  all.emplace_back();
  all.back().*name = wanted;
  return all.back();
}

struct Options {
  std::string x_label = "x";
  std::string y_label = "y";
  std::string caption;
  int columns = 2;
  double line = 0;
};

int Main(int argc, char** argv) {
  Options options;
  CLI::App app(
      "Reads lines chart,series,x,y from the standard input, both numbers positive and x ascending in each\n"
      "series, and writes line charts with logarithmic axes as SVG.");
  app.footer("Example:\n  plot_csv --x bytes --y us --caption 'two ranks' < points.csv > points.svg");
  app.add_option("--x", options.x_label, "what x is; 'bytes' are written as sizes");
  app.add_option("--y", options.y_label, "what y is");
  app.add_option("--caption", options.caption, "a line below the charts");
  app.add_option("--columns", options.columns, "charts in a row (2)")->check(tools::Whole(1, 16));
  app.add_option("--line", options.line, "a horizontal line to compare with")->check(tools::Number(0, 1e300));
  if (const auto status = tools::ParseCommandLine(app, argc, argv); status.has_value()) return *status;

  std::vector<Chart> charts;
  std::string text;
  for (int number = 1; std::getline(std::cin, text); ++number) {
    const std::vector<std::string> cells = absl::StrSplit(text, ',');
    const auto x = cells.size() == 4 ? Positive(cells[2]) : std::nullopt;
    const auto y = cells.size() == 4 ? Positive(cells[3]) : std::nullopt;
    if (!x.has_value() || !y.has_value()) {
      std::cerr << "plot_csv: line " << number
                << " is not chart,series,x,y with two positive numbers: " << tools::Escaped(text.substr(0, 80)) << '\n';
      return 2;
    }
    Chart& chart = Named(charts, &Chart::title, cells[0]);
    chart.x_label = options.x_label;
    chart.y_label = options.y_label;
    chart.x_is_bytes = options.x_label == "bytes";
    chart.y_line = options.line;
    Named(chart.series, &Series::name, cells[1]).points.emplace_back(*x, *y);
  }
  std::cout << DrawCharts(charts, options.columns, options.caption);
  return 0;
}

}  // namespace
}  // namespace cohort::measure

int main(int argc, char** argv) {
  return cohort::tools::RunProgram("plot_csv", [=] { return cohort::measure::Main(argc, argv); });
}
