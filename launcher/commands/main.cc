// dlaunch: starts a program as the ranks of one job.
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cohort/launcher/agent/agent.h"
#include "cohort/launcher/agent/evidence/unwinder.h"
#include "cohort/launcher/agent/watch/process_name.h"
#include "cohort/launcher/agent/watch/sentinel.h"
#include "cohort/launcher/base/credentials.h"
#include "cohort/launcher/base/net/own_addresses.h"
#include "cohort/launcher/base/open_files.h"
#include "cohort/launcher/base/process_environment.h"
#include "cohort/launcher/base/say.h"
#include "cohort/launcher/commands/completion.h"
#include "cohort/launcher/commands/dry_run.h"
#include "cohort/launcher/commands/job_programs.h"
#include "cohort/launcher/commands/subcommands.h"
#include "cohort/launcher/front_end/front_end.h"
#include "cohort/launcher/jobs/recent_hosts.h"
#include "cohort/launcher/machine/cpus.h"
#include "cohort/launcher/machine/inventory.h"
#include "cohort/launcher/machine/linked_library.h"
#include "cohort/launcher/machine/mpi_program.h"
#include "cohort/launcher/machine/placement.h"
#include "cohort/launcher/machine/program.h"
#include "cohort/launcher/machine/rank_environment.h"
#include "cohort/launcher/nodes/node_source.h"
#include "cohort/launcher/nodes/surroundings/other_launchers.h"
#include "cohort/launcher/nodes/surroundings/task_counts.h"
#include "cohort/launcher/options/idle_options.h"
#include "cohort/launcher/options/options.h"
#include "cohort/launcher/remedies/remedies.h"
#include "cohort/launcher/report/log_folder.h"
#include "cohort/runtime/base/status_macros.h"
#include "cohort/runtime/manual/forms.h"

namespace cohort::launcher {
namespace {

std::string OwnFolder() {
  const std::string path = OwnPath();
  return path.empty() ? "." : std::filesystem::path(path).parent_path().string();
}

// Drops the last nodes, for which -n has no rank.
absl::Status LeaveOutIdleNodes(Job* job) {
  const size_t used = job->placement.nodes.size();
  const size_t idle = job->nodes.nodes.size() - used;
  if (idle == 0) return absl::OkStatus();
  if (job->options.nodes) {
    return InvalidArgumentError(Remedy::kIdleNodes, DescribeRanksWanted(job->options) + ": " + std::to_string(idle) +
                                                        " of " + std::to_string(*job->options.nodes) +
                                                        " nodes would have no rank; use --nnodes " +
                                                        std::to_string(used) + ", or raise it");
  }
  job->nodes.source = std::to_string(used) + " of " + job->nodes.source;
  job->nodes.nodes.resize(used);
  return absl::OkStatus();
}

absl::Status CheckStandbys(const Job& job) {
  const size_t nodes = job.placement.nodes.size();
  if (static_cast<size_t>(job.options.standbys) < nodes) return absl::OkStatus();
  const std::string has =
      "--standby " + std::to_string(job.options.standbys) + ": the job has ranks on " + std::to_string(nodes);
  if (nodes == 1)
    return InvalidArgumentError(Remedy::kStandbyAlone,
                                has + " node, and there is no other that could take over; leave it out");
  return InvalidArgumentError(
      Remedy::kStandbyTooMany,
      has + " nodes, of which the first can't stand by for itself; give " + std::to_string(nodes - 1) + " at the most");
}

// Tells what the surroundings say of the number of ranks, where the job has another.
void TellOfOtherRanks(const Job& job) {
  const Options& options = job.options;
  const bool typed = options.ranks || options.ranks_per_node || options.gpus_per_rank;
  if (!typed) {
    if (const std::string tasks = DescribeOtherTasks(job.nodes.nodes, job.placement); !tasks.empty()) Say(tasks);
  }
  if (!options.launcher.empty()) return;
  const int ranks = job.placement.world_size;
  const int nodes = static_cast<int>(job.placement.nodes.size());
  std::string size = DescribeOtherSize(GetVariable, nodes, ranks);
  if (size.empty() && !typed) size = DescribeOtherRanksEach(GetVariable, ranks / nodes);
  for (const std::string& line : {DescribeUnknownCopies(GetVariable), size}) {
    if (!line.empty()) Say(line);
  }
}

// The nodes of the job, and after them the spares.
absl::Status FindAndPlace(const Options& options, Job* job) {
  Options wanted = options;  // sources know nothing of spares
  if (wanted.nodes) *wanted.nodes += options.spares;
  if (wanted.min_nodes) *wanted.min_nodes += options.spares;
  COHORT_ASSIGN_OR_RETURN(job->nodes, FindNodes(wanted));
  if (job->nodes.instead) return absl::OkStatus();
  std::vector<NodeResources>& nodes = job->nodes.nodes;
  const auto spares = static_cast<size_t>(options.spares);
  if (nodes.size() <= spares) {
    return InvalidArgumentError(Remedy::kSparesLeaveNone,
                                "--spares " + std::to_string(spares) + ": the job has " + job->nodes.source +
                                    ", of which none would be left; lower it, or get more nodes");
  }
  const std::vector<NodeResources> idle(nodes.end() - options.spares, nodes.end());
  nodes.resize(nodes.size() - spares);
  COHORT_ASSIGN_OR_RETURN(job->placement, Place(nodes, {.ranks = options.ranks,
                                                        .ranks_by = DescribeRanksWanted(options),
                                                        .ranks_per_node = options.ranks_per_node,
                                                        .devices_per_rank = options.gpus_per_rank,
                                                        .bind = options.bind}));
  COHORT_RETURN_IF_ERROR(GiveRanks(job->placement.world_size, &job->options.programs));
  COHORT_RETURN_IF_ERROR(LeaveOutIdleNodes(job));
  TellOfOtherRanks(*job);
  COHORT_RETURN_IF_ERROR(CheckStandbys(*job));
  for (const NodeResources& spare : idle) {
    COHORT_ASSIGN_OR_RETURN(v1::SpareNode planned, PlaceSpare(spare, job->placement, options.bind));
    job->spares.push_back(std::move(planned));
    nodes.push_back(spare);
  }
  return absl::OkStatus();
}

// Descriptors of OpenPMIx's server library beside its ranks' connections: 7 were seen (4.2.2), and slack.
constexpr size_t kFilesOfPmix = 24;

// Compares the limit with what an agent with `ranks` ranks and dlaunch with `agents` agents need: the measured number
// plus slack. Both have raised their limit to the hard one, unless a sandbox or a lower fs.nr_open refused it.
absl::Status CheckOpenFiles(size_t ranks, size_t files_of_a_rank, size_t agents, size_t others) {
  const rlim_t needed = std::max<rlim_t>(28 + others + ranks * (7 + files_of_a_rank), 20 + 4 * agents);
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= needed) return absl::OkStatus();
  const std::string needs = "dlaunch needs " + std::to_string(needed) + " here" +
                            (ranks > 1 ? " for " + Plural(ranks, "rank") + " on a node" : "");
  if (limit.rlim_max >= needed) {
    return WithRemedy(Remedy::kDescriptorLimitRefused,
                      absl::FailedPreconditionError("the limit on open files is " + std::to_string(limit.rlim_cur) +
                                                    " (ulimit -n), and raising it to the hard one, " +
                                                    std::to_string(limit.rlim_max) + ", was refused; " + needs +
                                                    "; raise it before, with ulimit -n " +
                                                    std::to_string(std::clamp<rlim_t>(1024, needed, limit.rlim_max))));
  }
  return WithRemedy(Remedy::kDescriptorLimitHard,
                    absl::FailedPreconditionError(
                        "the hard limit on open files is " + std::to_string(limit.rlim_max) + " (ulimit -Hn), and " +
                        needs + "; have it raised, by root: ulimit -n " +
                        std::to_string(std::max<rlim_t>(needed, 1024)) + ", or in /etc/security/limits.conf"));
}

// The agent of another node looks for it there.
absl::Status CheckTorchSwitch(const Options& options) {
  v1::JobSpec spec;
  for (const auto& [name, value] : options.environment) spec.add_environment(name + "=" + value);
  const absl::Status found = TorchSwitchFolder(InheritedEnvironment(), spec, OwnPath()).status();
  return WithRemedyOf(found, found.ok() ? found : absl::InvalidArgumentError(found.message()));
}

// Tells the ranks of the tapes that they write. Only ranks know whether their machine can take them; this one can be
// asked here.
absl::Status OrderTapes(Job* job) {
  Options& options = job->options;
  if (options.tape.empty()) return absl::OkStatus();
  for (const RankSpan& span : options.taped) {
    if (span.last < job->placement.world_size || options.min_nodes) continue;
    return InvalidArgumentError(Remedy::kTapeRank, "--tape-ranks " + options.tape_ranks + ": there is no rank " +
                                                       std::to_string(span.last) + "; the job's ranks are 0 to " +
                                                       std::to_string(job->placement.world_size - 1));
  }
  const std::filesystem::path folder = std::filesystem::path(job->working_directory) / options.tape;
  if (job->nodes.spawner == SpawnerKind::kLocal && !options.dry_run) {
    std::error_code error;
    std::filesystem::create_directories(folder, error);
    if (!error && ::access(folder.c_str(), W_OK | X_OK) != 0) error.assign(errno, std::generic_category());
    if (error) {
      return InvalidArgumentError(Remedy::kTapeFolder, "no tape can be written to " + folder.string() + ": " +
                                                           error.message() +
                                                           "; give a folder that can be made and written");
    }
  }
  options.environment.emplace_back("COHORT_TAPE", folder.string());
  if (!options.tape_ranks.empty()) options.environment.emplace_back("COHORT_TAPE_RANKS", options.tape_ranks);
  if (options.tape_last) options.environment.emplace_back("COHORT_TAPE_LAST", std::to_string(*options.tape_last));
  return absl::OkStatus();
}

// Finds, as best this machine can tell, what agents would only find out when they are started.
absl::Status CheckThisMachine(const Job& job) {
  size_t most_ranks = 0;
  for (const v1::NodePlacement& node : job.placement.nodes) {
    most_ranks = std::max(most_ranks, static_cast<size_t>(node.ranks_size()));
  }
  struct stat input{};
  const bool forwarded = job.options.input == RankInputOption::kForwarded;
  if (forwarded && ::fstat(STDIN_FILENO, &input) == 0 && S_ISDIR(input.st_mode)) {
    return InvalidArgumentError(Remedy::kInputFolder,
                                "--stdin rank0: the standard input is a folder; give a file or a pipe");
  }
  const bool here = job.nodes.spawner == SpawnerKind::kLocal;
  const ServedMpi mpi = ServedMpiOf(job);
  if (here) COHORT_RETURN_IF_ERROR(CheckTorchSwitch(job.options));
  const bool has_pmix = mpi.pmix != v1::JobSpec::PMIX_NONE;
  const size_t files_of_a_rank = (job.options.log_directory.empty() ? 0 : 2) + (mpi.pmi1 ? 2 : 0) + (has_pmix ? 1 : 0);
  COHORT_RETURN_IF_ERROR(CheckOpenFiles(here ? most_ranks : 0, files_of_a_rank, job.nodes.nodes.size(),
                                        here && has_pmix ? kFilesOfPmix : 0));
  if (job.nodes.across_hosts || LoopbackIsUp()) return absl::OkStatus();
  return InvalidArgumentError(
      Remedy::kLoopbackDown,
      "the loopback interface is down, by which processes of this machine talk; bring it up: ip link set lo up");
}

// Agents that start at the same time may keep each other from answering in the time of a lease.
void WarnOfManyAgents(const Job& job) {
  constexpr size_t kAgentsPerCpu = 100;
  const size_t agents = job.nodes.nodes.size();
  const size_t cpus = AvailableCpus().size();
  if (job.nodes.spawner != SpawnerKind::kLocal || agents <= kAgentsPerCpu * cpus) return;
  Say(std::to_string(agents) + " agents start on " + Plural(cpus, "CPU") +
      " of this machine: one that gets no answer for 3.4 s ends the job; if that comes, take fewer nodes with more "
      "ranks each (--nproc-per-node)");
}

// Scripts that run here and there give what only matters there: it does no harm, and may be a slip.
void TellOfIdleOptions(const Job& job) {
  const Options& options = job.options;
  const bool other_hosts = job.nodes.spawner != SpawnerKind::kLocal;
  const std::pair<bool, const char*> idle[] = {
      {!options.interface.empty() && !job.nodes.across_hosts, "--iface"},
      {!options.agent_path.empty() && !other_hosts, "--agent-path"},
      {options.ssh_command != Options().ssh_command && job.nodes.spawner != SpawnerKind::kSsh, "--ssh"},
  };
  for (const auto& [given, name] : idle) {
    if (given) Say(std::string(name) + " changes nothing here: this job is on " + job.nodes.source);
  }
  if (!options.idle_options.empty()) Say(DescribeIdleOptions(options.idle_options));
}

absl::StatusOr<Job> PlanJob(Options typed) {
  Job job;
  job.id = NewJobId();
  job.options = std::move(typed);
  const Options& options = job.options;
  std::error_code error;
  job.working_directory = std::filesystem::current_path(error).string();
  if (error) return absl::InvalidArgumentError("the working directory is gone: " + error.message());
  if (const auto agent = GetVariable("COHORT_AGENT")) {
    return InvalidArgumentError(
        Remedy::kNestedDlaunch,
        "this is a rank of another dlaunch already (COHORT_AGENT is set); to start a job of its own from it, use "
        "env -u COHORT_AGENT dlaunch ...");
  }
  // This and the folder before nodes are asked or waited for: a user who has mistyped one learns it at once.
  COHORT_RETURN_IF_ERROR(
      FindPrograms(GetVariable("PATH").value_or("/usr/bin:/bin"), job.working_directory, OwnFolder(), &job.options));
  job.mpi = MpiLibrariesOf(options.programs);
  std::optional<LogFolder> log_folder;
  if (!options.log_directory.empty() && !options.dry_run && !RunsElsewhere(options)) {
    COHORT_ASSIGN_OR_RETURN(LogFolder made, LogFolder::Make(options.log_directory));
    log_folder.emplace(std::move(made));
  }
  COHORT_RETURN_IF_ERROR(FindAndPlace(options, &job));
  if (job.nodes.instead) return job;
  COHORT_RETURN_IF_ERROR(RefuseLaunchers(options, job.placement.world_size));
  COHORT_RETURN_IF_ERROR(RefuseMixedMpi(options, job.mpi, job.placement.world_size));
  COHORT_RETURN_IF_ERROR(OrderTapes(&job));
  TellOfIdleOptions(job);
  if (!options.dry_run) COHORT_RETURN_IF_ERROR(CheckThisMachine(job));
  if (log_folder) {
    if (log_folder->has_others()) {
      Say("--log-dir " + options.log_directory +
          " has the files of another job: those of the same names are replaced, "
          "others stay; a folder for each job keeps them apart");
    }
    job.log_directory = log_folder->Keep();
  }
  return job;
}

// Its ranks would run, each as if alone, and nobody would wonder before the results come.
void HintAtMpi(const Job& job) {
  if (job.placement.world_size < 2) return;
  const Mpi how = job.options.mpi;
  for (size_t i = 0; i < job.options.programs.size(); ++i) {
    const RankProgram& program = job.options.programs[i];
    const std::string library = FindNeededLibrary(program.command[0], {"libmpi.so", "libmpich.so"});
    if (library.empty()) continue;
    const MpiLibrary kind = job.mpi[i];
    const Mpi right = kind == MpiLibrary::kMpich ? Mpi::kPmi1 : Mpi::kPmix;
    if (kind != MpiLibrary::kNone && (how == Mpi::kAuto || how == right)) continue;
    return Say((program.where.empty() ? "the program" : program.where) + " is linked with " + library +
               ": for MPI each rank is alone here; if it is written for MPI, " +
               (kind == MpiLibrary::kNone ? "use its mpirun, or build it with MPICH or Open MPI"
                                          : "leave --mpi out, or use mpirun"));
  }
}

int ExitCodeOf(const absl::Status& status) {
  if (absl::IsNotFound(status)) return kExitNotFound;
  if (absl::IsPermissionDenied(status)) return kExitNotExecutable;
  return absl::IsInvalidArgument(status) ? kExitUsage : kExitLauncher;
}

// A line for each argument that can't work.
int RefuseEach(const std::string& lines) {
  for (size_t begin = 0; begin <= lines.size();) {
    const size_t end = std::min(lines.find('\n', begin), lines.size());
    if (end > begin) Say(lines.substr(begin, end - begin));
    begin = end + 1;
  }
  return kExitUsage;
}

std::vector<std::string> NamesOf(const std::vector<NodeResources>& nodes) {
  std::vector<std::string> names;
  for (const NodeResources& node : nodes) names.push_back(node.name);
  return names;
}

int Launch(const std::vector<std::string>& argv) {
  const absl::StatusOr<CommandLine> command_line = ParseCommandLine(argv);
  if (!command_line.ok()) return RefuseEach(TextOf(command_line.status()));
  if (command_line->print) return Answer(*command_line->print);
  absl::StatusOr<Job> job = PlanJob(command_line->options);
  if (!job.ok()) return Refuse(job.status(), ExitCodeOf(job.status()));
  if (job->nodes.instead) return job->nodes.instead();
  if (job->options.dry_run) {
    return Answer(DescribeDryRun(*job));
  }
  if (job->nodes.spawner == SpawnerKind::kSsh) RememberHosts(NamesOf(job->nodes.nodes));
  Say(Summary(*job) + ", as " + job->id);
  WarnOfManyAgents(*job);
  HintAtMpi(*job);
  return RunJob(*job);
}

// Programs may be started with standard streams closed; what is opened later must not take their place. Of those that
// start daemons it is usual; from a shell it is a slip. What closes on exec was opened since, by a library before main.
absl::Status OpenStandardStreams() {
  bool output_was_closed = false;
  for (int fd = 0; fd <= 2; ++fd) {
    const int flags = ::fcntl(fd, F_GETFD);
    if (flags >= 0 && (flags & FD_CLOEXEC) == 0) continue;
    output_was_closed = output_was_closed || fd == 1;
    const int null = ::open("/dev/null", fd == 0 ? O_RDONLY : O_WRONLY);
    if (null < 0) {
      return InvalidArgumentError(Remedy::kStreamClosed,
                                  "/dev/null: " + std::string(std::strerror(errno)) +
                                      "; a standard stream is closed, and dlaunch needs it in its place");
    }
    if (null == fd) continue;
    ::dup2(null, fd);
    ::close(null);
  }
  if (output_was_closed) {
    Say("the standard output is closed: what would be printed there is lost");
  }
  return absl::OkStatus();
}

// Threads are given the soft limit as their stack, and gRPC's need more than a page or two.
absl::Status CheckStackLimit() {
  constexpr rlim_t kLeast = 512 << 10;
  rlimit limit{};
  if (::getrlimit(RLIMIT_STACK, &limit) != 0 || limit.rlim_cur >= kLeast) return absl::OkStatus();
  return InvalidArgumentError(Remedy::kStackLimit, "the limit on stacks is " + std::to_string(limit.rlim_cur >> 10) +
                                                       " KiB (ulimit -s), and dlaunch's threads need " +
                                                       std::to_string(kLeast >> 10) +
                                                       "; raise it, with ulimit -s 8192");
}

// Else gRPC ends the process where it has no descriptors or addresses left. The agents' limits are the same, but where
// they are elsewhere.
absl::Status CheckOwnLimits() {
  COHORT_RETURN_IF_ERROR(CheckStackLimit());
  if (::access("/proc/self/stat", R_OK) != 0) {
    return InvalidArgumentError(
        Remedy::kNoProc,
        "/proc is not there, by which dlaunch starts and watches processes; mount it: mount -t proc proc /proc");
  }
  constexpr rlim_t kLeastAddresses = rlim_t{2} << 30;
  rlimit limit{};
  if (::getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur < kLeastAddresses) {
    return InvalidArgumentError(Remedy::kAddressLimit,
                                "the limit on addresses is " + std::to_string(limit.rlim_cur >> 10) +
                                    " KiB (ulimit -v), and dlaunch reserves more than it uses; raise it, with "
                                    "ulimit -v unlimited");
  }
  return CheckOpenFiles(0, 0, 0, 0);
}

// The first process of a container dies of no signal that it has not asked for.
void DieOfSignalsEvenAsFirstProcess() {
  if (::getpid() != 1) return;
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) ::signal(signal, [](int number) { ::_exit(128 + number); });
}

}  // namespace
}  // namespace cohort::launcher

int main(int argc, char** argv) {
  cohort::launcher::RememberArguments(argc, argv);
  absl::Status fit = cohort::launcher::OpenStandardStreams();
  cohort::launcher::DieOfSignalsEvenAsFirstProcess();
  cohort::launcher::RaiseOpenFileLimit();
  if (fit.ok()) fit = cohort::launcher::CheckOwnLimits();
  if (!fit.ok()) return cohort::launcher::Refuse(fit, cohort::launcher::kExitLauncher);
  ::signal(SIGCHLD, SIG_DFL);  // ignored, as some parents leave it, ends of children would be told to nobody
  ::signal(SIGXFSZ, SIG_IGN);  // a log at the limit of `ulimit -f` costs the log, not the job
  if (cohort::launcher::IsUnwinderCommand(argc, argv)) return cohort::launcher::RunUnwinder(argv);
  cohort::launcher::OfferUnwinder();
  if (argc >= 3 && std::strcmp(argv[1], "agent") == 0 && std::strncmp(argv[2], "--node=", 7) == 0) {
    return cohort::launcher::RunAgent(argc, argv);
  }
  if (cohort::launcher::IsSentinelCommand(argc, argv)) cohort::launcher::RunSentinel(argc, argv);
  if (argc == 3 && std::strcmp(argv[1], "agent") == 0 && std::strcmp(argv[2], "--inventory") == 0) {
    return cohort::launcher::PrintInventory();
  }
  if (argc == 3 && std::strcmp(argv[1], cohort::runtime::kDescribeOption) == 0) {
    return cohort::launcher::PrintForm(argv[2]);
  }
  if (const auto* subcommand = argc >= 2 ? cohort::launcher::FindSubcommand(argv[1]) : nullptr) {
    const std::string_view first = argc == 3 ? argv[2] : "";
    if (first == "--help" || first == "-h") {
      return cohort::launcher::Answer(cohort::launcher::HelpText(subcommand->manual()));
    }
    return subcommand->run(argc, argv);
  }
  return cohort::launcher::Launch({argv, argv + argc});
}
