// dlaunch's side of the agent that hosts the rendezvous: which one it is, what it is told and what it says, and with
// --standby who takes over when it is lost (launcher/control/standby/replicated_rendezvous.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "cohort/launcher/base/event_loop.h"
#include "cohort/launcher/control/standby/standby_choice.h"
#include "cohort/launcher/front_end/agent_processes.h"
#include "cohort/launcher/front_end/job_plan.h"
#include "cohort/v1/rendezvous.pb.h"

namespace cohort::launcher {

class RendezvousHost {
 public:
  // `say` prints a line for the user.
  RendezvousHost(EventLoop* loop, AgentProcesses* agents, const Job& job, std::function<void(const std::string&)> say)
      : loop_(loop), agents_(agents), job_(job), say_(std::move(say)) {}

  size_t index() const { return choice_.host(); }
  // Queues a message for the host; one that takes over gets it again.
  void Tell(v1::ToNode message);
  // False: a host before has told this already.
  bool IsNew(const v1::FromNode& message);

  // The host listens. True: agents have been told to move there; false: it is the first one, and they have yet to
  // start.
  bool OnListening(size_t index, const std::string& addresses);
  void OnStandbys(size_t index, const v1::Standbys& standbys);
  // A standby has lost the host of that term.
  void OnSilent(size_t index, uint64_t term);
  // That agent has ended, which the host has to know. False: it was the host, and nobody takes over; nobody has to when
  // the job is `over`.
  bool OnAgentEnded(size_t index, bool over);
  // Nobody has taken over: agents that wait for one need not.
  void Abandon();
  // The job is over: nobody needs to stand by.
  void OnReport();

 private:
  bool TakeOver();
  // Another is chosen where the one of that term has not said in time where it listens.
  void Doubt(uint64_t term);
  const std::string& NameOf(size_t index) const { return job_.nodes.nodes[index].name; }

  EventLoop* const loop_;
  AgentProcesses* const agents_;
  const Job& job_;
  const std::function<void(const std::string&)> say_;
  StandbyChoice choice_;
  // With standbys: stops, ends of agents, and the latest notices, of which a user may send any number.
  std::vector<v1::ToNode> told_;
  uint64_t told_count_ = 0;      // of those that were left out as well
  uint64_t heard_ = 0;           // FromNode.number of the latest
  std::set<uint32_t> standbys_;  // as the user knows them
  bool over_ = false;
};

}  // namespace cohort::launcher
