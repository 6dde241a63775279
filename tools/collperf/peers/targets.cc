#include "tools/collperf/peers/targets.h"

#include <cstdio>
#include <string>
#include <vector>

#include "tools/collperf/peers/comparison_report.h"
#include "tools/measure/statistics.h"
#include "tools/measure/text.h"

namespace cohort::collperf {
namespace {

using measure::Fixed;
using measure::Operation;
using Points = std::vector<PointResult>;

constexpr double kWorstRatio = 1.05;

std::string Line(const std::string& what, double figure, double target, const std::string& unit) {
  if (figure <= 0) return "";  // not measured in this run
  char text[200];
  std::snprintf(text, sizeof text, "%-88s %8s   <= %s%s  %s\n", what.c_str(), (Fixed(figure, 2) + unit).c_str(),
                Fixed(target, 2).c_str(), unit.c_str(), figure <= target ? "met" : "MISSED");
  return text;
}

const PointResult* FindPoint(const Points& points, Transport transport, int ranks, Operation operation, int64_t bytes) {
  for (const PointResult& point : points) {
    if (!point.plain()) continue;
    if (point.transport == transport && point.ranks == ranks && point.operation == operation && point.bytes == bytes) {
      return &point;
    }
  }
  return nullptr;
}

double RatioAt(const Points& points, int ranks, int64_t bytes, const std::string& memory) {
  const PointResult* point = FindPoint(points, Transport::kSharedMemory, ranks, Operation::kAllReduce, bytes);
  return point == nullptr ? 0 : Ratio(point->Find(memory), point->BestPeer());
}

// All-reduce between two ranks of one host.
std::string AllReduceTargets(const Points& points) {
  std::string text;
  const PointResult* small = FindPoint(points, Transport::kSharedMemory, 2, Operation::kAllReduce, 8);
  const Contestant* ours = small == nullptr ? nullptr : small->Find("private");
  text += Line("all_reduce 8 B, 2 ranks, one host: median", ours == nullptr ? 0 : ours->median_us, 0.40, " us");
  text += Line("all_reduce 8 B, 2 ranks, one host: of the best peer", RatioAt(points, 2, 8, "private"), 0.70, " x");
  text += Line("  or of the bare pair", small == nullptr ? 0 : Ratio(ours, small->Find("bare")), 1.25, " x");
  const struct {
    const char* memory;
    int64_t bytes;
    double target;
  } rows[] = {{"window", 64 << 10, 0.20}, {"window", 512 << 10, 0.25}, {"window", 4 << 20, 0.40},
              {"window", 32 << 20, 0.35}, {"private", 64 << 10, 0.55}, {"private", 4 << 20, 0.75},
              {"private", 32 << 20, 0.75}};
  for (const auto& row : rows) {
    text += Line("all_reduce " + measure::BytesText(static_cast<double>(row.bytes)) + ", 2 ranks, one host, " +
                     row.memory + " memory: of the best peer",
                 RatioAt(points, 2, row.bytes, row.memory), row.target, " x");
  }
  return text;
}

struct Spread {
  std::vector<double> ratios;
  double worst = 0;
  std::string where;
};

// `peer`: a name, or "best", or "best ucx".
Spread SpreadOf(const Points& points, Transport transport, const std::string& memory, const std::string& peer,
                bool rewritten = false) {
  Spread spread;
  for (const PointResult& point : points) {
    if (point.transport != transport || point.bytes == 0 || point.rewritten != rewritten) continue;
    if (point.messages > 1 || point.compute_us > 0) continue;
    const Contestant* theirs =
        peer == "best" || peer == "best ucx" ? point.BestPeer(peer == "best ucx") : point.Find(peer);
    const double ratio = Ratio(point.Find(memory), theirs);
    if (ratio <= 0) continue;
    spread.ratios.push_back(ratio);
    if (ratio <= spread.worst) continue;
    spread.worst = ratio;
    spread.where = std::string(measure::Name(point.operation)) + " " +
                   measure::BytesText(static_cast<double>(point.bytes)) + ", " + std::to_string(point.ranks) + " ranks";
  }
  return spread;
}

std::string SpreadTargets(const Points& points) {
  const struct {
    Transport transport;
    const char* memory;
    const char* peer;
    double target;
    const char* elsewhere;  // the target of other machines
  } rows[] = {{Transport::kSharedMemory, "window", "best", 0.35, " (near CPUs; far ones 0.40)"},
              {Transport::kSharedMemory, "private", "best", 0.55, " (near CPUs; far ones 0.65)"},
              {Transport::kTcp, "private", "best ucx", 0.65, ""},
              {Transport::kTcp, "private", "best", 0.75, ""}};
  std::string text;
  for (const auto& row : rows) {
    const Spread spread = SpreadOf(points, row.transport, row.memory, row.peer);
    const std::string what =
        "every collective, " + TransportName(row.transport) + ", " + row.memory + ": of the " + row.peer + " peer";
    text += Line(what + ", geometric mean of " + std::to_string(spread.ratios.size()) + row.elsewhere,
                 measure::GeometricMean(spread.ratios), row.target, " x");
    text +=
        Line("  the worst point" + (spread.where.empty() ? "" : ": " + spread.where), spread.worst, kWorstRatio, " x");
    int above = 0;
    for (const double ratio : spread.ratios) above += ratio > kWorstRatio ? 1 : 0;
    if (above > 0) text += "  points above 1.05: " + std::to_string(above) + "\n";
    const std::string bare = std::string(row.memory) == "window" ? "bare-window" : "bare";
    const Spread floor = SpreadOf(points, row.transport, bare, row.peer);
    if (!floor.ratios.empty()) {
      text += "  the bare pair at " + std::to_string(floor.ratios.size()) +
              " points: " + Fixed(measure::GeometricMean(floor.ratios), 2) + " x the " + row.peer + " peer, worst " +
              Fixed(floor.worst, 2) + " x (" + floor.where + "); ours takes " +
              Fixed(measure::GeometricMean(SpreadOf(points, row.transport, row.memory, bare).ratios), 2) +
              " x that, no target\n";
    }
    const Spread rewritten = SpreadOf(points, row.transport, row.memory, row.peer, true);
    if (!rewritten.ratios.empty()) {
      text += "  with input rewritten before each call: geometric mean of " + std::to_string(rewritten.ratios.size()) +
              " " + Fixed(measure::GeometricMean(rewritten.ratios), 2) + " x, worst " + Fixed(rewritten.worst, 2) +
              " x (" + rewritten.where + "), no target\n";
    }
  }
  const Spread gap = SpreadOf(points, Transport::kTcp, "private", "openmpi");
  if (!gap.ratios.empty()) {
    text += "every collective, TCP: of Open MPI's own TCP, geometric mean " +
            Fixed(measure::GeometricMean(gap.ratios), 2) + " x, worst " + Fixed(gap.worst, 2) + " x (" + gap.where +
            "), no target\n";
  }
  return text;
}

// More ranks than CPUs.
std::string CrowdTargets(const Points& points) {
  std::string text;
  for (const int ranks : {4, 8}) {
    const PointResult* point = FindPoint(points, Transport::kSharedMemory, ranks, Operation::kAllReduce, 8);
    const Contestant* ours = point == nullptr ? nullptr : point->Find("private");
    const Contestant* theirs = point == nullptr ? nullptr : ranks == 4 ? point->Find("openmpi") : point->BestPeer();
    text += Line("all_reduce 8 B, " + std::to_string(ranks) + " ranks on 2 cores: of " +
                     (ranks == 4 ? "Open MPI" : "the best peer"),
                 Ratio(ours, theirs), ranks == 4 ? 0.9 : 0.6, " x");
    text += Line("  99th percentile", ours == nullptr ? 0 : ours->p99_us / 1000, 5, " ms");
    const PointResult* barrier = FindPoint(points, Transport::kSharedMemory, ranks, Operation::kBarrier, 0);
    const Contestant* own = barrier == nullptr ? nullptr : barrier->Find("private");
    if (own == nullptr) continue;
    text += "  barrier: median " + Fixed(own->median_us, 2) + " us, 99th percentile " + Fixed(own->p99_us, 1) +
            " us, of the best peer " + Fixed(Ratio(own, barrier->BestPeer()), 2) + " x\n";
  }
  return text;
}

}  // namespace

std::string TargetTable(const Points& points) {
  return "\n## Targets\n" + AllReduceTargets(points) + SpreadTargets(points) + CrowdTargets(points);
}

}  // namespace cohort::collperf
