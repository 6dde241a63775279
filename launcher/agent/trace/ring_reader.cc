#include "cohort/launcher/agent/trace/ring_reader.h"

#include <algorithm>
#include <limits>
#include <optional>

namespace cohort::launcher {

using runtime::CallRecord;
using runtime::CallService;
using runtime::CallState;

uint64_t RingReader::Read(const runtime::BlackBoxReader& box, size_t most, const OnCall& on_call) {
  uint64_t missed = 0;
  const uint64_t latest = box.latest();
  // A ticket that lies after the latest one, which only a broken ring has, is as good as overwritten.
  std::erase_if(pending_, [&](const Pending& one) {
    if (latest - one.ticket >= runtime::kBlackBoxRecords) {
      ++missed;
      return true;
    }
    CallService service;
    const std::optional<CallRecord> call = box.At(one.ticket, &service);
    if (!call.has_value() || call->state == CallState::kStarted) return false;
    on_call(*call, service);
    return true;
  });
  if (latest > read_ + runtime::kBlackBoxRecords) {
    missed += latest - runtime::kBlackBoxRecords - read_;
    read_ = latest - runtime::kBlackBoxRecords;
  }
  for (; read_ < latest && most > 0; --most) {
    const uint64_t ticket = ++read_;
    CallService service;
    const std::optional<CallRecord> call = box.At(ticket, &service);
    if (call.has_value() && call->state != CallState::kStarted) {
      on_call(*call, service);
    } else {
      pending_.push_back({.ticket = ticket});  // it runs, or is being written, or was overwritten: the next look tells
    }
  }
  return missed;
}

void RingReader::TellOpen(const runtime::BlackBoxReader& box, uint64_t now_ns, const OnCall& on_call) {
  for (Pending& one : pending_) {
    if (now_ns < one.tell_at_ns) continue;
    CallService service;
    const std::optional<CallRecord> call = box.At(one.ticket, &service);
    if (!call.has_value() || call->state != CallState::kStarted || call->start_ns > now_ns) continue;
    const uint64_t open_ns = now_ns - call->start_ns;
    const bool tells = open_ns >= kOpenForNs;
    one.tell_at_ns = tells ? now_ns + std::min(open_ns, kTellAgainNs) : call->start_ns + kOpenForNs;
    if (tells) on_call(*call, service);
  }
}

uint64_t RingReader::Finish(const runtime::BlackBoxReader& box, const OnCall& on_call) {
  uint64_t missed = Read(box, std::numeric_limits<size_t>::max(), on_call);
  for (const Pending& one : pending_) {
    CallService service;
    const std::optional<CallRecord> call = box.At(one.ticket, &service);
    if (call.has_value()) {
      on_call(*call, service);
    } else {
      ++missed;
    }
  }
  pending_.clear();
  return missed;
}

}  // namespace cohort::launcher
