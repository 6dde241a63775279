// Whatever is typed: dlaunch's options are read within the ranges that it promises, or refused in words, and nothing is
// lost of the program and its arguments. The input is a list of arguments, a line each.
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "cohort/launcher/options/options.h"
#include "tests/support/fuzz_input.h"

namespace cohort::launcher {
namespace {

// The last program's words are the end of what was typed, behind those that start Python for it.
void CheckEnd(const std::vector<std::string>& command, const std::vector<std::string>& argv) {
  size_t typed = 0;
  while (typed < std::min(command.size(), argv.size() - 1) &&
         command[command.size() - 1 - typed] == argv[argv.size() - 1 - typed]) {
    ++typed;
  }
  FuzzCheck(typed > 0);
  const std::vector<std::string> added(command.begin(), command.end() - static_cast<std::ptrdiff_t>(typed));
  const std::vector<std::string> python = {"python3", "-u", "-m"};
  FuzzCheck(added.size() <= python.size() && std::equal(added.begin(), added.end(), python.begin()));
}

void CheckOptions(const Options& options, const std::vector<std::string>& argv) {
  FuzzCheck(options.programs.empty() == !options.program_file.empty());
  for (const RankProgram& program : options.programs)
    FuzzCheck(!program.command.empty() && !program.command[0].empty());
  if (!options.programs.empty()) CheckEnd(options.programs.back().command, argv);
  const auto within = [](const std::optional<int>& value, int most) {
    return !value || (*value >= 1 && *value <= most);
  };
  FuzzCheck(within(options.nodes, kMaxNodes) && within(options.min_nodes, kMaxNodes));
  FuzzCheck(!options.min_nodes || (options.nodes && *options.min_nodes <= *options.nodes));
  FuzzCheck(within(options.ranks_per_node, kMaxRanksPerNode) && within(options.ranks, kMaxNodes * kMaxRanksPerNode));
  FuzzCheck(within(options.gpus_per_rank, kMaxDevicesPerNode) && within(options.simulate_gpus, kMaxDevicesPerNode));
  FuzzCheck(options.spares >= 0 && options.spares <= kMaxNodes);
  FuzzCheck((options.max_restarts > 0) == (options.on_failure == OnFailure::kRestart));
  FuzzCheck(options.log_rate <= uint64_t{1} << 40);
  FuzzCheck(options.input != RankInputOption::kForwarded || options.max_restarts == 0);
  FuzzCheck(options.grace.count() >= 0 && options.grace <= std::chrono::hours(24));
  for (const auto& [name, value] : options.environment) FuzzCheck(!name.empty() && name.find('=') == std::string::npos);
}

void Try(const std::string& text) {
  std::vector<std::string> argv = {"dlaunch"};
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    argv.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  const auto parsed = ParseCommandLine(argv);
  if (!parsed.ok()) {
    return FuzzCheck(absl::IsInvalidArgument(parsed.status()) && !parsed.status().message().empty());
  }
  if (parsed->print) return FuzzCheck(!parsed->print->empty());
  CheckOptions(parsed->options, argv);
}

}  // namespace
}  // namespace cohort::launcher

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  cohort::launcher::Try(std::string(reinterpret_cast<const char*>(data), size));
  return 0;
}
