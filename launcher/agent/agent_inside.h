// The inside of RunAgent (agent.h): what an agent knows, and what it does on what it hears.
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "cohort/launcher/agent/node_ranks.h"
#include "cohort/launcher/agent/rank/log_writer.h"
#include "cohort/launcher/agent/rank/rank_socket.h"
#include "cohort/launcher/agent/rendezvous_link.h"
#include "cohort/launcher/agent/watch/cgroup.h"
#include "cohort/launcher/agent/watch/sentinel.h"
#include "cohort/launcher/base/event_loop.h"
#include "cohort/launcher/base/message_pipe.h"
#include "cohort/runtime/base/file_descriptor.h"
#include "cohort/v1/rendezvous.pb.h"

namespace cohort::launcher {

class Agent {
 public:
  explicit Agent(bool exit_with_job);
  int Run();

 private:
  void OnInput();
  void OnInputEnded();
  void OnSignal();
  void OnSchedulersNotice(int signal);
  void OnTerminate();
  void TellWhyRanksEnd(const std::string& why);
  // Whether its ranks ask for notices of a preemption, or will, as those of an earlier epoch did.
  bool AskForNotices();
  void OnToNode(const v1::ToNode& message);
  void OnStart(const v1::NodeStart& start);
  void OnLook(uint64_t number);
  void PassOn(v1::FromNode message);
  RendezvousServer::OnFinished FinishCallback();
  absl::Status HostRendezvous(std::string* address);
  void OnTakeOver(const v1::TakeOver& order);
  absl::Status Join(const std::string& addresses);
  bool IsToldToEnd();
  void OnMessage(const v1::ToAgent& message);
  void OnAssignment(const v1::Assignment& assignment);
  void MakeCgroup(const v1::Assignment& assignment);
  void OnRendezvousLost(const absl::Status& why);
  void OnReport(const v1::JobReport& report);
  bool IsNeededForReport();
  void OnAllGone();
  void OnOutputLine(const v1::OutputLine& line);
  void WantInput(uint64_t bytes, bool closed);
  void StopRanks(std::chrono::milliseconds grace, bool restarting = false);
  void MarkFailure();
  void Notice(const std::string& text);
  void GiveUp(const std::string& why);
  void SayThatAllIsSaid();
  void EndWhenDone();
  void ReapChildren();
  void OnSentinelEnded(int status);

  const bool exit_with_job_;
  int exit_status_;
  const std::string address_ = NewSocketAddress();
  Cgroup cgroup_{OwnCgroup().value_or("")};
  Sentinel sentinel_;
  int sentinel_restarts_ = 0;
  EventLoop loop_;
  MessageReader input_;
  MessageWriter output_;
  LogWriter logs_{&loop_, [this](const std::string& problem) { Notice(problem); }};
  runtime::FileDescriptor signals_;

  v1::NodeStart start_;
  std::unique_ptr<NodeRanks> ranks_;  // since the assignment
  bool ranks_done_ = false;           // or never started
  bool asked_ = false;                // see AskForNotices
  bool noticed_ = false;              // a SIGTERM was passed on as a notice of a preemption
  bool report_seen_ = false;          // the rendezvous has nothing more to say, or is gone
  bool told_to_stop_ = false;         // by dlaunch, the rendezvous or SIGTERM
  bool input_ended_ = false;
  bool lingering_ = false;
  uint64_t epoch_ = 0;           // of the assignment; 0: there was none
  uint64_t said_epoch_ = 0;      // of which dlaunch was told that all is said, or is not to be
  RendezvousLink link_{&loop_};  // last, so that its threads end first
};

}  // namespace cohort::launcher
