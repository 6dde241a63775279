#include "cohort/comm/provider/prepared_call.h"

namespace cohort::comm {

AcceptedCall& Provider::FillNextCall(const PreparedCall& prepared) {
  AcceptedCall& call = NextCall();
  if (call.like == prepared.id) [[likely]] {
    call.record.signature.tuning = prepared.record.signature.tuning;
    call.record.signature.sequence = prepared.record.signature.sequence;
    call.record.wire_signature = prepared.record.wire_signature;
  } else {
    call.like = prepared.id;
    call.request = prepared.request;
    call.timeout = prepared.timeout;
    call.stream = prepared.stream;
    call.service = prepared.service;
    call.record = prepared.record;
  }
  if (call.plan != prepared.plan) call.plan = prepared.plan;
  call.begun = false;
  call.request.in = prepared.in;
  call.request.out = prepared.out;
  call.request.tag = call.record.tag = prepared.record.tag;
  return call;
}

void Provider::PostAgain(PreparedCall& call, const void* in, void* out) {
  call.in = in;
  call.out = out;
  FillNextCall(call);
  Post();
}

runtime::Work Provider::LaunchAgain(PreparedCall& call) {
  AcceptedCall& next = NextCall();
  next.ticket = call.ticket;
  return Launch(next);
}

}  // namespace cohort::comm
