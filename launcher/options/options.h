// dlaunch's command line.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "cohort/launcher/base/exit_status.h"
#include "cohort/launcher/options/rank_program.h"

namespace cohort::launcher {

inline constexpr int kMaxNodes = 65536;
inline constexpr int kMaxRanksPerNode = 1024;
inline constexpr int kMaxDevicesPerNode = 1024;
inline constexpr int kMaxRestarts = 1000000;
inline constexpr int kUsualRestarts = 3;  // with --on-failure restart alone

enum class OnFailure { kEnd, kContinue, kRestart };
enum class RankOrder { kGiven, kNatural, kFile };
// The CPUs that a rank's processes may run on: its share of the node's cores, a NUMA node, or all that dlaunch may.
enum class Bind { kCore, kNuma, kNone };

// The fate of a rank that stays stopped (SIGSTOP).
enum class Stopped { kKill, kWait };

// How ranks that are MPI programs find each other.
enum class Mpi {
  kAuto,  // as the program's library does (MpiLibraryOf)
  kPmi1,  // MPICH, Intel MPI and their family
  kPmix,  // Open MPI
  kNone,  // not at all: each is alone
};

// TCP ports that dlaunch may listen on; 0 to 0: any.
struct PortRange {
  int first = 0;
  int last = 0;
};

// The standard input of rank 0; the others read /dev/null.
enum class RankInputOption {
  kRedirected,  // dlaunch's standard input, if that is no terminal and the rank is a process of this machine
  kForwarded,   // --stdin rank0: what dlaunch reads, a terminal too, wherever the rank is
  kNone,        // --stdin none
};

struct Options {
  std::optional<int> nodes;      // the most, with min_nodes
  std::optional<int> min_nodes;  // --nnodes MIN:MAX: go on with so few
  int spares = 0;                // --spares: idle nodes beyond `nodes`, for the places of lost ones
  int standbys = 0;              // --standby: nodes that can take over for the rendezvous' host
  std::optional<int> ranks;      // -n: of the whole job, several programs' together
  bool ranks_of_file = false;    // it is the number of ranks that program_file names
  std::optional<int> ranks_per_node;
  std::optional<int> gpus_per_rank;
  std::string launcher;                           // a name in node_sources.def; empty: the first that applies
  std::string hosts;                              // --hosts as typed; empty: not given
  std::string host_file;                          // --hostfile; empty: not given
  std::string ssh_command = "ssh";                // a program and its arguments, separated by blanks
  std::string agent_path;                         // dlaunch on the other hosts; empty: where it lies here
  std::optional<std::chrono::milliseconds> wait;  // for other machines to join
  std::optional<PortRange> ports;                 // where dlaunch and its agents listen
  std::string interface;                          // --iface: its name, or a network; empty: all
  std::string token_file;                         // the secret that pods share; empty: not given
  bool insecure = false;                          // pods need none
  std::optional<int> simulate_nodes;
  std::optional<int> simulate_gpus;
  OnFailure on_failure = OnFailure::kEnd;
  int max_restarts = 0;  // above 0 exactly with kRestart
  RankOrder rank_order = RankOrder::kGiven;
  std::string rank_order_file;  // with kFile
  Bind bind = Bind::kCore;
  Stopped stopped = Stopped::kKill;
  Mpi mpi = Mpi::kAuto;
  std::string trace;                        // --trace: the file; empty: none
  std::chrono::milliseconds trace_last{0};  // --trace-last: of it; 0: all
  std::string tape;                         // --tape: the folder; empty: no tapes
  std::string tape_ranks;                   // --tape-ranks, as typed; empty: all
  std::vector<RankSpan> taped;              // the same as ranks
  std::optional<int> tape_last;             // --tape-last: steps; none: all
  std::string metrics;                      // "127.0.0.1:9400": where Prometheus may ask; empty: nowhere
  bool dry_run = false;
  bool explain = false;
  bool json = false;                      // of a dry run
  bool prefix = true;                     // ranks' lines are printed as "[rank] line"
  std::vector<std::string> idle_options;  // options of torchrun that were given and change nothing, such as "--rdzv-id"
  std::vector<std::pair<std::string, std::string>> environment;  // --env K=V, in order, for all programs
  // --env-pass: names, or the beginning of some before a '*', that also reach ranks on other hosts.
  std::vector<std::string> passed_variables;
  RankInputOption input = RankInputOption::kRedirected;
  std::string log_directory;  // empty: no files
  uint64_t log_rate = 0;      // --log-rate: bytes a second of each rank; 0: no limit
  std::chrono::milliseconds grace = std::chrono::seconds(10);
  std::string program_file;           // --multi-prog: a file for ReadMultiProg; empty: not given
  std::vector<RankProgram> programs;  // empty exactly with a program_file, until that is read
};

struct CommandLine {
  // Text to print instead of running anything (--help, --version).
  std::optional<std::string> print;
  Options options;
};

// Parses what the user typed (argv[0] is skipped). Pure: looks at nothing but its arguments. kInvalidArgument names the
// argument, the allowed values and what would work, in a line for each argument.
absl::StatusOr<CommandLine> ParseCommandLine(std::vector<std::string> argv);

}  // namespace cohort::launcher
