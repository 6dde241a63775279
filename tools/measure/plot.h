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

struct Chart {
  std::string title;
  std::string x_label;
  std::string y_label;
  bool x_is_bytes = true;  // ticks at powers of 1024 and between, written as sizes
  double y_line = 0;       // a horizontal line to compare with; 0: none
  std::vector<Series> series = {};
};

// One picture with the charts in `columns` columns; they share one legend, in which a name has the same colour
// everywhere. Points that are not positive are left out.
std::string DrawCharts(const std::vector<Chart>& charts, int columns, const std::string& caption);

}  // namespace cohort::measure
