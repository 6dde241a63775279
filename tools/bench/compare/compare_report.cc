#include "tools/bench/compare/compare_report.h"

#include <algorithm>
#include <cstdio>
#include <utility>

#include "tools/measure/plot.h"
#include "tools/measure/text.h"

namespace cohort::bench {
namespace {

using measure::Fixed;
using measure::MicrosecondsText;
using measure::Operation;

std::string Padded(const std::string& text, size_t width) {
  return text.size() >= width ? text : std::string(width - text.size(), ' ') + text;
}

std::string RatioText(double ratio) { return ratio <= 0 ? "-" : Fixed(ratio, 2); }

// The points of a transport and number of ranks, in the order in which they were measured.
using Key = std::pair<Transport, int>;
std::vector<Key> KeysOf(const std::vector<PointResult>& points) {
  std::vector<Key> keys;
  for (const PointResult& point : points) {
    const Key key{point.transport, point.ranks};
    if (std::find(keys.begin(), keys.end(), key) == keys.end()) keys.push_back(key);
  }
  return keys;
}

std::string KeyText(const Key& key) { return std::to_string(key.second) + " ranks, " + TransportName(key.first); }

}  // namespace

std::string TransportName(Transport transport) {
  return transport == Transport::kSharedMemory ? "shared memory" : "TCP";
}

std::string PointHead(Transport transport, int ranks) {
  return "\n## " + KeyText({transport, ranks}) +
         "\n# us: the median of the turns' medians; behind a peer ours / its time, in windows and in private memory:\n"
         "# the median of the turns' ratios, which is not the quotient of the times\n";
}

std::string PointRow(const PointResult& point) {
  char head[64];
  std::snprintf(
      head, sizeof head, "%-14s %8s", std::string(measure::Name(point.operation)).c_str(),
      point.operation == Operation::kBarrier ? "-" : measure::BytesText(static_cast<double>(point.bytes)).c_str());
  std::string row = head;
  const Contestant* window = point.Find("window");
  const Contestant* plain = point.Find("private");
  for (const Contestant* ours : {window, plain}) {
    if (ours != nullptr) row += " | " + ours->name + Padded(MicrosecondsText(ours->median_us), 8);
  }
  for (const Contestant& peer : point.contestants) {
    if (peer.ours) continue;
    row += " | " + peer.name + Padded(MicrosecondsText(peer.median_us), 8) + " " + RatioText(Ratio(window, &peer)) +
           " " + RatioText(Ratio(plain, &peer));
  }
  const Contestant* best = point.BestPeer();
  if (best != nullptr) {
    row += " || best " + best->name + ": " + RatioText(Ratio(window, best)) + " " + RatioText(Ratio(plain, best));
  }
  for (const Contestant& contestant : point.contestants) {
    if (contestant.wrong > 0) row += " WRONG: " + contestant.name + " " + std::to_string(contestant.wrong);
  }
  return row + "\n";
}

std::string ComparisonCsv(const std::vector<PointResult>& points) {
  std::string csv = "transport,ranks,op,bytes,system,median_us,p99_us,wrong,window_ratio,private_ratio\n";
  for (const PointResult& point : points) {
    for (const Contestant& one : point.contestants) {
      csv += std::string(point.transport == Transport::kTcp ? "tcp" : "shm") + ',' + std::to_string(point.ranks) + ',' +
             std::string(measure::Name(point.operation)) + ',' + std::to_string(point.bytes) + ',' + one.name + ',' +
             Fixed(one.median_us, 4) + ',' + Fixed(one.p99_us, 4) + ',' + std::to_string(one.wrong) + ',' +
             (one.ours ? "" : Fixed(Ratio(point.Find("window"), &one), 4)) + ',' +
             (one.ours ? "" : Fixed(Ratio(point.Find("private"), &one), 4)) + '\n';
    }
  }
  return csv;
}

std::string RatioPlot(const std::vector<PointResult>& points, const std::string& caption) {
  std::vector<measure::Chart> charts;
  for (const Key& key : KeysOf(points)) {
    for (const char* memory : {"window", "private"}) {
      measure::Chart chart{.title = KeyText(key) + ", " + memory + " memory",
                           .x_label = "size of a block",
                           .y_label = "ours / best peer",
                           .y_line = 1};
      for (const PointResult& point : points) {
        const double ratio = Ratio(point.Find(memory), point.BestPeer());
        if (Key{point.transport, point.ranks} != key || ratio <= 0 || point.operation == Operation::kBarrier) continue;
        const std::string name(measure::Name(point.operation));
        if (chart.series.empty() || chart.series.back().name != name) chart.series.push_back({name, {}});
        chart.series.back().points.emplace_back(static_cast<double>(point.bytes), ratio);
      }
      if (!chart.series.empty()) charts.push_back(std::move(chart));
    }
  }
  return measure::DrawCharts(charts, 2, caption);
}

std::string TimePlot(const std::vector<PointResult>& points, const std::string& caption) {
  std::vector<measure::Chart> charts;
  for (const Key& key : KeysOf(points)) {
    for (const Operation operation : measure::AllOperations()) {
      measure::Chart chart{.title = std::string(measure::Name(operation)) + ", " + KeyText(key),
                           .x_label = "size of a block",
                           .y_label = "median time",
                           .y_is_microseconds = true};
      for (const PointResult& point : points) {
        if (Key{point.transport, point.ranks} != key || point.operation != operation || point.bytes == 0) continue;
        for (const Contestant& one : point.contestants) {
          auto series = std::find_if(chart.series.begin(), chart.series.end(),
                                     [&one](const measure::Series& known) { return known.name == one.name; });
          if (series == chart.series.end()) series = chart.series.insert(series, {one.name, {}});
          series->points.emplace_back(static_cast<double>(point.bytes), one.median_us);
        }
      }
      if (!chart.series.empty()) charts.push_back(std::move(chart));
    }
  }
  return measure::DrawCharts(charts, 3, caption);
}

}  // namespace cohort::bench
