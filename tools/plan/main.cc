// plan: lists, draws, proves and explains the plans that collectives run.
#include <cstdint>
#include <cstdio>
#include <span>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "cohort/comm/algorithm/composition.h"
#include "cohort/comm/algorithm/registry.h"
#include "cohort/comm/plan/checker.h"
#include "cohort/comm/select/selector.h"
#include "cohort/comm/select/tuning.h"
#include "cohort/runtime/base/status_macros.h"
#include "tools/plan/explain.h"
#include "tools/plan/nodes.h"
#include "tools/plan/picture.h"
#include "tools/plan/simulate.h"
#include "tools/program/arguments.h"
#include "tools/program/program.h"

namespace cohort::tools {
namespace {

using comm::AlgorithmInfo;
using comm::CollectiveKind;
using comm::Plan;

constexpr const char* kExamples =
    "Examples:\n"
    "  plan list\n"
    "  plan show all_reduce ring --ranks 4\n"
    "  plan show broadcast binomial --ranks 6 --root 2 --rank 3\n"
    "  plan show all_reduce leader:flat+ring --nodes 3,2 --root 1\n"
    "  plan check --sizes 1-64\n"
    "  plan explain all_reduce --bytes 65536 --ranks 16 --hosts 2\n"
    "  plan simulate all_reduce ring --bytes 268435456 --network fat-tree:nodes=8192,oversubscription=2\n"
    "  plan simulate all_reduce ring --bytes 64K --network host:ranks-per-node=4 --trace job.pftrace\n"
    "\n"
    "Across hosts any two algorithms can be composed: SCHEME:INNER+OUTER is INNER inside each host and OUTER between\n"
    "them. With the scheme leader one rank of each host takes part between them; with shared all do, each with a\n"
    "share (hosts with equally many ranks). plan list COLLECTIVE --nodes 2 names them.\n";

constexpr const char* kSigns =
    "What show draws: a column for each rank; row k has the messages that end a chain of k messages, each of which\n"
    "waits for the one before, and the steps that follow them. Memory is cut into chunks: in, out and scratch.\n"
    "  in[3]>1                 sends chunk 3 of the input to rank 1\n"
    "  in[3]>*                 publishes it: one write that all others read\n"
    "  out[2..5]<3             receives chunks 2 to 5 of the output from rank 3\n"
    "  out[2]=<3+in[2]         receives from rank 3 and combines that with in[2], in this order\n"
    "  out[2]=in[2]            copies; out[2]=in[2]+scratch[0] combines\n"
    "  ->1, -<0                a message without data, to rank 1, from rank 0\n"
    "  open, meet              a rank goes on when all have come here: others' buffers are used between these only\n"
    "  out[0]=in[0]+in[0]@1    combines with memory of rank 1; out[0],out[0]@2=... writes rank 2's too\n"
    "single_copy algorithms use other ranks' memory so: they serve groups on one host.\n";

constexpr int kMostRanks = 1024;
constexpr int64_t kMostBytes = int64_t{1} << 56;

struct Options {
  std::string kind;
  std::string algorithm;
  int ranks = 4;
  int root = 0;
  int rank = -1;
  int pieces = 0;
  bool in_place = false;
  int64_t bytes = 1024;
  int hosts = 1;
  double ranks_per_cpu = 1.0;
  bool windows = false;
  bool near_caches = false;
  std::string tuning;
  bool json = false;
  std::string sizes;  // "1-64"; empty: `ranks`
  std::string nodes;  // for ReadNodes; empty: not known
  bool cyclic = false;
  comm::Placement placement = comm::Placement::OneNode(1);  // of `nodes`
  SimulateCommand simulate;
};

std::vector<std::string> Kinds() {
  std::vector<std::string> kinds;
  for (int kind = 1; kind <= static_cast<int>(CollectiveKind::kBarrier); ++kind) {
    kinds.emplace_back(comm::Name(static_cast<CollectiveKind>(kind)));
  }
  return kinds;
}

bool Fits(const AlgorithmInfo& algorithm, const Options& options) {
  return (options.kind.empty() || comm::Name(algorithm.kind) == options.kind) &&
         (options.algorithm.empty() || algorithm.name == options.algorithm);
}

int Fail(const std::string& message) {
  std::fprintf(stderr, "plan: %s\n", Escaped(message).c_str());
  return 1;
}

// The algorithms that the options may mean: with nodes, compositions too.
std::span<const AlgorithmInfo> List(const Options& options) {
  return options.nodes.empty() ? comm::Algorithms() : comm::AllAlgorithms();
}

// Null, with a message on standard error, where the names fit nothing.
const AlgorithmInfo* Find(const Options& options) {
  for (const AlgorithmInfo& algorithm : comm::AllAlgorithms()) {
    if (Fits(algorithm, options)) return &algorithm;
  }
  std::string names;
  for (const AlgorithmInfo& algorithm : comm::Algorithms()) {
    if (comm::Name(algorithm.kind) == options.kind) names += " " + std::string(algorithm.name);
  }
  Fail(options.kind + " has no algorithm \"" + options.algorithm + "\"; it has:" + names +
       ", and across hosts those that plan list " + options.kind + " --nodes 2 names");
  return nullptr;
}

int32_t PiecesFor(const AlgorithmInfo& algorithm, const Options& options) {
  if (options.pieces > 0) return options.pieces;
  if (algorithm.composition != nullptr) return comm::PartsOf(algorithm, options.ranks, options.placement.shape());
  return algorithm.traits.parts_by_rank ? options.ranks : algorithm.traits.pipelined ? 4 : 1;
}

absl::StatusOr<std::vector<Plan>> BuildAll(const AlgorithmInfo& algorithm, const Options& options) {
  if (!options.nodes.empty()) COHORT_RETURN_IF_ERROR(CheckHosts(algorithm, options.placement.shape().nodes));
  std::vector<Plan> plans;
  for (int rank = 0; rank < options.ranks; ++rank) {
    comm::PlanRequest request{algorithm.kind, options.ranks,    rank,
                              options.root,   options.in_place, PiecesFor(algorithm, options)};
    if (!options.nodes.empty()) request.placement = &options.placement;
    absl::StatusOr<Plan> plan = comm::BuildPlan(algorithm, request);
    if (!plan.ok()) return plan.status();
    plans.push_back(*std::move(plan));
  }
  return plans;
}

int PrintList(const Options& options) {
  std::printf("%-15s %-36s %s\n", "collective", "algorithm", "traits");
  for (const AlgorithmInfo& algorithm : List(options)) {
    if (!Fits(algorithm, options)) continue;
    std::string traits;
    if (algorithm.traits.power_of_two) traits += " power-of-two";
    if (algorithm.traits.uses_publish) traits += " publishes";
    if (algorithm.traits.parts_by_rank) traits += " a-part-for-each-rank";
    if (algorithm.traits.pipelined) traits += " pipelined";
    std::printf("%-15s %-36s%s\n", std::string(comm::Name(algorithm.kind)).c_str(), std::string(algorithm.name).c_str(),
                traits.c_str());
  }
  return 0;
}

// The line that says whether plans are right and what they cost; false when they are not.
bool PrintProof(const AlgorithmInfo& algorithm, const std::vector<Plan>& plans) {
  const auto report = comm::CheckPlans(plans);
  const std::string name = std::string(comm::Name(algorithm.kind)) + " " + std::string(algorithm.name) + ", " +
                           std::to_string(plans.size()) + (plans.size() == 1 ? " rank" : " ranks");
  if (!report.ok()) {
    std::printf("%s: WRONG: %s\n", name.c_str(), std::string(report.status().message()).c_str());
    return false;
  }
  std::printf("%s: right; rounds %lld, messages %lld, chunks %lld of 1/%d block, scratch %lld chunks\n", name.c_str(),
              static_cast<long long>(report->rounds), static_cast<long long>(report->messages),
              static_cast<long long>(report->chunks), plans[0].pieces, static_cast<long long>(report->scratch_chunks));
  return true;
}

int Show(const Options& options) {
  const AlgorithmInfo* algorithm = Find(options);
  if (algorithm == nullptr) return 1;
  const auto plans = BuildAll(*algorithm, options);
  if (!plans.ok()) return Fail(std::string(plans.status().message()));
  if (options.rank >= options.ranks) return Fail("--rank must be less than --ranks");
  const std::string text =
      options.rank >= 0 ? (*plans)[static_cast<size_t>(options.rank)].DebugString() : DrawPlans(*plans);
  std::printf("%s", text.c_str());
  return PrintProof(*algorithm, *plans) ? 0 : 1;
}

// Proves one algorithm's plans; a line on standard output unless `quiet` and right.
bool CheckOne(const AlgorithmInfo& algorithm, const Options& options, bool quiet) {
  const auto plans = BuildAll(algorithm, options);
  if (!plans.ok()) return Fail(std::string(plans.status().message())) == 0;
  return (quiet && comm::CheckPlans(*plans).ok()) || PrintProof(algorithm, *plans);
}

// Whether a live group such as the one asked for could take the algorithm, else why not.
absl::Status Serves(const AlgorithmInfo& algorithm, const Options& options) {
  const comm::NodeShape shape = options.nodes.empty() ? comm::NodeShape() : options.placement.shape();
  COHORT_RETURN_IF_ERROR(comm::CheckRequirements(algorithm, options.ranks, shape));
  return CheckHosts(algorithm, shape.nodes);
}

// A check that proved nothing is no success: a caller may read only its exit status.
int FailUnproved(const absl::Status& why, const Options& options) {
  return Fail(
      "nothing was proved: " + std::string(why.message()) +
      "; give a group that it serves (--ranks, --sizes, --nodes), or another algorithm of those that plan list " +
      options.kind + " names");
}

int CheckSizes(Options options, int first, int last) {
  bool right = true;
  int all_proved = 0;
  absl::Status refusal;
  for (const AlgorithmInfo& algorithm : comm::AllAlgorithms()) {
    // One host has no compositions; asked for by its name, one is refused with the reason.
    if (!Fits(algorithm, options) || (algorithm.composition != nullptr && options.algorithm.empty())) continue;
    int proved = 0;
    for (options.ranks = first; options.ranks <= last; ++options.ranks) {
      if (const absl::Status serves = Serves(algorithm, options); !serves.ok()) {
        refusal = serves;
        continue;
      }
      const int roots = comm::IsRooted(algorithm.kind) ? options.ranks : 1;
      for (options.root = 0; options.root < roots; options.root += 1 + roots / 4) {
        ++proved;
        right = CheckOne(algorithm, options, true) && right;
      }
    }
    all_proved += proved;
    std::printf("%s %s: %d %s\n", std::string(comm::Name(algorithm.kind)).c_str(), std::string(algorithm.name).c_str(),
                proved, proved == 1 ? "proof" : "proofs");
  }
  if (all_proved == 0) return FailUnproved(refusal, options);
  return right ? 0 : 1;
}

int Check(const Options& options) {
  const AlgorithmInfo* const named = options.algorithm.empty() ? nullptr : Find(options);
  if (!options.algorithm.empty() && named == nullptr) return 1;
  if (!options.sizes.empty()) {
    if (!options.nodes.empty()) return Fail("--sizes and --nodes do not go together: nodes have a size each");
    int first = 0;
    int last = 0;
    char rest = 0;
    if (std::sscanf(options.sizes.c_str(), "%d-%d%c", &first, &last, &rest) != 2 || first < 1 || last < first ||
        last > 1024) {
      return Fail("--sizes needs two sizes up to 1024, such as 1-64, not \"" + options.sizes + "\"");
    }
    return CheckSizes(options, first, last);
  }
  if (named != nullptr) {
    const absl::Status serves = Serves(*named, options);
    if (!serves.ok()) return FailUnproved(serves, options);
    return CheckOne(*named, options, false) ? 0 : 1;
  }
  bool right = true;
  for (const AlgorithmInfo& algorithm : List(options)) {
    if (!Fits(algorithm, options)) continue;
    if (const absl::Status serves = Serves(algorithm, options); !serves.ok()) {
      std::printf("%s\n", std::string(serves.message()).c_str());
      continue;
    }
    right = CheckOne(algorithm, options, false) && right;
  }
  return right ? 0 : 1;
}

int Explain(const Options& options) {
  const auto tuning = comm::Tuning::Parse(options.tuning);
  if (!tuning.ok()) return Fail(std::string(tuning.status().message()));
  if (options.hosts > options.ranks) return Fail("--hosts must be at most --ranks");
  const comm::GroupTopology topology = {.size = options.ranks,
                                        .nodes = options.hosts,
                                        .smallest_node = options.ranks / options.hosts,
                                        .largest_node = (options.ranks + options.hosts - 1) / options.hosts,
                                        .ranks_per_cpu = options.ranks_per_cpu,
                                        .windows = options.windows,
                                        .near_caches = options.near_caches};
  for (const AlgorithmInfo& algorithm : comm::Algorithms()) {
    if (comm::Name(algorithm.kind) != options.kind) continue;
    if (!options.json) {
      std::printf("%s", comm::ExplainSelection(algorithm.kind, options.bytes, topology, *tuning).c_str());
      break;
    }
    const auto json = ExplainJson(algorithm.kind, options.bytes, topology, *tuning);
    if (!json.ok()) return Fail(std::string(json.status().message()));
    std::printf("%s", json->c_str());
    break;
  }
  return 0;
}

void AddKind(CLI::App* command, bool required, Options& options) {
  command->add_option("collective", options.kind, "such as all_reduce")
      ->check(CLI::IsMember(Kinds()))
      ->required(required);
}

void AddPlan(CLI::App* command, Options& options) {
  command->add_option("--ranks", options.ranks, "size of the group")
      ->check(Whole(1, kMostRanks))
      ->capture_default_str();
  command->add_option("--root", options.root, "root rank")->check(Whole(0, kMostRanks - 1))->capture_default_str();
  command->add_option("--pieces", options.pieces, "pieces of the block; as the algorithm wants unless given")
      ->check(Whole(1, 1 << 20));
  command->add_option("--nodes", options.nodes, "hosts, such as 2, or the ranks on each, such as 4,3,1")
      ->check(NotEmpty("a number of nodes"));
  command->add_flag("--cyclic", options.cyclic, "hosts get the ranks in turn instead of ranges of them")
      ->needs("--nodes");
  command->add_flag("--in-place", options.in_place, "input and output are the same memory");
}

CLI::App* AddExplain(CLI::App& app, Options& options) {
  CLI::App* explain = app.add_subcommand("explain", "The algorithm that would be chosen for a block, and why");
  AddKind(explain, true, options);
  explain->add_option("--bytes", options.bytes, "size of the block, such as 65536 or 64K")
      ->transform(CLI::AsSizeValue(false))
      ->check(Whole(0, kMostBytes))
      ->capture_default_str();
  explain->add_option("--ranks", options.ranks, "size of the group")->check(Whole(1, 1 << 20))->capture_default_str();
  explain->add_option("--hosts", options.hosts, "hosts they are on")->check(Whole(1, 1 << 20))->capture_default_str();
  explain->add_option("--ranks-per-cpu", options.ranks_per_cpu, "on the fullest host")
      ->check(Number(0.001, 1e6))
      ->capture_default_str();
  explain->add_flag("--windows", options.windows, "buffers in window memory (AllocateWindow), not in private memory");
  explain->add_flag("--near-caches", options.near_caches, "CPUs with near level 3 caches, as AMD's");
  explain->add_flag("--json", options.json, "print JSON (schemas/plan-explain.schema.json)");
  explain->add_option("--tuning", options.tuning, "figures to replace, such as \"remote.alpha_us=30\"");
  return explain;
}

CLI::App* AddSimulate(CLI::App& app, Options& options) {
  CLI::App* simulate = app.add_subcommand("simulate", "Time algorithms on a described network");
  AddKind(simulate, true, options);
  SimulateCommand& command = options.simulate;
  CLI::Option* const algorithm = simulate->add_option("algorithm", command.algorithm, "such as ring; all unless given");
  simulate->footer(SimulateFooter());
  simulate->add_option("--network", command.network, "PRESET or PRESET:name=value,... (below)")->required();
  simulate->add_option("--bytes", command.bytes, "size of the block, such as 65536 or 64K")
      ->transform(CLI::AsSizeValue(false))
      ->check(Whole(0, kMostBytes))
      ->capture_default_str();
  simulate->add_option("--pieces", command.pieces, "pieces of the block; as the algorithm wants unless given")
      ->check(Whole(1, 1 << 20));
  simulate->add_option("--root", command.root, "root rank")->check(Whole(0, INT32_MAX))->capture_default_str();
  simulate->add_flag("!--no-shortcuts", command.shortcuts, "time every rank and every operation by itself");
  simulate->add_flag("--json", command.json, "print JSON instead of a table");
  simulate
      ->add_option("--trace", command.trace,
                   "write the steps of all ranks for ui.perfetto.dev; below the run's, if FILE is a trace of dlaunch")
      ->check(NotEmpty("the name of a file"))
      ->needs(algorithm)
      ->type_name("FILE");
  return simulate;
}

int Main(int argc, char** argv) {
  CLI::App app("Lists, draws, proves and explains the plans that collectives run.");
  app.require_subcommand(1);
  Options options;
  CLI::App* list = app.add_subcommand("list", "The algorithms");
  AddKind(list, false, options);
  list->add_option("--nodes", options.nodes, "hosts, such as 2: compositions for several hosts too")
      ->check(NotEmpty("a number of nodes"));
  CLI::App* show =
      app.add_subcommand("show", "Draw an algorithm's plans, or list the steps of one rank, and prove them");
  AddKind(show, true, options);
  show->footer(kSigns);
  show->add_option("algorithm", options.algorithm, "such as ring")->required();
  AddPlan(show, options);
  show->add_option("--rank", options.rank, "list this rank's steps instead of drawing all")
      ->check(Whole(0, kMostRanks - 1));
  CLI::App* check = app.add_subcommand("check", "Prove plans, and count their rounds and data");
  AddKind(check, false, options);
  check->add_option("algorithm", options.algorithm, "such as ring; all unless given");
  AddPlan(check, options);
  check->add_option("--sizes", options.sizes, "all sizes from one to another, with some of the roots, such as 1-64")
      ->check(NotEmpty("a range of sizes"));
  AddExplain(app, options);
  CLI::App* simulate = AddSimulate(app, options);
  app.footer(std::string(kExamples) + "\n" + kSigns);  // behind the commands, which would inherit it
  if (const std::optional<int> status = ParseCommandLine(app, argc, argv)) return *status;
  if (!options.nodes.empty()) {
    if (*list) options.ranks = kMostRanks;  // as many nodes as there can be
    const auto placement = ReadNodes(options.nodes, options.ranks, options.cyclic);
    if (!placement.ok()) return Fail(std::string(placement.status().message()));
    const CLI::App* const command = *show ? show : check;
    if (command->parsed() && command->count("--ranks") > 0 && placement->size() != options.ranks) {
      return Fail("--ranks " + std::to_string(options.ranks) + " and --nodes " + options.nodes.substr(0, 64) +
                  ", which are " + std::to_string(placement->size()) +
                  " ranks, contradict each other; leave --ranks out");
    }
    options.placement = *placement;
    options.ranks = placement->size();
  }
  if (*list) return PrintList(options);
  if (*show) return Show(options);
  if (*check) return Check(options);
  if (*simulate) {
    options.simulate.kind = options.kind;
    return RunSimulate(options.simulate);
  }
  return Explain(options);
}

}  // namespace
}  // namespace cohort::tools

int main(int argc, char** argv) {
  return cohort::tools::RunProgram("plan", [=] { return cohort::tools::Main(argc, argv); });
}
