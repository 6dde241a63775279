#include "cohort/comm/run/shorten.h"

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "cohort/comm/run/bound_memory.h"

namespace cohort::comm {
namespace {

constexpr size_t kMostSteps = 64;
// Bytes of all steps together: the engine's owner does nothing else meanwhile.
constexpr size_t kMostBytes = 64 * 1024;

using ShortStep = ShortCall::Step;

ShortCall::Place PlaceOf(const BoundMemory& memory, const Slice& slice) {
  const std::byte* base = memory.buffers()[static_cast<size_t>(slice.buffer)];
  return {slice.buffer, static_cast<uint32_t>(memory.At(slice).data - base)};
}

// Sends whose length and place are those of `send`. False: there is no short stream.
bool FindSenders(const Step& step, const ShortLinks& links, ShortStep send, std::vector<ShortStep>* out) {
  send.kind = ShortStep::Kind::kSend;
  const auto add = [&](ShortSender* sender) {
    send.sender = sender;
    out->push_back(send);
    ++send.part;
    return sender != nullptr && send.bytes <= sender->most_bytes();
  };
  const auto add_link = [&](int peer) {
    Link* link = links.link(peer);
    return add(link == nullptr ? nullptr : link->short_sender());
  };
  if (step.kind == StepKind::kSend) return add_link(step.peer);
  if (Fanout* fanout = links.fanout(); fanout != nullptr) return add(fanout->short_sender());
  for (int i = 1; i < links.size; ++i) {
    if (!add_link(PublishedTo(links.rank, links.size, i))) return false;
  }
  return true;
}

bool FindReceiver(const Step& step, const ShortLinks& links, ShortStep* out) {
  out->kind = step.kind == StepKind::kRecv ? ShortStep::Kind::kReceive : ShortStep::Kind::kReceiveReduce;
  if (Fanout* fanout = step.published ? links.fanout() : nullptr; fanout != nullptr) {
    out->receiver = fanout->short_receiver(step.peer);
  } else {
    Link* link = links.link(step.peer);
    out->receiver = link == nullptr ? nullptr : link->short_receiver();
  }
  return out->receiver != nullptr && out->bytes <= out->receiver->most_bytes();
}

// False: the step has no short way.
bool ShortenStep(const Step& step, const BoundMemory& memory, size_t element_bytes, const ShortLinks& links,
                 std::vector<ShortStep>* out) {
  ShortStep made;
  const bool sends = step.kind == StepKind::kSend || step.kind == StepKind::kPublish;
  const size_t bytes = memory.At(sends ? step.src : step.dst).bytes;
  if (bytes > kMostBytes) return false;
  made.bytes = static_cast<uint32_t>(bytes);
  made.count = static_cast<uint32_t>(bytes / element_bytes);
  made.src = PlaceOf(memory, step.src);
  made.src2 = PlaceOf(memory, step.src2);
  made.dst = PlaceOf(memory, step.dst);
  made.incoming_first = step.incoming_first;
  switch (step.kind) {
    case StepKind::kReduce:
      made.kind = ShortStep::Kind::kReduce;
      break;
    case StepKind::kCopy:
      made.kind = ShortStep::Kind::kCopy;
      break;
    case StepKind::kSend:
    case StepKind::kPublish:
      return FindSenders(step, links, made, out);
    case StepKind::kRecv:
    case StepKind::kRecvReduce:
      if (!FindReceiver(step, links, &made)) return false;
      break;
    default:
      return false;
  }
  out->push_back(made);
  return true;
}

}  // namespace

std::unique_ptr<ShortCall> ShortenPlan(const Plan& plan, const PlanBinding& binding, int divisor,
                                       const ShortLinks& links) {
  if (plan.lanes.size() != 1 || plan.lanes[0].steps.size() > kMostSteps) return nullptr;
  BoundMemory memory;  // for places and lengths
  if (!memory.Bind(plan, binding).ok() || memory.unequal()) return nullptr;
  const size_t scratch_bytes = memory.At({BufferId::kScratch, 0, plan.scratch_chunks}).bytes;
  if (scratch_bytes > kMostBytes) return nullptr;
  std::vector<ShortStep> steps;
  for (const Step& step : plan.lanes[0].steps) {
    if (!ShortenStep(step, memory, binding.element_bytes, links, &steps)) return nullptr;
  }
  size_t bytes = 0;
  for (const ShortStep& step : steps) bytes += step.bytes;
  if (steps.size() > kMostSteps || bytes > kMostBytes) return nullptr;
  return std::make_unique<ShortCall>(
      std::move(steps), scratch_bytes,
      ShortCall::Arithmetic{
          .kernel = binding.kernel, .divisor = divisor, .dtype = binding.dtype, .count = binding.count});
}

}  // namespace cohort::comm
