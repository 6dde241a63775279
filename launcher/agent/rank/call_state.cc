#include "cohort/launcher/agent/rank/call_state.h"

#include <algorithm>
#include <chrono>
#include <optional>
#include <string>

#include "cohort/runtime/segment/call_names.h"
#include "cohort/runtime/segment/call_record.h"

namespace cohort::launcher {
namespace {

uint64_t SteadyNow() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

// Since the call ended, or since it began where it has not.
uint64_t AgeMilliseconds(const runtime::CallRecord& record) {
  const uint64_t since = record.end_ns != 0 ? record.end_ns : record.start_ns;
  const uint64_t now = SteadyNow();
  return now > since ? (now - since) / 1'000'000 : 0;
}

v1::CallState FromRecord(const runtime::CallRecord& record, uint32_t rank) {
  v1::CallState state;
  state.set_present(true);
  state.set_message(runtime::IsPointToPoint(record.signature.kind));
  state.set_rank(rank);
  state.set_group(record.signature.group);
  state.set_epoch(record.signature.epoch);
  state.set_sequence(record.signature.sequence);
  state.set_call(runtime::DescribeCall(record));
  state.set_site(runtime::SiteOf(record));
  state.set_done(record.state != runtime::CallState::kStarted);
  state.set_failed(record.state == runtime::CallState::kFailed);
  state.set_signature(runtime::HashSignature(record.signature));
  state.set_result(record.result);
  state.set_age_ms(AgeMilliseconds(record));
  state.set_group_rank(std::max(record.group_rank, 0));
  return state;
}

}  // namespace

v1::CallState LatestCall(const runtime::BlackBoxReader& box, uint32_t rank) {
  const std::optional<runtime::CallRecord> latest = box.Latest();
  if (latest) return FromRecord(*latest, rank);
  v1::CallState state;
  state.set_rank(rank);
  return state;
}

v1::CallState InspectOperation(const runtime::BlackBoxReader& box, uint32_t rank, uint64_t group, uint64_t epoch,
                               uint64_t sequence) {
  if (const std::optional<runtime::CallRecord> record = box.Find(group, static_cast<uint32_t>(epoch), sequence)) {
    v1::CallState state = FromRecord(*record, rank);
    state.set_sequence_seen(true);
    return state;
  }
  v1::CallState state = LatestCall(box, rank);
  state.set_joined(true);                                                           // as every member of a group
  if (box.Reached(group, static_cast<uint32_t>(epoch), sequence).value_or(true)) {  // or it may be forgotten
    state.set_sequence_seen(true);
    state.clear_signature();
  }
  return state;
}

}  // namespace cohort::launcher
