#include "cohort/comm/provider/short_call.h"

#include <cstring>

#include "cohort/comm/reduce/reduce.h"

namespace cohort::comm {
namespace {

// A message of one line is written faster than it is prepared.
constexpr size_t kLineBytes = 64;

}  // namespace

ShortCall::ShortCall(std::vector<Step> steps, size_t scratch_bytes, const Arithmetic& arithmetic)
    : steps_(std::move(steps)), scratch_(scratch_bytes), arithmetic_(arithmetic) {
  for (const Step& step : steps_) {
    if (step.kind == Step::Kind::kSend && step.bytes > kLineBytes) prepared_.push_back(&step);
  }
}

void ShortCall::Post(const void* in, void* out, uint64_t signature) {
  // Inputs are never written: the checker refuses plans that do.
  buffers_[static_cast<size_t>(BufferId::kIn)] = const_cast<std::byte*>(static_cast<const std::byte*>(in));
  buffers_[static_cast<size_t>(BufferId::kOut)] = static_cast<std::byte*>(out);
  buffers_[static_cast<size_t>(BufferId::kScratch)] = scratch_.data();
  signature_ = signature;
  done_ = 0;
  for (; done_ < steps_.size(); ++done_) {
    const Step& step = steps_[done_];
    if (step.kind != Step::Kind::kSend || !step.sender->Send(At(step.src), step.bytes, signature)) break;
  }
  posted_ = done_;
}

bool ShortCall::Finish(int polls) {
  for (size_t i = 0; i < posted_; ++i) steps_[i].sender->Wake();
  for (; done_ < steps_.size(); ++done_) {
    if (!Do(steps_[done_], &polls)) return false;
  }
  for (const Step* step : prepared_) step->sender->Prepare(step->bytes);
  if (arithmetic_.divisor > 1 && buffers_[static_cast<size_t>(BufferId::kOut)] != nullptr) {
    DivideBy(arithmetic_.dtype, buffers_[static_cast<size_t>(BufferId::kOut)], arithmetic_.count, arithmetic_.divisor);
  }
  return true;
}

bool ShortCall::Do(const Step& step, int* polls) {
  switch (step.kind) {
    case Step::Kind::kSend:
      if (!step.sender->Send(At(step.src), step.bytes, signature_)) return false;
      step.sender->Wake();
      return true;
    case Step::Kind::kReceive:
    case Step::Kind::kReceiveReduce:
      return Receive(step, polls);
    case Step::Kind::kReduce:
      arithmetic_.kernel(At(step.dst), At(step.src), At(step.src2), step.count);
      return true;
    case Step::Kind::kCopy:
      if (step.bytes > 0 && At(step.dst) != At(step.src)) std::memcpy(At(step.dst), At(step.src), step.bytes);
      return true;
  }
  return false;
}

bool ShortCall::Receive(const Step& step, int* polls) {
  ShortReceive receive{.data = At(step.dst), .bytes = step.bytes, .signature = signature_};
  if (step.kind == Step::Kind::kReceiveReduce) {
    receive.reduce = arithmetic_.kernel;
    receive.operand = At(step.src);
    receive.count = step.count;
    receive.incoming_first = step.incoming_first;
  }
  while (!step.receiver->Receive(receive)) {
    if (--*polls < 0) return false;
  }
  return true;
}

}  // namespace cohort::comm
