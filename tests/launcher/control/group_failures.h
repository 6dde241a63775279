// A job of nodes with one rank each, whose ranks report stalled operations and failed groups.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>

#include "cohort/launcher/control/rendezvous.h"
#include "tests/launcher/control/driver.h"

namespace cohort::launcher {

inline constexpr uint32_t kUnavailable = 14;
inline constexpr uint32_t kFailedPrecondition = 9;
inline constexpr uint32_t kDeadlineExceeded = 4;
inline constexpr uint32_t kAborted = 10;

inline v1::StallReport Stall(uint64_t sequence, bool expired = false) {
  v1::StallReport stall;
  stall.set_group(77);
  stall.set_epoch(1);
  stall.set_sequence(sequence);
  stall.mutable_members()->set_everyone(true);
  stall.set_expired(expired);
  return stall;
}

inline v1::CallState Call(uint32_t rank, uint64_t sequence, const std::string& call, const std::string& site) {
  v1::CallState state;
  state.set_present(true);
  state.set_rank(rank);
  state.set_group(77);
  state.set_epoch(1);
  state.set_sequence(sequence);
  state.set_call(call);
  state.set_site(site);
  state.set_signature(std::hash<std::string>()(call) | 1);
  state.set_age_ms(60);
  state.set_sequence_seen(true);
  return state;
}

inline v1::CallState Elsewhere(uint32_t rank, uint64_t sequence, const std::string& call, const std::string& site) {
  v1::CallState state = Call(rank, sequence, call, site);
  state.set_sequence_seen(false);
  state.set_group(5);
  return state;
}

inline v1::GroupFailure Failure(int from, int blamed, uint32_t code, const std::string& text, uint64_t group = 77) {
  v1::GroupFailure failure;
  failure.set_group(group);
  failure.set_epoch(1);
  failure.mutable_members()->set_everyone(true);
  failure.set_code(code);
  failure.set_text(text);
  failure.set_from_rank(from);
  failure.set_blamed_rank(blamed);
  return failure;
}

// A job of nodes with one rank each.
class GroupFailures : public ::testing::Test {
 protected:
  explicit GroupFailures(uint32_t nodes = 4, const std::string& on_failure = "end")
      : nodes_(nodes), job_(nodes, 1, on_failure) {
    job_.JoinAll();
  }
  void Report(uint32_t rank, const v1::StallReport& stall) {
    v1::FromAgent message;
    *message.mutable_stall() = stall;
    job_.Say(rank, message);
  }
  void Fail(uint32_t node, const v1::GroupFailure& failure) {
    v1::FromAgent message;
    *message.mutable_group_failure() = failure;
    job_.Say(node, message);
  }
  // Answers the latest inspection for a rank.
  void Answer(const v1::CallState& call) {
    const v1::ToAgent* asked = job_.Last(Driver::Of(call.rank()), v1::ToAgent::kInspect);
    ASSERT_NE(asked, nullptr);
    v1::FromAgent message;
    message.mutable_inspect()->set_request(asked->inspect().request());
    *message.mutable_inspect()->add_calls() = call;
    job_.Say(call.rank(), message);
  }
  int Inspections(uint32_t node) const { return job_.Count(Driver::Of(node), v1::ToAgent::kInspect); }
  const v1::GroupFailure* Verdict(uint32_t node) const {
    const v1::ToAgent* message = job_.Last(Driver::Of(node), v1::ToAgent::kGroupFailure);
    return message == nullptr ? nullptr : &message->group_failure();
  }
  void End() {
    job_.Pass(std::chrono::milliseconds(200));
    job_.EndAllAsTold();
    ASSERT_TRUE(job_.report().has_value());
  }

  const uint32_t nodes_;
  Driver job_;
};

}  // namespace cohort::launcher
