#include "tools/measure/plot.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <limits>
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
// Okabe and Ito's palette, which the colour-blind can tell apart, without its yellow, which white paper hides. Names
// beyond these have the same colours again with other dashes and marks.
constexpr std::array<const char*, 7> kColours = {"#0072b2", "#d55e00", "#009e73", "#cc79a7",
                                                 "#e69f00", "#56b4e9", "#000000"};
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

// A series' attributes in SVG.
struct Style {
  std::string colour;
  std::string dash;  // empty: none
  size_t mark = 0;
};

Style StyleOf(const std::vector<std::string>& names, const std::string& name) {
  const auto place = static_cast<size_t>(std::find(names.begin(), names.end(), name) - names.begin());
  Style style;
  style.mark = place / kColours.size() % kDashes.size();
  style.colour = std::string("stroke=\"") + kColours[place % kColours.size()] + "\"";
  const char* dash = kDashes[style.mark];
  if (*dash != '\0') style.dash = std::string(" stroke-dasharray=\"") + dash + "\"";
  return style;
}

// A circle, a square, a diamond or a triangle.
void DrawMark(std::ostringstream& svg, const Style& style, double x, double y) {
  constexpr double kSize = 3;
  const std::string look = " class=\"mark\" fill=\"white\" stroke-width=\"1.4\" " + style.colour + "/>\n";
  if (style.mark == 0) {
    svg << "<circle cx=\"" << x << "\" cy=\"" << y << "\" r=\"" << kSize << '"' << look;
    return;
  }
  svg << "<path d=\"M";
  if (style.mark == 1) {
    svg << x - kSize << ' ' << y - kSize << 'h' << 2 * kSize << 'v' << 2 * kSize << 'h' << -2 * kSize;
  } else if (style.mark == 2) {
    svg << x - kSize << ' ' << y << 'l' << kSize << ' ' << -kSize << ' ' << kSize << ' ' << kSize << ' ' << -kSize
        << ' ' << kSize;
  } else {
    svg << x - kSize << ' ' << y + kSize << 'h' << 2 * kSize << 'l' << -kSize << ' ' << -2 * kSize;
  }
  svg << "z\"" << look;
}

bool Drawable(const std::pair<double, double>& point) { return point.first > 0 && point.second > 0; }

// A series has two points to join, the points being by ascending x.
bool HasLine(const Chart& chart) {
  return std::any_of(chart.series.begin(), chart.series.end(), [](const Series& series) {
    double first = 0;
    return std::any_of(series.points.begin(), series.points.end(), [&first](const auto& point) {
      if (!Drawable(point)) return false;
      if (first == 0) first = point.first;
      return point.first > first;
    });
  });
}

// The values that a chart shows, or several charts with the same axes.
struct Limits {
  double x_low = std::numeric_limits<double>::infinity();
  double x_high = 0;
  double y_low = std::numeric_limits<double>::infinity();
  double y_high = 0;

  void Include(const Chart& chart) {
    for (const Series& series : chart.series) {
      for (const auto& point : series.points) {
        if (!Drawable(point)) continue;
        x_low = std::min(x_low, point.first);
        x_high = std::max(x_high, point.first);
        IncludeY(point.second);
      }
    }
    if (chart.y_line > 0) IncludeY(chart.y_line);
  }
  void IncludeY(double y) {
    y_low = std::min(y_low, y);
    y_high = std::max(y_high, y);
  }
};

struct Unit {
  const char* name;
  double microseconds;
};

// Chosen by the middle of the axis.
Unit UnitOf(const Limits& limits) {
  const double middle = std::sqrt(limits.y_low * limits.y_high);
  if (middle >= 1e6) return {"s", 1e6};
  return middle >= 1e3 ? Unit{"ms", 1e3} : Unit{"us", 1};
}

bool HaveSameAxes(const Chart& a, const Chart& b) {
  return a.x_label == b.x_label && a.y_label == b.y_label && a.x_is_bytes == b.x_is_bytes &&
         a.y_is_microseconds == b.y_is_microseconds;
}

std::string TickText(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%g", value);
  return text;
}

// The next of 1, 2, 5, 10, ... or, with `decades`, of 1, 10, 100, ...
double RoundDown(double value, bool decades) {
  const double decade = std::pow(10, std::floor(std::log10(value) + 1e-9));
  if (decades || decade * 2 > value) return decade;
  return decade * 5 > value ? decade * 2 : decade * 5;
}

double RoundUp(double value, bool decades) {
  const double decade = std::pow(10, std::ceil(std::log10(value)));
  if (decades || decade / 2 < value) return decade;
  return decade / 5 < value ? decade / 2 : decade / 5;
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

void DrawAxes(std::ostringstream& svg, const Chart& chart, const Axis& x, const Axis& y, const Unit& unit) {
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
  for (double decade = RoundDown(y.low, true); decade <= y.high * 1.0001; decade *= 10) {
    for (int part = 1; part < 10 && decade * part <= y.high * 1.0001; ++part) {
      if (decade * part < y.low * 0.9999) continue;
      const bool labelled = part == 1 || (y.high / y.low < 150 && (part == 2 || part == 5));
      DrawTick(svg, false, y.At(decade * part), x, labelled ? TickText(decade * part / unit.microseconds) : "");
    }
  }
  svg << "<rect x=\"" << x.from << "\" y=\"" << y.to << "\" width=\"" << x.to - x.from << "\" height=\""
      << y.from - y.to << "\" class=\"frame\"/>\n";
  svg << "<text x=\"" << (x.from + x.to) / 2 << "\" y=\"" << y.from + 36 << "\" text-anchor=\"middle\">"
      << XmlText(chart.x_label) << "</text>\n";
  svg << "<text transform=\"translate(" << x.from - kLeft + 16 << ',' << (y.from + y.to) / 2
      << ") rotate(-90)\" text-anchor=\"middle\">" << XmlText(chart.y_label)
      << (chart.y_is_microseconds ? std::string(", ") + unit.name : "") << "</text>\n";
}

void DrawChart(std::ostringstream& svg, const Chart& chart, const Limits& limits, const std::vector<std::string>& names,
               double left, double top) {
  const Axis x{.low = limits.x_low, .high = limits.x_high, .from = left + kLeft, .to = left + kWidth - kRight};
  const Axis y{.low = RoundDown(limits.y_low, chart.y_is_microseconds),
               .high = RoundUp(limits.y_high * 1.05, chart.y_is_microseconds),
               .from = top + kHeight - kBottom,
               .to = top + kTop};
  svg << "<text x=\"" << x.from << "\" y=\"" << top + 20 << "\" class=\"title\">" << XmlText(chart.title)
      << "</text>\n<text x=\"" << x.to << "\" y=\"" << y.from + 36 << "\" text-anchor=\"end\">"
      << (chart.better == Better::kLower ? "lower" : "higher") << " is better</text>\n";
  DrawAxes(svg, chart, x, y, chart.y_is_microseconds ? UnitOf(limits) : Unit{"", 1});
  if (chart.y_line > 0) {
    svg << "<line x1=\"" << x.from << "\" y1=\"" << y.At(chart.y_line) << "\" x2=\"" << x.to << "\" y2=\""
        << y.At(chart.y_line) << "\" stroke=\"#444\" stroke-width=\"1.5\"/>\n";
  }
  for (const Series& series : chart.series) {
    const Style style = StyleOf(names, series.name);
    svg << "<polyline fill=\"none\" stroke-width=\"1.8\" " << style.colour << style.dash << " points=\"";
    for (const auto& point : series.points) {
      if (Drawable(point)) svg << x.At(point.first) << ',' << y.At(point.second) << ' ';
    }
    svg << "\"/>\n";
    for (const auto& point : series.points) {
      if (Drawable(point)) DrawMark(svg, style, x.At(point.first), y.At(point.second));
    }
  }
}

void DrawLegend(std::ostringstream& svg, const std::vector<std::string>& names, int per_line) {
  for (size_t i = 0; i < names.size(); ++i) {
    const double at = 14 + static_cast<double>(i % static_cast<size_t>(per_line)) * 150;
    const double line = 38 + static_cast<double>(i / static_cast<size_t>(per_line)) * kLegendLine;
    const Style style = StyleOf(names, names[i]);
    svg << "<line x1=\"" << at << "\" y1=\"" << line - 4 << "\" x2=\"" << at + 24 << "\" y2=\"" << line - 4
        << "\" stroke-width=\"2.5\" " << style.colour << style.dash << "/><text x=\"" << at + 30 << "\" y=\"" << line
        << "\">" << XmlText(names[i]) << "</text>\n";
    DrawMark(svg, style, at + 12, line - 4);
  }
}

}  // namespace

std::string DrawCharts(const std::vector<Chart>& all, int columns, const std::string& caption) {
  std::vector<Chart> charts;
  std::string left_out;
  for (const Chart& chart : all) {
    if (HasLine(chart)) {
      charts.push_back(chart);
    } else {
      left_out += (left_out.empty() ? "Not drawn, with fewer than two points to join: " : "; ") + chart.title;
    }
  }
  const std::vector<std::string> names = NamesOf(charts);
  columns = std::clamp(columns, 1, std::max(1, static_cast<int>(charts.size())));
  const int rows = (static_cast<int>(charts.size()) + columns - 1) / columns;
  const double width = columns * kWidth;
  const int per_line = std::max(1, static_cast<int>((width - kLeft) / 150));
  const int legend_lines = (static_cast<int>(names.size()) + per_line - 1) / per_line;
  const double head = 30 + legend_lines * kLegendLine;
  const double height = head + rows * kHeight + (left_out.empty() ? 8 : 26);

  std::ostringstream svg;
  svg.precision(6);
  svg << "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"" << width << "\" height=\"" << height
      << "\" viewBox=\"0 0 " << width << ' ' << height
      << "\">\n<style>text{font:12px sans-serif;fill:#222}.title{font-weight:bold}"
      << ".grid{stroke:#ddd;stroke-width:1}.frame{fill:none;stroke:#888}</style>\n"
      << "<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n";
  svg << "<text x=\"14\" y=\"20\">" << XmlText(caption) << "</text>\n";
  if (!left_out.empty()) svg << "<text x=\"14\" y=\"" << height - 10 << "\">" << XmlText(left_out) << "</text>\n";
  DrawLegend(svg, names, per_line);
  for (size_t i = 0; i < charts.size(); ++i) {
    const size_t column = i % static_cast<size_t>(columns), first = i - column;
    Limits limits;
    for (size_t other = first; other < std::min(charts.size(), first + static_cast<size_t>(columns)); ++other) {
      if (HaveSameAxes(charts[i], charts[other])) limits.Include(charts[other]);
    }
    DrawChart(svg, charts[i], limits, names, static_cast<double>(column) * kWidth,
              head + static_cast<double>(first / static_cast<size_t>(columns)) * kHeight);
  }
  svg << "</svg>\n";
  return svg.str();
}

}  // namespace cohort::measure
