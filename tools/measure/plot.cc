#include "tools/measure/plot.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <sstream>

#include "tools/measure/text.h"

namespace cohort::measure {
namespace {

constexpr double kWidth = 460;
constexpr double kHeight = 300;
constexpr double kLeft = 62;
constexpr double kRight = 30;
constexpr double kTop = 34;
constexpr double kBottom = 46;
constexpr double kLegendLine = 18;
// Okabe and Ito's palette, readable for the colour-blind.
constexpr std::array<const char*, 8> kColours = {"#0072b2", "#d55e00", "#009e73", "#cc79a7",
                                                 "#e69f00", "#56b4e9", "#000000", "#8a6d3b"};
constexpr std::array<const char*, 4> kDashes = {"", "6 3", "2 3", "8 3 2 3"};

struct Axis {
  double low = 1;
  double high = 10;
  double from = 0;  // pixels
  double to = 0;

  double At(double value) const {
    return from + (to - from) * (std::log(value) - std::log(low)) / (std::log(high) - std::log(low));
  }
};

// The names in order of their first appearance: a name's place is its colour.
std::vector<std::string> NamesOf(const std::vector<Chart>& charts) {
  std::vector<std::string> names;
  for (const Chart& chart : charts) {
    for (const Series& series : chart.series) {
      if (std::find(names.begin(), names.end(), series.name) == names.end()) names.push_back(series.name);
    }
  }
  return names;
}

std::string StrokeOf(const std::vector<std::string>& names, const std::string& name) {
  const auto place = static_cast<size_t>(std::find(names.begin(), names.end(), name) - names.begin());
  const char* dash = kDashes[place / kColours.size() % kDashes.size()];
  std::string stroke = std::string("stroke=\"") + kColours[place % kColours.size()] + "\"";
  if (*dash != '\0') stroke += std::string(" stroke-dasharray=\"") + dash + "\"";
  return stroke;
}

bool Drawable(const std::pair<double, double>& point) { return point.first > 0 && point.second > 0; }

void FindLimits(const Chart& chart, Axis* x, Axis* y) {
  bool first = true;
  const auto include = [&first, x, y](double px, double py) {
    x->low = first ? px : std::min(x->low, px);
    x->high = first ? px : std::max(x->high, px);
    y->low = first ? py : std::min(y->low, py);
    y->high = first ? py : std::max(y->high, py);
    first = false;
  };
  for (const Series& series : chart.series) {
    for (const auto& point : series.points) {
      if (Drawable(point)) include(point.first, point.second);
    }
  }
  if (first) include(1, 1);
  if (chart.y_line > 0) {
    y->low = std::min(y->low, chart.y_line);
    y->high = std::max(y->high, chart.y_line);
  }
  if (x->high <= x->low) {
    x->low /= 2;
    x->high *= 2;
  }
  y->low = std::pow(10, std::floor(std::log10(y->low) + 1e-9));
  y->high = std::pow(10, std::ceil(std::log10(y->high * 1.05)));
}

std::string TickText(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%g", value);
  return text;
}

void DrawTick(std::ostringstream& svg, bool vertical, double at, const Axis& other, const std::string& text) {
  const double x1 = vertical ? at : other.from, x2 = vertical ? at : other.to;
  const double y1 = vertical ? other.from : at, y2 = vertical ? other.to : at;
  svg << "<line x1=\"" << x1 << "\" y1=\"" << y1 << "\" x2=\"" << x2 << "\" y2=\"" << y2 << "\" class=\"grid\"/>\n";
  if (text.empty()) return;
  if (vertical) {
    svg << "<text x=\"" << at << "\" y=\"" << other.from + 16 << "\" text-anchor=\"middle\">" << text << "</text>\n";
  } else {
    svg << "<text x=\"" << other.from - 6 << "\" y=\"" << at + 4 << "\" text-anchor=\"end\">" << text << "</text>\n";
  }
}

void DrawAxes(std::ostringstream& svg, const Chart& chart, const Axis& x, const Axis& y) {
  if (chart.x_is_bytes) {
    // A label needs about 54 pixels.
    const double octaves = std::log2(x.high / x.low);
    const int step = std::max(1, static_cast<int>(std::ceil(octaves * 54 / (x.to - x.from))));
    for (double power = std::ceil(std::log2(x.low) - 1e-9); std::exp2(power) <= x.high * 1.0001; power += step) {
      DrawTick(svg, true, x.At(std::exp2(power)), y, BytesText(std::exp2(power)));
    }
  } else {
    for (double tick = std::pow(10, std::ceil(std::log10(x.low))); tick <= x.high * 1.0001; tick *= 10) {
      DrawTick(svg, true, x.At(tick), y, TickText(tick));
    }
  }
  for (double decade = y.low; decade <= y.high * 1.0001; decade *= 10) {
    DrawTick(svg, false, y.At(decade), x, TickText(decade));
    for (int part = 2; part < 10 && decade * part < y.high; ++part) {
      const bool labelled = y.high / y.low < 150 && (part == 2 || part == 5);
      DrawTick(svg, false, y.At(decade * part), x, labelled ? TickText(decade * part) : "");
    }
  }
  svg << "<rect x=\"" << x.from << "\" y=\"" << y.to << "\" width=\"" << x.to - x.from << "\" height=\""
      << y.from - y.to << "\" class=\"frame\"/>\n";
  svg << "<text x=\"" << (x.from + x.to) / 2 << "\" y=\"" << y.from + 36 << "\" text-anchor=\"middle\">"
      << XmlText(chart.x_label) << "</text>\n";
  svg << "<text transform=\"translate(" << x.from - kLeft + 16 << ',' << (y.from + y.to) / 2
      << ") rotate(-90)\" text-anchor=\"middle\">" << XmlText(chart.y_label) << "</text>\n";
}

void DrawChart(std::ostringstream& svg, const Chart& chart, const std::vector<std::string>& names, double left,
               double top) {
  Axis x{.from = left + kLeft, .to = left + kWidth - kRight};
  Axis y{.from = top + kHeight - kBottom, .to = top + kTop};
  FindLimits(chart, &x, &y);
  svg << "<text x=\"" << x.from << "\" y=\"" << top + 20 << "\" class=\"title\">" << XmlText(chart.title)
      << "</text>\n";
  DrawAxes(svg, chart, x, y);
  if (chart.y_line > 0) {
    svg << "<line x1=\"" << x.from << "\" y1=\"" << y.At(chart.y_line) << "\" x2=\"" << x.to << "\" y2=\""
        << y.At(chart.y_line) << "\" stroke=\"#444\" stroke-width=\"1.5\"/>\n";
  }
  for (const Series& series : chart.series) {
    const std::string stroke = StrokeOf(names, series.name);
    svg << "<polyline fill=\"none\" stroke-width=\"1.8\" " << stroke << " points=\"";
    for (const auto& point : series.points) {
      if (Drawable(point)) svg << x.At(point.first) << ',' << y.At(point.second) << ' ';
    }
    svg << "\"/>\n";
    for (const auto& point : series.points) {
      if (!Drawable(point)) continue;
      svg << "<circle cx=\"" << x.At(point.first) << "\" cy=\"" << y.At(point.second)
          << "\" r=\"2.2\" fill=\"white\" stroke-width=\"1.4\" " << stroke << "/>\n";
    }
  }
}

}  // namespace

std::string DrawCharts(const std::vector<Chart>& charts, int columns, const std::string& caption) {
  const std::vector<std::string> names = NamesOf(charts);
  columns = std::clamp(columns, 1, std::max(1, static_cast<int>(charts.size())));
  const int rows = (static_cast<int>(charts.size()) + columns - 1) / columns;
  const double width = columns * kWidth;
  const int per_line = std::max(1, static_cast<int>((width - kLeft) / 150));
  const int legend_lines = (static_cast<int>(names.size()) + per_line - 1) / per_line;
  const double head = 30 + legend_lines * kLegendLine;
  const double height = head + rows * kHeight + 8;

  std::ostringstream svg;
  svg.precision(6);
  svg << "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"" << width << "\" height=\"" << height
      << "\" viewBox=\"0 0 " << width << ' ' << height
      << "\">\n<style>text{font:12px sans-serif;fill:#222}.title{font-weight:bold}"
      << ".grid{stroke:#ddd;stroke-width:1}.frame{fill:none;stroke:#888}</style>\n"
      << "<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n";
  svg << "<text x=\"14\" y=\"20\">" << XmlText(caption) << "</text>\n";
  for (size_t i = 0; i < names.size(); ++i) {
    const double at = 14 + static_cast<double>(i % static_cast<size_t>(per_line)) * 150;
    const double line = 38 + static_cast<double>(i / static_cast<size_t>(per_line)) * kLegendLine;
    svg << "<line x1=\"" << at << "\" y1=\"" << line - 4 << "\" x2=\"" << at + 24 << "\" y2=\"" << line - 4
        << "\" stroke-width=\"2.5\" " << StrokeOf(names, names[i]) << "/><text x=\"" << at + 30 << "\" y=\"" << line
        << "\">" << XmlText(names[i]) << "</text>\n";
  }
  for (size_t i = 0; i < charts.size(); ++i) {
    const auto column = static_cast<double>(i % static_cast<size_t>(columns));
    const auto row = static_cast<double>(i / static_cast<size_t>(columns));
    DrawChart(svg, charts[i], names, column * kWidth, head + row * kHeight);
  }
  svg << "</svg>\n";
  return svg.str();
}

}  // namespace cohort::measure
