#include "tools/plan/simulate.h"

#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cohort/comm/algorithm/registry.h"
#include "cohort/comm/select/composition_cost.h"
#include "cohort/comm/simulate/network.h"
#include "cohort/comm/simulate/simulator.h"
#include "tools/plan/nodes.h"
#include "tools/plan/predicted_call.h"
#include "tools/program/program.h"

namespace cohort::tools {
namespace {

constexpr int64_t kMostTracedOperations = 1000 * 1000;

struct Row {
  std::string algorithm;
  absl::StatusOr<comm::SimulationReport> report = absl::UnknownError("not run");
  double seconds = 0;  // that the simulation took
};

template <typename View>
std::string Text(const View& text) {
  return std::string(text.data(), text.size());
}

void PrintHead(const SimulateCommand& command, const comm::Network& network) {
  std::printf("%s of %lld bytes among %lld %s\n%s\n\n", command.kind.c_str(), static_cast<long long>(command.bytes),
              static_cast<long long>(network.ranks()), network.ranks() == 1 ? "rank" : "ranks",
              network.ToString().c_str());
  std::printf("%-36s %14s %14s %14s %14s %8s %12s %8s\n", "algorithm", "time us", "messages", "wire bytes",
              "core bytes", "uplinks", "ranks timed", "took s");
}

void PrintRow(const Row& row) {
  if (!row.report.ok()) {
    std::printf("%-36s %s\n", row.algorithm.c_str(), Text(row.report.status().message()).c_str());
    return;
  }
  const comm::SimulationReport& report = *row.report;
  std::printf("%-36s %14.3f %14lld %14.6g %14.6g %7.1f%% %12lld %8.2f\n", row.algorithm.c_str(), report.microseconds,
              static_cast<long long>(report.messages), report.wire_bytes, report.core_bytes, 100 * report.uplink_busy,
              static_cast<long long>(report.ranks_timed), row.seconds);
}

void PrintJson(const SimulateCommand& command, const comm::Network& network, const std::vector<Row>& rows) {
  nlohmann::json json = {{"collective", command.kind},
                         {"bytes", command.bytes},
                         {"ranks", network.ranks()},
                         {"network", network.ToString()},
                         {"algorithms", nlohmann::json::array()}};
  for (const Row& row : rows) {
    nlohmann::json entry = {{"algorithm", row.algorithm}};
    if (row.report.ok()) {
      entry["us"] = row.report->microseconds;
      entry["messages"] = row.report->messages;
      entry["wire_bytes"] = row.report->wire_bytes;
      entry["core_bytes"] = row.report->core_bytes;
      entry["uplink_busy"] = row.report->uplink_busy;
      entry["ranks_timed"] = row.report->ranks_timed;
      entry["events"] = row.report->events;
    } else {
      entry["error"] = Text(row.report.status().message());
    }
    json["algorithms"].push_back(std::move(entry));
  }
  std::printf("%s\n", json.dump(2).c_str());
}

// The algorithms to time: the named one, or all of the list and the compositions that the selector likes best.
std::vector<const comm::AlgorithmInfo*> Asked(const SimulateCommand& command, const comm::Network& network) {
  std::vector<const comm::AlgorithmInfo*> asked;
  for (const comm::AlgorithmInfo& algorithm : comm::AllAlgorithms()) {
    if (comm::Name(algorithm.kind) != command.kind) continue;
    if (command.algorithm.empty() ? algorithm.composition == nullptr : algorithm.name == command.algorithm) {
      asked.push_back(&algorithm);
    }
  }
  if (!command.algorithm.empty() || asked.empty()) return asked;
  const comm::GroupTopology topology = {.size = static_cast<int>(network.ranks()),
                                        .nodes = static_cast<int>(network.nodes),
                                        .smallest_node = static_cast<int>(network.ranks_per_node),
                                        .largest_node = static_cast<int>(network.ranks_per_node)};
  comm::Tuning tuning;
  tuning.local = network.local;
  tuning.remote = network.remote;
  const auto best = comm::BestCompositions(asked[0]->kind, command.bytes, topology, tuning);
  asked.insert(asked.end(), best.begin(), best.end());
  return asked;
}

// On a terminal, and gone when the row is there: which algorithm is being timed, of how many. None: nothing any more.
void Progress(size_t number, size_t all, const std::string& algorithm) {
  if (isatty(STDERR_FILENO) == 0) return;
  std::fputs("\r\x1b[K", stderr);
  if (all > 0) std::fprintf(stderr, "%zu of %zu: %s ...", number, all, algorithm.c_str());
}

struct Meaning {
  const char* name;
  const char* text;
};

constexpr Meaning kPresets[] = {{"flat", "a rank on each host, one switch"},
                                {"host", "one host, shared memory"},
                                {"fat-tree", "leaf switches below a core, 100 Gbit/s a host"},
                                {"gpu", "8 GPUs on each host with a NIC of 400 Gbit/s each"},
                                {"ethernet", "10 Gbit/s, TCP"}};

constexpr Meaning kFigures[] = {
    {"nodes", "hosts"},
    {"ranks-per-node", "ranks on each host"},
    {"nodes-per-leaf", "hosts on each leaf switch"},
    {"oversubscription", "capacity of a leaf's NICs over that of its uplinks"},
    {"local-alpha-us", "latency in us between ranks of one host"},
    {"local-message-us", "us that a message right after another costs more"},
    {"local-gigabytes-s", "GB/s of a rank's port"},
    {"remote-alpha-us", "the same between hosts"},
    {"remote-message-us", ""},
    {"remote-gigabytes-s", ""},
    {"nic-gigabytes-s", "GB/s between a host and its leaf switch, each way"},
    {"reduce-gigabytes-s", "GB/s that a rank reduces"},
    {"placement", "block: ranges of ranks; cyclic: in turn"},
};

// The value of "name=value" in a preset's description.
std::string FigureOf(const std::string& preset, const std::string& name) {
  const absl::StatusOr<comm::Network> network = comm::Network::Parse(preset);
  const std::string all = network.ok() ? "," + network->ToString().substr(preset.size() + 1) + "," : "";
  const std::string before = "," + name + "=";
  const size_t begin = all.find(before);
  if (begin == std::string::npos) return "?";
  const size_t value = begin + before.size();
  return all.substr(value, all.find(',', value) - value);
}

}  // namespace

std::string SimulateFooter() {
  std::string text =
      "Example:\n"
      "  plan simulate all_reduce ring --bytes 256M --network fat-tree:nodes=8192,oversubscription=2\n"
      "\n"
      "The columns, of all ranks together:\n"
      "  time us      until the last rank is done\n"
      "  messages     a publish (one write that all others read) counts once\n"
      "  wire bytes   between hosts\n"
      "  core bytes   of those, what leaves a leaf switch upwards\n"
      "  uplinks      for how much of the time the busiest leaf switch's uplinks are in use\n"
      "  ranks timed  all others do the same as one of these at the same time\n"
      "  took s       how long the simulation itself took\n"
      "\n"
      "--network: ranks have ports, hosts NICs, leaf switches uplinks; the core above is never full. PRESET is one of\n"
      "these, and each name=value replaces one of its figures:\n";
  char line[160];
  for (const Meaning& preset : kPresets) {
    std::snprintf(line, sizeof line, "  %-9s  %s\n", preset.name, preset.text);
    text += line;
  }
  std::snprintf(line, sizeof line, "\n  %-18s", "");
  text += line;
  for (const Meaning& preset : kPresets) {
    std::snprintf(line, sizeof line, " %8s", preset.name);
    text += line;
  }
  text += "\n";
  for (const Meaning& figure : kFigures) {
    std::snprintf(line, sizeof line, "  %-18s", figure.name);
    text += line;
    for (const Meaning& preset : kPresets) {
      std::snprintf(line, sizeof line, " %8s", FigureOf(preset.name, figure.name).c_str());
      text += line;
    }
    text += figure.text[0] == '\0' ? "\n" : std::string("  ") + figure.text + "\n";
  }
  return text;
}

int RunSimulate(const SimulateCommand& command) {
  const auto network = comm::Network::Parse(command.network);
  if (!network.ok()) {
    std::fprintf(stderr, "plan: %s\n", Text(network.status().message()).c_str());
    return 1;
  }
  comm::SimulateOptions options;
  options.root = command.root;
  options.pieces = command.pieces;
  options.shortcuts = command.shortcuts;
  const std::vector<const comm::AlgorithmInfo*> asked = Asked(command, *network);
  if (asked.empty()) {
    std::fprintf(stderr, "plan: %s has no algorithm \"%s\"; see plan list %s\n", command.kind.c_str(),
                 command.algorithm.c_str(), command.kind.c_str());
    return 1;
  }
  std::optional<PredictedCall> traced;
  if (!command.trace.empty()) {
    auto opened = PredictedCall::Open(command.trace, *asked[0], command.bytes, *network);
    if (!opened.ok()) {
      std::fprintf(stderr, "plan: --trace: %s\n", Escaped(Text(opened.status().message())).c_str());
      return 1;
    }
    traced.emplace(*std::move(opened));
    options.on_step = [&traced](const comm::SimulatedStep& step) { traced->Add(step); };
    options.most_operations = kMostTracedOperations;
  }
  if (!command.json) PrintHead(command, *network);
  FlushOutput("plan");
  std::vector<Row> rows;
  bool right = true;
  for (const comm::AlgorithmInfo* algorithm : asked) {
    Progress(rows.size() + 1, asked.size(), Text(algorithm->name));
    Row row{.algorithm = Text(algorithm->name)};
    const auto begin = std::chrono::steady_clock::now();
    const absl::Status serves = CheckHosts(*algorithm, network->nodes);
    row.report = serves.ok() ? comm::Simulate(*algorithm, command.bytes, *network, options) : serves;
    row.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    right = right && (row.report.ok() || command.algorithm.empty());
    Progress(0, 0, "");
    // As it comes: at a thousand hosts some take minutes.
    if (!command.json) PrintRow(row);
    FlushOutput("plan");
    rows.push_back(std::move(row));
  }
  if (command.json) PrintJson(command, *network, rows);
  if (!right) return 1;
  if (!traced.has_value()) return 0;
  if (const absl::Status written = traced->Write(); !written.ok()) {
    std::fprintf(stderr, "plan: %s\n", Escaped(Text(written.message())).c_str());
    return 1;
  }
  if (!traced->place().empty()) {
    std::fprintf(stderr, "plan: the prediction begins %s\n", Escaped(traced->place()).c_str());
  }
  return 0;
}

}  // namespace cohort::tools
