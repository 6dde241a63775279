#include "cohort/comm/run/shorten.h"

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "cohort/comm/run/bound_memory.h"

namespace cohort::comm {
namespace {

constexpr size_t kMostSteps = 64;

using ShortStep = ShortCall::Step;

ShortCall::Place PlaceOf(const BoundMemory& memory, const Slice& slice) {
  const std::byte* base = memory.buffers()[static_cast<size_t>(slice.buffer)];
  return {slice.buffer, static_cast<uint32_t>(memory.At(slice).data - base)};
}

// False: there is no short stream.
bool FindSender(const Step& step, const ShortLinks& links, ShortStep* out) {
  out->kind = ShortStep::Kind::kSend;
  if (step.kind == StepKind::kPublish) {
    Fanout* fanout = links.fanout();
    out->sender = fanout == nullptr ? nullptr : fanout->short_sender();
  } else {
    Link* link = links.link(step.peer);
    out->sender = link == nullptr ? nullptr : link->short_sender();
  }
  return out->sender != nullptr;
}

bool FindReceiver(const Step& step, const ShortLinks& links, ShortStep* out) {
  out->kind = step.kind == StepKind::kRecv ? ShortStep::Kind::kReceive : ShortStep::Kind::kReceiveReduce;
  if (step.published) {
    Fanout* fanout = links.fanout();
    out->receiver = fanout == nullptr ? nullptr : fanout->short_receiver(step.peer);
  } else {
    Link* link = links.link(step.peer);
    out->receiver = link == nullptr ? nullptr : link->short_receiver();
  }
  return out->receiver != nullptr;
}

// False: the step has no short way.
bool ShortenStep(const Step& step, const BoundMemory& memory, size_t element_bytes, const ShortLinks& links,
                 ShortStep* out) {
  const bool sends = step.kind == StepKind::kSend || step.kind == StepKind::kPublish;
  const size_t bytes = memory.At(sends ? step.src : step.dst).bytes;
  if (bytes > kMostShortBytes) return false;
  out->bytes = static_cast<uint32_t>(bytes);
  out->count = static_cast<uint32_t>(bytes / element_bytes);
  out->src = PlaceOf(memory, step.src);
  out->src2 = PlaceOf(memory, step.src2);
  out->dst = PlaceOf(memory, step.dst);
  out->incoming_first = step.incoming_first;
  switch (step.kind) {
    case StepKind::kReduce:
      out->kind = ShortStep::Kind::kReduce;
      return true;
    case StepKind::kCopy:
      out->kind = ShortStep::Kind::kCopy;
      return true;
    case StepKind::kSend:
    case StepKind::kPublish:
      return FindSender(step, links, out);
    case StepKind::kRecv:
    case StepKind::kRecvReduce:
      return FindReceiver(step, links, out);
    default:
      return false;
  }
}

}  // namespace

std::unique_ptr<ShortCall> ShortenPlan(const Plan& plan, const PlanBinding& binding, int divisor,
                                       const ShortLinks& links) {
  if (plan.lanes.size() != 1 || plan.lanes[0].steps.size() > kMostSteps) return nullptr;
  BoundMemory memory;  // for places and lengths
  if (!memory.Bind(plan, binding).ok() || memory.unequal()) return nullptr;
  const size_t scratch_bytes = memory.At({BufferId::kScratch, 0, plan.scratch_chunks}).bytes;
  if (scratch_bytes > kMostSteps * kMostShortBytes) return nullptr;
  std::vector<ShortStep> steps;
  for (const Step& step : plan.lanes[0].steps) {
    if (!ShortenStep(step, memory, binding.element_bytes, links, &steps.emplace_back())) return nullptr;
  }
  return std::make_unique<ShortCall>(
      std::move(steps), scratch_bytes,
      ShortCall::Arithmetic{
          .kernel = binding.kernel, .divisor = divisor, .dtype = binding.dtype, .count = binding.count});
}

}  // namespace cohort::comm
