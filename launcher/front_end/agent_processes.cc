#include "cohort/launcher/front_end/agent_processes.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <optional>
#include <utility>

#include "cohort/launcher/agent/watch/process_state.h"
#include "cohort/launcher/agent/watch/sentinel.h"
#include "cohort/launcher/agent/watch/sweep.h"
#include "cohort/launcher/base/orphans.h"
#include "cohort/launcher/control/describe.h"
#include "cohort/runtime/base/deadline.h"
#include "cohort/runtime/base/status_macros.h"

namespace cohort::launcher {
namespace {

using runtime::Deadline;
using std::chrono::milliseconds;

constexpr milliseconds kLookInterval{400};     // at the agents' states
constexpr size_t kAtOnce = 64;                 // connections to other hosts that are made at the same time
constexpr milliseconds kFirstWord{5000};       // how long one may take until the next is begun
constexpr int kLastReads = 1024;               // a pipe holds less
constexpr int kMaxLooksAtHeld = 50;            // 20 s, longer than a sentinel takes to sweep
constexpr milliseconds kOutlivesOutput{5000};  // an ssh may still wait for something else
constexpr milliseconds kFrozenAfter{3000};     // an agent that stays stopped is killed, and its sentinel sweeps

// Whether the agent, or the command that should reach it, has written something or ended in time.
absl::StatusOr<bool> AwaitFirstWord(const AgentProcess& process, int signals,
                                    const std::function<bool()>& told_to_end) {
  const Deadline deadline = Deadline::After(kFirstWord);
  pollfd awaited[] = {{process.output.get(), POLLIN, 0}, {process.error.get(), POLLIN, 0}, {signals, POLLIN, 0}};
  for (;;) {
    const auto left = std::chrono::ceil<milliseconds>(deadline.left());
    if (::poll(awaited, 3, static_cast<int>(left.count())) < 0) continue;  // EINTR, or no memory for a moment
    if (awaited[2].revents != 0 && told_to_end()) return absl::CancelledError("told to end");
    if (awaited[0].revents != 0 || awaited[1].revents != 0) return true;
    if (deadline.passed()) return false;
  }
}

}  // namespace

absl::Status AgentProcesses::Start(int signals, const std::function<bool()>& told_to_end) {
  const bool alone = job_.nodes.nodes.size() == 1 && !job_.nodes.across_hosts;
  std::optional<JobAuthority> authority;
  if (!alone) {
    COHORT_ASSIGN_OR_RETURN(authority, JobAuthority::Create());
  }
  const std::unique_ptr<Spawner> spawner = MakeSpawner(job_.nodes.spawner, job_.options);
  agents_.resize(job_.nodes.nodes.size());
  bool in_turn = job_.nodes.spawner != SpawnerKind::kLocal;
  for (size_t i = 0; i < agents_.size(); ++i) {
    Agent& agent = agents_[i];
    if (in_turn && i >= kAtOnce) {
      COHORT_ASSIGN_OR_RETURN(in_turn, AwaitFirstWord(agents_[i - kAtOnce].process, signals, told_to_end));
    }
    if (authority) {
      COHORT_ASSIGN_OR_RETURN(agent.identity, authority->IssueAgent(static_cast<uint32_t>(i),
                                                                    i <= static_cast<size_t>(job_.options.standbys)));
    }
    const std::string& name = job_.nodes.nodes[i].name;
    if (const auto& reached = job_.nodes.reached; reached && reached->contains(name)) {
      agent.process = std::move(reached->at(name));
      agent.joined = true;
    } else if (forked_) {
      agent.process = *std::exchange(forked_, std::nullopt);
      agent.here = true;
    } else {
      COHORT_ASSIGN_OR_RETURN(agent.process, spawner->Spawn(static_cast<int>(i), name));
      agent.here = job_.nodes.spawner == SpawnerKind::kLocal;
    }
    agent.writer = std::make_unique<MessageWriter>(loop_, std::move(agent.process.input));
    agent.reader.SkipUntil(agent.process.preamble);
    agent.words = std::make_unique<LineSplitter>(
        [this, i](std::string_view text, bool) { handle_(Words{.index = i, .words = std::string(text)}); });
    for (const runtime::FileDescriptor* fd : {&agent.process.output, &agent.process.error}) {
      if (fd->valid()) ::fcntl(fd->get(), F_SETFL, ::fcntl(fd->get(), F_GETFL) | O_NONBLOCK);
    }
  }
  SetReading(true);
  last_look_ = EventLoop::Clock::now();
  LookForFrozen();
  return absl::OkStatus();
}

void AgentProcesses::Send(size_t index, const v1::ToNode& message) {
  if (index < agents_.size() && agents_[index].writer) agents_[index].writer->Write(message);
}

void AgentProcesses::CloseInput(size_t index) { agents_[index].writer->Close(); }

void AgentProcesses::SetReading(bool reading) {
  for (size_t i = 0; i < agents_.size(); ++i) {
    Agent& agent = agents_[i];
    if (agent.reading == reading) continue;
    agent.reading = reading;
    if (const int error = agent.process.error.get(); agent.process.error.valid()) {
      if (reading) {
        loop_->Watch(error, EPOLLIN, [this, i](uint32_t) { ReadWords(i); });
      } else {
        loop_->Unwatch(error);
      }
    }
    if (agent.output_ended()) continue;
    if (reading) {
      loop_->Watch(agent.process.output.get(), EPOLLIN, [this, i](uint32_t) { ReadOutput(i); });
    } else {
      loop_->Unwatch(agent.process.output.get());
    }
  }
}

// Reads once; false when there is nothing to read now or ever.
bool AgentProcesses::ReadOutput(size_t index) {
  Agent& agent = agents_[index];
  if (agent.output_ended()) return false;
  char buffer[64u << 10];
  const ssize_t n = ::read(agent.process.output.get(), buffer, sizeof buffer);
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return false;
  if (n > 0) {
    agent.looks_at_held = 0;
    agent.heard = true;
    agent.reader.Append(buffer, static_cast<size_t>(n));
    const absl::Status broken = PassMessagesOn(index);
    if (broken.ok()) return true;
    agent.failed = "it sent " + std::string(broken.message());
    if (!agent.exited()) ::kill(agent.process.pid, SIGKILL);
  }
  CloseOutput(index);
  return false;
}

void AgentProcesses::CloseOutput(size_t index) {
  Agent& agent = agents_[index];
  if (agent.output_ended()) return;
  if (agent.reading) loop_->Unwatch(agent.process.output.get());
  agent.life = agent.exited() ? Life::kEnded : Life::kMute;
  agent.process.output.Close();
  if (agent.exited()) return Finish(index);
  loop_->After(kOutlivesOutput, [this, index] {
    Agent& silent = agents_[index];
    if (silent.exited()) return;
    if (silent.failed.empty()) silent.failed = "its output ended, and it did not";
    Kill(index);
  });
}

// Reads once; false when there is nothing to read now or ever.
bool AgentProcesses::ReadWords(size_t index) {
  Agent& agent = agents_[index];
  if (!agent.process.error.valid()) return false;
  char buffer[4096];
  const ssize_t n = ::read(agent.process.error.get(), buffer, sizeof buffer);
  if (n > 0) agent.words->Append({buffer, static_cast<size_t>(n)});
  if (n > 0 || (n < 0 && (errno == EAGAIN || errno == EINTR))) return n > 0;
  CloseWords(&agent);
  return false;
}

void AgentProcesses::CloseWords(Agent* agent) {
  if (!agent->process.error.valid()) return;
  if (agent->reading) loop_->Unwatch(agent->process.error.get());
  agent->process.error.Close();
  agent->words->Finish();
}

// Its last words first. Others may hold that pipe for longer, as the ssh does to whom it leaves the connection.
void AgentProcesses::Finish(size_t index) {
  for (int reads = 0; reads < 32 && ReadWords(index);) ++reads;
  CloseWords(&agents_[index]);
  handle_(End{.index = index});
}

// Handles the messages that have come whole.
absl::Status AgentProcesses::PassMessagesOn(size_t index) {
  for (v1::FromNode message;;) {
    COHORT_ASSIGN_OR_RETURN(const bool whole, agents_[index].reader.Next(&message));
    if (!whole) return absl::OkStatus();
    handle_(Message{.index = index, .message = &message});
  }
}

void AgentProcesses::Reap() {
  for (size_t i = 0; i < agents_.size(); ++i) {
    Agent& agent = agents_[i];
    if (agent.exited() || agent.process.pid <= 0) continue;
    if (::waitpid(agent.process.pid, &agent.wait_status, WNOHANG) != agent.process.pid) continue;
    agent.life = agent.output_ended() ? Life::kEnded : Life::kExited;
    // Its end of the pipe is closed; what is in it must still be read, unless our own output is stuck.
    if (agent.output_ended()) Finish(i);
  }
  ReapOrphans([this](pid_t pid) {
    return std::any_of(agents_.begin(), agents_.end(),
                       [pid](const Agent& agent) { return !agent.exited() && agent.process.pid == pid; });
  });
}

void AgentProcesses::Kill() {
  for (size_t i = 0; i < agents_.size(); ++i) {
    Kill(i);
    if (agents_[i].exited()) EndOutput(i);
  }
}

void AgentProcesses::Kill(size_t index) {
  const Agent& agent = agents_[index];
  if (agent.process.pid > 0 && !agent.exited()) ::kill(agent.process.pid, SIGKILL);
}

// A process that still holds it, as a stuck sentinel, has nothing to say; what it kills may live.
void AgentProcesses::EndOutput(size_t index) {
  if (agents_[index].output_ended()) return;
  agents_[index].here = false;
  for (int reads = 0; reads < kLastReads && ReadOutput(index);) ++reads;
  CloseOutput(index);
}

// After a stop that was meant for their agents as well, until which what the ranks have left behind would live. They
// are our children, since we adopt orphans.
void AgentProcesses::WakeSentinels() {
  for (const pid_t pid : ListChildren()) {
    const auto state = ReadProcessState(pid);
    if (state && state->state == 'T' && state->name == kSentinelName) ::kill(pid, SIGCONT);
  }
}

// Their sentinels sweep first.
void AgentProcesses::LookForHeldOutput() {
  bool held = false;
  for (size_t i = 0; i < agents_.size(); ++i) {
    Agent& agent = agents_[i];
    if (!agent.exited() || agent.output_ended()) continue;
    held = true;
    if (agent.reading && ++agent.looks_at_held >= kMaxLooksAtHeld) EndOutput(i);
  }
  if (held) WakeSentinels();
}

void AgentProcesses::LookForFrozen() {
  loop_->After(kLookInterval, [this] { LookForFrozen(); });
  const auto now = EventLoop::Clock::now();
  const bool stalled = now - last_look_ > 3 * kLookInterval;  // I was stopped myself, and know nothing of others
  last_look_ = now;
  LookForHeldOutput();
  for (Agent& agent : agents_) {
    if (agent.exited() || !agent.failed.empty()) continue;
    if (stalled || !IsStopped(agent)) {
      agent.stopped_since = {};
    } else if (agent.stopped_since == EventLoop::Clock::time_point{}) {
      agent.stopped_since = now;
    } else if (now - agent.stopped_since >= kFrozenAfter) {
      agent.failed = "it stayed stopped (SIGSTOP) and was killed";
      agent.frozen = true;
      ::kill(agent.process.pid, SIGKILL);
    }
  }
}

bool AgentProcesses::IsStopped(const Agent& agent) {
  if (agent.exited() || agent.process.pid <= 0) return false;
  const auto state = ReadProcessState(agent.process.pid);
  return state && state->state == 'T' && TracerOf(agent.process.pid) == 0;
}

bool AgentProcesses::IsStopped(size_t index) const { return IsStopped(agents_[index]); }

std::string AgentProcesses::Name(size_t index) const {
  return "the agent of " + job_.nodes.nodes[index].name + " (pid " + std::to_string(agents_[index].process.pid) + ")";
}

bool AgentProcesses::EndedInOrder(size_t index) const {
  return agents_[index].failed.empty() && agents_[index].wait_status == 0;
}

std::string AgentProcesses::DescribeEnd(size_t index) const {
  const Agent& agent = agents_[index];
  const std::string name = Name(index);
  if (!agent.failed.empty()) return name + " gave up: " + agent.failed;
  if (WIFSIGNALED(agent.wait_status)) return name + " was killed by " + SignalName(WTERMSIG(agent.wait_status));
  const int status = WEXITSTATUS(agent.wait_status);
  if (agent.joined && status != 0) {
    return "the agent of " + job_.nodes.nodes[index].name +
           " was lost with the connection to its machine; did it, or its dlaunch join, end or lose its network?";
  }
  if (agent.heard || status != 0) return name + " ended with status " + std::to_string(status);
  return name + " ended at once, without a word; is it the dlaunch of this version?";
}

}  // namespace cohort::launcher
