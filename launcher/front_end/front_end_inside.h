// The inside of RunJob (front_end.h): the agents' processes, the user's signals, and the job's end.
#pragma once

#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstddef>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "cohort/launcher/base/bounded_call.h"
#include "cohort/launcher/base/credentials.h"
#include "cohort/launcher/base/event_loop.h"
#include "cohort/launcher/base/printable.h"
#include "cohort/launcher/front_end/agent_processes.h"
#include "cohort/launcher/front_end/failure_news.h"
#include "cohort/launcher/front_end/front_end.h"
#include "cohort/launcher/front_end/job_news.h"
#include "cohort/launcher/front_end/job_watch.h"
#include "cohort/launcher/front_end/line_turns.h"
#include "cohort/launcher/front_end/output_printer.h"
#include "cohort/launcher/front_end/rendezvous_host.h"
#include "cohort/launcher/front_end/standard_input.h"
#include "cohort/runtime/base/file_descriptor.h"
#include "cohort/v1/rendezvous.pb.h"

namespace cohort::launcher {

class FrontEnd {
 public:
  FrontEnd(const Job& job, std::optional<AgentProcess> forked);
  int Run();

 private:
  absl::Status StartAgents();
  v1::NodeStart MakeStart(size_t index) const;
  void OnSignal();
  bool IsToldToEnd();
  v1::JobReport ReportOfStop() const;
  void OnUserSignal(int signal);
  void OnNotice(int signal);
  void GiveUpUnlessListening();
  void StopForUser(const std::string& who, int exit_code, bool at_once);
  RunningJob Running() const;
  absl::Status StartMetrics();
  void OnListening(const std::string& addresses);
  void OnOutput();
  void TellOfUnreadInput();
  void SendInput(std::string bytes, bool end);
  void OnReport(const v1::JobReport& report);
  void OnAgentEnded(size_t index);
  void OnHostEnded(size_t index);
  void TellOfLostOutput();
  void BeginRecord();
  void AwaitRecord(std::chrono::milliseconds limit);
  void RequestStop(const std::string& reason, int exit_code, std::chrono::milliseconds grace, bool everyone);
  void AwaitAgentsEnds();
  void KillAgents();
  void QuitWhenDone();
  void Say(const std::string& text) { turns_.Say("dlaunch: " + Printable(text) + "\n"); }

  const Job& job_;
  const std::chrono::system_clock::time_point started_ = std::chrono::system_clock::now();
  std::string secret_;
  EventLoop loop_;
  OutputPrinter printer_;
  LineTurns turns_{&loop_, &printer_, LineTurns::Surroundings::Find(job_.options.prefix)};
  FailureNews failures_{job_,
                        &loop_,
                        &turns_,
                        {.say = [this](const std::string& text) { Say(text); },
                         .ending = [this] { return report_.has_value() || user_stop_; }}};
  runtime::FileDescriptor signals_;
  AgentProcesses agents_;
  RendezvousHost host_{&loop_, &agents_, job_, [this](const std::string& text) { Say(text); }};
  StandardInput input_{&loop_, STDIN_FILENO, [this](std::string bytes, bool end) { SendInput(std::move(bytes), end); },
                       [this](const std::string& why) {
                         Say("--stdin rank0: the standard input can't be read: " + why + "; rank 0 sees its end");
                       }};
  std::string rendezvous_address_;
  std::optional<v1::JobReport> report_;
  std::optional<BoundedCall> record_;  // of the job in --log-dir, being written
  std::set<size_t> overdue_;           // agents that we killed since they, or the way to them, did not end
  bool user_stop_ = false;
  std::string stopped_by_;  // with user_stop_: "SIGINT", of the first stop, or the one that ends the job at once
  EventLoop::Clock::time_point last_stop_signal_{};
  int stop_code_ = 0;     // with user_stop_: its exit status
  bool at_once_ = false;  // the user does not want to wait
  bool killed_ = false;
  int silent_seconds_ = 0;  // since the report, of time in which agents were read
  bool agent_died_ = false;
  JobWatch watch_{&loop_,
                  {.job = [this] { return Running(); },
                   .send = [this](size_t agent, const v1::ToNode& message) { agents_.Send(agent, message); },
                   .stop = [this](bool at_once) { StopForUser("dlaunch kill", 128 + SIGTERM, at_once); }}};
  JobNews news_{
      job_,
      {.loop = &loop_, .agents = &agents_, .host = &host_, .failures = &failures_, .watch = &watch_, .input = &input_},
      {.say = [this](const std::string& text) { Say(text); },
       .on_listening = [this](const std::string& addresses) { OnListening(addresses); },
       .on_output = [this] { OnOutput(); },
       .on_report = [this](const v1::JobReport& report) { OnReport(report); },
       .over = [this] { return report_.has_value(); },
       .stopped_by_user = [this] { return user_stop_; }}};
};

}  // namespace cohort::launcher
