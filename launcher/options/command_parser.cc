#include "cohort/launcher/options/command_parser.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "CLI/App.hpp"
#include "CLI/Config.hpp"
#include "CLI/Formatter.hpp"
#include "cohort/launcher/options/idle_options.h"
#include "cohort/launcher/options/option_hints.h"
#include "cohort/launcher/options/option_values.h"
#include "cohort/launcher/remedies/remedies.h"
#include "cohort/runtime/base/build_info.h"
#include "cohort/runtime/base/status_macros.h"
#include "cohort/runtime/manual/describe.h"

namespace cohort::launcher {
namespace {

constexpr char kExamples[] = R"(Examples:
  dlaunch --nproc-per-node 4 train.py              four ranks here, or on each node of a Slurm, PBS or LSF job
  dlaunch --simulate-nodes 2 --simulate-gpus 4 a   two pretended nodes with four pretended GPUs each: 8 ranks
  dlaunch join|status|top|stacks|why|trace|replay|kill|doctor|completion --help    each command by itself
A name without a slash is looked up in PATH, the working directory, then beside dlaunch. A .py file is run by python3 -u. torchrun's --rdzv-* changes nothing.
Exit status: the failed rank's, or 128 + n; 75: preempted, 2: can't work, 125: dlaunch failed, 126, 127: no program)";

constexpr char kUsage[] = "[options] [--] program [arguments] [: -n N program [arguments]]";

// Prints each option by its first name: the others are what users of other launchers type, or have underscores.
class Formatter : public CLI::Formatter {
 public:
  std::string make_usage(const CLI::App*, std::string) const override {
    return "Usage: dlaunch " + std::string(kUsage) + ": runs all as the ranks of one job; --help, --version\n";
  }
  std::string make_description(const CLI::App*) const override { return ""; }  // for the manual page
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

void AddOutputOptions(CLI::App* app, RawOptions* raw) {
  AddOption(app, "stdin", &raw->input, "redirected|rank0|none",
            "redirected: rank 0 reads what is redirected to dlaunch here; rank0: also a terminal, and on other hosts; "
            "none (redirected)");
  AddOption(app, "log-dir", &raw->log_directory, "FOLDER",
            "Also keep each rank's output there, in rank-<n>.out and .err, and what became of the job, in report.json");
  AddOption(app, "log-rate", &raw->log_rate, "BYTES",
            "Print that much of each rank a second, such as 64K; drop what is more, never the last lines (no limit)");
  AddOption(
      app, "trace", &raw->trace, "FILE",
      "Write a trace of every rank's calls, for ui.perfetto.dev; --trace-last 60s: only of the last minute or two");
  AddOption(app, "trace-last", &raw->trace_last, "TIME", "Beside --trace: keep the last TIME, or up to twice as much")
      ->group("");  // --trace names it in the help
  AddOption(app, "tape", &raw->tape, "FOLDER",
            "Record what ranks get, for dlaunch replay; --tape-ranks 3,5: of these; --tape-last N: the last N steps");
  AddOption(app, "tape-ranks", &raw->tape_ranks, "LIST", "Beside --tape: record these ranks")->group("");
  AddOption(app, "tape-last", &raw->tape_last, "N", "Beside --tape: keep the last N steps")->group("");
  AddOption(app, "metrics", &raw->metrics, "[ADDR:]PORT", "Serve nodes and ranks to Prometheus (127.0.0.1)");
}

void AddFlags(CLI::App* app, RawOptions* raw) {
  app->add_flag("--dry-run,--dry_run", raw->dry_run,
                "Print nodes, ranks, device groups and CPUs; start nothing; with --json as JSON");
  app->add_flag("--json", raw->json, "Beside --dry-run: print JSON")->group("");
  app->add_flag("--explain", raw->explain, "Print also how the nodes were found and are reached; start nothing");
  app->add_flag("--no-prefix,--no_prefix", raw->no_prefix,
                "Print ranks' lines as they are, without [rank] before them");
  app->add_flag("--module,-m", raw->module, "The program is a Python module: python3 -u -m PROGRAM");
}

// How the ranks talk to each other.
void AddCommunication(CLI::App* app, RawOptions* raw) {
  AddOption(app, "mpi", &raw->mpi, "auto|pmi1|pmix|none",
            "Start MPI programs by pmi1 (MPICH), pmix (Open MPI), none (auto)");
  AddOption(app, "torch-backend", &raw->torch_backend, "cohort|torch", "cohort: serve PyTorch programs' gloo (torch)");
  AddOption(app, "check", &raw->check, "nan|results|nan,results",
            "Check collectives: inputs for NaN and infinity (nan), results for being equal on all ranks (results)");
}

void AddSimulation(CLI::App* app, RawOptions* raw) {
  AddOption(app, "simulate-nodes", &raw->simulate_nodes, "N", "Let this machine stand for N nodes");
  AddOption(app, "simulate-gpus", &raw->simulate_gpus, "N", "Give each node N pretended GPUs, in host memory");
}

std::unique_ptr<CLI::App> MakeParser(RawOptions* raw) {
  auto app = std::make_unique<CLI::App>(
      "Starts a program as the ranks of one job, watches them, and reports what happened.", "dlaunch");
  app->formatter(std::make_shared<Formatter>());
  app->get_formatter()->column_width(40);
  app->prefix_command();
  app->set_help_flag("-h,--help", "Show this and exit")->group("");  // in the first line
  app->footer(kExamples);
  AddOption(app.get(), "nnodes", &raw->nodes, "N|MIN:MAX",
            "Nodes of the job (1); a terminal shows the line to run on the others; MIN:MAX: as many as are there, "
            "fewer after a loss");
  AddOption(app.get(), "spares", &raw->spares, "K", "More nodes, held idle to take the places of lost ones (0)");
  AddOption(app.get(), "standby", &raw->standbys, "K",
            "Nodes that can take over when the first one is lost, which gathers the others (0)");
  app->add_option("-n,--np", raw->ranks,
                  "Ranks of the whole job, over the nodes in their order; of several programs, each has its own")
      ->type_name("N");
  AddOption(app.get(), "nproc-per-node", &raw->ranks_per_node, "N",
            "Ranks on each node (one for each --gpus-per-rank GPUs, or 1); alone, ranks see all GPUs and own none",
            "--ppn");
  AddOption(app.get(), "gpus-per-rank", &raw->gpus_per_rank, "N", "GPUs that each rank owns (1 where there are GPUs)",
            "--gpus-per-task,--gpus_per_task");
  AddOption(app.get(), "multi-prog", &raw->program_file, "FILE",
            "Several programs by a file of lines such as 1-3,5 ./client %t: ranks (*: all others), program, arguments");
  AddOption(app.get(), "hosts", &raw->hosts, "HOSTS",
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
  AddOption(app.get(), "token-file", &raw->token_file, "FILE",
            "Pods and the like: the secret that they share; --insecure: do without one");
  app->add_flag("--encrypt-data,--encrypt_data", raw->encrypt_data,
                "Encrypt data between nodes by TLS 1.3, over TCP; shared memory inside a node is not encrypted");
  app->add_flag("--insecure", raw->insecure, "In place of --token-file: do without a secret")->group("");
  AddOption(app.get(), "launcher", &raw->launcher, "NAME",
            "Where nodes come from: slurm, pbs, lsf, local, ... (--explain lists them; the first that fits)");
  AddOption(app.get(), "rank-order", &raw->rank_order, "given|natural|file:FILE",
            "Number nodes as given, natural: by name, host-9 before host-10, or as in file:FILE (given)");
  AddOption(app.get(), "bind", &raw->bind, "core|numa|none",
            "Bind each rank to its share of the node's cores, to its NUMA node (numa), or not at all (none) (core)");
  AddSimulation(app.get(), raw);
  AddOption(app.get(), "on-failure", &raw->on_failure, "end|restart|continue",
            "After a rank's failure: end the job, restart all of its ranks, or continue without the rank (end)");
  AddOption(app.get(), "stopped", &raw->stopped, "kill|wait",
            "A rank that stays stopped (SIGSTOP) for 2.5 s: kill it, or wait until it goes on (kill)");
  AddCommunication(app.get(), raw);
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
  AddOutputOptions(app.get(), raw);
  AddFlags(app.get(), raw);
  AddIdleOptions(app.get());
  app->add_flag("--version", raw->version, "Print the version and exit")->group("");
  return app;
}

absl::Status ValueMissing(const std::string& option) {
  return InvalidArgumentError(Remedy::kOptionWithoutValue,
                              option + " has no value: give it one (dlaunch --help lists them)");
}

}  // namespace

CommandParser::CommandParser() : app_(MakeParser(&raw_)) {}

CommandParser::~CommandParser() = default;

absl::Status CommandParser::UnknownOption(const std::string& word) const {
  const std::string name = word.substr(0, word.find('='));
  const std::string instead = InsteadOfOption(name);
  if (!instead.empty())
    return InvalidArgumentError(Remedy::kOptionOfAnotherLauncher,
                                "option '" + word + "' is none of dlaunch's: " + instead);
  std::vector<OptionNames> known;
  for (const CLI::Option* const option : app_->get_options()) known.push_back(option->get_lnames());
  const std::string meant = MeantOption(name, known);
  return InvalidArgumentError(Remedy::kOptionUnknown,
                              "unknown option '" + word + "'" + (meant.empty() ? "" : "; did you mean " + meant + "?") +
                                  " (dlaunch --help lists the options; options of the program follow its name)");
}

// Writes all forms of -n as --np, and refuses what CLI11 would misread before the program: a word after one dash
// (-hosts for -h, and -npernode for -n with a strange value), and "--np=" without a value, for which it would take the
// next word.
absl::Status CommandParser::CheckWords(std::vector<std::string>* words) const {
  for (size_t i = 0; i < words->size(); ++i) {
    std::string& argument = (*words)[i];
    argument = WithLongCount(std::move(argument));
    if (argument.size() < 2 || argument[0] != '-' || argument == "--") return absl::OkStatus();
    const bool is_long = argument[1] == '-';
    const std::string name = is_long ? argument.substr(0, argument.find('=')) : argument.substr(0, 2);
    const bool has_value = argument.size() > name.size();
    if (!is_long && has_value) return UnknownOption(argument);
    const CLI::Option* const option = app_->get_option_no_throw(name);
    if (option == nullptr) return absl::OkStatus();
    const bool takes_value = option->get_items_expected_min() > 0;
    if (takes_value && argument == name + "=") return ValueMissing(name);
    if (!has_value && takes_value) ++i;
  }
  return absl::OkStatus();
}

absl::StatusOr<std::optional<std::string>> CommandParser::Parse(std::vector<std::string> words) {
  COHORT_RETURN_IF_ERROR(CheckWords(&words));
  try {
    app_->parse(std::vector<std::string>(words.rbegin(), words.rend()));  // as CLI11 wants them
  } catch (const CLI::CallForHelp&) {
    return app_->help();
  } catch (const CLI::ArgumentMismatch& error) {
    const std::string what = error.what();
    // CLI11 does not name an option that --help does not list. Without a value it is the last word.
    const std::string name = what.starts_with(':') ? words.back() : what.substr(0, what.find(':'));
    if (what.ends_with(" missing")) return ValueMissing(name);
    const std::string once = "; give each option once, with its value (dlaunch --help lists them)";
    if (what.find("required but received") == std::string::npos) return absl::InvalidArgumentError(what + once);
    return InvalidArgumentError(Remedy::kOptionGivenTwice, what.substr(0, what.find(':')) + " is given twice" + once);
  } catch (const CLI::ParseError& error) {
    return absl::InvalidArgumentError(std::string(error.what()) + " (dlaunch --help lists the options)");
  }
  if (raw_.version) return "dlaunch (cohort) " + runtime::DescribeBuild() + "\n";
  return std::nullopt;
}

bool CommandParser::Has(const std::string& option) const { return app_->get_option(option)->count() > 0; }

std::vector<std::string> CommandParser::Given() const {
  std::vector<std::string> given;
  for (const CLI::Option* const option : app_->get_options()) {
    if (option->count() > 0) given.push_back("--" + option->get_lnames().front());
  }
  return given;
}

runtime::ManualCommand CommandParser::Manual() const {
  runtime::ManualCommand manual = runtime::Describe(*app_, "dlaunch");
  manual.usage = kUsage;
  manual.runs_program = true;
  return manual;
}

std::vector<std::string> CommandParser::Rest() const { return app_->remaining(); }

}  // namespace cohort::launcher
