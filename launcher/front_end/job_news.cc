#include "cohort/launcher/front_end/job_news.h"

#include <algorithm>
#include <chrono>
#include <utility>

namespace cohort::launcher {
namespace {

constexpr std::chrono::seconds kGivenUpEndsWithin{2};  // then it is killed

}  // namespace

JobNews::JobNews(const Job& job, const JobEnd& end, const Parts& parts)
    : job_(job), end_(end), parts_(parts), members_(job.placement.nodes) {
  for (size_t i = 0; i < members_.size(); ++i) agent_of_.push_back(i);
}

void JobNews::OnMessage(size_t index, const v1::FromNode& message) {
  switch (message.kind_case()) {
    case v1::FromNode::kOutput:
      OnOutput(index, message.output());
      break;
    case v1::FromNode::kFailed:
      parts_.agents->SetFailed(index, message.failed());
      break;
    case v1::FromNode::kNotice:
      parts_.turns->Announce(message.notice());
      break;
    case v1::FromNode::kRemark:
      parts_.failures->OnRemark(message.remark());
      break;
    case v1::FromNode::kRanksLost:
      parts_.failures->OnLost(message.ranks_lost());
      parts_.trace->OnEvent("ranks lost", message.ranks_lost());
      break;
    case v1::FromNode::kRestart:
      OnRestart(message.restart());
      break;
    case v1::FromNode::kNodeLost:
      OnLostNode(message.node_lost());
      break;
    case v1::FromNode::kMembers:
      OnMembers(index, message.members());
      break;
    case v1::FromNode::kStandbys:
      OnStandbys(index, message.standbys());
      break;
    case v1::FromNode::kHostSilent:
      if (!end_.over()) parts_.host->OnSilent(index, message.host_silent());
      break;
    case v1::FromNode::kView:
      parts_.watch->OnView(index, message.view());
      break;
    case v1::FromNode::kStack:
      parts_.watch->OnStack(index, message.stack());
      break;
    case v1::FromNode::kTrace:
      if (!parts_.trace->OnTrace(index, message.trace())) Refuse(index, "a trace without its calls");
      break;
    case v1::FromNode::kInputWanted:
      OnInputWanted(index, message.input_wanted());
      break;
    case v1::FromNode::kAllSaid:
      all_said_[index] = message.all_said();
      break;
    case v1::FromNode::kListening:
    case v1::FromNode::kReport:
    case v1::FromNode::KIND_NOT_SET:
      break;
  }
}

// An agent cuts at newlines. What follows one would have no rank before it, or where it is held, be a descriptor.
void JobNews::OnOutput(size_t index, const v1::OutputLine& line) {
  if (line.text().find('\n') != std::string::npos) return Refuse(index, "a line of output with another in it");
  parts_.failures->OnOutput(line);
}

void JobNews::TellOfStopped() const {
  for (size_t i = 0; i < parts_.agents->size() && !end_.stopped_by_user(); ++i) {
    if (!HasRanks(i) || !parts_.agents->IsStopped(i)) continue;
    parts_.turns->Announce(parts_.agents->Name(i) + " is stopped (SIGSTOP), and its node can't answer");
  }
}

void JobNews::OnRestart(const v1::Restart& restart) {
  if (end_.over()) return;
  TellOfStopped();
  parts_.failures->TellEpoch(restart.report(), members_);
  parts_.watch->OnEpoch();
  parts_.trace->OnEvent("restart", restart.report().headline());
  std::string when = "now";
  if (restart.delay_ms() > 0) when = "in " + std::to_string((restart.delay_ms() + 999) / 1000) + " s";
  if (std::exchange(lost_node_, false) && restart.delay_ms() > 0) {
    when += " at the latest, when nothing of the lost node can live any more";
  }
  if (restart.spares() > 0) when += ", and when a spare node has joined that is not there yet";
  parts_.turns->Announce("restart " + std::to_string(restart.number()) + " of " +
                         std::to_string(restart.max_restarts()) + " of all ranks, " + when);
}

// Should the agent live, it must not go on: another may take its place, or go on without its ranks.
void JobNews::OnLostNode(const v1::LostNode& lost) {
  const size_t agent = lost.agent();
  if (end_.over() || agent >= parts_.agents->size() || !given_up_.insert(agent).second) return;
  lost_node_ = true;
  if (!HasRanks(agent)) parts_.turns->Announce(lost.text());
  if (agent == parts_.host->index() || !NodesAreReplaceable(job_)) return;
  parts_.agents->CloseInput(agent);
  parts_.loop->After(kGivenUpEndsWithin, [this, agent] { parts_.agents->Kill(agent); });
}

void JobNews::OnMembers(size_t index, const v1::Membership& members) {
  const auto& nodes = members.placements();
  const bool have_ranks =
      std::none_of(nodes.begin(), nodes.end(), [](const v1::NodePlacement& node) { return node.ranks().empty(); });
  if (nodes.empty() || nodes.size() != members.agents_size() || !have_ranks || !AreAgents(members.agents())) {
    return Refuse(index, "a membership of nodes without ranks, or without agents of this job");
  }
  members_ = {members.placements().begin(), members.placements().end()};
  agent_of_ = {members.agents().begin(), members.agents().end()};
  for (const std::string& change : members.changes()) parts_.turns->Announce(change);
}

void JobNews::OnStandbys(size_t index, const v1::Standbys& standbys) {
  if (!AreAgents(standbys.agents())) return Refuse(index, "standbys that are no agents of this job");
  parts_.host->OnStandbys(index, standbys);
}

void JobNews::OnInputWanted(size_t index, const v1::InputWanted& wanted) {
  if (index != agent_of_[0]) return;  // only rank 0, which is its, gets any
  parts_.input->Want(wanted.bytes());
  if (wanted.closed()) parts_.input->Close();
}

bool JobNews::HasRanks(size_t index) const {
  return std::find(agent_of_.begin(), agent_of_.end(), index) != agent_of_.end();
}

bool JobNews::AllSaid(size_t index) const {
  const auto said = all_said_.find(index);
  return said != all_said_.end() && said->second > parts_.failures->failed_epochs().size();
}

bool JobNews::AreAgents(const google::protobuf::RepeatedField<uint32_t>& agents) const {
  return std::all_of(agents.begin(), agents.end(), [this](uint32_t agent) { return agent < parts_.agents->size(); });
}

void JobNews::Refuse(size_t index, const std::string& what) {
  parts_.agents->SetFailed(index, "it sent " + what);
  parts_.agents->Kill(index);
}

}  // namespace cohort::launcher
