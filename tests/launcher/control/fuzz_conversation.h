// Plans and messages of agents as a fuzzer makes them up, for the fuzzers of the rendezvous and of its log.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <utility>

#include "cohort/launcher/control/rendezvous.h"
#include "cohort/v1/rendezvous.pb.h"
#include "tests/support/fuzz_input.h"
#include "tests/support/fuzz_messages.h"

namespace cohort::launcher {

inline v1::NodePlacement MakePlacement(uint32_t node, uint32_t first_rank, uint32_t ranks) {
  v1::NodePlacement placement;
  placement.set_node(node);
  placement.set_name("node" + std::to_string(node));
  for (uint32_t i = 0; i < ranks; ++i) {
    v1::RankPlacement& rank = *placement.add_ranks();
    rank.set_rank(first_rank + i);
    rank.set_local_rank(i);
    rank.add_devices()->set_node_index(i);
  }
  return placement;
}

inline v1::JobPlan TakePlan(FuzzInput* input) {
  static constexpr const char* kOnFailure[] = {"end", "continue", "restart", ""};
  v1::JobPlan plan;
  plan.mutable_job()->set_on_failure(kOnFailure[input->Below(4)]);
  if (plan.job().on_failure() == "restart") plan.mutable_job()->set_max_restarts(1 + input->Below(3));
  plan.mutable_job()->set_grace_ms(10 * input->Byte());
  plan.set_join_timeout_ms(30'000);
  const uint32_t nodes = 1 + input->Below(4);
  std::set<uint32_t> sizes;
  uint32_t next_rank = 0;
  for (uint32_t node = 0; node < nodes; ++node) {
    const uint32_t ranks = 1 + input->Below(3);
    *plan.add_placements() = MakePlacement(node, next_rank, ranks);
    next_rank += ranks;
    sizes.insert(ranks);
  }
  const uint32_t spares = input->Below(3);
  for (uint32_t i = 0; i < spares; ++i) {
    v1::SpareNode& spare = *plan.add_spares();
    spare.set_name("spare" + std::to_string(i));
    for (const uint32_t ranks : sizes) *spare.add_placements() = MakePlacement(0, 0, ranks);
  }
  plan.set_min_nodes(input->Below(nodes + 1));
  return plan;
}

// --- what an agent may say ---

inline void TakeCall(FuzzInput* input, v1::CallState* call) {
  call->set_present(input->Bool());
  call->set_rank(input->Number32());
  call->set_group(input->Number());
  call->set_epoch(input->Number());
  call->set_sequence(input->Number());
  call->set_call(input->Text());
  call->set_site(input->Text());
  call->set_done(input->Bool());
  call->set_failed(input->Bool());
  call->set_signature(input->Number());
  call->set_age_ms(input->Number());
  call->set_sequence_seen(input->Bool());
  call->set_group_rank(input->Number32());
  const uint8_t flags = input->Byte();
  call->set_message((flags & 1) != 0);
  call->set_joined((flags & 2) == 0);
  if ((flags & 4) != 0) call->set_held_by(input->Text());
}

inline void TakeExit(FuzzInput* input, v1::RankExit* exit) {
  exit->set_rank(input->Number32());
  exit->set_pid(input->Signed32());
  exit->set_exit_code(input->Signed32());
  exit->set_signal(input->Signed32());
  const uint8_t flags = input->Byte();
  exit->set_started((flags & 1) == 0);
  exit->set_killed_by_us((flags & 2) != 0);
  exit->set_finalized((flags & 4) != 0);
  exit->set_lost((flags & 8) != 0);
  exit->set_passed_on((flags & 16) != 0);
  const uint8_t more = input->Byte();
  exit->set_asked_to_end((more & 1) != 0);
  exit->set_was_stopped((more & 2) != 0);
  if ((more & 4) != 0) exit->add_frames(input->Text());
  if ((more & 8) != 0) exit->set_state(input->Text());
  if ((more & 16) != 0) exit->set_last_words(input->Text());
  if ((more & 32) != 0) exit->set_log_path(input->Text());
  if ((more & 64) != 0) exit->set_unix_time_ns(input->Number());
  exit->set_error(input->Text());
  if ((flags & 32) != 0) exit->set_out_of_memory("out of memory");
  if ((flags & 64) != 0) exit->add_last_lines(input->Text());
  if ((flags & 128) != 0) TakeCall(input, exit->mutable_doing());
}

inline void TakeWait(FuzzInput* input, v1::RankWait* wait) {
  wait->set_rank(input->Number32());
  wait->set_number(input->Number());
  wait->set_looks(input->Number());
  wait->set_bound(input->Bool());
  wait->set_forgets(input->Bool());
  for (uint32_t i = input->Below(3); i > 0; --i) {
    v1::AwaitedCall& call = *wait->add_calls();
    call.set_group(input->Number());
    call.set_epoch(input->Number());
    call.set_sequence(input->Number());
    call.set_kind(input->Number32());
    call.set_peer(input->Signed32());
    call.set_bytes(input->Number());
    call.set_device(input->Bool());
    call.set_call(input->Text());
    call.set_site(input->Text());
  }
  for (uint32_t i = input->Below(3); i > 0; --i) {
    v1::LatestCall& call = *wait->add_latest();
    call.set_group(input->Number());
    call.set_kind(input->Number32());
    call.set_peer(input->Signed32());
    call.set_sequence(input->Number());
    call.set_done(input->Bool());
  }
}

inline void TakeWaits(FuzzInput* input, v1::NodeWaits* waits) {
  waits->set_request(input->Number());
  for (uint32_t i = input->Below(4); i > 0; --i) TakeWait(input, waits->add_waits());
  for (uint32_t i = input->Below(3); i > 0; --i) {
    v1::WaitedGroup& group = *waits->add_groups();
    group.set_group(input->Number());
    TakeMembers(input, group.mutable_members());
  }
}

inline void TakeVariable(FuzzInput* input, v1::VariableRequest* variable) {
  variable->set_request(input->Number());
  variable->set_kind(static_cast<v1::VariableRequest::Kind>(input->Below(v1::VariableRequest::Kind_ARRAYSIZE + 1)));
  variable->set_key(input->Text());
  variable->set_value(input->Bool() ? std::to_string(input->Number()) : input->Text());
  variable->set_expected(input->Text());
  variable->set_amount(static_cast<int64_t>(input->Number()));
  variable->set_timeout_ms(input->Number32());
}

inline void TakeOffer(FuzzInput* input, v1::NodeOffer* offer) {
  const uint32_t protocol = input->Below(8);
  offer->set_protocol(protocol == 7 ? input->Number32() : kRendezvousProtocol);
  offer->set_node(input->Number32());
  offer->set_name(input->Text());
  offer->set_address("10.0.0.1");
  offer->set_master_port(input->Number32());
  if (protocol == 6) offer->mutable_resume()->set_taken(input->Number());
}

inline v1::FromAgent TakeMessage(FuzzInput* input);

// The kinds that TakeMessage leaves to this, and bytes as they come: what is no message never gets to the machine.
inline v1::FromAgent TakeRareMessage(FuzzInput* input) {
  v1::FromAgent message;
  switch (input->Below(10)) {
    case 0:
      message.mutable_preemption();
      break;
    case 1:
      message.set_notice_signal(input->Signed32());
      break;
    case 2:
      message.mutable_preemption_step()->set_step(input->Number());
      message.mutable_preemption_step()->set_left(input->Bool());
      message.mutable_preemption_step()->set_epoch(input->Number());
      break;
    case 3:
      message.mutable_stays()->set_rank(input->Number32());
      message.mutable_stays()->set_epoch(input->Number());
      TakeCall(input, message.mutable_stays()->mutable_doing());
      break;
    case 4:
      message.mutable_logged()->set_term(input->Number());
      message.mutable_logged()->set_received(input->Number());
      message.mutable_logged()->set_applied(input->Number());
      break;
    case 5:
      message.mutable_preempted()->set_step(input->Number());
      message.mutable_preempted()->set_epoch(input->Number());
      break;
    case 6:
      TakeWaits(input, message.mutable_waits());
      break;
    case 7:
      TakeVariable(input, message.mutable_variable());
      break;
    case 8:  // the connection refuses a batch in a batch, so that the machine may take it for nothing
      for (uint32_t i = input->Below(3); i > 0; --i) *message.mutable_batch()->add_messages() = TakeMessage(input);
      break;
    default:
      if (!message.ParseFromString(input->Text())) message.Clear();
  }
  return message;
}

inline v1::FromAgent TakeMessage(FuzzInput* input) {
  v1::FromAgent message;
  switch (input->Below(12)) {
    case 0:
      TakeOffer(input, message.mutable_join());
      break;
    case 1: {
      v1::RanksStarted& started = *message.mutable_started();
      for (uint32_t i = input->Below(3); i > 0; --i) {
        v1::RankPid& pid = *started.add_pids();
        pid.set_rank(input->Number32());
        pid.set_pid(input->Signed32());
      }
      for (uint32_t i = input->Below(3); i > 0; --i) TakeExit(input, started.add_failed());
      break;
    }
    case 2:
      TakeExit(input, message.mutable_exit());
      break;
    case 3:
      message.mutable_beat()->set_number(input->Number());
      message.mutable_beat()->set_taken(input->Number());
      break;
    case 4:
      message.mutable_put()->set_request(input->Number());
      message.mutable_put()->set_key(input->Text());
      message.mutable_put()->set_value(input->Text());
      break;
    case 5:
      message.mutable_get()->set_request(input->Number());
      message.mutable_get()->set_key(input->Text());
      message.mutable_get()->set_timeout_ms(input->Number32());
      break;
    case 6:
      message.mutable_stall()->set_group(input->Number());
      message.mutable_stall()->set_epoch(input->Number());
      message.mutable_stall()->set_sequence(input->Number());
      TakeMembers(input, message.mutable_stall()->mutable_members());
      message.mutable_stall()->set_expired(input->Bool());
      message.mutable_stall()->set_message(input->Bool());
      message.mutable_stall()->set_whole_world(input->Bool());
      break;
    case 7:
      TakeFailure(input, message.mutable_group_failure());
      break;
    case 8:
      message.mutable_inspect()->set_request(input->Number());
      for (uint32_t i = input->Below(4); i > 0; --i) TakeCall(input, message.mutable_inspect()->add_calls());
      break;
    case 9:
      message.mutable_done()->set_node(input->Number32());
      message.mutable_done()->set_master_port(input->Number32());
      break;
    case 10:
      message.mutable_stop()->set_reason(input->Text());
      message.mutable_stop()->set_exit_code(input->Signed32());
      message.mutable_stop()->set_grace_ms(input->Number32());
      message.mutable_stop()->set_signal(input->Signed32());
      message.mutable_stop()->set_restarting(input->Bool());
      break;
    default:
      message = TakeRareMessage(input);
  }
  return message;
}

}  // namespace cohort::launcher
