#include "cohort/runtime/segment/wait_state.h"

#include <algorithm>
#include <atomic>
#include <utility>

#include "cohort/runtime/segment/call_names.h"

namespace cohort::runtime {
namespace {

// More calls of one wait are not looked at: a batch that is longer explains itself by its first ones.
constexpr uint64_t kMostAwaited = 64;

}  // namespace

uint64_t ShowWait(RankControl& control, uint64_t first_awaited, uint64_t last_awaited, bool bound) {
  const uint64_t number = control.wait_number.load(std::memory_order_relaxed);
  const bool same = number % 2 == 1 && control.first_awaited.load(std::memory_order_relaxed) == first_awaited &&
                    control.last_awaited.load(std::memory_order_relaxed) == last_awaited &&
                    (control.wait_bound.load(std::memory_order_relaxed) != 0) == bound;
  if (same) {
    control.wait_looks.fetch_add(1, std::memory_order_release);
    return number;
  }
  control.wait_number.store((number + 1) & ~uint64_t{1}, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_release);
  control.first_awaited.store(first_awaited, std::memory_order_relaxed);
  control.last_awaited.store(last_awaited, std::memory_order_relaxed);
  control.wait_bound.store(bound ? 1 : 0, std::memory_order_relaxed);
  control.wait_looks.store(1, std::memory_order_relaxed);
  const uint64_t shown = ((number + 1) & ~uint64_t{1}) + 1;
  control.wait_number.store(shown, std::memory_order_release);
  return shown;
}

void HideWait(RankControl& control, uint64_t number) {
  if (number % 2 == 0) return;
  control.wait_number.compare_exchange_strong(number, number + 1, std::memory_order_release, std::memory_order_relaxed);
}

WaitNumber ReadWaitNumber(const RankControl& control) {
  WaitNumber wait;
  wait.number = control.wait_number.load(std::memory_order_acquire);
  if (wait.number % 2 == 0) return {};
  wait.looks = control.wait_looks.load(std::memory_order_acquire);
  return control.wait_number.load(std::memory_order_relaxed) == wait.number ? wait : WaitNumber();
}

std::optional<Wait> ReadWait(const RankControl& control, const BlackBoxReader& box) {
  Wait wait;
  const WaitNumber before = ReadWaitNumber(control);
  if (before.number == 0) return std::nullopt;
  wait.number = before.number;
  wait.looks = before.looks;
  wait.bound = control.wait_bound.load(std::memory_order_relaxed) != 0;
  const uint64_t first = control.first_awaited.load(std::memory_order_relaxed);
  const uint64_t last = control.last_awaited.load(std::memory_order_relaxed);
  for (uint64_t ticket = first; first != 0 && ticket <= last && ticket - first < kMostAwaited; ++ticket) {
    std::optional<CallRecord> record = box.At(ticket);
    if (record.has_value() && record->state == CallState::kStarted) wait.awaited.push_back(*std::move(record));
  }
  std::atomic_thread_fence(std::memory_order_acquire);
  if (ReadWaitNumber(control).number != wait.number) return std::nullopt;
  return wait;
}

CallProgress ReadCallProgress(const BlackBoxReader& box) {
  CallProgress progress;
  const uint64_t made = box.latest();  // before: a call made meanwhile is no reason to doubt
  const std::vector<CallRecord> records = box.All();
  progress.forgets = records.size() < made;
  for (auto record = records.rbegin(); record != records.rend(); ++record) {
    if (record->signature.kind == kShrinkCall) continue;
    LatestCall call;
    call.group = record->signature.group;
    call.sequence = record->signature.sequence;
    call.done = record->state != CallState::kStarted;
    if (IsPointToPoint(record->signature.kind)) {
      call.kind = record->signature.kind;
      call.peer = record->peer_world_rank;
    }
    const auto known = std::find_if(progress.latest.begin(), progress.latest.end(), [&call](const LatestCall& other) {
      return other.group == call.group && other.kind == call.kind && other.peer == call.peer;
    });
    if (known == progress.latest.end()) {
      progress.latest.push_back(call);
    } else if (known->sequence < call.sequence) {
      *known = call;
    }
  }
  return progress;
}

}  // namespace cohort::runtime
