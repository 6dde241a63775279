#include "cohort/launcher/control/describe.h"

#include <algorithm>
#include <cctype>
#include <csignal>
#include <cstddef>
#include <cstring>
#include <string_view>

#include "cohort/launcher/base/exit_status.h"
#include "cohort/launcher/control/parts/python_exception.h"
#include "cohort/runtime/segment/call_compare.h"

namespace cohort::launcher {
namespace {

// "all_reduce" of "all_reduce(sum, float32, 1024)".
std::string ShortCall(const std::string& call) { return call.substr(0, call.find('(')); }

std::string At(const std::string& site) { return site.empty() ? "" : " at " + site; }

}  // namespace

std::string DescribeDuration(uint64_t milliseconds) {
  if (milliseconds < 1000) return std::to_string(milliseconds) + " ms";
  return std::to_string(milliseconds / 1000) + "." + std::to_string(milliseconds % 1000 / 100) + " s";
}

std::string SignalName(int signal) {
  const char* name = sigabbrev_np(signal);
  return name != nullptr ? std::string("SIG") + name : "signal " + std::to_string(signal);
}

std::string RankNames(std::vector<uint32_t> ranks) {
  if (ranks.empty()) return "no rank";
  std::sort(ranks.begin(), ranks.end());
  ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
  std::vector<std::string> spans;
  for (size_t i = 0; i < ranks.size();) {
    size_t end = i + 1;
    while (end < ranks.size() && ranks[end] == ranks[end - 1] + 1) ++end;
    if (end - i == 2) {
      spans.push_back(std::to_string(ranks[i]));
      spans.push_back(std::to_string(ranks[i + 1]));
    } else {
      spans.push_back(std::to_string(ranks[i]));
      if (end - i > 2) spans.back() += "-" + std::to_string(ranks[end - 1]);
    }
    i = end;
  }
  std::string names = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < spans.size(); ++i) {
    if (i > 0) names += i + 1 == spans.size() ? " and " : ", ";
    names += spans[i];
  }
  return names;
}

std::string NameRank(uint32_t rank, const std::string& node, int32_t pid) {
  std::string name = "rank " + std::to_string(rank) + " (" + node;
  if (pid != 0) name += ", pid " + std::to_string(pid);
  return name + ")";
}

bool IsFailure(const v1::RankExit& exit) {
  if (exit.lost() || !exit.started() || !exit.spawned_failure().empty()) return true;
  if (exit.killed_by_us()) return !exit.error().empty();
  return exit.signal() != 0 || exit.exit_code() != 0;
}

int WrappersSignal(const v1::RankExit& exit) {
  if (!exit.started() || exit.lost() || exit.killed_by_us() || exit.signal() != 0) return 0;
  constexpr int kOfShells[] = {SIGHUP,  SIGINT,  SIGQUIT, SIGILL,  SIGTRAP, SIGABRT, SIGBUS,  SIGFPE,  SIGKILL,
                               SIGUSR1, SIGSEGV, SIGUSR2, SIGPIPE, SIGALRM, SIGTERM, SIGXCPU, SIGXFSZ, SIGSYS};
  for (const int signal : kOfShells) {
    if (exit.exit_code() == 128 + signal) return signal;
  }
  for (const int signal : {SIGILL, SIGABRT, SIGBUS, SIGFPE, SIGKILL, SIGSEGV, SIGTERM}) {
    if (exit.exit_code() == 256 - signal) return signal;
  }
  return 0;
}

int LikelySignal(const v1::RankExit& exit) { return exit.signal() != 0 ? exit.signal() : WrappersSignal(exit); }

std::string DescribeEnd(const v1::RankExit& exit) {
  if (exit.lost()) return "lost: " + exit.error();
  if (!exit.started()) return "could not be started: " + (exit.error().empty() ? "no reason given" : exit.error());
  if (!exit.spawned_failure().empty()) return "ended well, but " + exit.spawned_failure();
  if (exit.killed_by_us() && !exit.error().empty()) return "killed by its agent: " + exit.error();
  if (exit.passed_on())
    return "killed by " + SignalName(LikelySignal(exit)) + ", which dlaunch or its agent was sent and passed on";
  if (exit.signal() != 0) {
    return "killed by " + SignalName(exit.signal()) + (exit.out_of_memory().empty() ? "" : ", " + exit.out_of_memory());
  }
  const std::string code = "exited with code " + std::to_string(exit.exit_code());
  const int signal = WrappersSignal(exit);
  if (signal == 0) return code;
  const bool shells = exit.exit_code() == 128 + signal;
  return code + (shells ? ", which a shell gives" : ", which a Python script gives") +
         " when its program was killed by " + SignalName(signal) +
         (exit.out_of_memory().empty() ? "" : "; " + exit.out_of_memory());
}

std::string LastLine(const std::string& words) { return words.empty() ? "" : "; its last line: \"" + words + "\""; }

std::string DescribeFailure(const v1::RankExit& exit) {
  const bool by_itself = exit.started() && !exit.lost() && !exit.killed_by_us() && exit.spawned_failure().empty();
  if (!by_itself) return DescribeEnd(exit);
  if (exit.signal() == 0) {
    const auto exception = FindPythonException({exit.last_lines().begin(), exit.last_lines().end()});
    if (exception.has_value()) return DescribeEnd(exit) + ": " + exception->text + At(exception->place);
  }
  return DescribeEnd(exit) + LastLine(exit.last_words());
}

int ExitCode(const v1::RankExit& exit) {
  if (exit.lost()) return kExitLauncher;
  if (!exit.started()) return exit.exit_code() != 0 ? exit.exit_code() : kExitNotFound;
  if (exit.signal() != 0) return 128 + exit.signal();
  return IsFailure(exit) ? std::max(exit.exit_code(), 1) : exit.exit_code();
}

std::string GroupName(uint64_t group) { return runtime::GroupName(group); }

std::string NameCall(const v1::CallState& call, bool name_group) {
  return ShortCall(call.call()) + " #" + std::to_string(call.sequence()) +
         (name_group ? " of " + GroupName(call.group()) : "") + At(call.site());
}

namespace {

// `until` is when its age was measured: "ago" or "before its end".
std::string DescribeCallUntil(const v1::CallState& call, bool name_group, const std::string& until) {
  const std::string held = call.held_by().empty() ? "" : ", stopped by a debugger (" + call.held_by() + ")";
  if (!call.present())
    return (call.joined()   ? "in no collective call"
            : call.in_mpi() ? "in MPI, whose calls Cohort does not see"
                            : "in no call of Cohort, which it has not joined") +
           held;
  const std::string what = NameCall(call, name_group);
  const std::string age = DescribeDuration(call.age_ms());
  if (call.failed()) return "in " + what + " until it failed, " + age + " " + until + held;
  if (call.done()) return "after " + what + " (done " + age + " " + until + ")" + held;
  return "in " + what + " for " + age + held;
}

}  // namespace

std::string DescribeCall(const v1::CallState& call, bool name_group) {
  return DescribeCallUntil(call, name_group, "ago");
}

std::string DescribeLastCall(const v1::RankExit& exit, bool name_group) {
  return DescribeCallUntil(exit.doing(), name_group, "before its end");
}

std::string CallAndSite(const v1::CallState& call) { return call.call() + At(call.site()); }

}  // namespace cohort::launcher
