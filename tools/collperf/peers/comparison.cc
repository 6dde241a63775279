#include "tools/collperf/peers/comparison.h"

#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <utility>
#include <vector>

#include "cohort/runtime/base/status_macros.h"
#include "cohort/runtime/base/whole_file.h"
#include "tools/collperf/peers/comparison_report.h"
#include "tools/collperf/peers/conductor.h"
#include "tools/collperf/peers/targets.h"
#include "tools/collperf/peers/turns.h"
#include "tools/collperf/report.h"
#include "tools/measure/text.h"
#include "tools/program/program.h"

namespace cohort::collperf {
namespace {

using measure::Operation;

constexpr int64_t kLongestOfMany = 4 << 20;
constexpr double kAsLongAsTheCall = 1;  // replaced by the time of the plain call

std::string Machine() {
  utsname name{};
  (void)uname(&name);
  std::string model = "unknown CPU";
  std::ifstream in("/proc/cpuinfo");
  for (std::string line; std::getline(in, line);) {
    if (line.rfind("model name", 0) == 0 && line.find(": ") != std::string::npos) {
      model = line.substr(line.find(": ") + 2);
      break;
    }
  }
  return std::to_string(sysconf(_SC_NPROCESSORS_ONLN)) + " CPUs (" + model + "), Linux " + name.release;
}

// Prints and keeps what was printed.
class Output {
 public:
  void Say(const std::string& text) {
    std::fputs(text.c_str(), stdout);
    tools::FlushOutput("collperf");
    text_ += text;
  }
  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

// The measurements with one number of ranks.
struct Part {
  Transport transport;
  int ranks;
  Options options;
};

absl::StatusOr<std::vector<Part>> PartsOf(const Options& options) {
  std::vector<Part> parts;
  for (const std::string& transport : measure::SplitAtCommas(options.transport)) {
    if (transport != "shm" && transport != "tcp") {
      return absl::InvalidArgumentError("--transport " + transport.substr(0, 64) + ": with --peers there are shm, tcp");
    }
    const Transport kind = transport == "tcp" ? Transport::kTcp : Transport::kSharedMemory;
    for (const int ranks : options.ranks) {
      Part part{kind, ranks, options};
      if (ranks > 4) {  // only the crowd's own targets
        if (kind == Transport::kTcp) continue;
        part.options.operations = {Operation::kAllReduce, Operation::kBarrier};
        part.options.sizes = {8};
      }
      parts.push_back(part);
    }
  }
  return parts;
}

// The points of a part in their order: a rewritten one and one beside computing follow their plain twin.
std::vector<Wanted> PointsOf(const Options& options) {
  std::vector<Wanted> points;
  for (const Operation operation : options.operations) {
    if (!measure::HasBlocks(operation)) {
      points.push_back({.operation = operation});
      continue;
    }
    for (const int64_t bytes : options.sizes) {
      points.push_back({.operation = operation, .bytes = bytes});
      if (options.rewrite) points.push_back({.operation = operation, .bytes = bytes, .rewritten = true});
      if (options.overlap && operation == Operation::kAllReduce) {
        points.push_back({.operation = operation, .bytes = bytes, .compute_us = kAsLongAsTheCall});
      }
    }
  }
  for (const int64_t bytes : options.sizes) {
    if (options.messages == 1 || bytes > kLongestOfMany) continue;
    points.push_back(
        {.operation = Operation::kSendRecv, .bytes = bytes, .messages = static_cast<int>(options.messages)});
  }
  return points;
}

// A point beside computing, which lasts as long as the best peer's plain call, or ours where there is no peer.
void SetComputing(const std::vector<PointResult>& points, Wanted* wanted) {
  if (wanted->compute_us <= 0) return;
  for (const PointResult& point : points) {
    if (!point.plain() || point.operation != wanted->operation || point.bytes != wanted->bytes) continue;
    const Contestant* measured = point.BestPeer() != nullptr ? point.BestPeer() : point.Find("private");
    if (measured != nullptr && measured->median_us > 0) wanted->compute_us = measured->median_us;  // the latest one
  }
}

// Measures one part; false where our own ranks did not come up or did not stay, or a stop was requested.
bool RunPart(const Part& part, size_t* done, size_t all, Output* output, std::vector<PointResult>* points) {
  output->Say(PointHead(part.transport, part.ranks));
  const auto conductor = Conductor::Start(part.transport, part.ranks, part.options);
  if (absl::IsCancelled(conductor.status())) return false;
  if (!conductor.ok()) {
    output->Say("# " + std::string(conductor.status().message()) + "\n");
    return false;
  }
  output->Say((*conductor)->notes());
  for (Wanted wanted : PointsOf(part.options)) {
    SetComputing(*points, &wanted);
    if (isatty(2) != 0) std::fprintf(stderr, "\r%zu of %zu ", *done + 1, all);
    std::string why;
    const PointResult point = MeasurePoint(**conductor, part.transport, part.options, wanted, &why);
    ++*done;
    if (isatty(2) != 0) std::fprintf(stderr, "\r");
    if (StopRequested()) return false;
    if (!why.empty()) {
      output->Say(std::string(measure::Name(wanted.operation)) + " " +
                  measure::BytesText(static_cast<double>(wanted.bytes)) + ": not measured: " + why + "\n");
      continue;
    }
    output->Say(PointRow(point));
    points->push_back(point);
    if (!(*conductor)->alive(0)) return false;
  }
  return true;
}

absl::Status CheckPeers(const Options& options) {
  for (const std::string& name : options.peers) {
    const bool known = name == "all" || name == "none" ||
                       std::any_of(Systems().begin() + 1, Systems().end(),
                                   [&name](const SystemEntry& system) { return system.name == name; });
    if (known) continue;
    return absl::InvalidArgumentError("there is no peer \"" + name.substr(0, 64) + "\"; there are all, none, " +
                                      NamesBesideOurs());
  }
  return absl::OkStatus();
}

// Whether Keep could write there, before half an hour is spent.
absl::Status CheckFolder(const std::string& folder) {
  if (folder.empty()) return absl::OkStatus();
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  return runtime::CheckWritable(folder + "/peers.txt");
}

absl::Status Keep(const std::string& folder, const std::string& text, const std::vector<PointResult>& points,
                  const std::string& caption) {
  if (folder.empty()) return absl::OkStatus();
  const std::string stem = folder + "/peers-" + measure::UtcText("%Y-%m-%d-%H%M");
  const std::pair<const char*, std::string> files[] = {
      {".txt", text},
      {".csv", CsvText(ResultsOf(points))},
      {"-ratios.svg", RatioPlot(points, "Cohort's time / the fastest peer's. " + caption)},
      {"-times.svg", TimePlot(points, "Median times. " + caption)}};
  for (const auto& [ending, content] : files) {
    COHORT_RETURN_IF_ERROR(runtime::WriteWholeFile(stem + ending, content));
    std::printf("# kept: %s%s\n", stem.c_str(), ending);
  }
  return absl::OkStatus();
}

// `complete`: every part was measured, and no result of ours was wrong.
absl::Status Run(const Options& options, const std::string& command, bool* complete) {
  COHORT_RETURN_IF_ERROR(CheckPeers(options));
  COHORT_ASSIGN_OR_RETURN(const std::vector<Part> parts, PartsOf(options));
  COHORT_RETURN_IF_ERROR(CheckFolder(options.results));
  Output output;
  const std::string about = measure::UtcText("%Y-%m-%d %H:%M UTC") + ", " + Machine();
  output.Say("# " + command + "\n# " + about + "\n");
  size_t all = 0;
  for (const Part& part : parts) all += PointsOf(part.options).size();
  const auto began = std::chrono::steady_clock::now();
  std::vector<PointResult> points;
  size_t done = 0;
  for (const Part& part : parts) {
    if (!StopRequested()) *complete = RunPart(part, &done, all, &output, &points) && *complete;
  }
  std::string head;  // of what is kept
  if (StopRequested()) {
    const std::string measured = std::to_string(points.size()) + " of " + std::to_string(all) + " points\n";
    output.Say("# interrupted after " + measured);
    head = "# incomplete: " + measured;
  }
  output.Say(TargetTable(points));
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - began;
  output.Say("# took " + measure::Fixed(took.count(), 0) + " s\n");
  for (const PointResult& point : points) {
    for (const Contestant& one : point.contestants) {
      *complete = *complete && (one.system->role != Role::kOurs || one.wrong == 0);
    }
  }
  return Keep(options.results, head + output.text(), points, about);
}

}  // namespace

int Compare(const Options& options, const std::string& command) {
  for (const int number : {SIGINT, SIGTERM}) std::signal(number, [](int) { RequestStop(); });
  bool complete = true;
  const absl::Status status = Run(options, command, &complete);
  if (status.ok()) return complete ? 0 : 1;
  std::fprintf(stderr, "collperf: %s\n", tools::Escaped(std::string(status.message())).c_str());
  return absl::IsInvalidArgument(status) ? 2 : 1;
}

}  // namespace cohort::collperf
