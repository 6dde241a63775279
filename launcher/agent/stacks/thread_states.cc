#include "cohort/launcher/agent/stacks/thread_states.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <system_error>
#include <utility>

#include "cohort/launcher/agent/stacks/blocking_call.h"
#include "cohort/launcher/agent/stacks/kernel_file.h"
#include "cohort/launcher/agent/watch/process_state.h"

namespace cohort::launcher {
namespace {

// " in futex"; empty where the kernel does not tell, or the thread runs. A sleep that a debugger interrupted goes on as
// restart_syscall, which tells nothing: the place in the kernel does.
std::string InWhat(const std::string& folder) {
  const std::optional<BlockingCall> call = ParseBlockingCall(ReadKernelFile(folder + "/syscall"));
  if (call) return " in " + call->name;
  const std::string place = ReadKernelFile(folder + "/wchan");
  return place.empty() || place == "0" ? "" : " in the kernel's " + place.substr(0, 64);
}

std::string DescribeState(char state, pid_t thread, const std::string& folder) {
  switch (state) {
    case 'R':
      return "runs";
    case 'S':
      return "sleeps" + InWhat(folder);
    case 'D':
      return "waits, and can't be interrupted," + InWhat(folder);
    case 'T':
      return "is stopped by a signal";
    case 't':
      return thread != 0 && TracerOf(thread) == 0 ? "sleeps" : "is stopped by a debugger";
    case 'Z':
    case 'X':
      return "has ended";
    default:
      return std::string("is in state ") + state;
  }
}

}  // namespace

std::vector<std::string> DescribeThreads(pid_t pid, size_t most) {
  const std::string folder = "/proc/" + std::to_string(pid) + "/task/";
  std::vector<std::pair<std::string, size_t>> found;  // each state, and how many threads are in it
  std::error_code error;
  size_t looked = 0;
  for (std::filesystem::directory_iterator at(folder, error), end; !error && at != end && looked < most;
       at.increment(error), ++looked) {
    const std::optional<ProcessState> thread = ParseProcessStat(ReadKernelFile(at->path().string() + "/stat"));
    if (!thread) continue;
    const std::string state =
        thread->name + " " +
        DescribeState(thread->state, std::atoi(at->path().filename().c_str()), at->path().string());
    const auto known = std::find_if(found.begin(), found.end(), [&](const auto& one) { return one.first == state; });
    if (known == found.end()) {
      found.emplace_back(state, 1);
    } else {
      ++known->second;
    }
  }
  std::vector<std::string> lines;
  for (const auto& [state, count] : found) {
    lines.push_back((count > 1 ? std::to_string(count) + " times: " : "") + state);
  }
  return lines;
}

}  // namespace cohort::launcher
