#include "cohort/comm/provider/prepared_call.h"

namespace cohort::comm {
namespace {

// The blocks of a call that is not remembered may change with the next one: the operation gets its own.
void TakeBlocks(const PreparedCall& prepared, AcceptedCall* call) {
  if (prepared.id != 0) {
    call->blocks = prepared.blocks;
  } else {
    if (call->blocks.use_count() != 1) call->blocks = std::make_shared<BlockTable>();
    *call->blocks = *prepared.blocks;
  }
  call->request.blocks = call->blocks.get();
}

}  // namespace

AcceptedCall& Provider::FillNextCall(const PreparedCall& prepared) {
  AcceptedCall& call = NextCall();
  if (call.like == prepared.id && prepared.id != 0) [[likely]] {
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
    if (prepared.request.blocks != nullptr) [[unlikely]]
      TakeBlocks(prepared, &call);
  }
  if (call.plan != prepared.plan) call.plan = prepared.plan;
  call.begun = false;
  call.request.in = prepared.in;
  call.request.out = prepared.out;
  call.request.tag = call.record.tag = prepared.record.tag;
  return call;
}

void Provider::Start(PreparedCall& call, const void* in, void* out) {
  call.in = in;
  call.out = out;
  if (call.stage == PreparedCall::Stage::kNew) call.stage = PreparedCall::Stage::kRan;
  FillNextCall(call);
  Post();
}

runtime::Work Provider::Run(PreparedCall& call) {
  AcceptedCall& next = NextCall();
  next.ticket = call.ticket;
  return Launch(next);
}

}  // namespace cohort::comm
