// The agents of a job as dlaunch's children: started, listened to, watched, reaped.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "cohort/launcher/agent/rank/line_splitter.h"
#include "cohort/launcher/base/credentials.h"
#include "cohort/launcher/base/event_loop.h"
#include "cohort/launcher/base/message_pipe.h"
#include "cohort/launcher/front_end/job_plan.h"
#include "cohort/launcher/spawn/spawner.h"
#include "cohort/v1/rendezvous.pb.h"

namespace cohort::launcher {

class AgentProcesses {
 public:
  // A message of agent `index`.
  struct Message {
    size_t index;
    const v1::FromNode* message;  // until the handler returns
  };
  // A line of what it, or the command that reaches it, says to people; as it came.
  struct Words {
    size_t index;
    std::string words;
  };
  // It has ended, and everything that it had written was passed on.
  struct End {
    size_t index;
  };
  using Event = std::variant<Message, Words, End>;
  using Handler = std::function<void(const Event&)>;

  // `job` must outlive this. `forked` is the job's only agent where it is started already.
  AgentProcesses(EventLoop* loop, const Job& job, std::optional<AgentProcess> forked, Handler handle)
      : loop_(loop), job_(job), forked_(std::move(forked)), handle_(std::move(handle)) {}
  AgentProcesses(const AgentProcesses&) = delete;
  AgentProcesses& operator=(const AgentProcesses&) = delete;

  // Makes the job's certificates and starts an agent on each node, which then waits for its NodeStart. To more than 64
  // other hosts it connects in turn, each when one before has said something, or not for 5 s. Meanwhile `told_to_end`
  // is asked whenever `signals` is readable: kCancelled when it is true. With an error some may have been started.
  absl::Status Start(int signals, const std::function<bool()>& told_to_end);

  // The pid of the agent that was started before this, until Start; 0: none was.
  pid_t forked() const { return forked_ ? forked_->pid : 0; }
  size_t size() const { return agents_.size(); }
  const TlsIdentity& identity(size_t index) const { return agents_[index].identity; }

  // Queues a message for an agent; dropped where it is gone.
  void Send(size_t index, const v1::ToNode& message);
  // Ends an agent's input: it ends, at once if it still has ranks.
  void CloseInput(size_t index);

  // Whether what the agents write is read. Off: they block in time, and with them their ranks.
  void SetReading(bool reading);
  // Reaps those that have ended. To be called after SIGCHLD.
  void Reap();
  // SIGKILL to all that live; their sentinels sweep. Those of agents that are gone already are waited for no longer.
  void Kill();
  void Kill(size_t index);

  // 0 once it has ended.
  pid_t pid(size_t index) const { return agents_[index].exited() ? 0 : agents_[index].process.pid; }

  // It said why it can't go on.
  void SetFailed(size_t index, const std::string& why) { agents_[index].failed = why; }
  bool ended(size_t index) const { return agents_[index].life == Life::kEnded; }
  bool EndedInOrder(size_t index) const;
  // Whether its end, with that of its output, is also the end of all that it had started: it is a process of this
  // machine, whose sentinel has swept by then.
  bool IsHere(size_t index) const { return agents_[index].here; }
  // It ended without a word of its own: killed, or stopped for so long that we did it.
  bool EndedSilently(size_t index) const { return agents_[index].failed.empty() || agents_[index].frozen; }
  // Whether it is stopped just now.
  bool IsStopped(size_t index) const;
  // "the agent of node1 (pid 4711)"
  std::string Name(size_t index) const;
  // "the agent of node1 (pid 4711) was killed by SIGKILL"
  std::string DescribeEnd(size_t index) const;

 private:
  // The life of an agent's process and of its output.
  //   running -> mute, exited
  //   mute    -> ended
  //   exited  -> ended
  enum class Life {
    kRunning,
    kMute,    // its output has ended, and it has not
    kExited,  // it is gone, and what it had written is not read to the end
    kEnded,   // both
  };

  struct Agent {
    bool exited() const { return life == Life::kExited || life == Life::kEnded; }
    bool output_ended() const { return life == Life::kMute || life == Life::kEnded; }

    AgentProcess process;
    std::unique_ptr<MessageWriter> writer;
    MessageReader reader;
    std::unique_ptr<LineSplitter> words;
    TlsIdentity identity;
    Life life = Life::kRunning;
    bool here = false;
    bool joined = false;  // the process leads to a machine that came by itself
    bool reading = false;
    bool heard = false;  // something has come
    int wait_status = 0;
    int looks_at_held = 0;  // in which it was gone, and its output neither ended nor brought anything
    std::string failed;     // it said why it can't go on, or we know
    bool frozen = false;
    EventLoop::Clock::time_point stopped_since{};
  };

  static bool IsStopped(const Agent& agent);
  bool ReadOutput(size_t index);
  void CloseOutput(size_t index);
  bool ReadWords(size_t index);
  void CloseWords(Agent* agent);
  void Finish(size_t index);
  absl::Status PassMessagesOn(size_t index);
  void LookForFrozen();
  void EndOutput(size_t index);
  void LookForHeldOutput();
  void WakeSentinels();

  EventLoop* const loop_;
  const Job& job_;
  std::optional<AgentProcess> forked_;
  const Handler handle_;
  std::vector<Agent> agents_;
  EventLoop::Clock::time_point last_look_{};
};

}  // namespace cohort::launcher
