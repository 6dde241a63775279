#include "cohort/launcher/agent/stacks/rank_stacks.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <optional>
#include <system_error>
#include <utility>

#include "cohort/launcher/agent/stacks/python_frames.h"
#include "cohort/launcher/agent/stacks/python_place.h"
#include "cohort/launcher/agent/stacks/python_threads.h"
#include "cohort/launcher/agent/stacks/thread_states.h"
#include "cohort/launcher/agent/watch/process_state.h"

namespace cohort::launcher {
namespace {

constexpr size_t kMaxText = 16u << 10;
constexpr size_t kMostPythons = 8;     // of a rank
constexpr size_t kMostProcesses = 64;  // that are looked at for them
constexpr size_t kMostStarters = 256;  // threads of a process, which may have started others

std::vector<pid_t> ChildrenOf(pid_t pid) {
  std::vector<pid_t> children;
  std::error_code error;
  size_t looked = 0;
  for (std::filesystem::directory_iterator at("/proc/" + std::to_string(pid) + "/task", error), end;
       !error && at != end && looked < kMostStarters; at.increment(error), ++looked) {
    std::ifstream file(at->path().string() + "/children");
    for (pid_t child = 0; file >> child;) children.push_back(child);
  }
  return children;
}

// The program first, then the Pythons of the rank but those that a Python has started.
std::vector<pid_t> ProcessesOf(pid_t rank, pid_t program) {
  std::vector<pid_t> processes = {program};
  if (RunsPython(program)) return processes;
  std::vector<pid_t> tree = {rank};
  for (size_t i = 0; i < tree.size() && i < kMostProcesses && processes.size() <= kMostPythons; ++i) {
    if (tree[i] != program && RunsPython(tree[i])) {
      processes.push_back(tree[i]);
      continue;
    }
    const std::vector<pid_t> children = ChildrenOf(tree[i]);
    tree.insert(tree.end(), children.begin(), children.end());
  }
  return processes;
}

std::string DescribeProcess(pid_t pid) {
  std::string text;
  for (const std::string& line : DescribeThreads(pid, kMaxThreadsDescribed)) text += "  " + line + "\n";
  const std::optional<ProcessState> state = ReadProcessState(pid);
  if (!state || state->state == 'Z') return text + "  has ended\n";
  if (const auto threads = ReadPythonThreads(pid, false)) return text + FormatThreads(*threads);
  if (!RunsPython(pid)) return text;
  return text +
         "  no Python stack: its memory may not be read (kernel.yama.ptrace_scope), or its version is none of 3.8 to "
         "3.14\n";
}

}  // namespace

RankPlace FindPlace(pid_t rank, pid_t program) {
  RankPlace place;
  for (const pid_t pid : ProcessesOf(rank, program)) {
    const std::vector<std::string> threads = DescribeThreads(pid, 1);
    if (place.state.empty() && !threads.empty()) place.state = threads.front();
    const auto stacks = ReadPythonThreads(pid, true);
    if (stacks) place.frames = InnermostFrames(*stacks);
    if (!place.frames.empty()) break;
  }
  return place;
}

std::string DescribeStacks(pid_t rank, pid_t program) {
  std::string text;
  for (const pid_t pid : ProcessesOf(rank, program)) text += DescribeProcess(pid);
  if (text.size() > kMaxText) {
    text.resize(text.rfind('\n', kMaxText) + 1);
    text += "  ... (cut)\n";
  }
  return text;
}

void RankStacks::Gather(pid_t rank, pid_t program, std::function<void(const std::string& text)> done) {
  waiting_.push_back([rank, program, done = std::move(done)] { done(DescribeStacks(rank, program)); });
  if (timer_ == 0) timer_ = loop_->After(std::chrono::milliseconds(0), [this] { DescribeNext(); });
}

void RankStacks::DescribeNext() {
  timer_ = 0;
  const std::function<void()> describe = std::move(waiting_.front());
  waiting_.pop_front();
  if (!waiting_.empty()) timer_ = loop_->After(std::chrono::milliseconds(0), [this] { DescribeNext(); });
  describe();
}

}  // namespace cohort::launcher
