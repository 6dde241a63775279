// The inside of RunJob (front_end.h): the agents' processes, the user's signals, and the job's end.
#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <optional>
#include <set>
#include <string>

#include "absl/status/status.h"
#include "cohort/launcher/base/bounded_call.h"
#include "cohort/launcher/base/event_loop.h"
#include "cohort/launcher/front_end/agent_processes.h"
#include "cohort/launcher/front_end/failure_news.h"
#include "cohort/launcher/front_end/front_end.h"
#include "cohort/launcher/front_end/job_end.h"
#include "cohort/launcher/front_end/job_news.h"
#include "cohort/launcher/front_end/job_watch.h"
#include "cohort/launcher/front_end/printing/line_turns.h"
#include "cohort/launcher/front_end/printing/output_printer.h"
#include "cohort/launcher/front_end/rendezvous_host.h"
#include "cohort/launcher/front_end/standard_input.h"
#include "cohort/launcher/trace/job_trace.h"
#include "cohort/runtime/base/file_descriptor.h"
#include "cohort/v1/rendezvous.pb.h"

namespace cohort::launcher {

class FrontEnd {
 public:
  FrontEnd(const Job& job, std::optional<AgentProcess> forked);
  int Run();

 private:
  absl::Status StartAgents();
  void StartAgent(size_t index);
  void GiveUpUnlessListening();

  void On(const AgentProcesses::Message& event);
  void On(const AgentProcesses::Words& event);
  void On(const AgentProcesses::End& event);
  void OnHostEnded(size_t index);
  void OnReport(const v1::JobReport& report);
  void PauseIfFull();
  void SendInput(std::string bytes, bool end);
  void OnClosedStream(int fd, int error);

  void OnSignal();
  bool IsToldToEnd();
  void OnUserSignal(int signal);
  void OnNotice(int signal);
  void StopForUser(const std::string& who, int exit_code, bool at_once);
  void RequestStop(const std::string& reason, int exit_code, std::chrono::milliseconds grace, bool everyone);

  RunningJob Running() const;
  absl::Status StartObservers();

  void AwaitAgentsEnds();
  void KillAgents();
  void QuitWhenDone();
  void TellOfLostOutput();
  bool SomeAgentDied() const;
  void BeginRecord();
  void AwaitRecord(std::chrono::milliseconds limit);

  // The loop and the end outlive the parts, which know each other by address. None does anything before Run.
  EventLoop loop_;
  JobEnd end_;

  const Job& job_;
  const std::chrono::system_clock::time_point started_;
  OutputPrinter printer_;
  LineTurns turns_;
  FailureNews failures_;
  AgentProcesses agents_;
  const std::unique_ptr<RendezvousHost> host_;
  StandardInput input_;
  JobTrace trace_;
  JobWatch watch_;
  JobNews news_;

  runtime::FileDescriptor signals_;
  std::string secret_;
  std::string rendezvous_address_;
  std::optional<BoundedCall> record_;  // of the job in --log-dir, being written
  std::set<size_t> overdue_;           // agents that we killed since they, or the way to them, did not end
  EventLoop::Clock::time_point last_stop_signal_{};
  int silent_seconds_ = 0;  // since the report, of time in which agents were read
};

}  // namespace cohort::launcher
