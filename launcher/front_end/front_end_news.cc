// The part of the front-end that hears from the agents how the job goes, and tells the user.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <string>
#include <utility>

#include "cohort/launcher/front_end/front_end_inside.h"

namespace cohort::launcher {
namespace {

using std::chrono::seconds;

constexpr int kSilentSecondsAfterReport = 5;  // then agents are killed, and their sentinels sweep
constexpr seconds kGivenUpEndsWithin{2};      // then it is killed

}  // namespace

void FrontEnd::OnMessage(size_t index, const v1::FromNode& message) {
  if (!host_.IsNew(message)) return;
  switch (message.kind_case()) {
    case v1::FromNode::kListening:
      if (host_.OnListening(index, message.listening())) break;
      rendezvous_address_ = message.listening();
      for (size_t i = 1; i < agents_.size(); ++i) {
        v1::ToNode start;
        *start.mutable_start() = MakeStart(i);
        agents_.Send(i, start);
      }
      break;
    case v1::FromNode::kOutput:
      // An agent cuts at them. What follows one would have no rank before it, or where it is held, be a descriptor.
      if (message.output().text().find('\n') != std::string::npos) {
        Refuse(index, "a line of output with another in it");
        break;
      }
      news_.OnOutput(message.output());
      silent_seconds_ = 0;
      if (!killed_ && printer_.full()) agents_.SetReading(false);
      break;
    case v1::FromNode::kReport:
      OnReport(message.report());
      break;
    case v1::FromNode::kFailed:
      agents_.SetFailed(index, message.failed());
      break;
    case v1::FromNode::kNotice:
      Say(message.notice());
      break;
    case v1::FromNode::kLost:
      news_.OnLost(message.lost());
      break;
    case v1::FromNode::kRestart:
      OnRestart(message.restart());
      break;
    case v1::FromNode::kLostNode:
      OnLostNode(message.lost_node());
      break;
    case v1::FromNode::kMembers:
      OnMembers(index, message.members());
      break;
    case v1::FromNode::kStandbys:
      if (!AreAgents(message.standbys().agents())) {
        Refuse(index, "standbys that are no agents of this job");
        break;
      }
      host_.OnStandbys(index, message.standbys());
      break;
    case v1::FromNode::kHostSilent:
      if (!report_) host_.OnSilent(index, message.host_silent());
      break;
    case v1::FromNode::kView:
      watch_.OnView(index, message.view());
      break;
    case v1::FromNode::kInputWanted:
      if (index != agent_of_[0]) break;  // only rank 0, which is its, gets any
      input_.Want(message.input_wanted().bytes());
      if (message.input_wanted().closed()) input_.Close();
      break;
    case v1::FromNode::kAllSaid:
      all_said_[index] = message.all_said();
      break;
    case v1::FromNode::KIND_NOT_SET:
      break;
  }
}

void FrontEnd::OnReport(const v1::JobReport& report) {
  if (report_) return;
  report_ = report;
  TellOfStopped();
  news_.Tell(report);
  host_.OnReport();
  AwaitAgentsEnds();
  QuitWhenDone();
}

// Why a node was silent, which the rendezvous can't know.
void FrontEnd::TellOfStopped() {
  for (size_t i = 0; i < agents_.size() && !user_stop_; ++i) {
    if (!HasRanks(i) || !agents_.IsStopped(i)) continue;
    Say(agents_.Name(i) + " is stopped (SIGSTOP), and its node can't answer");
  }
}

// They end when all that they have to say is read. Counted in seconds, since this process may itself be stopped.
void FrontEnd::AwaitAgentsEnds() {
  loop_.After(seconds(1), [this] {
    if (!printer_.full() && ++silent_seconds_ >= kSilentSecondsAfterReport) return KillAgents();
    AwaitAgentsEnds();
  });
}

void FrontEnd::OnRestart(const v1::Restart& restart) {
  if (report_) return;
  TellOfStopped();
  news_.TellEpoch(restart.report(), members_);
  watch_.OnEpoch();
  std::string when = "now";
  if (restart.delay_ms() > 0) when = "in " + std::to_string((restart.delay_ms() + 999) / 1000) + " s";
  if (std::exchange(lost_node_, false) && restart.delay_ms() > 0) {
    when += " at the latest, when nothing of the lost node can live any more";
  }
  if (restart.spares() > 0) when += ", and when a spare node has joined that is not there yet";
  Say("restart " + std::to_string(restart.number()) + " of " + std::to_string(restart.max_restarts()) +
      " of all ranks, " + when);
}

// Should the agent live, it must not go on: another may take its place, or go on without its ranks.
void FrontEnd::OnLostNode(const v1::LostNode& lost) {
  const size_t agent = lost.agent();
  if (report_ || agent >= agents_.size() || !given_up_.insert(agent).second) return;
  lost_node_ = true;
  if (!HasRanks(agent)) Say(lost.text());
  const bool must_end = NodesAreReplaceable(job_) || job_.options.standbys > 0;
  if (agent == host_.index() || !must_end) return;
  agents_.CloseInput(agent);
  loop_.After(kGivenUpEndsWithin, [this, agent] { agents_.Kill(agent); });
}

bool FrontEnd::AreAgents(const google::protobuf::RepeatedField<uint32_t>& agents) const {
  return std::all_of(agents.begin(), agents.end(), [this](uint32_t agent) { return agent < agents_.size(); });
}

// As one whose bytes are no messages.
void FrontEnd::Refuse(size_t index, const std::string& what) {
  agents_.SetFailed(index, "it sent " + what);
  agents_.Kill(index);
}

void FrontEnd::OnMembers(size_t index, const v1::Membership& members) {
  const auto& nodes = members.placements();
  const bool have_ranks =
      std::none_of(nodes.begin(), nodes.end(), [](const v1::NodePlacement& node) { return node.ranks().empty(); });
  if (nodes.empty() || nodes.size() != members.agents_size() || !have_ranks || !AreAgents(members.agents())) {
    return Refuse(index, "a membership of nodes without ranks, or without agents of this job");
  }
  members_ = {members.placements().begin(), members.placements().end()};
  agent_of_ = {members.agents().begin(), members.agents().end()};
  for (const std::string& change : members.changes()) Say(change);
}

}  // namespace cohort::launcher
