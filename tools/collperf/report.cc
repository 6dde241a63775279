#include "tools/collperf/report.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <system_error>
#include <utility>

#include "cohort/runtime/base/status_macros.h"
#include "cohort/runtime/base/whole_file.h"
#include "tools/measure/plot.h"
#include "tools/measure/text.h"

namespace cohort::collperf {
namespace {

using measure::Fixed;
using measure::JsonString;

// Beyond this ratio of 99th percentile to minimum a time is that of other jobs, not of the call.
constexpr double kUsableSpread = 100;

std::string MemoryName(const Options& options) {
  const bool cuda = options.memory == comm::MemoryKind::kCuda;
  return std::string(cuda ? "cuda" : options.window ? "window" : "private") + (options.in_place ? ", in place" : "");
}

std::string Plural(int number, const std::string& word) {
  return std::to_string(number) + ' ' + word + (number == 1 ? "" : "s");
}

std::string SeriesName(const Options& options, const Result& result) {
  std::string name(measure::Name(result.operation));
  if (options.types.size() > 1) name += " " + result.type;
  if (options.ops.size() > 1 && result.op != "-") name += " " + result.op;
  return name;
}

bool ComparesDeterminism(const Options& options) { return options.determinism != comm::Determinism::kFast; }

// A column of the printed table.
struct Column {
  std::string name;
  int width;  // of its cells; below 0: they begin at the left
  std::string (*cell)(const Result& result);
};

std::string DeterminismCell(const Result& result) {
  const bool measured = result.fast_us > 0 && result.us.median > 0;
  return measured ? Fixed(result.us.median / result.fast_us, 3) : "-";
}

std::vector<Column> ColumnsOf(const Options& options) {
  using R = const Result&;
  std::vector<Column> columns = {
      {"op", -14, [](R result) { return std::string(measure::Name(result.operation)); }},
      {"bytes", 11, [](R result) { return std::to_string(result.bytes); }},
      {"count", 11, [](R result) { return std::to_string(result.count); }},
      {"type", -9, [](R result) { return result.type; }},
      {"redop", -7, [](R result) { return result.op; }},
      {"root", 4, [](R result) { return std::to_string(result.root); }},
      {"time us", 10, [](R result) { return Fixed(result.us.median, 2); }},
      {"algbw", 8, [](R result) { return Fixed(result.algbw, 3); }},
      {"busbw", 8, [](R result) { return Fixed(result.busbw, 3); }},
      {"#wrong", 6, [](R result) { return result.wrong < 0 ? "-" : std::to_string(result.wrong); }},
      {"min us", 10, [](R result) { return Fixed(result.us.minimum, 2); }},
      {"p99 us", 10, [](R result) { return Fixed(result.us.p99, 2); }},
      {"iters", 6, [](R result) { return std::to_string(result.iterations); }}};
  if (ComparesDeterminism(options)) columns.push_back({"x fast", -7, DeterminismCell});
  columns.push_back({"algorithm", 0, [](R result) { return result.algorithm; }});
  return columns;
}

// A space, and `text` with the blanks that its column needs; never cut.
std::string Cell(const Column& column, const std::string& text) {
  const size_t width = static_cast<size_t>(std::abs(column.width));
  const std::string blanks(width > text.size() ? width - text.size() : 0, ' ');
  return " " + (column.width < 0 ? text + blanks : blanks + text);
}

// A column of the CSV, and a member of a result in JSON.
struct Field {
  const char* name;
  std::string value;  // empty: not known
  bool is_text = false;
};

std::string Known(double figure, int digits) { return figure > 0 ? Fixed(figure, digits) : ""; }
std::string Text(bool value) { return value ? "true" : "false"; }

std::vector<Field> FieldsOf(const Result& result) {
  const auto [least, most] = std::minmax(result.flag_before_ns, result.flag_after_ns);
  return {{"op", std::string(measure::Name(result.operation)), true},
          {"transport", result.transport, true},
          {"ranks", std::to_string(result.ranks)},
          {"system", result.system, true},
          {"bytes", std::to_string(result.bytes)},
          {"count", std::to_string(result.count)},
          {"type", result.type, true},
          {"redop", result.op, true},
          {"root", std::to_string(result.root)},
          {"iters", result.iterations > 0 ? std::to_string(result.iterations) : ""},
          {"min_us", Known(result.us.minimum, 4)},
          {"median_us", Fixed(result.us.median, 4)},
          {"p99_us", Fixed(result.us.p99, 4)},
          {"algbw_GBps", Known(result.algbw, 6)},
          {"busbw_GBps", Known(result.busbw, 6)},
          {"wrong", result.wrong < 0 ? "" : std::to_string(result.wrong)},
          {"algorithm", result.algorithm, true},
          {"fast_median_us", Known(result.fast_us, 4)},
          {"flag_least_ns", Known(least, 1)},
          {"flag_most_ns", Known(most, 1)},
          {"placement", result.placement, true},
          {"rewritten", Text(result.rewritten)},
          {"messages", std::to_string(result.messages)},
          {"compute_us", Known(result.compute_us, 3)},
          {"turns", std::to_string(result.turns)},
          {"window_ratio", Known(result.window_ratio, 4)},
          {"private_ratio", Known(result.private_ratio, 4)}};
}

// "# CPUs of ranks 0 and 1: near at 7 points (flag 41.0 to 47.0 ns), far at 1 point (...)".
std::string PlacementText(const std::vector<Result>& results) {
  std::string text;
  for (const char* name : {"near", "far", "moved"}) {
    int points = 0;
    double least = 0;
    double most = 0;
    for (const Result& result : results) {
      if (result.placement != name) continue;
      const auto [low, high] = std::minmax(result.flag_before_ns, result.flag_after_ns);
      least = points == 0 ? low : std::min(least, low);
      most = std::max(most, high);
      ++points;
    }
    if (points == 0) continue;
    text += std::string(text.empty() ? "# CPUs of ranks 0 and 1: " : ", ") + name + " at " + Plural(points, "point") +
            " (flag one way " + Fixed(least, 0) + " to " + Fixed(most, 0) + " ns)";
  }
  return text.empty() ? text : text + "; latencies compare within one placement only\n";
}

}  // namespace

std::string HeadText(const Options& options, const RunFacts& facts) {
  std::string text = "# collperf: " + Plural(facts.ranks, "rank") + " on " + Plural(facts.hosts, "host") + " (" +
                     facts.host + ", " + Plural(facts.cpus, "CPU") + "), transport " + facts.transport + ", memory " +
                     MemoryName(options) + "\n";
  if (!facts.device.empty()) {
    text += "# rank 0: " + facts.device + "\n# time: until the host has seen the result on the device, " +
            (options.batch > 1 ? "waiting once for a batch on the stream\n" : "waiting for each call\n");
  }
  text += "# gate before each call: " + facts.gate +
          "; a call takes as long as its slowest rank; time is the median; algbw, busbw in GB/s\n";
  if (options.batch > 1) {
    text += "# " + std::to_string(options.batch) + " calls between two gates: times are means of a batch\n";
  }
  if (options.messages > 1) {
    text +=
        "# send_recv: " + std::to_string(options.messages) + " messages under way at a time: times are means of them\n";
  }
  if (options.rewrite) text += "# every rank writes its input again before each timed call\n";
  if (facts.ranks == 1) text += "# one rank alone; for more: dlaunch --nproc-per-node N collperf ...\n";
  if (ComparesDeterminism(options)) {
    text += "# " + std::string(comm::Name(options.determinism)) +
            " reductions; x fast: by how much their median is longer than that of the same call at fast, in turn\n";
  }
  if (options.operations.empty() || options.each_algorithm) return text;
  text += "#";
  for (const Column& column : ColumnsOf(options)) text += Cell(column, column.name);
  return text + "\n";
}

std::string RowText(const Options& options, const Result& result) {
  std::string text = " ";
  for (const Column& column : ColumnsOf(options)) text += Cell(column, column.cell(result));
  return text + "\n";
}

std::string SummaryText(const std::vector<Result>& results) {
  struct Mean {
    measure::Operation operation;
    double sum = 0;
    int points = 0;
  };
  std::vector<Mean> means;
  size_t spread = 0;
  for (const Result& result : results) {
    spread += result.us.p99 > kUsableSpread * result.us.minimum ? 1 : 0;
    if (!measure::HasBlocks(result.operation)) continue;
    if (means.empty() || means.back().operation != result.operation) means.push_back({result.operation});
    means.back().sum += result.busbw;
    ++means.back().points;
  }
  std::string text;
  for (const Mean& mean : means) {
    text += text.empty() ? "# Avg bus bandwidth    : " : ", ";
    if (means.size() > 1) text += std::string(measure::Name(mean.operation)) + " ";
    text += Fixed(mean.sum / mean.points, 3);
  }
  if (!text.empty()) text += "\n";
  text += PlacementText(results);
  if (2 * spread <= results.size()) return text;
  return text + "# the machine is busy: at " + std::to_string(spread) + " of " + std::to_string(results.size()) +
         " points the 99th percentile is over " + Fixed(kUsableSpread, 0) +
         " times the minimum, so medians say little; run it when nothing else runs, with a CPU for each rank\n";
}

std::string DeterminismText(const Options& options, const std::vector<Result>& results) {
  std::vector<double> costs;
  for (const Result& result : results) {
    if (result.fast_us > 0 && result.us.median > 0) costs.push_back(result.us.median / result.fast_us);
  }
  if (costs.empty()) return "";
  const auto [least, most] = std::minmax_element(costs.begin(), costs.end());
  return "# " + std::string(comm::Name(options.determinism)) + " takes " + Fixed(measure::GeometricMean(costs), 3) +
         " x fast's time (geometric mean of " + Plural(static_cast<int>(costs.size()), "point") + ", " +
         Fixed(*least, 3) + " to " + Fixed(*most, 3) + ")\n";
}

std::string CsvText(const std::vector<Result>& results) {
  std::string csv;
  for (const Field& field : FieldsOf({})) csv += std::string(csv.empty() ? "" : ",") + field.name;
  for (const Result& result : results) {
    std::string separator = "\n";
    for (const Field& field : FieldsOf(result)) csv += std::exchange(separator, ",") + field.value;
  }
  return csv + '\n';
}

std::string JsonText(const Options& options, const RunFacts& facts, const std::vector<Result>& results) {
  std::string json = "{\n  \"command\": " + JsonString(facts.command) + ",\n  \"date\": " + JsonString(facts.date) +
                     ",\n  \"host\": " + JsonString(facts.host) + ",\n  \"hosts\": " + std::to_string(facts.hosts) +
                     ",\n  \"cpus\": " + std::to_string(facts.cpus) + ",\n  \"ranks\": " + std::to_string(facts.ranks) +
                     ",\n  \"transport\": " + JsonString(facts.transport) + ",\n  \"gate\": " + JsonString(facts.gate) +
                     ",\n  \"memory\": " + JsonString(options.memory == comm::MemoryKind::kCuda ? "cuda" : "host") +
                     ",\n  \"device\": " + (facts.device.empty() ? "null" : JsonString(facts.device)) +
                     ",\n  \"window\": " + Text(options.window) + ",\n  \"in_place\": " + Text(options.in_place) +
                     ",\n  \"batch\": " + std::to_string(options.batch) +
                     ",\n  \"messages\": " + std::to_string(options.messages) +
                     ",\n  \"rewrite\": " + Text(options.rewrite) +
                     ",\n  \"determinism\": " + JsonString(comm::Name(options.determinism)) +
                     ",\n  \"table\": " + JsonString(facts.tuning_table) + ",\n  \"results\": [";
  std::string before = "\n    {";
  for (const Result& result : results) {
    for (const Field& field : FieldsOf(result)) {
      const std::string value = field.value.empty() ? "null" : field.is_text ? JsonString(field.value) : field.value;
      json += std::exchange(before, ", ") + JsonString(field.name) + ": " + value;
    }
    json += "}";
    before = ",\n    {";
  }
  return json + "\n  ]\n}\n";
}

std::string PlotText(const Options& options, const RunFacts& facts, const std::vector<Result>& results) {
  measure::Chart time{
      .title = "Median time", .x_label = "size of a block", .y_label = "time", .y_is_microseconds = true};
  measure::Chart bandwidth{
      .title = "Bus bandwidth", .x_label = "size of a block", .y_label = "GB/s", .better = measure::Better::kHigher};
  for (const Result& result : results) {
    if (!measure::HasBlocks(result.operation)) continue;
    const std::string name = SeriesName(options, result);
    if (time.series.empty() || time.series.back().name != name) {
      time.series.push_back({name, {}});
      bandwidth.series.push_back({name, {}});
    }
    const auto bytes = static_cast<double>(result.bytes);
    time.series.back().points.emplace_back(bytes, result.us.median);
    bandwidth.series.back().points.emplace_back(bytes, result.busbw);
  }
  return measure::DrawCharts({time, bandwidth}, 2,
                             "collperf: " + Plural(facts.ranks, "rank") + " on " + Plural(facts.hosts, "host") + ", " +
                                 facts.transport + ", " + MemoryName(options) + " memory, " + facts.host + ", " +
                                 facts.date);
}

namespace {

// By another path too; it need not be there yet.
bool SameFile(const std::string& a, const std::string& b) {
  std::error_code error_a, error_b;
  const auto whole_a = std::filesystem::weakly_canonical(std::filesystem::absolute(a, error_a), error_a);
  const auto whole_b = std::filesystem::weakly_canonical(std::filesystem::absolute(b, error_b), error_b);
  return a == b || (!error_a && !error_b && whole_a == whole_b);
}

}  // namespace

absl::Status CheckFiles(const Options& options) {
  const std::vector<const std::string*> paths = {&options.csv, &options.json, &options.plot};
  for (size_t i = 0; i < paths.size(); ++i) {
    if (paths[i]->empty()) continue;
    for (size_t other = 0; other < i; ++other) {
      if (SameFile(*paths[i], *paths[other])) {
        return absl::InvalidArgumentError("--csv, --json and --plot need a file each, not " + *paths[i] + " twice");
      }
    }
    COHORT_RETURN_IF_ERROR(runtime::CheckWritable(*paths[i]));
  }
  return absl::OkStatus();
}

absl::Status WriteFiles(const Options& options, const RunFacts& facts, const std::vector<Result>& results) {
  // Each of them, whatever became of the others: the measurement may have taken hours.
  absl::Status status;
  if (!options.csv.empty()) status.Update(runtime::WriteWholeFile(options.csv, CsvText(results)));
  if (!options.json.empty()) status.Update(runtime::WriteWholeFile(options.json, JsonText(options, facts, results)));
  if (!options.plot.empty()) status.Update(runtime::WriteWholeFile(options.plot, PlotText(options, facts, results)));
  return status;
}

}  // namespace cohort::collperf
