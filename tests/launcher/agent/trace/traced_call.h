// A call as a rank records it.
#pragma once

#include <cstdint>
#include <cstring>

#include "cohort/runtime/segment/black_box.h"
#include "cohort/runtime/segment/call_names.h"
#include "cohort/runtime/segment/call_record.h"

namespace cohort::launcher {

inline runtime::CallRecord MakeCall(uint64_t sequence) {
  runtime::CallRecord record;
  record.signature.group = 5;
  record.signature.epoch = 1;
  record.signature.sequence = sequence;
  record.signature.kind = 3;
  record.signature.dtype = 11;
  record.signature.op = 1;
  record.signature.count = 1024;
  record.bytes = 4096;
  record.group_size = 2;
  std::strncpy(record.site, "train.cc:88", sizeof record.site - 1);
  return record;
}

// A rank that makes calls.
class TracedRank {
 public:
  explicit TracedRank(runtime::BlackBoxWriter* writer) : writer_(writer) {
    std::strncpy(description_.service.algorithm, "ring", sizeof description_.service.algorithm - 1);
    description_.service.transports = runtime::TransportBit("shm");
  }

  // Begins a call. Returns its ticket.
  uint64_t Start() { return writer_->Start(MakeCall(++sequence_), &description_); }
  void Finish(uint64_t ticket) { writer_->Finish(ticket, runtime::CallState::kDone); }
  void Call(int times = 1) {
    for (int i = 0; i < times; ++i) Finish(Start());
  }

 private:
  runtime::BlackBoxWriter* const writer_;
  uint64_t sequence_ = 0;
  runtime::CallDescription description_;
};

}  // namespace cohort::launcher
