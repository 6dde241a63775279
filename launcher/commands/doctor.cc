#include "cohort/launcher/commands/doctor.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <fstream>

#include "absl/strings/ascii.h"
#include "cohort/launcher/base/net/own_addresses.h"
#include "cohort/launcher/base/open_files.h"
#include "cohort/launcher/base/process_environment.h"
#include "cohort/launcher/base/run_commands.h"
#include "cohort/launcher/base/say.h"
#include "cohort/launcher/commands/job_json.h"
#include "cohort/launcher/machine/cpus.h"
#include "cohort/launcher/machine/inventory.h"
#include "cohort/launcher/machine/program.h"
#include "cohort/launcher/nodes/node_source.h"
#include "cohort/launcher/options/options.h"
#include "cohort/launcher/options/subcommand_line.h"
#include "cohort/launcher/report/json_parts.h"
#include "cohort/runtime/base/file_descriptor.h"

namespace cohort::launcher {
namespace {

constexpr unsigned long long kNoLimit = ~0ULL;
// Descriptors that one node's agent needs, and a rank that talks to a thousand others.
constexpr unsigned long long kFilesNeeded = 256;
constexpr unsigned long long kFilesWanted = 4096;
constexpr unsigned long long kProcessesNeeded = 64;
constexpr unsigned long long kProcessesWanted = 1024;
constexpr std::chrono::seconds kTrialTimeout{30};

unsigned long long SoftLimit(const rlimit& limit) {
  return limit.rlim_cur == RLIM_INFINITY ? kNoLimit : limit.rlim_cur;
}

Finding Good(const std::string& subject, const std::string& text) {
  return {.level = Finding::Level::kGood, .subject = subject, .text = text, .remedy = ""};
}

Finding JudgeLimit(const std::string& subject, const std::string& option, unsigned long long limit,
                   unsigned long long needed, unsigned long long wanted, Remedy id) {
  Finding finding = Good(subject, limit == kNoLimit ? "no limit" : "at most " + std::to_string(limit));
  if (limit >= wanted) return finding;
  finding.level = limit < needed ? Finding::Level::kBad : Finding::Level::kWarning;
  finding.remedy = "raise it: ulimit " + option + " " + std::to_string(wanted);
  finding.id = id;
  return finding;
}

std::string NameOf(Finding::Level level) {
  switch (level) {
    case Finding::Level::kGood:
      return "ok";
    case Finding::Level::kWarning:
      return "warning";
    case Finding::Level::kBad:
      return "bad";
  }
  return "";
}

// In a column, and what keeps jobs from running in capitals.
std::string MarkOf(Finding::Level level) {
  constexpr size_t kWidth = 8;
  std::string mark = level == Finding::Level::kBad ? absl::AsciiStrToUpper(NameOf(level)) : NameOf(level);
  mark.resize(kWidth, ' ');
  return mark;
}

// Everything at once: certificates, agent, rendezvous, segment, ranks, their end.
Finding TryAJob() {
  using Clock = std::chrono::steady_clock;
  const auto start = Clock::now();
  RunCommandsOptions options;
  options.limit = kTrialTimeout;
  const CommandResult result = RunCommands(
      {{"env", "-u", "COHORT_AGENT", OwnPath(), "--launcher", "local", "--nproc-per-node", "2", "true"}}, options)[0];
  const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - start).count();
  Finding finding = Good("trial job", "two ranks started and ended in " + std::to_string(ms) + " ms");
  if (result.ended && WIFEXITED(result.wait_status) && WEXITSTATUS(result.wait_status) == 0) return finding;
  finding.level = Finding::Level::kBad;
  finding.text = result.ended ? "failed: " : "did not end within " + std::to_string(kTrialTimeout.count()) + " s: ";
  for (const char c : result.error) finding.text += c == '\n' ? "\n    " : std::string(1, c);
  finding.remedy = "mend what the lines above name, then run: dlaunch --nproc-per-node 2 true";
  return finding;
}

bool IsInPath(const std::string& name) {
  return FindProgram(name, GetVariable("PATH").value_or("/usr/bin:/bin"), "/nonexistent", "/nonexistent").ok();
}

// The library that ranks would open: the one that `variable` names, else `soname`. It stays loaded.
void* OpenAsRanksDo(const char* variable, const char* soname, std::string* error) {
  const std::string named = GetVariable(variable).value_or("");
  void* const library = ::dlopen(named.empty() ? soname : named.c_str(), RTLD_LAZY | RTLD_LOCAL);
  if (library == nullptr) *error = ::dlerror();
  return library;
}

MachineFacts::Library LookAtUcx() {
  ::setenv("UCX_HANDLE_ERRORS", "none", 0);  // else its constructor takes over this program's signals
  MachineFacts::Library ucx;
  void* const library = OpenAsRanksDo("COHORT_UCX_LIBRARY", "libucp.so.0", &ucx.error);
  if (library == nullptr) return ucx;
  const auto version = reinterpret_cast<const char* (*)()>(::dlsym(library, "ucp_get_version_string"));
  ucx.version = version == nullptr ? "of an unknown version" : version();
  return ucx;
}

MachineFacts::Library LookAtNccl() {
  MachineFacts::Library nccl;
  void* const library = OpenAsRanksDo("COHORT_NCCL_LIBRARY", "libnccl.so.2", &nccl.error);
  if (library == nullptr) return nccl;
  const auto get_version = reinterpret_cast<int (*)(int*)>(::dlsym(library, "ncclGetVersion"));
  int version = 0;
  if (get_version == nullptr || get_version(&version) != 0) return {.version = "of an unknown version", .error = ""};
  nccl.version =
      std::to_string(version / 10000) + "." + std::to_string(version / 100 % 100) + "." + std::to_string(version % 100);
  return nccl;
}

Finding JudgeLibrary(const std::string& subject, const MachineFacts::Library& library, const std::string& otherwise,
                     const std::string& remedy) {
  Finding finding = Good(subject, library.version);
  if (!library.error.empty()) finding = {Finding::Level::kWarning, subject, library.error + ": " + otherwise, remedy};
  return finding;
}

size_t CountOf(const std::vector<Finding>& findings, Finding::Level level) {
  return static_cast<size_t>(
      std::count_if(findings.begin(), findings.end(), [level](const Finding& one) { return one.level == level; }));
}

std::string TextOf(const Finding& finding) {
  const std::string remedy = finding.id ? WithRemedy(*finding.id, finding.remedy) : finding.remedy;
  return MarkOf(finding.level) + finding.subject + ": " + finding.text + "\n" +
         (remedy.empty() ? "" : "        " + remedy + "\n");
}

SubcommandLine DoctorLine(bool* json) {
  return {.name = "doctor",
          .summary = "Looks what of this machine works, and what would be missing for which kind of job.",
          .notes =
              "Examples:\n"
              "  dlaunch doctor             this machine; exit status 1 if jobs cannot run here\n"
              "  ssh node7 dlaunch doctor   another one\n",
          .hint = "",
          .flags = {{"--json", "Print JSON (schemas/doctor.schema.json)", json}}};
}

}  // namespace

MachineFacts LookAtThisMachine() {
  MachineFacts facts;
  const v1::NodeInventory inventory = TakeInventory();
  facts.node_error = inventory.error();
  facts.gpus = inventory.devices_size();
  facts.cpus = static_cast<int>(AvailableCpus().size());
  facts.cpus_paid = CpusWithinQuota(facts.cpus);
  facts.open_files = SoftLimit(UsersOpenFileLimit());
  rlimit processes{RLIM_INFINITY, RLIM_INFINITY};
  ::getrlimit(RLIMIT_NPROC, &processes);
  facts.processes = SoftLimit(processes);
  facts.addresses = OwnAddresses();
  facts.loopback = LoopbackIsUp();
  const runtime::FileDescriptor memory(::memfd_create("cohort-doctor", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  facts.memfd = memory.valid() && ::fcntl(memory.get(), F_ADD_SEALS, F_SEAL_SHRINK) == 0;
  const runtime::FileDescriptor process(static_cast<int>(::syscall(SYS_pidfd_open, ::getpid(), 0)));
  facts.pidfd = process.valid();
  if (::syscall(SYS_close_range, ~0U, ~0U, 0U) != 0) facts.slower_without.emplace_back("close_range");
  ::syscall(SYS_clone3, nullptr, 0);  // never does anything with these
  if (errno != EINVAL) facts.slower_without.emplace_back("clone3");
  std::ifstream("/proc/sys/kernel/yama/ptrace_scope") >> facts.ptrace_scope;
  facts.ssh = IsInPath("ssh");
  facts.ucx = LookAtUcx();
  if (facts.gpus > 0) facts.nccl = LookAtNccl();
  return facts;
}

std::vector<Finding> Judge(const MachineFacts& facts) {
  using Level = Finding::Level;
  std::vector<Finding> findings;
  const std::string quota =
      facts.cpus_paid < facts.cpus ? ", of which the cgroup's quota pays for " + std::to_string(facts.cpus_paid) : "";
  Finding machine = Good("this machine", Plural(facts.cpus, "CPU") + quota + ", " + Plural(facts.gpus, "GPU"));
  if (!facts.node_error.empty()) {
    machine = {Level::kBad, machine.subject, facts.node_error, "until that is mended it takes no part in a job"};
  }
  findings.push_back(machine);
  findings.push_back(
      JudgeLimit("open files", "-n", facts.open_files, kFilesNeeded, kFilesWanted, Remedy::kDescriptorLimit));
  findings.push_back(
      JudgeLimit("processes", "-u", facts.processes, kProcessesNeeded, kProcessesWanted, Remedy::kProcessLimit));
  Finding kernel = Good("kernel", "has sealed memory files and process descriptors");
  if (!facts.memfd) {
    kernel = {Level::kBad, kernel.subject, "lacks memfd_create with seals, or a container's filter forbids it",
              "use Linux 3.17 or newer, and allow the call in the container's seccomp profile"};
  } else if (!facts.pidfd) {
    kernel = {Level::kWarning, kernel.subject,
              "lacks pidfd_open, or a container's filter forbids it: jobs run, but ends of processes are looked for in "
              "/proc every 20 ms, and should dlaunch be killed while an agent is stopped, that agent stays",
              "use Linux 5.3 or newer, or allow the call in the container's seccomp profile"};
  }
  if (facts.memfd && !facts.slower_without.empty()) {
    std::string calls;
    for (const std::string& call : facts.slower_without) calls += (calls.empty() ? "" : " and ") + call;
    kernel.text += "; without " + calls + " (Linux 5.9 and 5.3, unless a filter refuses them) ranks start more slowly";
  }
  findings.push_back(kernel);
  Finding memory = Good("reading a neighbour's memory", "permitted between ranks of one user");
  if (facts.ptrace_scope >= 2) {
    memory = {Level::kWarning, memory.subject,
              "forbidden (kernel.yama.ptrace_scope is " + std::to_string(facts.ptrace_scope) +
                  "): large messages in private memory are copied twice",
              "sysctl kernel.yama.ptrace_scope=1, or use windows"};
  }
  findings.push_back(memory);
  std::string addresses;
  for (const std::string& address : facts.addresses) addresses += (addresses.empty() ? "" : ", ") + address;
  Finding network = Good("network", addresses);
  if (!facts.loopback) {
    network = {Level::kBad, network.subject, "the loopback interface is down, by which processes of this machine talk",
               "bring it up: ip link set lo up", Remedy::kLoopbackDown};
  } else if (addresses.empty()) {
    network = {Level::kWarning, network.subject, "no address that other machines may reach",
               "jobs on this machine alone work; bring an interface up for others", Remedy::kNoOutsideAddress};
  }
  findings.push_back(network);
  Finding ssh = Good("ssh", "in PATH");
  if (!facts.ssh) {
    ssh = {Level::kWarning, ssh.subject, "not in PATH: --hosts and --hostfile won't work", "install openssh-client",
           Remedy::kNoRemoteShell};
  }
  findings.push_back(ssh);
  findings.push_back(JudgeLibrary("UCX", facts.ucx,
                                  "groups between machines use TCP, whatever else their network can do",
                                  "install libucx0, or name another copy in COHORT_UCX_LIBRARY"));
  if (facts.gpus > 0) {
    findings.push_back(JudgeLibrary("NCCL", facts.nccl, "collectives on device memory go through the host's memory",
                                    "install libnccl2, or name another copy in COHORT_NCCL_LIBRARY"));
  }
  return findings;
}

std::string VerdictOn(const std::vector<Finding>& findings) {
  const size_t bad = CountOf(findings, Finding::Level::kBad);
  const size_t warnings = CountOf(findings, Finding::Level::kWarning);
  const std::string less = warnings == 0 ? "" : Plural(warnings, "warning");
  if (bad == 0) return "jobs run on this machine" + (less.empty() ? "" : ", with " + less);
  return Plural(bad, "thing") + " to mend before jobs run well on this machine" + (less.empty() ? "" : ", and " + less);
}

std::string DoctorJson(const std::vector<Finding>& findings, const std::vector<ExplainedSource>& sources) {
  Json document = {{"format", kJsonFormat},
                   {"jobs_run", CountOf(findings, Finding::Level::kBad) == 0},
                   {"verdict", VerdictOn(findings)},
                   {"findings", Json::array()},
                   {"sources", SourcesJson(sources)}};
  for (const Finding& finding : findings) {
    Json described = {{"level", NameOf(finding.level)}, {"subject", finding.subject}, {"text", finding.text}};
    if (!finding.remedy.empty()) described["remedy"] = finding.remedy;
    if (finding.id) described["id"] = IdOf(*finding.id);
    document["findings"].push_back(described);
  }
  return JsonText(document);
}

runtime::ManualCommand DoctorManual() {
  bool json = false;
  return ManualOf(DoctorLine(&json));
}

int RunDoctorCommand(const std::vector<std::string>& arguments) {
  bool json = false;
  if (const absl::Status read = ReadSubcommandLine(arguments, DoctorLine(&json)); !read.ok()) {
    return Refuse(read, kExitUsage);
  }
  std::vector<Finding> findings = Judge(LookAtThisMachine());
  findings.push_back(TryAJob());
  const std::vector<ExplainedSource> sources = ListSources(Options());
  std::string text;
  for (const Finding& finding : findings) text += TextOf(finding);
  text += "sources of nodes, the first that applies is used (*):\n" + ExplainSources(sources) +
          "verdict: " + VerdictOn(findings) + "\n";
  if (const int lost = Answer(json ? DoctorJson(findings, sources) : text); lost != 0) return lost;
  return CountOf(findings, Finding::Level::kBad) > 0 ? 1 : 0;
}

}  // namespace cohort::launcher
