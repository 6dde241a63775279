// dlaunch's side of the agent that hosts the rendezvous: which one it is, what it is told and what it says. With
// --standby another one takes over when it is lost (launcher/control/standby/replicated_rendezvous.h).
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "cohort/launcher/base/event_loop.h"
#include "cohort/launcher/front_end/agent_processes.h"
#include "cohort/launcher/front_end/job_plan.h"
#include "cohort/launcher/front_end/printing/line_turns.h"
#include "cohort/v1/rendezvous.pb.h"

namespace cohort::launcher {

class RendezvousHost {
 public:
  // All must outlive it.
  static std::unique_ptr<RendezvousHost> Of(const Job& job, EventLoop* loop, AgentProcesses* agents, LineTurns* turns);
  virtual ~RendezvousHost() = default;

  virtual size_t index() const = 0;
  // Queues a message for the host; one that takes over gets it again.
  virtual void Tell(v1::ToNode message) = 0;
  // False: a host before has told this already.
  virtual bool IsNew(const v1::FromNode& message) = 0;

  // The host listens. True: agents have been told to move there; false: it is the first one, and they have yet to
  // start.
  virtual bool OnListening(size_t index, const std::string& addresses) = 0;
  virtual void OnStandbys(size_t index, const v1::Standbys& standbys) = 0;
  // A standby has lost the host of that term.
  virtual void OnSilent(size_t index, uint64_t term) = 0;
  // That agent has ended, which the host has to know. False: it was the host, and nobody takes over; nobody has to when
  // the job is `over`.
  virtual bool OnAgentEnded(size_t index, bool over) = 0;
  // Nobody has taken over: agents that wait for one need not.
  virtual void Abandon() = 0;
  // The job is over: nobody needs to stand by.
  virtual void OnReport() = 0;
  // How much longer the rendezvous may need to notice a loss, since another host may have to take over before.
  virtual std::chrono::seconds take_over_slack() const = 0;

 protected:
  RendezvousHost() = default;
  RendezvousHost(const RendezvousHost&) = delete;
  RendezvousHost& operator=(const RendezvousHost&) = delete;
};

}  // namespace cohort::launcher
