#include "runtime/segment/black_box.h"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstring>

#include "runtime/segment/call_names.h"
#include "runtime/segment/layout.h"

namespace cohort::runtime {
namespace {

constexpr int kSiteWord = offsetof(CallRecord, site) / 8;
constexpr int kStartWord = offsetof(CallRecord, start_ns) / 8;
constexpr int kEndWord = offsetof(CallRecord, end_ns) / 8;
constexpr int kStateWord = offsetof(CallRecord, state) / 8;
static_assert(offsetof(CallRecord, site) % 8 == 0 && offsetof(CallRecord, state) % 8 == 0);
static_assert(kStartWord + 1 == kEndWord && kEndWord + 1 == kStateWord && kStateWord < kSiteWord);
constexpr int kReadAttempts = 8;

bool HasZeroByte(uint64_t word) { return ((word - 0x0101010101010101u) & ~word & 0x8080808080808080u) != 0; }

// The word that begins with the state, with another state in it.
uint64_t WithState(uint64_t word, CallState state) {
  std::memcpy(&word, &state, sizeof state);
  return word;
}

BlackBoxSlot& SlotOf(BlackBoxMemory* memory, uint64_t ticket) { return memory->slots[ticket % kBlackBoxRecords]; }

// A consistent copy of the record in `slot` and its ticket; nothing when it is empty, being written, or was left half
// written by a rank that died.
std::optional<CallRecord> ReadSlot(const BlackBoxSlot& slot, uint64_t* ticket) {
  for (int attempt = 0; attempt < kReadAttempts; ++attempt) {
    const uint64_t version = slot.version.load(std::memory_order_acquire);
    if (version == 0) return std::nullopt;
    uint64_t words[kRecordWords];
    for (int i = 0; i < kRecordWords; ++i) words[i] = slot.words[i].load(std::memory_order_relaxed);
    std::atomic_thread_fence(std::memory_order_acquire);
    if (version % 2 != 0 || slot.version.load(std::memory_order_relaxed) != version) continue;
    CallRecord record;
    std::memcpy(static_cast<void*>(&record), words, sizeof record);
    // Behind its end the string holds what earlier records left there.
    const size_t length = strnlen(record.site, sizeof record.site - 1);
    std::memset(record.site + length, 0, sizeof record.site - length);
    if (record.state > CallState::kFailed) record.state = CallState::kEmpty;
    *ticket = (version - 1) / 4;
    return record;
  }
  return std::nullopt;
}

// Calls visit(record) from the newest record to the oldest until it returns true.
template <typename Visitor>
void VisitNewestFirst(const BlackBoxMemory* memory, Visitor visit) {
  const uint64_t newest = memory->tickets.load(std::memory_order_acquire);
  for (uint64_t ticket = newest; ticket > 0 && newest - ticket < kBlackBoxRecords; --ticket) {
    uint64_t found = 0;
    const std::optional<CallRecord> record = ReadSlot(memory->slots[ticket % kBlackBoxRecords], &found);
    if (record.has_value() && found == ticket && visit(*record)) return;
  }
}

}  // namespace

uint64_t BlackBoxWriter::Start(const CallRecord& record) {
  const uint64_t ticket = memory_->tickets.load(std::memory_order_relaxed) + 1;
  BlackBoxSlot& slot = SlotOf(memory_, ticket);
  slot.version.store(4 * ticket + 1, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_release);

  const auto* bytes = reinterpret_cast<const std::byte*>(&record);
  const auto word_of = [bytes](int i) {
    uint64_t word;
    std::memcpy(&word, bytes + static_cast<ptrdiff_t>(i) * 8, sizeof word);
    return word;
  };
  for (int i = 0; i < kStartWord; ++i) slot.words[i].store(word_of(i), std::memory_order_relaxed);
  slot.words[kStartWord].store(clock_.Now(), std::memory_order_relaxed);
  slot.words[kEndWord].store(0, std::memory_order_relaxed);
  slot.words[kStateWord].store(WithState(word_of(kStateWord), CallState::kStarted), std::memory_order_relaxed);
  for (int i = kStateWord + 1; i < kSiteWord; ++i) slot.words[i].store(word_of(i), std::memory_order_relaxed);
  for (int i = kSiteWord; i < kRecordWords; ++i) {
    const uint64_t word = word_of(i);
    slot.words[i].store(word, std::memory_order_relaxed);
    if (HasZeroByte(word)) break;
  }
  slot.version.store(4 * ticket + 2, std::memory_order_release);
  memory_->tickets.store(ticket, std::memory_order_release);
  return ticket;
}

void BlackBoxWriter::Finish(uint64_t ticket, CallState state, bool at_once) {
  BlackBoxSlot& slot = SlotOf(memory_, ticket);
  if (slot.version.load(std::memory_order_relaxed) != 4 * ticket + 2) return;
  slot.version.store(4 * ticket + 3, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_release);
  const uint64_t end = at_once ? slot.words[kStartWord].load(std::memory_order_relaxed) : clock_.Now();
  slot.words[kEndWord].store(end, std::memory_order_relaxed);
  const uint64_t word = slot.words[kStateWord].load(std::memory_order_relaxed);
  slot.words[kStateWord].store(WithState(word, state), std::memory_order_relaxed);
  slot.version.store(4 * ticket + 4, std::memory_order_release);
}

std::optional<CallRecord> BlackBoxReader::Latest() const {
  std::optional<CallRecord> result;
  VisitNewestFirst(memory_, [&result](const CallRecord& record) {
    result = record;
    return true;
  });
  return result;
}

std::optional<CallRecord> BlackBoxReader::Find(uint64_t group, uint32_t epoch, uint64_t sequence) const {
  std::optional<CallRecord> result;
  VisitNewestFirst(memory_, [&](const CallRecord& record) {
    const CallSignature& call = record.signature;
    if (call.group != group || call.epoch != epoch || call.sequence != sequence) return false;
    if (IsPointToPoint(call.kind)) return false;
    result = record;
    return true;
  });
  return result;
}

uint64_t BlackBoxReader::Reached(uint64_t group, uint32_t epoch) const {
  uint64_t reached = 0;
  VisitNewestFirst(memory_, [&](const CallRecord& record) {
    const CallSignature& call = record.signature;
    const bool counts = call.group == group && call.epoch == epoch && !IsPointToPoint(call.kind);
    if (counts) reached = std::max(reached, call.sequence);
    return false;
  });
  return reached;
}

std::optional<CallRecord> BlackBoxReader::LatestOf(uint64_t group, uint32_t epoch) const {
  std::optional<CallRecord> result;
  VisitNewestFirst(memory_, [&](const CallRecord& record) {
    if (record.signature.group != group || record.signature.epoch != epoch) return false;
    result = record;
    return true;
  });
  return result;
}

std::vector<CallRecord> BlackBoxReader::All() const {
  std::vector<CallRecord> records;
  VisitNewestFirst(memory_, [&records](const CallRecord& record) {
    records.push_back(record);
    return false;
  });
  std::reverse(records.begin(), records.end());
  return records;
}

}  // namespace cohort::runtime
