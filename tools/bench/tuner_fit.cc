// Fits the figures of the cost model to a grid that collperf --each-algorithm measured, and shows the selector's
// choices there. It needs only the CSV, so a model can be judged on another machine's grid.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>
#include <optional>
#include <random>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "cohort/comm/algorithm/registry.h"
#include "cohort/comm/select/cost_model.h"
#include "cohort/comm/select/selector.h"
#include "cohort/comm/select/tuning.h"
#include "tools/program/program.h"

namespace cohort::bench {
namespace {

using comm::AlgorithmInfo;
using comm::CollectiveKind;
using comm::GroupTopology;
using comm::Tuning;

// A choice up to this much slower than the best is a hit.
constexpr double kBound = 1.1;

// A line of such a grid on a machine with near caches.
constexpr char kNearCaches[] = "# near caches";

struct Point {
  std::string name;  // "all_reduce,shm,1,4,65536"
  CollectiveKind kind = CollectiveKind::kBarrier;
  GroupTopology topology;
  int64_t bytes = 0;
  std::map<const AlgorithmInfo*, double> medians = {};
  double best = 0;
};

[[noreturn]] void Refuse(const std::string& why) {
  std::fprintf(stderr, "tuner_fit: %s\n", why.c_str());
  std::exit(2);
}

std::vector<std::string> Split(const std::string& text, char at) {
  std::vector<std::string> parts;
  std::istringstream in(text);
  for (std::string part; std::getline(in, part, at);) parts.push_back(part);
  return parts;
}

bool FindKind(const std::string& name, CollectiveKind* kind) {
  for (int value = 1; value <= static_cast<int>(CollectiveKind::kBarrier); ++value) {
    *kind = static_cast<CollectiveKind>(value);
    if (comm::Name(*kind) == name) return true;
  }
  return false;
}

// A line of the grid's CSV; false for its head and for comments.
bool ReadPoint(const std::string& line, int cpus, bool near_caches, Point* point) {
  const std::vector<std::string> fields = Split(line, ',');
  if (fields.size() != 12 || !FindKind(fields[0], &point->kind)) return false;
  point->name = fields[0] + "," + fields[1] + "," + fields[2] + "," + fields[3] + "," + fields[4];
  GroupTopology& topology = point->topology;
  topology.near_caches = near_caches;
  topology.windows = fields[1].ends_with("-window");
  topology.nodes = std::atoi(fields[2].c_str());
  topology.size = std::atoi(fields[3].c_str());
  point->bytes = std::atoll(fields[4].c_str());
  if (topology.nodes < 1 || topology.size < topology.nodes) return false;
  topology.smallest_node = topology.size / topology.nodes;
  topology.largest_node = (topology.size + topology.nodes - 1) / topology.nodes;
  topology.ranks_per_cpu = std::max(1.0, static_cast<double>(topology.size) / cpus);
  for (const std::string& entry : Split(fields[11], ' ')) {
    const size_t equals = entry.find('=');
    const double median = std::atof(entry.substr(equals + 1).c_str());
    for (const std::string& name : Split(entry.substr(0, equals), '|')) {
      const AlgorithmInfo* algorithm = comm::FindAlgorithm(point->kind, name);
      if (algorithm != nullptr) point->medians[algorithm] = median;
    }
    if (point->best == 0 || median < point->best) point->best = median;
  }
  return point->best > 0;
}

// The measured time of the choice; the worst one's where it was not measured.
double ChosenMedian(const Point& point, const Tuning& tuning, const AlgorithmInfo** chosen) {
  const auto choice = comm::Select(point.kind, point.bytes, point.topology, tuning);
  if (!choice.ok()) Refuse(std::string(choice.status().message()));
  *chosen = choice->algorithm;
  const auto found = point.medians.find(choice->algorithm);
  if (found != point.medians.end()) return found->second;
  double worst = point.best;
  for (const auto& [unused, median] : point.medians) worst = std::max(worst, median);
  return worst;
}

// The quantity that a fit minimises: misses first, then the time lost, then the errors in predictions of good
// algorithms.
double Loss(const std::vector<Point>& points, const Tuning& tuning) {
  double loss = 0;
  for (const Point& point : points) {
    const AlgorithmInfo* chosen = nullptr;
    const double ratio = ChosenMedian(point, tuning, &chosen) / point.best;
    loss += std::min(std::log(ratio), 1.0) + (ratio > kBound ? 0.15 : 0) + (ratio > 1.05 ? 0.05 : 0);
    for (const auto& [algorithm, median] : point.medians) {
      if (median > 3 * point.best) continue;
      const auto forced = comm::Select(point.kind, point.bytes, point.topology, tuning, algorithm->name);
      if (!forced.ok()) continue;
      const double off = std::log(forced->predicted_us / median);
      loss += 0.06 * std::min(off * off, 2.0) / static_cast<double>(point.medians.size());
    }
  }
  return loss / static_cast<double>(points.size());
}

struct Figure {
  std::string name;
  double value = 0;
};

std::vector<Figure> FiguresOf(const Tuning& tuning) {
  std::vector<Figure> figures;
  for (const std::string& item : Split(tuning.ToString(), ';')) {
    const size_t begin = item.find_first_not_of(' ');
    const size_t equals = item.find('=');
    if (item.find(':') != std::string::npos) continue;
    figures.push_back({item.substr(begin, equals - begin), std::atof(item.c_str() + equals + 1)});
  }
  return figures;
}

Tuning With(const Tuning& base, const std::string& name, double value) {
  char text[64];
  std::snprintf(text, sizeof text, value < 1000 ? "=%.3g" : "=%.0f", std::clamp(value, 0.001, 1e9));
  const auto tuning = Tuning::Parse(name + text, base);
  if (!tuning.ok()) Refuse(std::string(tuning.status().message()));
  return *tuning;
}

// Tries random steps from the best table so far, long and short ones, of one figure or of several.
Tuning Descend(const std::vector<Point>& points, Tuning tuning, const std::vector<std::string>& names, int steps,
               uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<double> step(0, 1);
  double loss = Loss(points, tuning);
  for (int i = 0; i < steps; ++i) {
    const double width = std::pow(10.0, -2.0 * static_cast<double>(random() % 1000) / 1000);
    const size_t moved = 1 + random() % 3;
    Tuning candidate = tuning;
    for (size_t k = 0; k < moved; ++k) {
      const std::string& name = names[random() % names.size()];
      for (const Figure& figure : FiguresOf(tuning)) {
        if (figure.name == name) candidate = With(candidate, name, figure.value * std::exp(width * step(random)));
      }
    }
    const double other = Loss(points, candidate);
    if (other > loss) continue;
    loss = other;
    tuning = candidate;
  }
  return tuning;
}

// The best of several descents.
Tuning Fit(const std::vector<Point>& points, const Tuning& start, const std::vector<std::string>& names, int steps) {
  if (names.empty()) return start;
  Tuning best = start;
  for (uint32_t seed = 1; seed <= 4; ++seed) {
    const Tuning tuning = Descend(points, start, names, steps, seed);
    if (Loss(points, tuning) < Loss(points, best)) best = tuning;
  }
  std::printf("# loss %.5f, before the fit %.5f\n", Loss(points, best), Loss(points, start));
  return best;
}

void Report(const std::vector<Point>& points, const Tuning& tuning, bool predictions) {
  int hits = 0;
  for (const Point& point : points) {
    const AlgorithmInfo* chosen = nullptr;
    const double median = ChosenMedian(point, tuning, &chosen);
    const bool hit = median <= kBound * point.best;
    hits += hit ? 1 : 0;
    if (hit && !predictions) continue;
    std::printf("%s: %s %.2f, best %.2f: %.2f;", point.name.c_str(), std::string(chosen->name).c_str(), median,
                point.best, median / point.best);
    for (const auto& [algorithm, measured] : point.medians) {
      const auto forced = comm::Select(point.kind, point.bytes, point.topology, tuning, algorithm->name);
      if (forced.ok()) {
        std::printf(" %s %.2f (%.2f)", std::string(algorithm->name).c_str(), measured, forced->predicted_us);
      }
    }
    std::printf("\n");
  }
  std::printf("%d of %zu points within 10 %% by these medians: %.1f %%\n%s\n", hits, points.size(),
              100.0 * hits / static_cast<double>(points.size()), tuning.ToString().c_str());
}

int Main(int argc, char** argv) {
  CLI::App app(
      "Judges and fits the cost model on grids of collperf --each-algorithm: misses, measured (predicted) times.");
  std::vector<std::string> files;
  std::vector<std::string> figures;
  std::string text;
  int cpus = 2;
  int steps = 20000;
  bool predictions = false;
  app.add_option("files", files, "CSV of collperf --each-algorithm, or of tools/dev bench tuner")->required();
  app.add_option("--tuning", text, "figures to replace");
  app.add_option("--cpus", cpus, "of the machine that was measured")->check(CLI::Range(1, 4096));
  app.add_option("--fit", figures, "figures to fit, such as direct.access_us");
  app.add_option("--steps", steps, "of the fit")->check(CLI::Range(1, 10'000'000));
  app.add_flag("--all", predictions, "print hits too");
  if (const std::optional<int> status = tools::ParseCommandLine(app, argc, argv)) return *status;
  std::vector<Point> points;
  for (const std::string& file : files) {
    std::ifstream in(file);
    if (!in) Refuse("cannot read " + file);
    bool near_caches = false;
    for (std::string line; std::getline(in, line);) {
      Point point;
      if (line.starts_with("[0] ")) line = line.substr(4);
      near_caches = near_caches || line == kNearCaches;
      if (ReadPoint(line, cpus, near_caches, &point)) points.push_back(std::move(point));
    }
  }
  if (points.empty()) Refuse("no points in those files");
  const auto tuning = Tuning::Parse(text);
  if (!tuning.ok()) Refuse(std::string(tuning.status().message()));
  Report(points, Fit(points, *tuning, figures, steps), predictions);
  return 0;
}

}  // namespace
}  // namespace cohort::bench

int main(int argc, char** argv) {
  return cohort::tools::RunProgram("tuner_fit", [=] { return cohort::bench::Main(argc, argv); });
}
