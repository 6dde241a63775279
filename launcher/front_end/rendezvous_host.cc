#include "cohort/launcher/front_end/rendezvous_host.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "cohort/launcher/control/standby/standby_choice.h"

namespace cohort::launcher {
namespace {

// How long a chosen standby may take to listen. Agents wait for 8 s in all, so that there is time for another.
constexpr std::chrono::seconds kListensWithin{2};
constexpr std::chrono::seconds kTakeOverSlack{20};
// Kept for one that takes over. Signals are not counted by those that get them: older ones are of no use.
constexpr ptrdiff_t kMostNotices = 64;

v1::ToNode EndOf(const AgentProcesses& agents, size_t index) {
  v1::ToNode message;
  message.mutable_agent_ended()->set_agent(static_cast<uint32_t>(index));
  message.mutable_agent_ended()->set_text(agents.DescribeEnd(index));
  return message;
}

// The first agent, for as long as the job lasts.
class OnlyHost : public RendezvousHost {
 public:
  explicit OnlyHost(AgentProcesses* agents) : agents_(agents) {}

  size_t index() const override { return 0; }
  void Tell(v1::ToNode message) override { agents_->Send(index(), message); }
  bool IsNew(const v1::FromNode&) override { return true; }
  bool OnListening(size_t index, const std::string&) override { return index != this->index(); }
  void OnStandbys(size_t, const v1::Standbys&) override {}
  void OnSilent(size_t, uint64_t) override {}
  bool OnAgentEnded(size_t index, bool) override {
    if (index == this->index()) return false;
    if (agents_->IsHere(index)) Tell(EndOf(*agents_, index));
    return true;
  }
  void Abandon() override {}
  void OnReport() override {}
  std::chrono::seconds take_over_slack() const override { return std::chrono::seconds(0); }

 private:
  AgentProcesses* const agents_;
};

// One of several agents in turn.
class ReplaceableHost : public RendezvousHost {
 public:
  ReplaceableHost(const Job& job, EventLoop* loop, AgentProcesses* agents, LineTurns* turns)
      : job_(job), loop_(loop), agents_(agents), turns_(turns) {}

  size_t index() const override { return choice_.host(); }
  void Tell(v1::ToNode message) override;
  bool IsNew(const v1::FromNode& message) override;
  bool OnListening(size_t index, const std::string& addresses) override;
  void OnStandbys(size_t index, const v1::Standbys& standbys) override;
  void OnSilent(size_t index, uint64_t term) override;
  bool OnAgentEnded(size_t index, bool over) override;
  void Abandon() override;
  void OnReport() override;
  std::chrono::seconds take_over_slack() const override { return kTakeOverSlack; }

 private:
  bool TakeOver();
  // Another is chosen where the one of that term has not said in time where it listens.
  void Doubt(uint64_t term);
  const std::string& NameOf(size_t index) const { return job_.nodes.nodes[index].name; }

  const Job& job_;
  EventLoop* const loop_;
  AgentProcesses* const agents_;
  LineTurns* const turns_;
  StandbyChoice choice_;
  std::vector<v1::ToNode> told_;  // stops, ends of agents, and the latest notices, of which a user may send any number
  uint64_t told_count_ = 0;       // of those that were left out as well
  uint64_t heard_ = 0;            // FromNode.number of the latest
  std::set<uint32_t> standbys_;   // as the user knows them
  bool over_ = false;
};

void ReplaceableHost::Tell(v1::ToNode message) {
  message.set_number(++told_count_);
  told_.push_back(message);
  const auto is_notice = [](const v1::ToNode& told) { return told.has_notice_signal(); };
  if (std::count_if(told_.begin(), told_.end(), is_notice) > kMostNotices) {
    told_.erase(std::find_if(told_.begin(), told_.end(), is_notice));
  }
  agents_->Send(index(), message);
}

bool ReplaceableHost::IsNew(const v1::FromNode& message) {
  if (message.number() == 0) return true;
  if (message.number() <= heard_) return false;
  heard_ = message.number();
  return true;
}

bool ReplaceableHost::OnListening(size_t index, const std::string& addresses) {
  if (index != choice_.host()) return true;
  choice_.SetReached();
  if (choice_.term() == 1) return false;
  v1::ToNode message;
  message.mutable_new_host()->set_term(choice_.term());
  message.mutable_new_host()->set_agent(choice_.host());
  message.mutable_new_host()->set_addresses(addresses);
  for (size_t i = 0; i < agents_->size(); ++i) agents_->Send(i, message);
  return true;
}

void ReplaceableHost::OnStandbys(size_t index, const v1::Standbys& standbys) {
  const std::optional<v1::Standbys> noted = choice_.Note(static_cast<uint32_t>(index), standbys);
  if (!noted) return;
  const std::set<uint32_t> now(standbys.agents().begin(), standbys.agents().end());
  for (const uint32_t agent : standbys_) {
    if (!over_ && !now.contains(agent) && agent != choice_.host()) {
      turns_->Announce(NameOf(agent) + " can't take over as the rendezvous' host any more: the host does not reach it");
    }
  }
  standbys_ = now;
  v1::ToNode answer;
  *answer.mutable_standbys() = *noted;
  agents_->Send(index, answer);
}

void ReplaceableHost::OnSilent(size_t index, uint64_t term) {
  if (choice_.IsNews(static_cast<uint32_t>(index), term)) (void)TakeOver();
}

bool ReplaceableHost::OnAgentEnded(size_t index, bool over) {
  choice_.Lose(static_cast<uint32_t>(index));
  standbys_.erase(static_cast<uint32_t>(index));
  if (index == choice_.host() && (over || !TakeOver())) return false;
  if (agents_->IsHere(index)) Tell(EndOf(*agents_, index));
  return true;
}

bool ReplaceableHost::TakeOver() {
  const std::string before = NameOf(index());
  std::optional<v1::TakeOver> order = choice_.Choose();
  if (!order) return false;
  turns_->Announce(NameOf(index()) + " takes over as the rendezvous' host from " + before);
  order->set_heard(heard_);
  v1::ToNode message;
  *message.mutable_take_over() = *order;
  agents_->Send(index(), message);
  for (const v1::ToNode& told : told_) agents_->Send(index(), told);
  loop_->After(kListensWithin, [this, term = order->term()] {
    loop_->Post(
        [this, term] { Doubt(term); });  // after all that had come by then: dlaunch itself may have been stopped
  });
  return true;
}

// The one that was chosen may still come, even if nobody else is left.
void ReplaceableHost::Doubt(uint64_t term) {
  if (choice_.Doubts(term) && !over_) (void)TakeOver();
}

void ReplaceableHost::Abandon() {
  for (size_t i = 0; i < agents_->size(); ++i) agents_->CloseInput(i);
}

void ReplaceableHost::OnReport() {
  over_ = true;
  for (size_t i = 1; i < agents_->size() && i <= static_cast<size_t>(job_.options.standbys); ++i) {
    if (i != index()) agents_->CloseInput(i);
  }
}

}  // namespace

std::unique_ptr<RendezvousHost> RendezvousHost::Of(const Job& job, EventLoop* loop, AgentProcesses* agents,
                                                   LineTurns* turns) {
  if (job.options.standbys == 0) return std::make_unique<OnlyHost>(agents);
  return std::make_unique<ReplaceableHost>(job, loop, agents, turns);
}

}  // namespace cohort::launcher
