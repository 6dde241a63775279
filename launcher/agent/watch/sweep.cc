#include "cohort/launcher/agent/watch/sweep.h"

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>

#include "cohort/launcher/agent/watch/limit_mark.h"
#include "cohort/launcher/agent/watch/process_state.h"

namespace cohort::launcher {
namespace {

bool HasVariable(const std::string& environment, const std::string& variable) {
  for (size_t at = environment.find(variable); at != std::string::npos; at = environment.find(variable, at + 1)) {
    const bool begins = at == 0 || environment[at - 1] == '\0';
    const size_t end = at + variable.size();
    if (begins && (end == environment.size() || environment[end] == '\0')) return true;
  }
  return false;
}

bool IsOurChild(pid_t pid) {
  const auto state = ReadProcessState(pid);
  return state && state->parent == ::getpid();
}

// Nothing where the kernel keeps no such lists (CONFIG_PROC_CHILDREN), or one may have skipped a child, which it does
// when another ends while it is read.
std::optional<std::vector<pid_t>> ListedChildren() {
  std::vector<pid_t> children;
  std::error_code failed;
  for (std::filesystem::directory_iterator thread("/proc/self/task", failed), end; !failed && thread != end;
       thread.increment(failed)) {
    std::ifstream list(thread->path() / "children");
    if (!list) return std::nullopt;
    for (pid_t pid = 0; list >> pid;) children.push_back(pid);
  }
  if (failed || !std::all_of(children.begin(), children.end(), IsOurChild)) return std::nullopt;
  return children;
}

// A pass over all processes of the machine.
std::vector<pid_t> ChildrenAmongAll() {
  std::vector<pid_t> children = ListProcesses();
  std::erase_if(children, [](pid_t pid) { return !IsOurChild(pid); });
  return children;
}

}  // namespace

bool Spared::Contains(pid_t pid) const {
  return std::find(processes.begin(), processes.end(), pid) != processes.end() ||
         std::any_of(families.begin(), families.end(), [pid](pid_t family) { return DescendsFrom(pid, family); });
}

std::vector<pid_t> ListChildren() {
  constexpr int kTries = 5;
  for (int i = 0; i < kTries; ++i) {
    if (std::optional<std::vector<pid_t>> children = ListedChildren()) return *std::move(children);
  }
  return ChildrenAmongAll();
}

int KillMarked(const std::string& mark, const Spared& spared) {
  int found = 0;
  const pid_t self = ::getpid();
  const rlim_t limit = LimitMark(mark);
  for (const pid_t pid : ListProcesses()) {
    if (pid == self) continue;
    if (!HasLimitMark(pid, limit) && !HasVariable(ReadProcessEnvironment(pid), mark)) continue;
    if (spared.Contains(pid)) continue;
    const auto state = ReadProcessState(pid);
    if (!state || state->exiting) continue;
    if (::kill(pid, SIGKILL) == 0) ++found;
  }
  return found;
}

int KillChildren(const Spared& spared) {
  int found = 0;
  for (const pid_t pid : ListChildren()) {
    if (spared.Contains(pid)) continue;
    const auto state = ReadProcessState(pid);
    if (!state || state->state == 'Z') continue;
    ++found;  // dying ones too: their own children are adopted when they are gone
    ::kill(pid, SIGKILL);
  }
  return found;
}

bool Sweep(const std::string& mark, const Spared& spared, bool children, std::chrono::milliseconds timeout) {
  const auto end = std::chrono::steady_clock::now() + timeout;
  for (;;) {
    int found = mark.empty() ? 0 : KillMarked(mark, spared);
    if (children) {
      found += KillChildren(spared);
      for (const pid_t pid : ListChildren()) {
        if (!spared.Contains(pid)) ::waitpid(pid, nullptr, WNOHANG);
      }
    }
    if (found == 0) return true;
    if (std::chrono::steady_clock::now() >= end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
}

}  // namespace cohort::launcher
