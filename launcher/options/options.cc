#include "cohort/launcher/options/options.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <iterator>
#include <string_view>

#include "absl/status/status.h"
#include "cohort/launcher/options/colon_programs.h"
#include "cohort/launcher/options/command_parser.h"
#include "cohort/launcher/options/idle_options.h"
#include "cohort/launcher/options/option_hints.h"
#include "cohort/launcher/options/option_values.h"
#include "cohort/launcher/remedies/remedies.h"
#include "cohort/runtime/base/status_macros.h"

namespace cohort::launcher {
namespace {

constexpr char kEncryptData[] = "COHORT_ENCRYPT_DATA";

// "4", "2:4"
absl::Status ReadNodes(const std::string& text, Options* options) {
  const size_t colon = text.find(':');
  if (colon == std::string::npos) return ReadCount("nnodes", text, kMaxNodes, &options->nodes);
  if (!ReadCount("nnodes", text.substr(0, colon), kMaxNodes, &options->min_nodes).ok() ||
      !ReadCount("nnodes", text.substr(colon + 1), kMaxNodes, &options->nodes).ok()) {
    return WrongValue(
        "--nnodes", text,
        "give a whole number from 1 to " + std::to_string(kMaxNodes) + ", or the least and the most, such as 2:5");
  }
  if (*options->min_nodes <= *options->nodes) return absl::OkStatus();
  return WrongValue(
      "--nnodes", text,
      "give the least and the most nodes, such as " + text.substr(colon + 1) + ":" + text.substr(0, colon));
}

// Refuses what a loss of nodes could not be handled with, and what can't be had together.
absl::Status CheckElasticity(const Options& options) {
  if (options.spares > 0 && options.max_restarts == 0) {
    return InvalidArgumentError(
        Remedy::kSparesNeedRestarts,
        "--spares " + std::to_string(options.spares) +
            ": a spare node takes a lost one's place when the job is restarted; add --max-restarts 3");
  }
  if (options.standbys > 0 && options.on_failure == OnFailure::kEnd) {
    return InvalidArgumentError(
        Remedy::kStandbyWithoutRestarts,
        "--standby " + std::to_string(options.standbys) +
            ": the ranks of a lost node are lost with it, which ends the job; add --max-restarts 3, or "
            "--on-failure continue");
  }
  if (options.standbys > 0 && options.max_restarts > 0 && options.spares == 0 && !options.min_nodes) {
    return InvalidArgumentError(
        Remedy::kStandbyWithoutReplacement,
        "--standby " + std::to_string(options.standbys) +
            ": nothing would take the lost node's place; add --spares 1, or let the job go on with fewer nodes: "
            "--nnodes MIN:MAX");
  }
  if (options.min_nodes && options.ranks) {
    return InvalidArgumentError(
        Remedy::kElasticRanks,
        "-n " + std::to_string(*options.ranks) +
            " fixes the number of ranks, and --nnodes MIN:MAX lets it change with the nodes; use "
            "--nproc-per-node, or --nnodes " +
            std::to_string(*options.nodes));
  }
  return absl::OkStatus();
}

// Ranks are told as by --env.
absl::Status EncryptData(Options* options) {
  for (const auto& [name, value] : options->environment) {
    if (name == kEncryptData && value != "1") {
      return InvalidArgumentError(Remedy::kContradictingOptions, "--encrypt-data and --env " + name + "=" + value +
                                                                     " contradict each other; leave one out");
    }
  }
  options->environment.emplace_back(kEncryptData, "1");
  return absl::OkStatus();
}

absl::Status ReadHosts(const CommandParser& parser, Options* options) {
  const RawOptions& raw = parser.raw();
  const bool hosts = parser.Has("--hosts"), file = parser.Has("--hostfile");
  if (hosts && file)
    return InvalidArgumentError(Remedy::kContradictingOptions,
                                "--hosts and --hostfile contradict each other; leave one out");
  if ((hosts || file) && parser.Has("--launcher") && raw.launcher != "ssh" && raw.launcher != "auto") {
    return InvalidArgumentError(Remedy::kContradictingOptions,
                                std::string(hosts ? "--hosts" : "--hostfile") + " and --launcher " + raw.launcher +
                                    " contradict each other: those hosts are reached by ssh; leave one out");
  }
  if ((hosts || file) && parser.Has("--simulate-nodes")) {
    return InvalidArgumentError(
        Remedy::kSimulatedAndHosts,
        "--simulate-nodes lets this machine stand for nodes; leave it or the list of hosts out");
  }
  if (hosts && raw.hosts.empty()) return WrongValue("--hosts", "", "give names separated by commas, such as a,b");
  if (file && raw.host_file.empty()) return WrongValue("--hostfile", "", "give the path of a file");
  if (parser.Has("--ssh") && raw.ssh_command.find_first_not_of(' ') == std::string::npos) {
    return WrongValue("--ssh", "", "give a command, such as \"ssh -p 2222\"");
  }
  if (parser.Has("--agent-path") && !raw.agent_path.starts_with('/')) {
    return WrongValue("--agent-path", raw.agent_path, "give an absolute path");
  }
  options->hosts = raw.hosts;
  options->host_file = raw.host_file;
  if (parser.Has("--ssh")) options->ssh_command = raw.ssh_command;
  options->agent_path = raw.agent_path;
  return absl::OkStatus();
}

absl::Status ReadOnFailure(const CommandParser& parser, Options* options) {
  const RawOptions& raw = parser.raw();
  static const std::pair<const char*, OnFailure> kChoices[] = {
      {"end", OnFailure::kEnd}, {"continue", OnFailure::kContinue}, {"restart", OnFailure::kRestart}};
  const bool limited = parser.Has("--max-restarts");
  std::optional<int> restarts;
  if (limited) {
    COHORT_RETURN_IF_ERROR(ReadCount("max-restarts", raw.max_restarts, kMaxRestarts, &restarts, 0));
  }
  options->max_restarts = restarts.value_or(0);
  if (options->max_restarts > 0) options->on_failure = OnFailure::kRestart;
  if (!parser.Has("--on-failure")) return absl::OkStatus();
  const auto* const choice = std::find_if(std::begin(kChoices), std::end(kChoices),
                                          [&](const auto& known) { return known.first == raw.on_failure; });
  if (choice == std::end(kChoices)) {
    return WrongValue("--on-failure", raw.on_failure, "give end, restart or continue");
  }
  options->on_failure = choice->second;
  if (!limited && options->on_failure == OnFailure::kRestart) options->max_restarts = kUsualRestarts;
  if ((options->max_restarts > 0) != (options->on_failure == OnFailure::kRestart)) {
    return InvalidArgumentError(Remedy::kContradictingOptions, "--on-failure " + raw.on_failure +
                                                                   " and --max-restarts " + raw.max_restarts +
                                                                   " contradict each other; leave one out");
  }
  return absl::OkStatus();
}

// After the restarts.
absl::Status ReadInput(const std::string& text, Options* options) {
  if (text == "redirected") return absl::OkStatus();
  if (text != "rank0" && text != "none") return WrongValue("--stdin", text, "give redirected, rank0 or none");
  options->input = text == "rank0" ? RankInputOption::kForwarded : RankInputOption::kNone;
  if (options->input == RankInputOption::kNone || options->max_restarts == 0) return absl::OkStatus();
  return InvalidArgumentError(
      Remedy::kInputWithRestarts,
      "--stdin rank0 and --max-restarts contradict each other: a restarted rank can't read again what was read before; "
      "leave one out, or have the program read a file");
}

absl::Status ReadTape(const CommandParser& parser, Options* options) {
  const RawOptions& raw = parser.raw();
  const bool beside = parser.Has("--tape-ranks") || parser.Has("--tape-last");
  if (!parser.Has("--tape")) {
    if (!beside) return absl::OkStatus();
    return InvalidArgumentError(Remedy::kTapeAlone,
                                "--tape-ranks and --tape-last belong to tapes; give --tape FOLDER too");
  }
  if (raw.tape.empty()) return WrongValue("--tape", "", "give a folder");
  options->tape = raw.tape;
  if (parser.Has("--tape-ranks")) {
    std::optional<std::vector<RankSpan>> ranks = ReadRanks(raw.tape_ranks);
    if (!ranks) return WrongValue("--tape-ranks", raw.tape_ranks, "give numbers of ranks, such as 3 or 0,4-7");
    options->tape_ranks = raw.tape_ranks;
    options->taped = *std::move(ranks);
  }
  if (!parser.Has("--tape-last")) return absl::OkStatus();
  return ReadCount("tape-last", raw.tape_last, 1'000'000'000, &options->tape_last);
}

// All that is wrong with the options, so that nobody mends them one by one.
class Problems {
 public:
  void Add(absl::Status status) {
    if (!status.ok()) problems_.push_back(std::move(status));
  }
  bool none() const { return problems_.empty(); }
  // The message of several problems has a line each, with its id.
  absl::Status All() const {
    if (problems_.size() < 2) return none() ? absl::OkStatus() : problems_[0];
    std::string lines;
    for (const absl::Status& problem : problems_) lines += (lines.empty() ? "" : "\n") + TextOf(problem);
    return absl::InvalidArgumentError(lines);
  }

 private:
  std::vector<absl::Status> problems_;
};

void ReadChoices(const CommandParser& parser, Options* options, Problems* problems) {
  const RawOptions& raw = parser.raw();
  problems->Add(ReadOnFailure(parser, options));
  if (parser.Has("--rank-order")) problems->Add(ReadRankOrder(raw.rank_order, options));
  if (parser.Has("--bind")) problems->Add(ReadBind(raw.bind, &options->bind));
  if (parser.Has("--stopped")) problems->Add(ReadStopped(raw.stopped, &options->stopped));
  if (parser.Has("--mpi")) problems->Add(ReadMpi(raw.mpi, &options->mpi));
  if (parser.Has("--stdin")) problems->Add(ReadInput(raw.input, options));
  if (parser.Has("--metrics")) problems->Add(ReadMetrics(raw.metrics, &options->metrics));
  if (parser.Has("--launcher") && raw.launcher.empty()) {
    problems->Add(WrongValue("--launcher", "", "give a name, such as slurm; --explain lists them"));
  }
  if (raw.launcher != "auto") options->launcher = raw.launcher;  // the first that fits, as without it
  options->dry_run = raw.dry_run || raw.explain;
  options->explain = raw.explain;
  options->json = raw.json;
  if (raw.json && !options->dry_run) {
    problems->Add(InvalidArgumentError(
        Remedy::kJsonWithoutDryRun,
        "--json is for what is printed instead of running a job; give --dry-run too, or see --log-dir"));
  }
  options->prefix = !raw.no_prefix;
  options->idle_options = GivenIdleOptions(parser.app());
  if (parser.Has("--env-pass")) problems->Add(ReadPassedVariables(raw.passed_variables, &options->passed_variables));
}

void ReadCounts(const CommandParser& parser, Options* options, Problems* problems) {
  const RawOptions& raw = parser.raw();
  std::optional<int> spares, standbys;
  struct Count {
    const char* name;
    const std::string& text;
    int max;
    std::optional<int>* out;
    int min = 1;
  };
  const Count counts[] = {
      {"np", raw.ranks, kMaxNodes * kMaxRanksPerNode, &options->ranks},
      {"nproc-per-node", raw.ranks_per_node, kMaxRanksPerNode, &options->ranks_per_node},
      {"gpus-per-rank", raw.gpus_per_rank, kMaxDevicesPerNode, &options->gpus_per_rank},
      {"simulate-nodes", raw.simulate_nodes, 1024, &options->simulate_nodes},
      {"simulate-gpus", raw.simulate_gpus, kMaxDevicesPerNode, &options->simulate_gpus},
      {"spares", raw.spares, kMaxNodes, &spares, 0},
      {"standby", raw.standbys, kMaxNodes, &standbys, 0},
  };
  for (const Count& count : counts) {
    if (!parser.Has(std::string("--") + count.name)) continue;
    const std::string instead = count.out == &options->ranks_per_node ? InsteadOfCounting(count.text) : "";
    problems->Add(instead.empty() ? ReadCount(count.name, count.text, count.max, count.out, count.min)
                                  : WrongValue("--nproc-per-node", count.text, instead));
  }
  options->spares = spares.value_or(0);
  options->standbys = standbys.value_or(0);
}

void ReadTimeOf(const CommandParser& parser, const std::string& name, const std::string& text, Problems* problems,
                const std::function<void(std::chrono::milliseconds)>& set) {
  if (!parser.Has(name)) return;
  const absl::StatusOr<std::chrono::milliseconds> time = ReadTime(name, text);
  problems->Add(time.status());
  if (time.ok()) set(*time);
}

absl::Status ReadOptions(const CommandParser& parser, Options* options) {
  Problems problems;
  const RawOptions& raw = parser.raw();
  if (parser.Has("--nnodes")) problems.Add(ReadNodes(raw.nodes, options));
  ReadCounts(parser, options, &problems);
  problems.Add(ReadHosts(parser, options));
  ReadChoices(parser, options, &problems);
  ReadTimeOf(parser, "--grace", raw.grace, &problems, [&](std::chrono::milliseconds time) { options->grace = time; });
  ReadTimeOf(parser, "--wait", raw.wait, &problems, [&](std::chrono::milliseconds time) { options->wait = time; });
  if (parser.Has("--port-range")) problems.Add(ReadPorts(raw.ports, &options->ports));
  if (parser.Has("--token-file") && raw.token_file.empty()) {
    problems.Add(WrongValue("--token-file", "", "give the path of a file"));
  }
  if (parser.Has("--iface") && raw.interface.empty()) {
    problems.Add(WrongValue("--iface", "", "give an interface such as eth0, or a network such as 10.1.0.0/16"));
  }
  options->interface = raw.interface;
  options->token_file = raw.token_file;
  options->insecure = raw.insecure;
  if (parser.Has("--log-dir") && raw.log_directory.empty()) problems.Add(WrongValue("--log-dir", "", "give a folder"));
  options->log_directory = raw.log_directory;
  if (parser.Has("--trace") && raw.trace.empty()) problems.Add(WrongValue("--trace", "", "give the path of a file"));
  options->trace = raw.trace;
  ReadTimeOf(parser, "--trace-last", raw.trace_last, &problems, [&](std::chrono::milliseconds time) {
    options->trace_last = time;
    if (time.count() == 0)
      problems.Add(InvalidArgumentError(Remedy::kTraceLastNothing,
                                        "--trace-last 0 would keep nothing; give a time such as 60s"));
  });
  if (parser.Has("--trace-last") && raw.trace.empty()) {
    problems.Add(
        InvalidArgumentError(Remedy::kTraceLastAlone, "--trace-last belongs to a trace; give --trace FILE too"));
  }
  problems.Add(ReadTape(parser, options));
  if (parser.Has("--log-rate")) problems.Add(ReadRate(raw.log_rate, &options->log_rate));
  problems.Add(ReadEnvironment(raw.environment, &options->environment));
  if (raw.encrypt_data) problems.Add(EncryptData(options));
  if (parser.Has("--torch-backend")) problems.Add(ReadTorchBackend(raw.torch_backend, &options->environment));
  if (parser.Has("--check")) problems.Add(ReadCheck(raw.check, &options->environment));
  if (problems.none()) problems.Add(CheckElasticity(*options));  // which believes what it reads
  return problems.All();
}

// --multi-prog: its programs are read later.
absl::Status CheckProgramFile(const CommandParser& parser, Options* options) {
  const std::string& file = options->program_file = parser.raw().program_file;
  if (file.empty()) return WrongValue("--multi-prog", "", "give the path of a file of lines such as 0-2 ./client");
  if (parser.raw().module) {
    return InvalidArgumentError(
        Remedy::kModuleWithMultiProg,
        "-m is for a program on the command line; with --multi-prog begin lines such as 0-2 python3 -u -m MODULE");
  }
  const std::vector<std::string> words = parser.Rest();
  if (words.empty()) return absl::OkStatus();
  if (words[0] != "--" && words[0].starts_with("-")) return parser.UnknownOption(words[0]);
  return absl::InvalidArgumentError("--multi-prog " + file + " names the programs and their arguments: leave '" +
                                    words[0] + "' and what follows out, or the option");
}

// Each of several programs has ranks of its own.
absl::Status CheckSeveral(Options* options) {
  const bool several = options->programs.size() > 1;
  if (several) {
    options->programs[0].count = options->ranks;
    options->ranks = std::nullopt;
    if (const std::optional<int64_t> count = CountRanks(options->programs)) {
      if (*count > kMaxNodes * kMaxRanksPerNode) {
        return InvalidArgumentError(Remedy::kTooManyRanks, "the programs have " + std::to_string(*count) +
                                                               " ranks together; a job has at most " +
                                                               std::to_string(kMaxNodes * kMaxRanksPerNode));
      }
      options->ranks = static_cast<int>(*count);
    }
  }
  if (!options->min_nodes || (!several && options->program_file.empty())) return absl::OkStatus();
  return InvalidArgumentError(
      Remedy::kElasticPrograms,
      "--nnodes MIN:MAX lets the number of ranks change, and each of several programs has ranks of its own; "
      "use --nnodes " +
          std::to_string(*options->nodes));
}

}  // namespace

absl::StatusOr<CommandLine> ParseCommandLine(std::vector<std::string> argv) {
  CommandLine result;
  CommandParser parser;
  if (!argv.empty()) argv.erase(argv.begin());
  COHORT_ASSIGN_OR_RETURN(result.print, parser.Parse(std::move(argv)));
  if (result.print) return result;
  // A forgotten program is most often one that was taken for an option's value: "dlaunch --nnodes train".
  const std::vector<std::string> rest = parser.Rest();
  const absl::Status read = ReadOptions(parser, &result.options);
  if (rest.empty() || rest == std::vector<std::string>{"--"}) COHORT_RETURN_IF_ERROR(read);
  if (parser.Has("--multi-prog")) {
    COHORT_RETURN_IF_ERROR(CheckProgramFile(parser, &result.options));
  } else {
    COHORT_ASSIGN_OR_RETURN(result.options.programs, ReadColonPrograms(parser, &result.print));
    if (result.print) return result;
  }
  COHORT_RETURN_IF_ERROR(read);
  COHORT_RETURN_IF_ERROR(CheckSeveral(&result.options));
  return result;
}

}  // namespace cohort::launcher
