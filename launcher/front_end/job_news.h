// The news of a job, as its agents send them: who its members are, what fails and what follows. Each goes to the part
// of dlaunch that it concerns, and to the user.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "cohort/launcher/base/event_loop.h"
#include "cohort/launcher/front_end/agent_processes.h"
#include "cohort/launcher/front_end/failure_news.h"
#include "cohort/launcher/front_end/job_end.h"
#include "cohort/launcher/front_end/job_plan.h"
#include "cohort/launcher/front_end/job_watch.h"
#include "cohort/launcher/front_end/printing/line_turns.h"
#include "cohort/launcher/front_end/rendezvous_host.h"
#include "cohort/launcher/front_end/standard_input.h"
#include "cohort/launcher/trace/job_trace.h"
#include "cohort/v1/rendezvous.pb.h"
#include "google/protobuf/repeated_field.h"

namespace cohort::launcher {

class JobNews {
 public:
  // All outlive this.
  struct Parts {
    EventLoop* loop;
    AgentProcesses* agents;
    RendezvousHost* host;
    FailureNews* failures;
    JobWatch* watch;
    JobTrace* trace;
    StandardInput* input;
    LineTurns* turns;
  };
  JobNews(const Job& job, const JobEnd& end, const Parts& parts);

  // All but the report, and the host's word that it listens: those concern the job as a whole.
  void OnMessage(size_t index, const v1::FromNode& message);
  // Tells why nodes are silent, where their agents are stopped: the rendezvous can't know.
  void TellOfStopped() const;

  // The epoch's nodes, and by node the index of its agent.
  const std::vector<v1::NodePlacement>& members() const { return members_; }
  const std::vector<size_t>& agent_of() const { return agent_of_; }
  bool HasRanks(size_t index) const;
  // The rendezvous has lost that agent.
  bool GaveUp(size_t index) const { return given_up_.contains(index); }
  // All that the latest epoch's ranks of that agent had printed is here.
  bool AllSaid(size_t index) const;

 private:
  void OnOutput(size_t index, const v1::OutputLine& line);
  void OnRestart(const v1::Restart& restart);
  void OnLostNode(const v1::LostNode& lost);
  void OnMembers(size_t index, const v1::Membership& members);
  void OnStandbys(size_t index, const v1::Standbys& standbys);
  void OnInputWanted(size_t index, const v1::InputWanted& wanted);
  bool AreAgents(const google::protobuf::RepeatedField<uint32_t>& agents) const;
  // Takes the agent for one whose bytes are no messages.
  void Refuse(size_t index, const std::string& what);

  const Job& job_;
  const JobEnd& end_;
  const Parts parts_;
  std::vector<v1::NodePlacement> members_;
  std::vector<size_t> agent_of_;
  std::set<size_t> given_up_;
  std::map<size_t, uint64_t> all_said_;  // by agent: the epoch
  bool lost_node_ = false;               // in this epoch
};

}  // namespace cohort::launcher
