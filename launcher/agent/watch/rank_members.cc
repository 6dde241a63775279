#include "cohort/launcher/agent/watch/rank_members.h"

#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <system_error>

#include "cohort/launcher/agent/watch/limit_mark.h"
#include "cohort/launcher/agent/watch/process_state.h"
#include "cohort/runtime/base/file_descriptor.h"

namespace cohort::launcher {
namespace {

PipeId PipeIn(const struct stat& status) {
  if (!S_ISFIFO(status.st_mode)) return {};
  return {status.st_dev, status.st_ino};
}

PipeId PipeAt(const std::string& path) {
  struct stat status{};
  return ::stat(path.c_str(), &status) == 0 ? PipeIn(status) : PipeId();
}

// One that is blocked is read by sigwait or signalfd as a rule; but a process that is in wait() reads nothing.
void ReadSignals(const std::string& folder, RankMember* member) {
  std::ifstream file(folder + "/status");
  for (std::string line; std::getline(file, line);) {
    const auto mask = [&line] { return std::strtoull(line.c_str() + 7, nullptr, 16); };
    if (line.starts_with("SigCgt:")) member->caught |= mask();
    if (line.starts_with("SigIgn:")) member->ignored |= mask();
    if (line.starts_with("SigBlk:")) (member->waits ? member->ignored : member->caught) |= mask();
  }
}

}  // namespace

PipeId PipeOf(int fd) {
  struct stat status{};
  return ::fstat(fd, &status) == 0 ? PipeIn(status) : PipeId();
}

std::optional<RankMember> ReadMember(pid_t pid) {
  const auto state = ReadProcessState(pid);
  if (!state || state->exiting || state->state == 'Z' || pid == ::getpid()) return std::nullopt;
  const std::string folder = "/proc/" + std::to_string(pid);
  RankMember member{.pid = pid, .parent = state->parent, .start_time = state->start_time, .terminal = state->terminal};
  std::error_code unreadable;
  member.program = std::filesystem::read_symlink(folder + "/exe", unreadable).filename().string();
  if (unreadable) member.program = state->name;
  std::string where;
  member.waits = state->threads == 1 && std::getline(std::ifstream(folder + "/wchan"), where) && where == "do_wait";
  ReadSignals(folder, &member);
  member.input = PipeAt(folder + "/fd/0");
  member.outputs = {PipeAt(folder + "/fd/1"), PipeAt(folder + "/fd/2")};
  return member;
}

void SignalMember(const RankMember& member, int signal) {
  const runtime::FileDescriptor process(static_cast<int>(::syscall(SYS_pidfd_open, member.pid, 0)));
  const bool known = process.valid() || errno == ESRCH;  // else the kernel has no pidfds, or a filter refuses them
  const auto state = ReadProcessState(member.pid);
  if (!state || state->start_time != member.start_time) return;
  if (!known) {
    ::kill(member.pid, signal);
  } else if (process.valid()) {
    ::syscall(SYS_pidfd_send_signal, process.get(), signal, nullptr, 0);
  }
}

void RankMemberSearch::Begin(rlim_t mark, std::vector<Leader> leaders) {
  mark_ = mark;
  leaders_ = std::move(leaders);
  looked_at_.reset();
}

const RankMembers& RankMemberSearch::Of(size_t local_rank, std::chrono::milliseconds age) {
  if (!looked_at_ || Clock::now() - *looked_at_ > age) Look();
  return found_[local_rank];
}

void RankMemberSearch::Look() {
  found_.assign(leaders_.size(), {});
  if (mark_ != 0) {
    LookByMark();
  } else {
    LookByGroup();
  }
  looked_at_ = Clock::now();
}

void RankMemberSearch::Add(size_t local_rank, pid_t pid) {
  std::optional<RankMember> member = ReadMember(pid);
  if (!member) return;
  if (member->input == leaders_[local_rank].input) member->input = {};
  found_[local_rank].push_back(*std::move(member));
}

void RankMemberSearch::LookByMark() {
  for (const pid_t pid : ListProcesses()) {
    const std::optional<int> rank = MarkedRank(pid, mark_);
    if (rank && *rank < static_cast<int>(found_.size())) Add(static_cast<size_t>(*rank), pid);
  }
}

void RankMemberSearch::LookByGroup() {
  std::map<pid_t, ProcessState> states;
  for (const pid_t pid : ListProcesses()) {
    if (std::optional<ProcessState> state = ReadProcessState(pid)) states[pid] = *std::move(state);
  }
  const auto belongs = [&](pid_t pid, pid_t leader) {
    for (int depth = 0; depth < 64; ++depth) {
      const auto at = states.find(pid);
      if (at == states.end()) return false;
      if (pid == leader || at->second.group == leader) return true;
      pid = at->second.parent;
    }
    return false;
  };
  for (size_t i = 0; i < leaders_.size(); ++i) {
    if (leaders_[i].pid <= 0) continue;
    for (const auto& [pid, state] : states) {
      if (belongs(pid, leaders_[i].pid)) Add(i, pid);
    }
  }
}

}  // namespace cohort::launcher
