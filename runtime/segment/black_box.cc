#include "cohort/runtime/segment/black_box.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <string>

#include "cohort/runtime/base/deadline.h"
#include "cohort/runtime/base/thread.h"
#include "cohort/runtime/process/owner_word.h"
#include "cohort/runtime/segment/agent_protocol.h"
#include "cohort/runtime/segment/call_names.h"
#include "cohort/runtime/segment/layout.h"
#include "cohort/runtime/segment/wait_state.h"

namespace cohort::runtime {
namespace {

constexpr int kSiteWord = offsetof(CallRecord, site) / 8;
static_assert(offsetof(CallRecord, site) % 8 == 0);
constexpr int kReadAttempts = 8;
constexpr std::chrono::seconds kRecordEnds{2};  // a record takes a microsecond

// The id of a description: its place, and the number of descriptions that this place has had, from 1.
constexpr int kPlaceBits = 16;
static_assert(kBlackBoxDescriptions < 1 << kPlaceBits);
constexpr uint64_t IdOf(size_t place, uint64_t generation) { return generation << kPlaceBits | place; }
constexpr size_t PlaceOf(uint64_t id) { return id & ((1 << kPlaceBits) - 1); }
constexpr uint64_t GenerationOf(uint64_t id) { return id >> kPlaceBits; }

// The two bits of a group's collectives in BlackBoxMemory::groups. The id is a hash already.
struct GroupBit {
  size_t word;
  uint64_t mask;
};
std::array<GroupBit, 2> BitsOf(uint64_t group, uint32_t epoch) {
  const uint64_t mixed = (group ^ epoch * 0x9e3779b97f4a7c15u) * 0xff51afd7ed558ccdu;
  const auto bit = [](uint64_t hash) { return GroupBit{hash / 64 % kGroupWords, uint64_t{1} << hash % 64}; };
  return {bit(mixed >> 48), bit(mixed >> 32)};
}

bool HasZeroByte(uint64_t word) { return ((word - 0x0101010101010101u) & ~word & 0x8080808080808080u) != 0; }

BlackBoxSlot& SlotOf(BlackBoxMemory* memory, uint64_t ticket) { return memory->slots[ticket % kBlackBoxRecords]; }

template <size_t N>
void StoreWords(const void* from, std::atomic<uint64_t> (&words)[N]) {
  const auto* bytes = static_cast<const std::byte*>(from);
  for (size_t i = 0; i < N; ++i) {
    uint64_t word;
    std::memcpy(&word, bytes + i * 8, sizeof word);
    words[i].store(word, std::memory_order_relaxed);
  }
}

template <size_t N>
std::array<uint64_t, N> LoadWords(const std::atomic<uint64_t> (&words)[N]) {
  std::array<uint64_t, N> loaded;
  for (size_t i = 0; i < N; ++i) loaded[i] = words[i].load(std::memory_order_relaxed);
  return loaded;
}

// A consistent copy of a description; nothing when the box no longer holds it. `service` may be null.
std::optional<CallRecord> ReadDescription(const BlackBoxMemory* memory, uint64_t id, CallService* service) {
  const size_t place = PlaceOf(id);
  if (place >= kBlackBoxDescriptions) return std::nullopt;
  const DescriptionSlot& slot = memory->descriptions[place];
  const uint64_t version = slot.version.load(std::memory_order_acquire);
  if (version != 2 * GenerationOf(id)) return std::nullopt;
  const std::array<uint64_t, kRecordWords> words = LoadWords(slot.words);
  std::array<uint64_t, kServiceWords> served{};
  if (service != nullptr) served = LoadWords(slot.service);
  std::atomic_thread_fence(std::memory_order_acquire);
  if (slot.version.load(std::memory_order_relaxed) != version) return std::nullopt;
  CallRecord record;
  std::memcpy(static_cast<void*>(&record), words.data(), sizeof record);
  if (service != nullptr) std::memcpy(static_cast<void*>(service), served.data(), sizeof *service);
  // Behind its end the string holds what earlier descriptions left there.
  const size_t length = strnlen(record.site, sizeof record.site - 1);
  std::memset(record.site + length, 0, sizeof record.site - length);
  return record;
}

// A consistent copy of the record in `slot` and its ticket; nothing when it is empty, being written, or was left half
// written by a rank that died. `service` may be null.
std::optional<CallRecord> ReadSlot(const BlackBoxMemory* memory, const BlackBoxSlot& slot, uint64_t* ticket,
                                   CallService* service = nullptr) {
  for (int attempt = 0; attempt < kReadAttempts; ++attempt) {
    const uint64_t version = slot.version.load(std::memory_order_acquire);
    if (version == 0) return std::nullopt;
    const uint64_t description = slot.description.load(std::memory_order_relaxed);
    const uint64_t sequence = slot.sequence.load(std::memory_order_relaxed);
    const uint64_t wire_signature = slot.wire_signature.load(std::memory_order_relaxed);
    const uint64_t start_ns = slot.start_ns.load(std::memory_order_relaxed);
    const uint64_t end_ns = slot.end_ns.load(std::memory_order_relaxed);
    const uint64_t state = slot.state.load(std::memory_order_relaxed);
    const uint64_t tag = slot.tag.load(std::memory_order_relaxed);
    std::atomic_thread_fence(std::memory_order_acquire);
    if (version % 2 != 0 || slot.version.load(std::memory_order_relaxed) != version) continue;
    std::optional<CallRecord> record = ReadDescription(memory, description, service);
    if (!record.has_value()) continue;  // 512 calls have been made since
    record->signature.sequence = sequence;
    record->signature.tuning ^= TagHash(record->tag) ^ TagHash(tag);  // the description is an earlier call's
    record->tag = tag;
    record->wire_signature = wire_signature;
    record->start_ns = start_ns;
    record->end_ns = end_ns;
    const auto known = static_cast<uint32_t>(state);
    record->state =
        known > static_cast<uint32_t>(CallState::kFailed) ? CallState::kEmpty : static_cast<CallState>(known);
    record->result = static_cast<uint32_t>(state >> 32);
    *ticket = (version - 1) / 4;
    return record;
  }
  return std::nullopt;
}

// A record in state kStarted.
inline void WriteStart(BlackBoxMemory* memory, uint64_t ticket, uint64_t description, const CallRecord& record,
                       uint64_t now) {
  BlackBoxSlot& slot = SlotOf(memory, ticket);
  slot.version.store(4 * ticket + 1, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_release);
  slot.description.store(description, std::memory_order_relaxed);
  slot.sequence.store(record.signature.sequence, std::memory_order_relaxed);
  slot.wire_signature.store(record.wire_signature, std::memory_order_relaxed);
  slot.start_ns.store(now, std::memory_order_relaxed);
  slot.end_ns.store(0, std::memory_order_relaxed);
  slot.state.store(static_cast<uint64_t>(CallState::kStarted), std::memory_order_relaxed);
  slot.tag.store(record.tag, std::memory_order_relaxed);
  slot.version.store(4 * ticket + 2, std::memory_order_release);
  memory->tickets.store(ticket, std::memory_order_release);
}

// Ends the record, unless the ring has overwritten it.
inline void WriteEnd(BlackBoxSlot& slot, uint64_t ticket, CallState state, uint64_t end_ns, uint32_t result = 0) {
  if (slot.version.load(std::memory_order_relaxed) != 4 * ticket + 2) return;
  slot.version.store(4 * ticket + 3, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_release);
  slot.end_ns.store(end_ns, std::memory_order_relaxed);
  slot.state.store(static_cast<uint64_t>(state) | uint64_t{result} << 32, std::memory_order_relaxed);
  slot.version.store(4 * ticket + 4, std::memory_order_release);
}

// Calls visit(record) from the newest record to the oldest until it returns true.
template <typename Visitor>
void VisitNewestFirst(const BlackBoxMemory* memory, Visitor visit) {
  const uint64_t newest = memory->tickets.load(std::memory_order_acquire);
  for (uint64_t ticket = newest; ticket > 0 && newest - ticket < kBlackBoxRecords; --ticket) {
    uint64_t found = 0;
    const std::optional<CallRecord> record = ReadSlot(memory, memory->slots[ticket % kBlackBoxRecords], &found);
    if (record.has_value() && found == ticket && visit(*record)) return;
  }
}

}  // namespace

absl::Status TakeBlackBox(RankPart* part) {
  RankControl& control = part->control;
  const pid_t recorder = control.pid.load(std::memory_order_acquire);
  if (!OwnerWord(&part->black_box.owner).Claim(recorder, Deadline::After(kRecordEnds)).has_value()) {
    control.state.store(kRankAbsent, std::memory_order_release);
    return absl::FailedPreconditionError("process " + std::to_string(recorder) +
                                         ", which records the calls of this rank, is stopped in the middle of a "
                                         "record; let it go on (SIGCONT) or end it");
  }
  HideWait(control, ReadWaitNumber(control).number);
  return absl::OkStatus();
}

BlackBoxWriter::BlackBoxWriter(BlackBoxMemory* memory) : memory_(memory), uses_(kBlackBoxDescriptions) {
  if (latest() == 0) return;
  for (size_t place = 0; place < uses_.size(); ++place) {
    uses_[place].generation = (memory_->descriptions[place].version.load(std::memory_order_relaxed) + 1) / 2;
  }
  for (const BlackBoxSlot& slot : memory_->slots) {
    const uint64_t version = slot.version.load(std::memory_order_relaxed);
    const size_t place = PlaceOf(slot.description.load(std::memory_order_relaxed));
    if (version == 0 || place >= uses_.size()) continue;
    uses_[place].ticket = std::max(uses_[place].ticket, (version - 1) / 4);
  }
}

uint64_t BlackBoxWriter::latest() const { return memory_->tickets.load(std::memory_order_relaxed); }

void BlackBoxWriter::NoteCaller() {
  several_callers_ = several_callers_ || has_caller_;
  has_caller_ = true;
  calling_ = ThisThread();
  caller_ = pthread_self();
}

// Calls nothing when all is as before, so that no register is saved. A record costs about 50 instructions then.
uint64_t BlackBoxWriter::Start(const CallRecord& record, CallDescription* description) {
  const uint64_t id = description->id;
  Use& use = uses_[PlaceOf(id)];
  const uint64_t now = clock_.NowIfSet();
  if (now == 0 || calling_ != ThisThread() || id == 0 || use.generation != GenerationOf(id)) [[unlikely]]
    return StartSlowly(record, description);
  const uint64_t ticket = memory_->tickets.load(std::memory_order_relaxed) + 1;
  use.ticket = ticket;
  WriteStart(memory_, ticket, id, record, now);
  return ticket;
}

[[gnu::noinline]] uint64_t BlackBoxWriter::StartSlowly(const CallRecord& record, CallDescription* description) {
  if (calling_ != ThisThread()) NoteCaller();
  const uint64_t now = clock_.Now();
  const uint64_t ticket = memory_->tickets.load(std::memory_order_relaxed) + 1;
  Use& use = uses_[PlaceOf(description->id)];
  if (description->id != 0 && use.generation == GenerationOf(description->id)) {
    use.ticket = ticket;
  } else {
    description->id = Describe(record, description->service, ticket);
  }
  WriteStart(memory_, ticket, description->id, record, now);
  return ticket;
}

// In a place that none of the ring's records refers to.
uint64_t BlackBoxWriter::Describe(const CallRecord& record, const CallService& service, uint64_t ticket) {
  const auto referred_to = [ticket](const Use& use) {
    return use.ticket != 0 && use.ticket + kBlackBoxRecords >= ticket;
  };
  if (!IsPointToPoint(record.signature.kind)) {
    for (const GroupBit& bit : BitsOf(record.signature.group, record.signature.epoch)) {
      std::atomic<uint64_t>& word = memory_->groups[bit.word];
      word.store(word.load(std::memory_order_relaxed) | bit.mask, std::memory_order_relaxed);
    }
  }
  while (referred_to(uses_[next_])) next_ = (next_ + 1) % uses_.size();
  Use& use = uses_[next_];
  use.ticket = ticket;
  ++use.generation;

  DescriptionSlot& slot = memory_->descriptions[next_];
  slot.version.store(2 * use.generation - 1, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_release);
  const auto* bytes = reinterpret_cast<const std::byte*>(&record);
  for (int i = 0; i < kRecordWords; ++i) {
    uint64_t word;
    std::memcpy(&word, bytes + static_cast<ptrdiff_t>(i) * 8, sizeof word);
    slot.words[i].store(word, std::memory_order_relaxed);
    if (i >= kSiteWord && HasZeroByte(word)) break;
  }
  StoreWords(&service, slot.service);
  slot.version.store(2 * use.generation, std::memory_order_release);
  return IdOf(next_, use.generation);
}

void BlackBoxWriter::Finish(uint64_t ticket, CallState state, bool at_once) {
  if (!at_once) return FinishWithClock(ticket, state);
  BlackBoxSlot& slot = SlotOf(memory_, ticket);
  WriteEnd(slot, ticket, state, slot.start_ns.load(std::memory_order_relaxed));
}

[[gnu::noinline]] void BlackBoxWriter::FinishWithClock(uint64_t ticket, CallState state) {
  WriteEnd(SlotOf(memory_, ticket), ticket, state, clock_.Now());
}

void BlackBoxWriter::FinishWithResult(uint64_t ticket, uint32_t result) {
  WriteEnd(SlotOf(memory_, ticket), ticket, CallState::kDone, clock_.Now(), result);
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

std::optional<bool> BlackBoxReader::Reached(uint64_t group, uint32_t epoch, uint64_t sequence) const {
  uint64_t highest = 0;
  VisitNewestFirst(memory_, [&](const CallRecord& record) {
    const CallSignature& call = record.signature;
    const bool counts = call.group == group && call.epoch == epoch && !IsPointToPoint(call.kind);
    if (counts) highest = std::max(highest, call.sequence);
    return highest >= sequence;
  });
  if (highest > 0) return highest >= sequence;
  // Its bits were set before the first of its records was there to be forgotten.
  for (const GroupBit& bit : BitsOf(group, epoch)) {
    if ((memory_->groups[bit.word].load(std::memory_order_relaxed) & bit.mask) == 0) return false;
  }
  if (memory_->tickets.load(std::memory_order_acquire) >= kBlackBoxRecords) return std::nullopt;
  return false;
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

std::optional<CallRecord> BlackBoxReader::At(uint64_t ticket, CallService* service) const {
  uint64_t found = 0;
  std::optional<CallRecord> record = ReadSlot(memory_, memory_->slots[ticket % kBlackBoxRecords], &found, service);
  if (found != ticket) record.reset();
  return record;
}

uint64_t BlackBoxReader::latest() const { return memory_->tickets.load(std::memory_order_acquire); }

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
