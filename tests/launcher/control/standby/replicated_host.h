// A host of a rendezvous with standbys, step by step, and what it has sent.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "cohort/launcher/control/standby/replicated_rendezvous.h"
#include "cohort/launcher/control/standby/standby.h"
#include "tests/launcher/control/driver.h"

namespace cohort::launcher {

inline v1::JobPlan PlanWithStandbys(uint32_t nodes, uint32_t standbys) {
  v1::JobPlan plan = MakePlan(nodes, 1, "restart");
  plan.mutable_job()->set_max_restarts(3);
  plan.set_min_nodes(1);
  plan.set_standbys(standbys);
  return plan;
}

inline v1::FromAgent Put(uint64_t request) {
  v1::FromAgent message;
  message.mutable_put()->set_request(request);
  message.mutable_put()->set_key("key " + std::to_string(request));
  return message;
}

// A host, and what it has sent.
class Host {
 public:
  Host(v1::JobPlan plan, TimePoint now) : machine_(std::move(plan), now), now_(now) {}
  Host(StandbyCopy copy, const v1::TakeOver& order, TimePoint now) : machine_(std::move(copy), order, now), now_(now) {
    Tick();
  }

  void Handle(Event event) { Take(machine_.Handle(std::move(event), now_)); }
  void Say(ConnectionId from, v1::FromAgent message) { Handle(Received{from, std::move(message)}); }
  void Join(ConnectionId from, uint32_t node, std::optional<v1::Resume> resume = std::nullopt) {
    v1::FromAgent message;
    *message.mutable_join() = MakeOffer(node);
    if (resume.has_value()) *message.mutable_join()->mutable_resume() = *resume;
    Say(from, std::move(message));
  }
  void Tick() { Take(machine_.Tick(now_)); }
  void Sleep(std::chrono::milliseconds time) { now_ += time; }
  void Pass(std::chrono::milliseconds time) {
    for (const TimePoint end = now_ + time; now_ < end;) {
      now_ = std::min(end, std::max(machine_.NextTick(), now_ + std::chrono::milliseconds(1)));
      Tick();
    }
  }
  // Gives the standby behind that connection all pages that were sent to it, and the host its answers.
  void Copy(ConnectionId to, StandbyCopy* copy) {
    for (size_t i = 0; i < sent_.size(); ++i) {
      if (sent_[i].to != to || !sent_[i].message->has_log()) continue;
      const auto ack = copy->OnPage(sent_[i].message->log(), now_);
      sent_.erase(sent_.begin() + static_cast<std::ptrdiff_t>(i--));
      if (!ack.has_value()) continue;
      v1::FromAgent message;
      *message.mutable_logged() = *ack;
      Say(to, std::move(message));
    }
  }
  // dlaunch's answer to the latest wish.
  void Note() {
    ASSERT_FALSE(wanted.empty());
    Handle(StandbysNoted{wanted.back()});
  }
  int Count(ConnectionId to, v1::ToAgent::KindCase kind) const {
    int count = 0;
    for (const Send& send : sent_) count += send.to == to && send.message->kind_case() == kind ? 1 : 0;
    return count;
  }
  const v1::ToAgent& First(ConnectionId to, v1::ToAgent::KindCase kind) const {
    const auto first = std::find_if(sent_.begin(), sent_.end(), [&](const Send& send) {
      return send.to == to && send.message->kind_case() == kind;
    });
    EXPECT_NE(first, sent_.end());
    return first == sent_.end() ? v1::ToAgent::default_instance() : *first->message;
  }
  const v1::ToAgent& Last(ConnectionId to, v1::ToAgent::KindCase kind) const {
    const v1::ToAgent* last = nullptr;
    for (const Send& send : sent_) {
      if (send.to == to && send.message->kind_case() == kind) last = send.message.get();
    }
    EXPECT_NE(last, nullptr);
    return last == nullptr ? v1::ToAgent::default_instance() : *last;
  }

  std::vector<v1::Standbys> wanted;
  std::vector<uint32_t> lost;
  bool acted() const { return !sent_.empty(); }
  void Forget() { sent_.clear(); }

 private:
  void Take(std::vector<Action> actions) {
    for (Action& action : actions) {
      if (Send* const send = std::get_if<Send>(&action)) sent_.push_back(std::move(*send));
      if (StandbysWanted* const want = std::get_if<StandbysWanted>(&action)) wanted.push_back(want->standbys);
      if (NodeLost* const node = std::get_if<NodeLost>(&action)) lost.push_back(node->lost.agent());
    }
  }

  ReplicatedRendezvous machine_;
  TimePoint now_;
  std::vector<Send> sent_;
};

}  // namespace cohort::launcher
