// An agent's messages to dlaunch, on its standard output.
#pragma once

#include <cstdint>
#include <string>

#include "cohort/launcher/base/event_loop.h"
#include "cohort/launcher/base/message_pipe.h"
#include "cohort/v1/rendezvous.pb.h"

namespace cohort::launcher {

// All of it is called on the loop's thread.
class LauncherNews {
 public:
  explicit LauncherNews(EventLoop* loop);

  // Any other message.
  void Write(const v1::FromNode& message) { output_.Write(message); }
  // A line for the user.
  void Notice(const std::string& text);
  // The same, about a failure that the rendezvous tells: the line comes behind that.
  void Remark(const std::string& text);
  // The agent itself can't go on.
  void Failed(const std::string& why);
  void Line(const v1::OutputLine& line);
  void WantInput(uint64_t bytes, bool closed);
  // The addresses at which this node hosts the rendezvous.
  void Listening(const std::string& addresses);
  void Stack(v1::RankStack stack);
  void View(v1::NodeView view, uint64_t look);
  void Trace(v1::NodeTrace trace);
  void HostSilent(uint64_t term);
  // Ranks of the job are lost.
  void Report(const v1::JobReport& report);
  // Nothing is missing of the epoch's ranks, however the agent ends from here on. Said once for an epoch.
  void AllSaid(uint64_t epoch);
  // The epoch's ranks may not have said all: AllSaid is not to be sent.
  void NotAllSaid(uint64_t epoch) { said_epoch_ = epoch; }

  MessageWriter& output() { return output_; }

 private:
  MessageWriter output_;
  uint64_t said_epoch_ = 0;  // the latest for which AllSaid was sent, or is not to be
};

}  // namespace cohort::launcher
