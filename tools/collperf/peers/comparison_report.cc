#include "tools/collperf/peers/comparison_report.h"

#include <algorithm>
#include <cstdio>
#include <utility>

#include "tools/measure/plot.h"
#include "tools/measure/text.h"

namespace cohort::collperf {
namespace {

using measure::Fixed;
using measure::MicrosecondsText;
using measure::Operation;

std::string Padded(const std::string& text, size_t width) {
  return text.size() >= width ? text : std::string(width - text.size(), ' ') + text;
}

std::string TimeText(double us) { return us <= 0 ? "-" : MicrosecondsText(us); }

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

// " | near, 52 of 60 turns".
std::string PlacementText(const PointResult& point) {
  if (point.placement.empty()) return "";
  int all = 0;
  int counted = 0;
  for (const Contestant& one : point.contestants) {
    for (const Turn& turn : one.turns) {
      ++all;
      counted += turn.counts ? 1 : 0;
    }
  }
  const std::string share =
      counted == all ? "" : ", " + std::to_string(counted) + " of " + std::to_string(all) + " turns";
  return " | " + point.placement + share;
}

std::string KindText(const PointResult& point) {
  std::string text = point.rewritten ? " | rewritten" : "";
  if (point.messages > 1) text += " | " + std::to_string(point.messages) + " messages";
  if (point.compute_us > 0) text += " | beside " + MicrosecondsText(point.compute_us) + " us of computing";
  return text;
}

// Messages and bytes of all ranks in a second: ours in private memory and those of the best peer.
std::string RateText(const PointResult& point) {
  if (point.messages == 1) return "";
  std::string text;
  for (const Contestant* one : {point.Find("private"), point.BestPeer()}) {
    if (one == nullptr || one->median_us <= 0) continue;
    const double messages_per_us = point.messages * point.ranks / one->median_us;
    text += " | " + one->name + " " + MicrosecondsText(messages_per_us * 1000) + " thousand messages/s, " +
            MicrosecondsText(messages_per_us * static_cast<double>(point.bytes) / 1000) + " GB/s";
  }
  return text;
}

// The bare pair's times, behind each ours / it and it / the best peer.
std::string BareText(const PointResult& point) {
  std::string text;
  for (const auto& [bare, ours] : {std::pair{"bare-window", "window"}, std::pair{"bare", "private"}}) {
    const Contestant* floor = point.Find(bare);
    if (floor == nullptr || floor->median_us <= 0) continue;
    text += std::string(text.empty() ? " || " : " | ") + bare + Padded(TimeText(floor->median_us), 8) + " " +
            RatioText(Ratio(point.Find(ours), floor)) + " " + RatioText(Ratio(floor, point.BestPeer()));
  }
  return text;
}

struct FlagRange {
  double least = 0;
  double most = 0;
  int turns = 0;  // that count
};

FlagRange FlagsOf(const Contestant& contestant) {
  FlagRange range;
  for (const Turn& turn : contestant.turns) {
    if (!turn.counts) continue;
    ++range.turns;
    for (const double ns : {turn.flag_before_ns, turn.flag_after_ns}) {
      range.least = range.least > 0 ? std::min(range.least, ns) : ns;
      range.most = std::max(range.most, ns);
    }
  }
  return range;
}

}  // namespace

std::string TransportName(Transport transport) {
  return transport == Transport::kSharedMemory ? "shared memory" : "TCP";
}

std::string PointHead(Transport transport, int ranks) {
  return "\n## " + KeyText({transport, ranks}) +
         "\n# us: the median of the turns' medians; behind a peer ours / its time, in windows and in private memory:\n"
         "# the median of the turns' ratios, which is not the quotient of the times. At the end the placement of the "
         "CPUs;\n# turns in another one are not counted. \"rewritten\": every rank wrote its input again before each "
         "call. \"bare\": nothing but copies and flags, or plain sockets, "
         "between two ranks;\n# behind it ours / its time and its time / the best peer's\n";
}

std::string PointRow(const PointResult& point) {
  char head[64];
  std::snprintf(
      head, sizeof head, "%-14s %8s", std::string(measure::Name(point.operation)).c_str(),
      measure::HasBlocks(point.operation) ? measure::BytesText(static_cast<double>(point.bytes)).c_str() : "-");
  std::string row = head;
  row += KindText(point);
  const Contestant* window = point.Find("window");
  const Contestant* plain = point.Find("private");
  for (const Contestant* ours : {window, plain}) {
    if (ours != nullptr) row += " | " + ours->name + Padded(TimeText(ours->median_us), 8);
  }
  for (const Contestant& peer : point.contestants) {
    if (peer.system->role != Role::kPeer) continue;
    row += " | " + peer.name + Padded(TimeText(peer.median_us), 8) + " " + RatioText(Ratio(window, &peer)) + " " +
           RatioText(Ratio(plain, &peer));
  }
  const Contestant* best = point.BestPeer();
  if (best != nullptr) {
    row += " || best " + best->name + ": " + RatioText(Ratio(window, best)) + " " + RatioText(Ratio(plain, best));
  }
  row += BareText(point) + RateText(point) + PlacementText(point);
  for (const Contestant& contestant : point.contestants) {
    if (contestant.wrong > 0) row += " WRONG: " + contestant.name + " " + std::to_string(contestant.wrong);
  }
  return row + "\n";
}

std::vector<Result> ResultsOf(const std::vector<PointResult>& points) {
  std::vector<Result> results;
  for (const PointResult& point : points) {
    for (const Contestant& one : point.contestants) {
      const FlagRange flags = FlagsOf(one);
      const bool ours = one.system->role == Role::kOurs;
      results.push_back({.operation = point.operation,
                         .transport = point.transport == Transport::kTcp ? "tcp" : "shm",
                         .ranks = point.ranks,
                         .system = one.name,
                         .bytes = point.bytes,
                         .us = {.median = one.median_us, .p99 = one.p99_us},
                         .wrong = static_cast<int64_t>(one.wrong),
                         .flag_before_ns = flags.least,
                         .flag_after_ns = flags.most,
                         .placement = point.placement,
                         .rewritten = point.rewritten,
                         .messages = point.messages,
                         .compute_us = point.compute_us,
                         .turns = flags.turns,
                         .window_ratio = ours ? 0 : Ratio(point.Find("window"), &one),
                         .private_ratio = ours ? 0 : Ratio(point.Find("private"), &one)});
    }
  }
  return results;
}

std::string RatioPlot(const std::vector<PointResult>& points, const std::string& caption) {
  std::vector<measure::Chart> charts;
  for (const Key& key : KeysOf(points)) {
    for (const char* memory : {"window", "private"}) {
      measure::Chart chart{.title = KeyText(key) + ", " + memory + " memory",
                           .x_label = "size of a block",
                           .y_label = "Cohort's time / fastest peer's",
                           .y_line = 1};
      for (const PointResult& point : points) {
        const double ratio = Ratio(point.Find(memory), point.BestPeer());
        if (Key{point.transport, point.ranks} != key || !point.plain() || ratio <= 0 ||
            !measure::HasBlocks(point.operation))
          continue;
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
        if (!point.plain()) continue;
        for (const Contestant& one : point.contestants) {
          auto series = std::find_if(chart.series.begin(), chart.series.end(),
                                     [&one](const measure::Series& known) { return known.name == one.name; });
          if (series == chart.series.end()) series = chart.series.insert(series, {one.name, {}});
          if (one.median_us > 0) series->points.emplace_back(static_cast<double>(point.bytes), one.median_us);
        }
      }
      if (!chart.series.empty()) charts.push_back(std::move(chart));
    }
  }
  return measure::DrawCharts(charts, 3, caption);
}

}  // namespace cohort::collperf
