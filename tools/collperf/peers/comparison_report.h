// Prints and writes the results of a comparison.
#pragma once

#include <string>
#include <vector>

#include "tools/collperf/peers/turns.h"
#include "tools/collperf/point.h"

namespace cohort::collperf {

std::string TransportName(Transport transport);

// The head of a table and its rows: times in microseconds, and ours divided by each peer's.
std::string PointHead(Transport transport, int ranks);
std::string PointRow(const PointResult& point);

// Every contestant of every point, one row of the CSV each.
std::vector<Result> ResultsOf(const std::vector<PointResult>& points);
// Both plots leave rewritten points out. Ours / the best peer over the sizes: a picture for each transport and number
// of ranks, a line for each operation.
std::string RatioPlot(const std::vector<PointResult>& points, const std::string& caption);
// Times of all systems: a picture for each operation, transport and number of ranks.
std::string TimePlot(const std::vector<PointResult>& points, const std::string& caption);

}  // namespace cohort::collperf
