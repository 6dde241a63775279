#include "cohort/comm/window.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "cohort/comm/communicator.h"
#include "cohort/comm/group/group.h"
#include "cohort/runtime/base/forks.h"
#include "cohort/runtime/base/status_macros.h"
#include "cohort/runtime/tape/tape.h"

namespace cohort::comm {
namespace {

// Blocks from this size on have pages of their own: a window shares none with anything else.
constexpr uint64_t kLeastBytes = 64 * 1024;

// A member's message to the others about its window.
struct Offer {
  int64_t offset = 0;
  int64_t bytes = 0;
  int64_t failed = 0;
};
constexpr int64_t kOfferWords = sizeof(Offer) / sizeof(int64_t);

}  // namespace

Window& Window::operator=(Window&& other) noexcept {
  if (this == &other) return *this;
  Reset();
  runtime_ = std::exchange(other.runtime_, nullptr);
  block_ = std::exchange(other.block_, {});
  data_ = std::exchange(other.data_, nullptr);
  size_ = std::exchange(other.size_, 0);
  return *this;
}

void Window::Reset() {
  // A forked child has the parent's memory of the segment, which is the parent's to free.
  if (runtime_ != nullptr && !runtime_->forks().InChild()) runtime_->segment().Free(block_);
  runtime_ = nullptr;
}

absl::StatusOr<Window> Window::Allocate(Communicator& communicator, Group& group, size_t bytes,
                                        const CallOptions& options, std::source_location site) {
  if (group.InChild()) return group.WhyNotInChild();  // or it would take and give back the parent's memory
  runtime::Runtime& runtime = group.runtime();
  runtime::Segment& segment = runtime.segment();
  Window window;
  absl::Status mine;
  if (bytes > 0) {
    absl::StatusOr<runtime::SegmentBlock> block = segment.Allocate(std::max<uint64_t>(bytes, kLeastBytes));
    if (block.ok()) {
      const absl::StatusOr<void*> data = segment.Map(*block);
      window = Window(&runtime, *block, data.ok() ? *data : nullptr, bytes);
      mine = data.status();
    } else {
      mine = absl::Status(block.status().code(), "allocate_window of " + std::to_string(bytes) +
                                                     " bytes: " + std::string(block.status().message()) +
                                                     "; ask for less, or free windows first");
    }
  }
  const Offer offer{static_cast<int64_t>(window.block_.offset), static_cast<int64_t>(window.block_.bytes), !mine.ok()};
  std::vector<Offer> offers(static_cast<size_t>(communicator.size()));
  const auto exchange = [&](const Offer& own) {
    const CallShape shape{.input = InputMeaning::kPlaces};
    const CallArguments arguments{
        .kind = CollectiveKind::kAllGather,
        .in = ConstBuffer(reinterpret_cast<const int64_t*>(&own), kOfferWords),
        .out = Buffer(reinterpret_cast<int64_t*>(offers.data()), kOfferWords * communicator.size()),
        .site = site};
    return group.Submit(arguments, options, &shape).Wait();
  };
  COHORT_RETURN_IF_ERROR(exchange(offer));
  const auto outcome = [&]() -> absl::Status {
    if (!mine.ok()) return mine;
    for (int rank = 0; rank < communicator.size(); ++rank) {
      if (offers[static_cast<size_t>(rank)].failed == 0) continue;
      return absl::ResourceExhaustedError("allocate_window: rank " + std::to_string(rank) +
                                          " of the group has no room for its window; its own error says why");
    }
    return absl::OkStatus();
  };
  COHORT_RETURN_IF_ERROR(outcome());
  const bool alone = runtime::Replays(segment);  // the others' windows are not there
  for (int rank = 0; rank < communicator.size() && !alone; ++rank) {
    const Offer& other = offers[static_cast<size_t>(rank)];
    const int world_rank = communicator.members()[static_cast<size_t>(rank)];
    if (other.bytes == 0 || rank == communicator.rank() || runtime.node_of(world_rank) != runtime.node()) continue;
    const runtime::SegmentBlock block{static_cast<uint64_t>(other.offset), static_cast<uint64_t>(other.bytes)};
    if (const absl::StatusOr<void*> data = segment.MapAfresh(block); !data.ok()) mine = data.status();
  }
  // Nobody may use its window before all have mapped it, nor keep it when one could not.
  const bool any = std::any_of(offers.begin(), offers.end(), [](const Offer& other) { return other.bytes > 0; });
  const Offer mapped{0, 0, !mine.ok()};
  COHORT_RETURN_IF_ERROR(exchange(mapped));
  COHORT_RETURN_IF_ERROR(outcome());
  if (any) group.ExpectWindows();
  return window;
}

}  // namespace cohort::comm
