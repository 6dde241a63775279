#include "launcher/option_hints.h"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <string_view>
#include <utility>

namespace cohort::launcher {
namespace {

size_t EditDistance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t substitution = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, substitution});
    }
  }
  return row[b.size()];
}

// Names that users of other launchers type.
std::string Familiar(const std::string& name) {
  static const std::pair<const char*, const char*> kFamiliar[] = {{"--nprocs", "-n"},
                                                                  {"--restarts", "--max-restarts"},
                                                                  {"-ppn", "--nproc-per-node"},
                                                                  {"-N", "--nnodes"},
                                                                  {"--nodes", "--nnodes"},
                                                                  {"-x", "--env-pass"},
                                                                  {"--ntasks", "-n"},
                                                                  {"--ntasks-per-node", "--nproc-per-node"},
                                                                  {"--host", "--hosts"},
                                                                  {"-f", "--hostfile"},
                                                                  {"--machinefile", "--hostfile"},
                                                                  {"--gpus-per-proc", "--gpus-per-rank"}};
  for (const auto& [theirs, ours] : kFamiliar) {
    if (name == theirs) return ours;
  }
  return "";
}

}  // namespace

std::string InsteadOfCounting(const std::string& what) {
  if (what == "gpu") return "leave it out and give --gpus-per-rank 1, which starts a rank for each GPU";
  if (what == "auto") return "leave it out: there is then a rank for each GPU, or one rank where there are none";
  if (what == "cpu") return "give their number, such as $(nproc)";
  return "";
}

std::string InsteadOfOption(std::string name) {
  std::replace(name.begin() + 1, name.end(), '_', '-');
  static constexpr std::string_view kMeets = "ranks find each other by themselves; leave it out";
  static constexpr std::string_view kStarts = "programs are started as they are; leave it out";
  static constexpr std::pair<std::string_view, std::string_view> kOthers[] = {
      {"--standalone", kMeets},
      {"--master-addr", kMeets},
      {"--master-port", kMeets},
      {"--local-addr", kMeets},
      {"--node-rank",
       "start dlaunch on one machine only, with --hosts a,b, or with --wait 600 and on the other machines with the "
       "`dlaunch join` that it prints; leave it out"},
      {"--no-python", kStarts},
      {"--run-path", kStarts},
      {"-m", "start the interpreter: dlaunch python3 -m MODULE"},
      {"--module", "start the interpreter: dlaunch python3 -m MODULE"},
      {"-c", "ranks share their node's cores evenly, see --bind; leave it out"},
      {"--cpus-per-task", "ranks share their node's cores evenly, see --bind; leave it out"},
      {"--oversubscribe", "any number of ranks may share cores; leave it out"},
      {"--monitor-interval", "failures are told at once; leave it out"},
      {"--redirects", "--log-dir DIR keeps a file for each rank; leave it out"},
      {"--tee", "--log-dir DIR keeps a file for each rank; leave it out"}};
  if (name.starts_with("--rdzv-")) return std::string(kMeets);
  for (const auto& [theirs, instead] : kOthers) {
    if (name == theirs) return std::string(instead);
  }
  return "";
}

std::string MeantOption(const std::string& name, const std::vector<OptionNames>& known) {
  std::string best = Familiar(name);
  if (!best.empty() || name.size() < 4) return best;  // every short name is like some other
  size_t best_distance = 4;
  for (const OptionNames& names : known) {
    for (const std::string& one : names) {
      const size_t distance = EditDistance(name, "--" + one);
      if (distance >= best_distance) continue;
      best_distance = distance;
      best = "--" + names.front();
    }
  }
  return best;
}

std::string MeantCommand(const std::string& name) {
  if (name == "help") return "--help";
  for (const char* const command : {"join", "status", "top", "kill", "doctor"}) {
    // Of short names every third word of a shell is two letters away.
    if (EditDistance(name, command) <= (std::string_view(command).size() > 4 ? 2 : 1)) return command;
  }
  return "";
}

}  // namespace cohort::launcher
