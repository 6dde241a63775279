// HandleTable: objects behind numbers that a caller in C holds. A number that was freed, never given out or belongs to
// another kind of object is detected. An object is used by one thread at a time; a second user is told and does not
// wait.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "cohort/runtime/base/mutex.h"

namespace cohort::comm::c {

// The kinds of handles; the upper four bits of a number. No kind is 0, so small numbers are free for constants.
enum class HandleKind : uint64_t { kRuntime = 1, kCommunicator, kWork, kWindow, kOperation };

enum class Lookup { kFound, kNull, kOtherKind, kNeverMade, kFreed, kBusy };

// A number is kind (4 bits), generation (28 bits), place (32 bits). A place whose generations are used up is not used
// again, so a number never comes back. Objects move, and their destructors run outside of the table.
template <typename T>
class HandleTable {
 public:
  explicit HandleTable(HandleKind kind) : kind_(static_cast<uint64_t>(kind)) {}
  HandleTable(const HandleTable&) = delete;
  HandleTable& operator=(const HandleTable&) = delete;
  ~HandleTable() {
    for (std::atomic<Slot*>& chunk : chunks_) delete[] chunk.load(std::memory_order_relaxed);
  }

  // The caller's exclusive use of one object, until it is destroyed.
  class Held {
   public:
    Held() = default;
    Held(const Held&) = delete;
    Held& operator=(const Held&) = delete;
    ~Held() { Release(); }

    T* operator->() const { return &*slot_->object; }
    T& operator*() const { return *slot_->object; }
    void Release() {
      if (slot_ != nullptr) slot_->state.store(StateOf(generation_, kIdle), std::memory_order_release);
      slot_ = nullptr;
    }
    // Takes the object out. Its number is freed.
    T Take() { return table_->Remove(std::exchange(slot_, nullptr), place_, generation_); }

   private:
    friend class HandleTable;
    HandleTable* table_ = nullptr;
    typename HandleTable::Slot* slot_ = nullptr;
    uint32_t place_ = 0;
    uint32_t generation_ = 0;
  };

  // A place for an object to come. It goes back to the table unless it is filled.
  class Reserved {
   public:
    Reserved() = default;
    Reserved(const Reserved&) = delete;
    Reserved& operator=(const Reserved&) = delete;
    ~Reserved() {
      if (table_ != nullptr) table_->GiveBack(place_);
    }

    // Puts the object there, and returns its number. Called once; cannot fail.
    uint64_t Fill(T object) { return std::exchange(table_, nullptr)->Put(place_, std::move(object)); }

   private:
    friend class HandleTable;
    HandleTable* table_ = nullptr;
    uint32_t place_ = 0;
  };

  // False when the table is full.
  bool Reserve(Reserved* reserved) COHORT_EXCLUDES(mutex_) {
    runtime::MutexLock lock(mutex_);
    uint32_t place;
    if (!free_.empty()) {
      place = free_.back();
      free_.pop_back();
    } else {
      place = used_.load(std::memory_order_relaxed);
      if (place == kPlaces) return false;
      if (place % kChunk == 0) {
        free_.reserve(place + kChunk);  // so that Remove allocates nothing
        chunks_[place / kChunk].store(new Slot[kChunk], std::memory_order_release);
      }
      used_.store(place + 1, std::memory_order_release);
    }
    reserved->table_ = this;
    reserved->place_ = place;
    return true;
  }

  // Returns the object's number, or 0 when the table is full.
  uint64_t Add(T object) {
    Reserved reserved;
    return Reserve(&reserved) ? reserved.Fill(std::move(object)) : 0;
  }

  // Begins exclusive use.
  Lookup Hold(uint64_t number, Held* held) {
    Place at;
    if (const Lookup found = Find(number, &at); found != Lookup::kFound) return found;
    uint32_t state = StateOf(at.generation, kIdle);
    if (!at.slot->state.compare_exchange_strong(state, StateOf(at.generation, kHeld), std::memory_order_acquire)) {
      return WhyNot(state, at.generation);
    }
    held->Release();
    held->table_ = this;
    held->slot_ = at.slot;
    held->place_ = at.place;
    held->generation_ = at.generation;
    return Lookup::kFound;
  }

  // Calls `copy` with the object, which another thread may be using: it reads only what never changes.
  template <typename Copy>
  Lookup Peek(uint64_t number, Copy copy) COHORT_EXCLUDES(mutex_) {
    Place at;
    if (const Lookup found = Find(number, &at); found != Lookup::kFound) return found;
    runtime::MutexLock lock(mutex_);
    const uint32_t state = at.slot->state.load(std::memory_order_acquire);
    if (state / kConditions != at.generation || state % kConditions == kEmpty) return WhyNot(state, at.generation);
    copy(std::as_const(*at.slot->object));
    return Lookup::kFound;
  }

 private:
  static constexpr uint32_t kChunk = 256;
  static constexpr uint32_t kPlaces = 1u << 20;
  static constexpr uint32_t kGenerations = 1u << 28;
  static constexpr uint32_t kConditions = 4;
  static constexpr uint32_t kEmpty = 0;
  static constexpr uint32_t kIdle = 1;
  static constexpr uint32_t kHeld = 2;

  static constexpr uint32_t StateOf(uint32_t generation, uint32_t condition) {
    return generation * kConditions + condition;
  }

  struct Slot {
    std::atomic<uint32_t> state{StateOf(1, kEmpty)};
    std::optional<T> object;
  };
  struct Place {
    Slot* slot = nullptr;
    uint32_t place = 0;
    uint32_t generation = 0;
  };

  Slot& SlotAt(uint32_t place) { return chunks_[place / kChunk].load(std::memory_order_acquire)[place % kChunk]; }

  Lookup Find(uint64_t number, Place* at) {
    if (number == 0) return Lookup::kNull;
    if (number >> 60 != kind_) return Lookup::kOtherKind;
    at->place = static_cast<uint32_t>(number);
    at->generation = static_cast<uint32_t>(number >> 32) % kGenerations;
    if (at->place >= used_.load(std::memory_order_acquire)) return Lookup::kNeverMade;
    at->slot = &SlotAt(at->place);
    return Lookup::kFound;
  }

  static Lookup WhyNot(uint32_t state, uint32_t generation) {
    if (state / kConditions < generation) return Lookup::kNeverMade;
    if (state / kConditions > generation) return Lookup::kFreed;
    // The generation that comes next has not been given out.
    return state % kConditions == kEmpty ? Lookup::kNeverMade : Lookup::kBusy;
  }

  uint64_t Put(uint32_t place, T object) {
    Slot& slot = SlotAt(place);
    slot.object.emplace(std::move(object));
    const uint32_t generation = slot.state.load(std::memory_order_relaxed) / kConditions;
    slot.state.store(StateOf(generation, kIdle), std::memory_order_release);
    return kind_ << 60 | uint64_t{generation} << 32 | place;
  }

  void GiveBack(uint32_t place) COHORT_EXCLUDES(mutex_) {
    runtime::MutexLock lock(mutex_);
    free_.push_back(place);
  }

  T Remove(Slot* slot, uint32_t place, uint32_t generation) COHORT_EXCLUDES(mutex_) {
    runtime::MutexLock lock(mutex_);
    T object = std::move(*slot->object);
    slot->object.reset();
    slot->state.store(StateOf(generation + 1, kEmpty), std::memory_order_release);
    if (generation + 1 < kGenerations) free_.push_back(place);
    return object;
  }

  const uint64_t kind_;
  std::array<std::atomic<Slot*>, kPlaces / kChunk> chunks_ = {};
  std::atomic<uint32_t> used_{0};
  runtime::Mutex mutex_;
  std::vector<uint32_t> free_ COHORT_GUARDED_BY(mutex_);
};

}  // namespace cohort::comm::c
