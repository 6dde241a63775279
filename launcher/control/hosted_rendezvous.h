// The rendezvous as the agent that hosts it sees it: the orders that it passes on from dlaunch.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "cohort/v1/rendezvous.pb.h"

namespace cohort::launcher {

class HostedRendezvous {
 public:
  // Receives messages for dlaunch while the job goes on: restart, lost_node, members, standbys.
  using OnNews = std::function<void(v1::FromNode)>;
  // Called once, after the agents were told. It must return soon and not destroy the rendezvous.
  using OnFinished = std::function<void(v1::JobReport)>;

  virtual ~HostedRendezvous() = default;

  // Ends the job: agents end their ranks, then OnFinished is called. It never blocks, as the others here. A second call
  // does nothing more. With `signal`, ranks that ask for notices of a preemption may stop by themselves within the
  // grace. ToNode.number explains the `number` of these three.
  virtual void RequestStop(std::string reason, int exit_code, int signal = 0, uint64_t number = 0) = 0;
  // Gives notice of a preemption. Ranks that ask for notices receive it and agree on a step to stop at; other ranks'
  // programs get the signal.
  virtual void GiveNotice(int signal, uint64_t number = 0) = 0;
  // Says that `agent` and all that it had started are gone, and how that came: a replacement need not wait.
  virtual void TellAgentEnded(uint32_t agent, std::string text, uint64_t number = 0) = 0;
  // Says that dlaunch has noted who may take over.
  virtual void NoteStandbys(v1::Standbys standbys) = 0;
};

}  // namespace cohort::launcher
