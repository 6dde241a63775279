#include "cohort/launcher/options/option_hints.h"

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

// Python's launchers take both "_" and "-".
std::string WithHyphens(std::string name) {
  std::replace(name.begin() + 1, name.end(), '_', '-');
  return name;
}

// Names that users of other launchers type.
std::string Familiar(const std::string& name) {
  static const std::pair<const char*, const char*> kFamiliar[] = {{"--nprocs", "-n"},
                                                                  {"--restart", "--max-restarts"},
                                                                  {"--restarts", "--max-restarts"},
                                                                  {"--npernode", "--nproc-per-node"},
                                                                  {"--tasks-per-node", "--nproc-per-node"},
                                                                  {"-N", "--nnodes"},
                                                                  {"--nodes", "--nnodes"},
                                                                  {"--ntasks", "-n"},
                                                                  {"--ntasks-per-node", "--nproc-per-node"},
                                                                  {"--host", "--hosts"},
                                                                  {"-f", "--hostfile"},
                                                                  {"--machinefile", "--hostfile"},
                                                                  {"--gpus-per-proc", "--gpus-per-rank"},
                                                                  {"--ppn", "--nproc-per-node"},
                                                                  {"--perhost", "--nproc-per-node"},
                                                                  {"--num-gpus", "--nproc-per-node"},
                                                                  {"--num-processes", "-n"},
                                                                  {"--num-nodes", "--nnodes"},
                                                                  {"--num-machines", "--nnodes"}};
  const std::string written = WithHyphens(name);
  for (const auto& [theirs, ours] : kFamiliar) {
    if (written == theirs) return ours;
  }
  return "";
}

// Answers to options that are not taken.
constexpr std::string_view kMeets = "ranks find each other by themselves; leave it out";
constexpr std::string_view kStarts = "programs are started as they are; leave it out";
constexpr std::string_view kShares = "ranks share their node's cores evenly, see --bind; leave it out";
constexpr std::string_view kMaps =
    "--nproc-per-node N ranks on each node, or -n N in all; --rank-order says who is who";
constexpr std::string_view kBinds = "see --bind and --rank-order; --dry-run shows who gets what";
constexpr std::string_view kLogs = "--log-dir DIR keeps a file for each rank";
constexpr std::string_view kPrefixes = "lines begin with their rank unless --no-prefix is given; leave it out";
constexpr std::string_view kLimits = "start it with a limit: timeout 3600 dlaunch ...";
constexpr std::string_view kFolder = "start it there: dlaunch env -C FOLDER PROGRAM";
constexpr std::string_view kAllocates =
    "it is for the allocation, so for sbatch or salloc; here --gpus-per-rank and --nproc-per-node say what a rank "
    "gets";
constexpr std::string_view kVariables = "--env NAME=VALUE, or --env-pass NAME for one of this shell's";
constexpr std::string_view kPasses =
    "ranks on this machine have this shell's variables; --env-pass NAME passes one to other machines; leave it out";
constexpr std::string_view kDevices =
    "CUDA_VISIBLE_DEVICES=0,1 dlaunch ... chooses devices of this machine, --hosts a,b the machines";
constexpr std::string_view kPrograms =
    "dlaunch -n 1 ./server : -n 3 ./client, or --multi-prog FILE with lines such as 1-3 ./client";
constexpr std::string_view kMpi = "MPI programs are started as they are; see --mpi";
constexpr std::pair<std::string_view, std::string_view> kInstead[] = {
    // torchrun
    {"--node-rank",
     "start dlaunch on one machine only, with --hosts a,b, or with --wait 600 and on the other machines with the "
     "`dlaunch join` that it prints; leave it out"},
    {"--no-python", kStarts},
    {"--run-path", kStarts},
    {"--use-env", "ranks always have their numbers in RANK and LOCAL_RANK; leave it out"},
    {"--numa-binding", "--bind numa"},
    {"--redirects", kLogs},
    {"--tee", kLogs},
    {"-r", kLogs},
    {"--local-ranks-filter", kLogs},
    // deepspeed, accelerate
    {"--include", kDevices},
    {"--exclude", kDevices},
    {"--gpu-ids", kDevices},
    {"--multi-gpu", "a rank is started for each GPU anyway; leave it out"},
    // mpirun
    {"--oversubscribe", "any number of ranks may share cores; leave it out"},
    {"--allow-run-as-root", "root may; leave it out"},
    {"--mca", kMpi},
    {"--map-by", kMaps},
    {"--rank-by", kBinds},
    {"--bind-to", kBinds},
    {"--report-bindings", "--dry-run shows them"},
    {"--display-map", "--dry-run shows it"},
    {"--tag-output", kPrefixes},
    {"--prepend-rank", kPrefixes},
    {"--output-filename", kLogs},
    {"--timeout", kLimits},
    {"--app", kPrograms},
    {"--prefix", "--agent-path PATH says where dlaunch lies on the hosts"},
    {"--wdir", kFolder},
    {"--wd", kFolder},
    {"-x", kVariables},
    {"--genv", kVariables},
    {"--genvlist", kVariables},
    {"--envlist", kVariables},
    {"--genvall", kPasses},
    {"--envall", kPasses},
    {"--configfile", kPrograms},
    // srun
    {"--het-group", kPrograms},
    {"--pack-group", kPrograms},
    {"-c", kShares},
    {"--cpus-per-task", kShares},
    {"-l", kPrefixes},
    {"--label", kPrefixes},
    {"-u", "lines come as they are written; leave it out"},
    {"--unbuffered", "lines come as they are written; leave it out"},
    {"-o", kLogs},
    {"--output", kLogs},
    {"--error", kLogs},
    {"--input", "--stdin rank0"},
    {"-K", "the first failure ends the job, see --on-failure; leave it out"},
    {"--kill-on-bad-exit", "the first failure ends the job, see --on-failure; leave it out"},
    {"-w", "--hosts a,b; in a job of Slurm its nodes are used"},
    {"--nodelist", "--hosts a,b; in a job of Slurm its nodes are used"},
    {"--export", kVariables},
    {"-D", kFolder},
    {"--chdir", kFolder},
    {"-t", kLimits},
    {"--time", kLimits},
    {"-p", kAllocates},
    {"--partition", kAllocates},
    {"--exclusive", kAllocates},
    {"--mem", kAllocates},
    {"--gres", kAllocates},
    {"-G", kAllocates},
    {"--gpus", kAllocates},
    {"--gpus-per-node", kAllocates}};

}  // namespace

std::string InsteadOfCounting(const std::string& what) {
  if (what == "gpu") return "leave it out and give --gpus-per-rank 1, which starts a rank for each GPU";
  if (what == "auto") return "leave it out: there is then a rank for each GPU, or one rank where there are none";
  if (what == "cpu") return "give their number, such as $(nproc)";
  return "";
}

std::string InsteadOfOption(std::string name) {
  name = WithHyphens(std::move(name));
  if (name.size() > 2 && name[1] != '-') name.insert(0, 1, '-');  // Open MPI and MPICH take both
  if (name.starts_with("--rdzv-")) return std::string(kMeets);
  for (const auto& [theirs, instead] : kInstead) {
    if (name == theirs) return std::string(instead);
  }
  return "";
}

std::string MeantOption(const std::string& name, const std::vector<OptionNames>& known) {
  // A word after one dash, as Open MPI and MPICH take it.
  const std::string dashed = name.size() > 2 && name[1] != '-' ? "-" + name : name;
  std::string best = Familiar(dashed);
  if (!best.empty() || dashed.size() < 5) return best;  // every short name is like some other
  size_t best_distance = std::clamp<size_t>((dashed.size() - 2) / 3, 1, 3) + 1;
  for (const OptionNames& names : known) {
    for (const std::string& one : names) {
      const size_t distance = EditDistance(dashed, "--" + one);
      if (distance >= best_distance) continue;
      best_distance = distance;
      best = "--" + names.front();
    }
  }
  return best;
}

std::string MeantCommand(const std::string& name) {
  if (name == "help") return "--help";
  for (const char* const command :
       {"join", "status", "top", "stacks", "trace", "why", "replay", "kill", "doctor", "completion"}) {
    // Every third word of a shell is two letters away from some short name, and so is "train" from "trace".
    if (EditDistance(name, command) <= (std::string_view(command).size() > 5 ? 2 : 1)) return command;
  }
  return "";
}

}  // namespace cohort::launcher
