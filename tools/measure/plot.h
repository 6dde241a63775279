// Line charts with logarithmic axes, as SVG.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace cohort::measure {

struct Series {
  std::string name;
  std::vector<std::pair<double, double>> points;  // both positive, by ascending x
};

enum class Better { kLower, kHigher };  // printed in the chart

struct Chart {
  std::string title;
  std::string x_label;
  std::string y_label;
  Better better = Better::kLower;
  bool x_is_bytes = true;          // ticks at powers of 1024 and between, written as sizes
  bool y_is_microseconds = false;  // written in us, ms or s, whichever suits the row
  double y_line = 0;               // a horizontal line to compare with; 0: none
  std::vector<Series> series = {};
};

// One picture with `all` charts in `columns` columns. They share one legend, in which a name has the same colour
// everywhere. Charts of a row that have the same labels have the same axes and the same unit.
// Points that are not positive are left out, and charts without two points to join: these are named below.
std::string DrawCharts(const std::vector<Chart>& all, int columns, const std::string& caption);

}  // namespace cohort::measure
