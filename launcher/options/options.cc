#include "cohort/launcher/options/options.h"

#include <algorithm>
#include <cstddef>
#include <functional>
#include <iterator>
#include <memory>
#include <set>
#include <string_view>

#include "CLI/App.hpp"
#include "CLI/Config.hpp"
#include "CLI/Formatter.hpp"
#include "absl/status/status.h"
#include "cohort/launcher/base/process_environment.h"
#include "cohort/launcher/base/whole_number.h"
#include "cohort/launcher/options/idle_options.h"
#include "cohort/launcher/options/option_hints.h"
#include "cohort/launcher/options/option_values.h"
#include "cohort/launcher/options/python_program.h"
#include "cohort/runtime/base/build_info.h"
#include "cohort/runtime/base/status_macros.h"

namespace cohort::launcher {
namespace {

constexpr char kExamples[] = R"(Examples:
  dlaunch --nproc-per-node 4 train.py              four ranks here; RANK, WORLD_SIZE, MASTER_ADDR, ... are set
  dlaunch --simulate-nodes 2 --simulate-gpus 4 a   two pretended nodes with four pretended GPUs each: 8 ranks
  dlaunch train                                    in a Slurm, PBS or LSF job: ranks on all of its nodes
  dlaunch --nnodes 2 train                         on a terminal: prints the line to run on the other machine
  dlaunch join|status|top|kill|doctor --help       the other machine, jobs that run here, what is amiss with the machine
Everything after the program's name belongs to the program. A name without a slash is looked up in PATH, then in the
working directory, then beside dlaunch. A .py file is run by python3 -u. Options may be typed with underscores. torchrun's --rdzv-* changes nothing.
Exit status: the failed rank's, or 128 + n; 75: preempted, 2: can't work, 125: dlaunch failed, 126, 127: no program)";

constexpr char kEncryptData[] = "COHORT_ENCRYPT_DATA";

// The parser fills this with text, so that one strict reader gives every message.
struct RawOptions {
  std::string nodes, spares, standbys, ranks, ranks_per_node, gpus_per_rank, simulate_nodes, simulate_gpus;
  std::string launcher, hosts, host_file, ssh_command, agent_path, rank_order, passed_variables;
  std::string on_failure, stopped, mpi, torch_backend, max_restarts, log_directory, log_rate, input, grace, wait, ports,
      token_file, interface, bind, metrics;
  std::vector<std::string> environment;
  bool dry_run = false;
  bool explain = false;
  bool no_prefix = false;
  bool insecure = false;
  bool encrypt_data = false;
  bool version = false;
  bool module = false;
};

// Prints each option by its first name: the others are what users of other launchers type, or have underscores.
class Formatter : public CLI::Formatter {
 public:
  std::string make_usage(const CLI::App*, std::string) const override {
    return "Usage: dlaunch [options] [--] program [arguments]: runs it as the ranks of one job; --help, --version\n";
  }
  std::string make_option_name(const CLI::Option* option, bool is_positional) const override {
    if (is_positional) return CLI::Formatter::make_option_name(option, true);
    std::string brief;
    for (const std::string& name : option->get_snames()) brief += "-" + name + ", ";
    return brief + "--" + option->get_lnames().front();
  }
  std::string make_option_opts(const CLI::Option* option) const override {
    return option->get_type_size() == 0 ? "" : " " + option->get_type_name();
  }
};

// `aliases`: "-H,--ppn", or none.
CLI::Option* AddOption(CLI::App* app, const std::string& name, std::string* value, const std::string& type,
                       const std::string& help, const std::string& aliases = "") {
  std::string names = "--" + name;
  if (name.find('-') != std::string::npos) {
    std::string underscored = name;
    std::replace(underscored.begin(), underscored.end(), '-', '_');
    names += ",--" + underscored;
  }
  if (!aliases.empty()) names += "," + aliases;
  return app->add_option(names, *value, help)->type_name(type);
}

void AddFlags(CLI::App* app, RawOptions* raw) {
  app->add_flag("--dry-run,--dry_run", raw->dry_run, "Print nodes, ranks, device groups and CPUs; start nothing");
  app->add_flag("--explain", raw->explain, "Print also how the nodes were found and are reached; start nothing");
  app->add_flag("--no-prefix,--no_prefix", raw->no_prefix,
                "Print ranks' lines as they are, without [rank] before them");
  app->add_flag("--module,-m", raw->module, "The program is a Python module: python3 -u -m PROGRAM");
}

std::unique_ptr<CLI::App> MakeParser(RawOptions* raw) {
  auto app = std::make_unique<CLI::App>("", "dlaunch");
  app->formatter(std::make_shared<Formatter>());
  app->get_formatter()->column_width(26);
  app->prefix_command();
  app->set_help_flag("-h,--help", "Show this and exit")->group("");  // in the first line
  app->footer(kExamples);
  AddOption(app.get(), "nnodes", &raw->nodes, "N|MIN:MAX",
            "Nodes of the job (1); MIN:MAX: as many as are there, fewer after a loss");
  AddOption(app.get(), "spares", &raw->spares, "K", "More nodes, held idle to take the places of lost ones (0)");
  AddOption(app.get(), "standby", &raw->standbys, "K",
            "Nodes that can take over when the first one is lost, which gathers the others (0)");
  app->add_option("-n,--np", raw->ranks, "Ranks of the whole job, over the nodes in their order")->type_name("N");
  AddOption(app.get(), "nproc-per-node", &raw->ranks_per_node, "N",
            "Ranks on each node (one for each --gpus-per-rank GPUs, or 1); alone, ranks see all GPUs and own none",
            "--ppn");
  AddOption(app.get(), "gpus-per-rank", &raw->gpus_per_rank, "N", "GPUs that each rank owns (1 where there are GPUs)",
            "--gpus-per-task,--gpus_per_task");
  AddOption(app.get(), "hosts", &raw->hosts, "LIST",
            "Run on these hosts, by ssh: a,b or node[01-16]; a:4 puts four ranks on a", "-H");
  AddOption(app.get(), "hostfile", &raw->host_file, "FILE", "The same from a file, a host a line: a, a:4 or a slots=4");
  AddOption(app.get(), "ssh", &raw->ssh_command, "COMMAND", "The ssh to use, with its options (ssh)");
  AddOption(app.get(), "agent-path", &raw->agent_path, "PATH", "Where dlaunch lies on those hosts (where it is here)");
  AddOption(app.get(), "wait", &raw->wait, "TIME",
            "With --nnodes alone, or in pods and the like: how long to wait for the others to join (600)");
  AddOption(app.get(), "port-range", &raw->ports, "A:B",
            "TCP ports that dlaunch and its agents listen on (any; pods dial the first: 29400)");
  AddOption(app.get(), "iface", &raw->interface, "NAME",
            "The network between nodes: an interface, or a network such as 10.1.0.0/16 (the default route's)");
  AddOption(app.get(), "token-file", &raw->token_file, "FILE", "Pods and the like: the secret that they share");
  app->add_flag("--encrypt-data,--encrypt_data", raw->encrypt_data,
                "Encrypt data between nodes by TLS 1.3, over TCP; shared memory inside a node is not encrypted");
  app->add_flag("--insecure", raw->insecure, "Pods and the like: do without a secret");
  AddOption(app.get(), "launcher", &raw->launcher, "NAME",
            "Where nodes come from: slurm, pbs, lsf, local, ... (--explain lists them; the first that fits)");
  AddOption(app.get(), "rank-order", &raw->rank_order, "ORDER",
            "Number nodes as given, natural: by name, host-9 before host-10, or as in file:FILE (given)");
  AddOption(app.get(), "bind", &raw->bind, "WHAT",
            "Bind each rank to its share of the node's cores, to its NUMA node (numa), or not at all (none) (core)");
  AddOption(app.get(), "simulate-nodes", &raw->simulate_nodes, "N", "Let this machine stand for N nodes");
  AddOption(app.get(), "simulate-gpus", &raw->simulate_gpus, "N", "Give each node N pretended GPUs, in host memory");
  AddOption(app.get(), "on-failure", &raw->on_failure, "WHAT",
            "After a rank's failure: end the job, restart all of its ranks, or continue without the rank (end)");
  AddOption(app.get(), "stopped", &raw->stopped, "WHAT",
            "A rank that stays stopped (SIGSTOP) for 2.5 s: kill it, or wait until it goes on (kill)");
  AddOption(app.get(), "mpi", &raw->mpi, "HOW", "Start MPI programs by pmi1 (MPICH, Intel MPI), none (auto)");
  AddOption(app.get(), "torch-backend", &raw->torch_backend, "NAME", "cohort: serve PyTorch programs' gloo (torch)");
  AddOption(app.get(), "max-restarts", &raw->max_restarts, "N",
            "Restart all ranks after a failure, N times at the most (0; with --on-failure restart 3)");
  AddOption(app.get(), "grace", &raw->grace, "TIME", "From a rank's SIGTERM to its SIGKILL: 5 (seconds), 2m, 1h (10)");
  app->add_option("--env", raw->environment, "Set a variable for the ranks; may be repeated")
      ->type_name("NAME=VALUE")
      ->expected(1)
      ->allow_extra_args(false)
      ->take_all();
  AddOption(app.get(), "env-pass", &raw->passed_variables, "LIST",
            "Variables that ranks on other hosts get too, such as HOME,XDG_*");
  AddOption(app.get(), "stdin", &raw->input, "WHO",
            "redirected: rank 0 reads what is redirected to dlaunch here; rank0: also a terminal, and on other hosts; "
            "none (redirected)");
  AddOption(app.get(), "log-dir", &raw->log_directory, "FOLDER",
            "Also keep each rank's output there, in rank-<n>.out and .err, and what became of the job, in report.json");
  AddOption(app.get(), "log-rate", &raw->log_rate, "BYTES",
            "Print that much of each rank a second, such as 64K; drop what is more, never the last lines (no limit)");
  AddOption(app.get(), "metrics", &raw->metrics, "[ADDR:]PORT", "Serve nodes and ranks to Prometheus (127.0.0.1)");
  AddFlags(app.get(), raw);
  AddIdleOptions(app.get());
  app->add_flag("--version", raw->version, "Print the version and exit")->group("");
  return app;
}

absl::Status Invalid(const std::string& text) { return absl::InvalidArgumentError(text); }

absl::Status ReadCount(const std::string& option, const std::string& text, int max, std::optional<int>* out,
                       int min = 1) {
  if (const auto value = ReadWholeNumber(text, min, max)) {
    *out = value;
    return absl::OkStatus();
  }
  return Invalid("--" + option + " '" + text + "': give a whole number from " + std::to_string(min) + " to " +
                 std::to_string(max));
}

// "4", "2:4"
absl::Status ReadNodes(const std::string& text, Options* options) {
  const size_t colon = text.find(':');
  if (colon == std::string::npos) return ReadCount("nnodes", text, kMaxNodes, &options->nodes);
  if (!ReadCount("nnodes", text.substr(0, colon), kMaxNodes, &options->min_nodes).ok() ||
      !ReadCount("nnodes", text.substr(colon + 1), kMaxNodes, &options->nodes).ok()) {
    return Invalid("--nnodes '" + text + "': give a whole number from 1 to " + std::to_string(kMaxNodes) +
                   ", or the least and the most, such as 2:5");
  }
  if (*options->min_nodes <= *options->nodes) return absl::OkStatus();
  return Invalid("--nnodes '" + text + "': give the least and the most nodes, such as " + text.substr(colon + 1) + ":" +
                 text.substr(0, colon));
}

// Refuses what a loss of nodes could not be handled with, and what can't be had together.
absl::Status CheckElasticity(const Options& options) {
  if (options.spares > 0 && options.max_restarts == 0) {
    return Invalid("--spares " + std::to_string(options.spares) +
                   ": a spare node takes a lost one's place when the job is restarted; add --max-restarts 3");
  }
  if (options.standbys > 0 && options.on_failure == OnFailure::kEnd) {
    return Invalid("--standby " + std::to_string(options.standbys) +
                   ": the ranks of a lost node are lost with it, which ends the job; add --max-restarts 3, or "
                   "--on-failure continue");
  }
  if (options.standbys > 0 && options.max_restarts > 0 && options.spares == 0 && !options.min_nodes) {
    return Invalid("--standby " + std::to_string(options.standbys) +
                   ": nothing would take the lost node's place; add --spares 1, or let the job go on with fewer nodes: "
                   "--nnodes MIN:MAX");
  }
  if (options.min_nodes && options.ranks) {
    return Invalid("-n " + std::to_string(*options.ranks) +
                   " fixes the number of ranks, and --nnodes MIN:MAX lets it change with the nodes; use "
                   "--nproc-per-node, or --nnodes " +
                   std::to_string(*options.nodes));
  }
  return absl::OkStatus();
}

absl::Status ReadEnvironment(const std::vector<std::string>& texts, Options* options) {
  for (const std::string& text : texts) {
    const size_t equals = text.find('=');
    if (equals == std::string::npos || equals == 0) {
      return Invalid("--env '" + text + "': give NAME=VALUE, such as --env OMP_NUM_THREADS=2");
    }
    const std::string name = text.substr(0, equals);
    if (name.starts_with("COHORT_AGENT") || name == "COHORT_LOCAL_RANK" || name == "COHORT_JOB_ID") {
      return Invalid("--env '" + text + "': dlaunch sets " + name + " itself, by which a rank finds its agent");
    }
    static constexpr std::string_view kOfTheEpoch[] = {"TORCHELASTIC_RUN_ID", "COHORT_EPOCH",
                                                       "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS"};
    if (IsRankVariable(name) ||
        std::find(std::begin(kOfTheEpoch), std::end(kOfTheEpoch), name) != std::end(kOfTheEpoch)) {
      return Invalid("--env '" + text + "': dlaunch sets " + name + " itself, for each rank its own; leave it out");
    }
    options->environment.emplace_back(name, text.substr(equals + 1));
  }
  return absl::OkStatus();
}

// Ranks are told as by --env.
absl::Status EncryptData(Options* options) {
  for (const auto& [name, value] : options->environment) {
    if (name == kEncryptData && value != "1") {
      return Invalid("--encrypt-data and --env " + name + "=" + value + " contradict each other; leave one out");
    }
  }
  options->environment.emplace_back(kEncryptData, "1");
  return absl::OkStatus();
}

absl::Status UnknownOption(const CLI::App& app, const std::string& argument) {
  const std::string name = argument.substr(0, argument.find('='));
  const std::string instead = InsteadOfOption(name);
  if (!instead.empty()) return Invalid("option '" + argument + "' is none of dlaunch's: " + instead);
  std::vector<OptionNames> known;
  for (const CLI::Option* option : app.get_options()) known.push_back(option->get_lnames());
  const std::string meant = MeantOption(name, known);
  return Invalid("unknown option '" + argument + "'" + (meant.empty() ? "" : "; did you mean " + meant + "?") +
                 " (dlaunch --help lists the options; options of the program follow its name)");
}

absl::Status ReadHosts(const RawOptions& raw, const CLI::App& app, Options* options) {
  const auto given = [&](const char* name) { return app.get_option(name)->count() > 0; };
  const bool hosts = given("--hosts"), file = given("--hostfile");
  if (hosts && file) return Invalid("--hosts and --hostfile contradict each other; leave one out");
  if ((hosts || file) && given("--launcher") && raw.launcher != "ssh" && raw.launcher != "auto") {
    return Invalid(std::string(hosts ? "--hosts" : "--hostfile") + " and --launcher " + raw.launcher +
                   " contradict each other: those hosts are reached by ssh; leave one out");
  }
  if ((hosts || file) && given("--simulate-nodes")) {
    return Invalid("--simulate-nodes lets this machine stand for nodes; leave it or the list of hosts out");
  }
  if (hosts && raw.hosts.empty()) return Invalid("--hosts '': give names separated by commas, such as a,b");
  if (file && raw.host_file.empty()) return Invalid("--hostfile '': give the path of a file");
  if (given("--ssh") && raw.ssh_command.find_first_not_of(' ') == std::string::npos) {
    return Invalid("--ssh '': give a command, such as \"ssh -p 2222\"");
  }
  if (given("--agent-path") && !raw.agent_path.starts_with('/')) {
    return Invalid("--agent-path '" + raw.agent_path + "': give an absolute path");
  }
  options->hosts = raw.hosts;
  options->host_file = raw.host_file;
  if (given("--ssh")) options->ssh_command = raw.ssh_command;
  options->agent_path = raw.agent_path;
  return absl::OkStatus();
}

absl::Status ReadOnFailure(const RawOptions& raw, const CLI::App& app, Options* options) {
  static const std::pair<const char*, OnFailure> kChoices[] = {
      {"end", OnFailure::kEnd}, {"continue", OnFailure::kContinue}, {"restart", OnFailure::kRestart}};
  const bool limited = app.get_option("--max-restarts")->count() > 0;
  std::optional<int> restarts;
  if (limited) {
    COHORT_RETURN_IF_ERROR(ReadCount("max-restarts", raw.max_restarts, kMaxRestarts, &restarts, 0));
  }
  options->max_restarts = restarts.value_or(0);
  if (options->max_restarts > 0) options->on_failure = OnFailure::kRestart;
  if (app.get_option("--on-failure")->count() == 0) return absl::OkStatus();
  const auto* const choice = std::find_if(std::begin(kChoices), std::end(kChoices),
                                          [&](const auto& known) { return known.first == raw.on_failure; });
  if (choice == std::end(kChoices)) {
    return Invalid("--on-failure '" + raw.on_failure + "': give end, restart or continue");
  }
  options->on_failure = choice->second;
  if (!limited && options->on_failure == OnFailure::kRestart) options->max_restarts = kUsualRestarts;
  if ((options->max_restarts > 0) != (options->on_failure == OnFailure::kRestart)) {
    return Invalid("--on-failure " + raw.on_failure + " and --max-restarts " + raw.max_restarts +
                   " contradict each other; leave one out");
  }
  return absl::OkStatus();
}

// After the restarts.
absl::Status ReadInput(const std::string& text, Options* options) {
  if (text == "redirected") return absl::OkStatus();
  if (text != "rank0" && text != "none") return Invalid("--stdin '" + text + "': give redirected, rank0 or none");
  options->input = text == "rank0" ? RankInputOption::kForwarded : RankInputOption::kNone;
  if (options->input == RankInputOption::kNone || options->max_restarts == 0) return absl::OkStatus();
  return Invalid(
      "--stdin rank0 and --max-restarts contradict each other: a restarted rank can't read again what was read before; "
      "leave one out, or have the program read a file");
}

// All that is wrong with the options, so that nobody mends them one by one.
class Problems {
 public:
  void Add(const absl::Status& status) {
    if (!status.ok()) texts_ += (texts_.empty() ? "" : "\n") + std::string(status.message());
  }
  bool none() const { return texts_.empty(); }
  absl::Status All() const { return none() ? absl::OkStatus() : Invalid(texts_); }

 private:
  std::string texts_;
};

void ReadChoices(const RawOptions& raw, const CLI::App& app, Options* options, Problems* problems) {
  const auto given = [&](const char* name) { return app.get_option(name)->count() > 0; };
  problems->Add(ReadOnFailure(raw, app, options));
  if (given("--rank-order")) problems->Add(ReadRankOrder(raw.rank_order, options));
  if (given("--bind")) problems->Add(ReadBind(raw.bind, &options->bind));
  if (given("--stopped")) problems->Add(ReadStopped(raw.stopped, &options->stopped));
  if (given("--mpi")) problems->Add(ReadMpi(raw.mpi, &options->mpi));
  if (given("--stdin")) problems->Add(ReadInput(raw.input, options));
  if (given("--metrics")) problems->Add(ReadMetrics(raw.metrics, &options->metrics));
  if (given("--launcher") && raw.launcher.empty()) {
    problems->Add(Invalid("--launcher '': give a name, such as slurm; --explain lists them"));
  }
  if (raw.launcher != "auto") options->launcher = raw.launcher;  // the first that fits, as without it
  options->dry_run = raw.dry_run || raw.explain;
  options->explain = raw.explain;
  options->prefix = !raw.no_prefix;
  options->idle_options = GivenIdleOptions(app);
  if (given("--env-pass")) problems->Add(ReadPassedVariables(raw.passed_variables, &options->passed_variables));
}

void ReadCounts(const RawOptions& raw, const CLI::App& app, Options* options, Problems* problems) {
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
    if (app.get_option(std::string("--") + count.name)->count() == 0) continue;
    const std::string instead = count.out == &options->ranks_per_node ? InsteadOfCounting(count.text) : "";
    problems->Add(instead.empty() ? ReadCount(count.name, count.text, count.max, count.out, count.min)
                                  : Invalid("--nproc-per-node '" + count.text + "': " + instead));
  }
  options->spares = spares.value_or(0);
  options->standbys = standbys.value_or(0);
}

void ReadTimeOf(const CLI::App& app, const std::string& name, const std::string& text, Problems* problems,
                const std::function<void(std::chrono::milliseconds)>& set) {
  if (app.get_option(name)->count() == 0) return;
  const absl::StatusOr<std::chrono::milliseconds> time = ReadTime(name, text);
  problems->Add(time.status());
  if (time.ok()) set(*time);
}

absl::Status ReadOptions(const RawOptions& raw, const CLI::App& app, Options* options) {
  Problems problems;
  const auto given = [&](const char* name) { return app.get_option(name)->count() > 0; };
  if (given("--nnodes")) problems.Add(ReadNodes(raw.nodes, options));
  ReadCounts(raw, app, options, &problems);
  problems.Add(ReadHosts(raw, app, options));
  ReadChoices(raw, app, options, &problems);
  ReadTimeOf(app, "--grace", raw.grace, &problems, [&](std::chrono::milliseconds time) { options->grace = time; });
  ReadTimeOf(app, "--wait", raw.wait, &problems, [&](std::chrono::milliseconds time) { options->wait = time; });
  if (given("--port-range")) problems.Add(ReadPorts(raw.ports, &options->ports));
  if (given("--token-file") && raw.token_file.empty()) {
    problems.Add(Invalid("--token-file '': give the path of a file"));
  }
  if (given("--iface") && raw.interface.empty()) {
    problems.Add(Invalid("--iface '': give an interface such as eth0, or a network such as 10.1.0.0/16"));
  }
  options->interface = raw.interface;
  options->token_file = raw.token_file;
  options->insecure = raw.insecure;
  if (given("--log-dir") && raw.log_directory.empty()) problems.Add(Invalid("--log-dir '': give a folder"));
  options->log_directory = raw.log_directory;
  if (given("--log-rate")) problems.Add(ReadRate(raw.log_rate, &options->log_rate));
  problems.Add(ReadEnvironment(raw.environment, options));
  if (raw.encrypt_data) problems.Add(EncryptData(options));
  if (given("--torch-backend")) problems.Add(ReadTorchBackend(raw.torch_backend, &options->environment));
  if (problems.none()) problems.Add(CheckElasticity(*options));  // which believes what it reads
  return problems.All();
}

absl::Status ValueMissing(const std::string& option) {
  return Invalid(option + " has no value: give it one (dlaunch --help lists them)");
}

// Writes -np and the like as --np, and refuses what CLI11 would misread before the program: a word after one dash
// (-hosts for -h, and -npernode for -n with a strange value), and "--np=" without a value, for which it would take the
// next word.
absl::Status CheckWords(const CLI::App& app, std::vector<std::string>* argv) {
  for (size_t i = 1; i < argv->size(); ++i) {
    std::string& argument = (*argv)[i];
    argument = WithLongCount(std::move(argument));
    if (argument.size() < 2 || argument[0] != '-' || argument == "--") return absl::OkStatus();
    const bool is_long = argument[1] == '-';
    const std::string name = is_long ? argument.substr(0, argument.find('=')) : argument.substr(0, 2);
    const bool has_value = argument.size() > name.size();
    const bool is_number = argument.find_first_not_of("0123456789", 2) == std::string::npos;
    if (!is_long && has_value && (name != "-n" || !is_number)) return UnknownOption(app, argument);
    const CLI::Option* const option = app.get_option_no_throw(name);
    if (option == nullptr) return absl::OkStatus();
    const bool takes_value = option->get_items_expected_min() > 0;
    if (takes_value && argument == name + "=") return ValueMissing(name);
    if (!has_value && takes_value) ++i;
  }
  return absl::OkStatus();
}

// A forgotten program is most often one that was taken for an option's value: "dlaunch --nnodes train".
absl::Status CheckCommand(const std::vector<std::string>& command) {
  if (command.empty()) {
    return Invalid("no program given; use: dlaunch [options] [--] program [arguments] (dlaunch --help has examples)");
  }
  if (command[0].empty())
    return Invalid("the program's name is empty; use: dlaunch [options] [--] program [arguments]");
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<CommandLine> ParseCommandLine(std::vector<std::string> argv) {
  RawOptions raw;
  const std::unique_ptr<CLI::App> app = MakeParser(&raw);
  COHORT_RETURN_IF_ERROR(CheckWords(*app, &argv));
  std::vector<std::string> reversed(argv.rbegin(), argv.rend());  // as CLI11 wants them
  if (!reversed.empty()) reversed.pop_back();
  CommandLine result;
  try {
    app->parse(std::move(reversed));
  } catch (const CLI::CallForHelp&) {
    result.print = app->help();
    return result;
  } catch (const CLI::ArgumentMismatch& error) {
    const std::string what = error.what();
    // CLI11 does not name an option that --help does not list. Without a value it is the last word.
    const std::string name = what.starts_with(':') ? argv.back() : what.substr(0, what.find(':'));
    if (what.ends_with(" missing")) return ValueMissing(name);
    const bool twice = what.find("required but received") != std::string::npos;
    return Invalid((twice ? what.substr(0, what.find(':')) + " is given twice" : what) +
                   "; give each option once, with its value (dlaunch --help lists them)");
  } catch (const CLI::ParseError& error) {
    return Invalid(std::string(error.what()) + " (dlaunch --help lists the options)");
  }
  if (raw.version) {
    result.print = "dlaunch (cohort) " + runtime::DescribeBuild() + "\n";
    return result;
  }
  std::vector<std::string> command = app->remaining();
  if (!command.empty() && command[0] == "--") {
    command.erase(command.begin());
  } else if (NamesSeveralPrograms(command)) {
    return Invalid("there is more than one program, separated by ':': " + InsteadOfSeveralPrograms() +
                   " (where the ':' is the program's own argument: dlaunch [options] -- program ...)");
  } else if (!command.empty() && command[0].size() > 1 && command[0][0] == '-') {
    return UnknownOption(*app, command[0]);
  }
  COHORT_RETURN_IF_ERROR(ReadOptions(raw, *app, &result.options));
  COHORT_RETURN_IF_ERROR(CheckCommand(command));
  result.options.command = AsPythonProgram(std::move(command), raw.module);
  return result;
}

}  // namespace cohort::launcher
