#include "tools/collperf/peers/conductor.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <thread>
#include <utility>

#include "cohort/runtime/base/deadline.h"
#include "cohort/runtime/base/errno_status.h"
#include "cohort/runtime/base/futex.h"
#include "cohort/runtime/base/status_macros.h"

namespace cohort::collperf {
namespace {

using measure::Action;
using measure::Command;
using measure::SystemSlot;
using runtime::Deadline;

constexpr std::chrono::seconds kStartPatience{30};
constexpr std::chrono::seconds kCommandPatience{90};
constexpr std::chrono::seconds kEndPatience{3};
constexpr std::chrono::seconds kTermPatience{2};  // a launcher ends its ranks meanwhile

std::atomic<bool> stop_requested{false};

// The end of a system's log, for the message about its failure.
std::string LastLines(const std::string& path) {
  std::ifstream in(path);
  std::vector<std::string> lines;
  for (std::string line; std::getline(in, line);) {
    if (!line.empty()) lines.push_back(line);
  }
  std::string text;
  for (size_t i = lines.size() > 5 ? lines.size() - 5 : 0; i < lines.size(); ++i) text += "\n    " + lines[i];
  return text;
}

bool Names(const std::vector<std::string>& list, const std::string& name) {
  return std::find(list.begin(), list.end(), name) != list.end();
}

[[noreturn]] void Execute(const StartPlan& start, const std::vector<std::string>& command, const std::string& log) {
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  const int out = open(log.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
  const int in = open("/dev/null", O_RDONLY);
  if (out >= 0 && in >= 0) {
    dup2(in, 0);
    dup2(out, 1);
    dup2(out, 2);
  }
  for (const auto& [name, value] : start.environment) setenv(name.c_str(), value.c_str(), 1);
  std::vector<char*> arguments;
  for (const std::string& argument : command) arguments.push_back(const_cast<char*>(argument.c_str()));
  arguments.push_back(nullptr);
  execv(arguments[0], arguments.data());
  std::perror(arguments[0]);
  _exit(127);
}

// Reaps those that end until then; returns whether all have.
bool AllEnd(std::vector<pid_t>* pids, std::chrono::seconds patience) {
  const Deadline deadline = Deadline::After(patience);
  for (;;) {
    std::erase_if(*pids, [](pid_t pid) { return waitpid(pid, nullptr, WNOHANG) != 0; });
    if (pids->empty() || deadline.passed()) return pids->empty();
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}

// Waits for processes that were told to end, then makes all of them end together with their groups.
void EndProcesses(std::vector<pid_t> pids, std::chrono::seconds patience) {
  if (AllEnd(&pids, patience)) return;
  for (const pid_t pid : pids) kill(-pid, SIGTERM);
  if (AllEnd(&pids, kTermPatience)) return;
  for (const pid_t pid : pids) kill(-pid, SIGKILL);
  for (const pid_t pid : pids) waitpid(pid, nullptr, 0);
}

}  // namespace

void RequestStop() { stop_requested.store(true); }
bool StopRequested() { return stop_requested.load(); }

absl::StatusOr<std::unique_ptr<Conductor>> Conductor::Start(Transport transport, int ranks, const Options& options) {
  std::unique_ptr<Conductor> conductor(new Conductor);
  conductor->ranks_ = ranks;
  std::error_code no_folder;
  const std::filesystem::path temporary = std::filesystem::temp_directory_path(no_folder);
  if (no_folder) return absl::NotFoundError("there is no folder for temporary files; name one with TMPDIR");
  std::string folder = (temporary / "compare-XXXXXX").string();
  if (mkdtemp(folder.data()) == nullptr) return runtime::ErrnoStatus(errno, "cannot make " + folder);
  conductor->folder_ = folder;
  COHORT_ASSIGN_OR_RETURN(conductor->memory_, measure::SharedMemory::Create(measure::SessionBytes(ranks)));
  conductor->memory()->ranks = ranks;
  conductor->memory()->conductor = getpid();
  std::vector<std::string> missing;
  const std::string bin = std::filesystem::read_symlink("/proc/self/exe").parent_path().string();
  const SessionPlace place{bin, conductor->memory_->Path(), conductor->folder_, ranks};
  conductor->starts_ = StartPlansFor(transport, place, &missing);
  for (const std::string& name : missing) conductor->notes_ += "# left out: " + name + "\n";
  conductor->started_.resize(conductor->starts_.size());
  for (size_t i = 0; i < conductor->starts_.size(); ++i) {
    const StartPlan& start = conductor->starts_[i];
    const SystemEntry& system = *start.system;
    if (system.role != Role::kOurs && !Names(options.peers, "all") && !Names(options.peers, system.name)) continue;
    if (system.spins && options.quick && ranks > sysconf(_SC_NPROCESSORS_ONLN)) {
      conductor->notes_ += "# quick: " + system.name + " is left out, which takes 5 to 50 ms a call here\n";
      continue;
    }
    conductor->notes_ += "# " + system.name + ": " + start.settings + "\n";
    const absl::Status status = conductor->Launch(static_cast<int>(i));
    if (!status.ok()) conductor->GiveUp(static_cast<int>(i), status);
    if (absl::IsCancelled(status)) return status;
  }
  if (!conductor->started_[0].alive) return absl::FailedPreconditionError("our own ranks did not start");
  return conductor;
}

absl::Status Conductor::Launch(int slot) {
  Started& started = started_[static_cast<size_t>(slot)];
  const StartPlan& start = starts_[static_cast<size_t>(slot)];
  for (const std::vector<std::string>& command : start.commands) {
    const pid_t pid = fork();
    if (pid == 0) Execute(start, command, LogOf(slot));
    if (pid < 0) return runtime::ErrnoStatus(errno, "cannot start " + command[0]);
    started.pids.push_back(pid);
  }
  started.alive = true;
  return Await(slot, static_cast<uint32_t>(ranks_), kStartPatience);
}

size_t Conductor::ProcessesEnded(int slot) {
  size_t ended = 0;
  for (const pid_t pid : started_[static_cast<size_t>(slot)].pids) {
    siginfo_t info{};
    const bool unknown = waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WNOHANG | WNOWAIT) != 0;
    ended += unknown || info.si_pid != 0 ? 1 : 0;
  }
  return ended;
}

// Until `answers` ranks have answered in all since the start.
absl::Status Conductor::Await(int slot, uint32_t answers, std::chrono::seconds patience) {
  SystemSlot& shared = Shared(slot);
  const Deadline deadline = Deadline::After(patience);
  for (;;) {
    const uint32_t seen = shared.answers.load(std::memory_order_acquire);
    if (seen >= answers) break;
    if (StopRequested()) return absl::CancelledError("interrupted");
    if (deadline.passed()) {
      return absl::DeadlineExceededError("no answer within " + std::to_string(patience.count()) + " s");
    }
    // Told to exit, a rank that is a command of its own may end before the other has answered.
    const size_t ended = ProcessesEnded(slot);
    const bool leaves = memory()->command.action == Action::kExit;
    if (leaves && ended == started_[static_cast<size_t>(slot)].pids.size()) break;
    if (!leaves && ended > 0) return absl::UnavailableError("its processes have ended");
    runtime::FutexWait(shared.answers, seen, runtime::FutexScope::kShared, Deadline::After(std::chrono::seconds(1)));
  }
  if (shared.failures.load() == 0) return absl::OkStatus();
  shared.error[sizeof shared.error - 1] = '\0';
  return absl::InternalError(shared.error);
}

absl::Status Conductor::Give(int slot, const Command& command) {
  if (!alive(slot)) return absl::UnavailableError("the system has been given up");
  SystemSlot& shared = Shared(slot);
  memory()->command = command;
  const uint32_t before = shared.answers.load();
  shared.commands.fetch_add(1, std::memory_order_release);
  runtime::FutexWake(shared.commands, runtime::FutexScope::kShared);
  const absl::Status status = Await(slot, before + static_cast<uint32_t>(ranks_), kCommandPatience);
  if (!status.ok()) GiveUp(slot, status);
  return status;
}

void Conductor::GiveUp(int slot, const absl::Status& status) {
  Started& started = started_[static_cast<size_t>(slot)];
  started.alive = false;
  if (absl::IsCancelled(status)) return;  // the destructor ends all systems at once
  std::printf("# %s is given up: %s%s\n", SystemAt(slot).name.c_str(), std::string(status.message()).c_str(),
              LastLines(LogOf(slot)).c_str());
  std::fflush(stdout);
  EndProcesses(std::exchange(started.pids, {}), kEndPatience);
}

std::vector<double> Conductor::Samples(int slot, int calls) {
  const measure::GateMemory* gate = GateOf(memory(), ranks_, slot);
  std::vector<double> us;
  for (int call = 0; call < calls; ++call) {
    uint64_t slowest = 0;
    for (int rank = 0; rank < ranks_; ++rank) slowest = std::max(slowest, gate->rows[rank].numbers[call]);
    us.push_back(static_cast<double>(slowest) / 1e6);
  }
  return us;
}

Conductor::~Conductor() {
  for (size_t i = 0; i < started_.size(); ++i) {
    if (started_[i].alive) (void)Give(static_cast<int>(i), Command{.action = Action::kExit});
  }
  std::vector<pid_t> all;
  for (const Started& started : started_) all.insert(all.end(), started.pids.begin(), started.pids.end());
  EndProcesses(std::move(all), StopRequested() ? std::chrono::seconds(0) : kEndPatience);
  std::error_code ignored;
  std::filesystem::remove_all(folder_, ignored);
}

}  // namespace cohort::collperf
