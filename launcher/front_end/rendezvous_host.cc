#include "cohort/launcher/front_end/rendezvous_host.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <utility>

namespace cohort::launcher {
namespace {

// How long a chosen standby may take to listen. Agents wait for 8 s in all, so that there is time for another.
constexpr std::chrono::seconds kListensWithin{2};
// Kept for one that takes over. Signals are not counted by those that get them: older ones are of no use.
constexpr ptrdiff_t kMostNotices = 64;

}  // namespace

void RendezvousHost::Tell(v1::ToNode message) {
  if (job_.options.standbys > 0) {
    message.set_number(++told_count_);
    told_.push_back(message);
    const auto is_notice = [](const v1::ToNode& told) { return told.has_notice_signal(); };
    if (std::count_if(told_.begin(), told_.end(), is_notice) > kMostNotices) {
      told_.erase(std::find_if(told_.begin(), told_.end(), is_notice));
    }
  }
  agents_->Send(index(), message);
}

bool RendezvousHost::IsNew(const v1::FromNode& message) {
  if (message.number() == 0) return true;
  if (message.number() <= heard_) return false;
  heard_ = message.number();
  return true;
}

bool RendezvousHost::OnListening(size_t index, const std::string& addresses) {
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

void RendezvousHost::OnStandbys(size_t index, const v1::Standbys& standbys) {
  const std::optional<v1::Standbys> noted = choice_.Note(static_cast<uint32_t>(index), standbys);
  if (!noted) return;
  const std::set<uint32_t> now(standbys.agents().begin(), standbys.agents().end());
  for (const uint32_t agent : standbys_) {
    if (!over_ && !now.contains(agent) && agent != choice_.host()) {
      say_(NameOf(agent) + " can't take over as the rendezvous' host any more: the host does not reach it");
    }
  }
  standbys_ = now;
  v1::ToNode answer;
  *answer.mutable_standbys() = *noted;
  agents_->Send(index, answer);
}

void RendezvousHost::OnSilent(size_t index, uint64_t term) {
  if (choice_.IsNews(static_cast<uint32_t>(index), term)) (void)TakeOver();
}

bool RendezvousHost::OnAgentEnded(size_t index, bool over) {
  choice_.Lose(static_cast<uint32_t>(index));
  standbys_.erase(static_cast<uint32_t>(index));
  if (index == choice_.host() && (over || !TakeOver())) return false;
  if (!agents_->IsHere(index)) return true;
  v1::ToNode message;
  message.mutable_agent_ended()->set_agent(static_cast<uint32_t>(index));
  message.mutable_agent_ended()->set_text(agents_->DescribeEnd(index));
  Tell(std::move(message));
  return true;
}

bool RendezvousHost::TakeOver() {
  const std::string before = NameOf(index());
  std::optional<v1::TakeOver> order = choice_.Choose();
  if (!order) return false;
  say_(NameOf(index()) + " takes over as the rendezvous' host from " + before);
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
void RendezvousHost::Doubt(uint64_t term) {
  if (choice_.Doubts(term) && !over_) (void)TakeOver();
}

void RendezvousHost::Abandon() {
  for (size_t i = 0; i < agents_->size() && job_.options.standbys > 0; ++i) agents_->CloseInput(i);
}

void RendezvousHost::OnReport() {
  over_ = true;
  for (size_t i = 1; i < agents_->size() && i <= static_cast<size_t>(job_.options.standbys); ++i) {
    if (i != index()) agents_->CloseInput(i);
  }
}

}  // namespace cohort::launcher
