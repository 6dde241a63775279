// The conductor of a comparison with other systems: starts all of them, lets them run in turn, prints what it saw.
#include <sys/utsname.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "cohort/runtime/base/status_macros.h"
#include "cohort/runtime/base/whole_file.h"
#include "tools/bench/compare/compare.h"
#include "tools/bench/compare/compare_report.h"
#include "tools/measure/points.h"
#include "tools/measure/text.h"
#include "tools/program/program.h"

namespace cohort::bench {
namespace {

using measure::Operation;

constexpr const char* kFooter =
    "Examples:\n"
    "  tools/dev bench peers --quick              six sizes, short measurements\n"
    "  tools/dev bench peers                      nine sizes and longer measurements\n"
    "  tools/dev bench peers all_reduce --bytes 8,64K,4M --ranks 2 --transport shm\n"
    "\n"
    "All systems run from one start to the end; one at a time computes while the others sleep. Each point is measured "
    "in\n"
    "five alternations; a ratio is the median of theirs. Before each call all ranks meet at a gate that belongs to "
    "none\n"
    "of the systems; a call's time is that of its slowest rank; every element of untimed calls is checked first.\n";

constexpr int64_t kLongestOfMany = 4 << 20;
constexpr double kAsLongAsTheCall = 1;  // replaced by the time of the plain call

struct Arguments {
  bool quick = false;
  measure::PointArguments points;
  std::vector<int> ranks;
  std::vector<std::string> transports;
  std::string results;
  CompareOptions compare;
};

// The measurements with one number of ranks.
struct Part {
  Transport transport;
  int ranks;
  CompareOptions options;
};

std::string Now(const char* format) {
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  char text[64] = "";
  if (gmtime_r(&now, &utc) != nullptr) (void)std::strftime(text, sizeof text, format, &utc);
  return text;
}

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
    tools::FlushOutput("peers");
    text_ += text;
  }
  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

std::vector<Part> PartsOf(const Arguments& arguments) {
  std::vector<Part> parts;
  for (const std::string& transport : arguments.transports) {
    const Transport kind = transport == "tcp" ? Transport::kTcp : Transport::kSharedMemory;
    for (const int ranks : arguments.ranks) {
      Part part{kind, ranks, arguments.compare};
      part.options.without_spinners = arguments.quick && ranks > sysconf(_SC_NPROCESSORS_ONLN);
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
std::vector<Wanted> PointsOf(const Part& part) {
  std::vector<Wanted> points;
  const CompareOptions& options = part.options;
  for (const Operation operation : options.operations) {
    if (operation == Operation::kBarrier) {
      points.push_back({.operation = operation});
      continue;
    }
    for (const int64_t bytes : options.sizes) {
      points.push_back({.operation = operation, .bytes = bytes});
      if (options.rewrites) points.push_back({.operation = operation, .bytes = bytes, .rewritten = true});
      if (options.overlaps && operation == Operation::kAllReduce) {
        points.push_back({.operation = operation, .bytes = bytes, .compute_us = kAsLongAsTheCall});
      }
    }
  }
  for (const int64_t bytes : options.sizes) {
    if (options.messages == 0 || bytes > kLongestOfMany) continue;
    points.push_back({.operation = Operation::kSendRecv, .bytes = bytes, .messages = options.messages});
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

// Measures one part; false where our own ranks did not come up.
bool RunPart(const Part& part, const std::string& bin, size_t* done, size_t all, Output* output,
             std::vector<PointResult>* points) {
  output->Say(PointHead(part.transport, part.ranks));
  const auto session =
      Session::Start(part.transport, part.ranks, bin, part.options.peers, part.options.without_spinners);
  if (!session.ok()) {
    output->Say("# " + std::string(session.status().message()) + "\n");
    return false;
  }
  output->Say((*session)->notes());
  for (Wanted wanted : PointsOf(part)) {
    SetComputing(*points, &wanted);
    if (isatty(2) != 0) std::fprintf(stderr, "\r%zu of %zu ", *done + 1, all);
    std::string why;
    const PointResult point = MeasurePoint(**session, part.transport, part.options, wanted, &why);
    ++*done;
    if (isatty(2) != 0) std::fprintf(stderr, "\r");
    if (!why.empty()) {
      output->Say(std::string(measure::Name(wanted.operation)) + " " +
                  measure::BytesText(static_cast<double>(wanted.bytes)) + ": not measured: " + why + "\n");
      continue;
    }
    if (StopRequested()) return false;
    output->Say(PointRow(point));
    points->push_back(point);
    if (!(*session)->alive(0)) return false;
  }
  return true;
}

// Fills in what the command line leaves open, and refuses what cannot be compared.
absl::Status Interpret(const CLI::App& app, Arguments* arguments) {
  CompareOptions& compare = arguments->compare;
  measure::PointArguments points = arguments->points;
  compare.operations = measure::Collectives();
  if (!points.operations.empty()) {
    COHORT_ASSIGN_OR_RETURN(compare.operations, measure::ParseOperations(points.operations));
  }
  if (!measure::NamesSizes(app)) {
    points.bytes = arguments->quick ? "8,1K,64K,512K,4M,32M" : "8,64,1K,8K,64K,512K,4M,32M,128M";
  }
  COHORT_ASSIGN_OR_RETURN(compare.sizes, measure::ParseSizes(points));
  for (const int64_t bytes : compare.sizes) {
    if (bytes >= 4 && bytes % 4 == 0) continue;
    return absl::InvalidArgumentError(std::to_string(bytes) + " B are no block of whole float32");
  }
  if (arguments->ranks.empty()) arguments->ranks = {2, 4, 8};
  if (arguments->transports.empty()) arguments->transports = {"shm", "tcp"};
  if (arguments->quick) compare.slot_ms = 10;
  return absl::OkStatus();
}

void AddOptions(CLI::App* app, Arguments* raw) {
  app->footer(kFooter);
  app->add_flag("--quick", raw->quick, "fewer sizes and shorter measurements");
  measure::AddPointOptions(app, &raw->points);
  app->add_option("--ranks", raw->ranks, "numbers of ranks (2 4 8; 8 with 8 B only)")->check(CLI::Range(2, 64));
  app->add_option("--transport", raw->transports, "shm, tcp (both)")->check(CLI::IsMember({"shm", "tcp"}));
  std::vector<std::string> names = {"none"};
  for (const Peer& peer : Peers()) names.push_back(peer.name);
  app->add_option("--peers", raw->compare.peers, "only these of " + PeerNames() + "; or none")
      ->check(CLI::IsMember(names));
  app->add_option("--alternations", raw->compare.alternations, "of each point")
      ->check(CLI::Range(1, 100))
      ->capture_default_str();
  app->add_flag("--rewrite", raw->compare.rewrites,
                "each point once more, with input that every rank writes again before each call");
  app->add_option("--messages", raw->compare.messages,
                  "message rate and bandwidth too: that number of messages under way from every rank to the next one")
      ->check(CLI::Range(2, 1000));
  app->add_flag("--overlap", raw->compare.overlaps, "asynchronous all-reduces beside computing too");
  app->add_option("--results", raw->results, "folder to keep the text, the CSV and the plots in")->take_last();
}

// False, with a message, when a file could not be written.
bool Keep(const std::string& folder, const std::string& text, const std::vector<PointResult>& points,
          const std::string& caption) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  const std::string stem = folder + "/peers-" + Now("%Y-%m-%d-%H%M");
  const std::pair<const char*, std::string> files[] = {
      {".txt", text},
      {".csv", ComparisonCsv(points)},
      {"-ratios.svg", RatioPlot(points, "Ours / best peer. " + caption)},
      {"-times.svg", TimePlot(points, "Median times. " + caption)}};
  for (const auto& [ending, content] : files) {
    const absl::Status status = runtime::WriteWholeFile(stem + ending, content);
    if (!status.ok()) {
      std::fprintf(stderr, "peers: %s\n", std::string(status.message()).c_str());
      return false;
    }
    std::printf("# kept: %s%s\n", stem.c_str(), ending);
  }
  return true;
}

// Whether Keep could write there, before half an hour is spent.
bool CanKeep(const std::string& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  const absl::Status status = runtime::CheckWritable(folder + "/peers.txt");
  if (!status.ok()) std::fprintf(stderr, "peers: %s\n", std::string(status.message()).c_str());
  return status.ok();
}

int Main(int argc, char** argv) {
  Arguments arguments;
  CLI::App app("Compares our collectives with those of several MPI libraries and Gloo, side by side.", "peers");
  AddOptions(&app, &arguments);
  if (const std::optional<int> status = tools::ParseCommandLine(app, argc, argv)) return *status;
  if (const absl::Status status = Interpret(app, &arguments); !status.ok()) {
    std::fprintf(stderr, "peers: %s\n", std::string(status.message()).c_str());
    return 2;
  }
  if (!arguments.results.empty() && !CanKeep(arguments.results)) return 2;

  for (const int number : {SIGINT, SIGTERM}) std::signal(number, [](int) { RequestStop(); });
  std::string command = "tools/dev bench peers";
  for (int i = 1; i < argc; ++i) command += " " + std::string(argv[i]);
  Output output;
  const std::string machine = Machine();
  const std::string date = Now("%Y-%m-%d %H:%M UTC");
  output.Say("# " + command + "\n# " + date + ", " + machine + "\n");
  const std::string bin = std::filesystem::read_symlink("/proc/self/exe").parent_path().string();
  const std::vector<Part> parts = PartsOf(arguments);
  size_t all = 0;
  for (const Part& part : parts) all += PointsOf(part).size();
  const auto began = std::chrono::steady_clock::now();
  std::vector<PointResult> points;
  bool complete = true;
  size_t done = 0;
  for (const Part& part : parts) {
    if (!StopRequested()) complete = RunPart(part, bin, &done, all, &output, &points) && complete;
  }
  output.Say(TargetTable(points));
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - began;
  output.Say("# took " + measure::Fixed(took.count(), 0) + " s\n");
  if (!arguments.results.empty())
    complete = Keep(arguments.results, output.text(), points, date + ", " + machine) && complete;
  for (const PointResult& point : points) {
    for (const Contestant& one : point.contestants) complete = complete && (!one.ours || one.wrong == 0);
  }
  return complete ? 0 : 1;
}

}  // namespace
}  // namespace cohort::bench

int main(int argc, char** argv) {
  return cohort::tools::RunProgram("peers", [=] { return cohort::bench::Main(argc, argv); });
}
