// The words of dlaunch's command line up to a program's name: which options there are, their help, and their values as
// text. options.h has the values that they mean.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cohort/runtime/manual/command.h"

namespace CLI {
class App;
}

namespace cohort::launcher {

// The parser fills this with text, so that one strict reader gives every message.
struct RawOptions {
  std::string nodes, spares, standbys, ranks, ranks_per_node, gpus_per_rank, simulate_nodes, simulate_gpus;
  std::string launcher, hosts, host_file, ssh_command, agent_path, rank_order, passed_variables, program_file;
  std::string on_failure, stopped, mpi, torch_backend, check, max_restarts, log_directory, log_rate, input, grace, wait,
      ports, token_file, interface, bind, metrics, trace, trace_last, tape, tape_ranks, tape_last;
  std::vector<std::string> environment;
  bool dry_run = false;
  bool explain = false;
  bool json = false;
  bool no_prefix = false;
  bool insecure = false;
  bool encrypt_data = false;
  bool version = false;
  bool module = false;
};

class CommandParser {
 public:
  CommandParser();
  ~CommandParser();
  CommandParser(const CommandParser&) = delete;
  CommandParser& operator=(const CommandParser&) = delete;

  // Once. `words` begin with the first option, or the program. Returns the text to print instead of running anything.
  // kInvalidArgument: an option is unknown, or without its value, or given twice.
  absl::StatusOr<std::optional<std::string>> Parse(std::vector<std::string> words);

  const RawOptions& raw() const { return raw_; }
  // "--nnodes": whether it was given.
  bool Has(const std::string& option) const;
  // The long names of all options that were given, with their dashes.
  std::vector<std::string> Given() const;
  // The first word that is no option, and all after it.
  std::vector<std::string> Rest() const;
  // For a word in its place that begins with '-'.
  absl::Status UnknownOption(const std::string& word) const;
  const CLI::App& app() const { return *app_; }
  // All of it, for the manual page and completion, without the subcommands.
  runtime::ManualCommand Manual() const;

 private:
  absl::Status CheckWords(std::vector<std::string>* words) const;

  RawOptions raw_;
  std::unique_ptr<CLI::App> app_;
};

}  // namespace cohort::launcher
