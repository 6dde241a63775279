#include "tests/comm/transport/shm/slot_model.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <unordered_set>
#include <vector>

namespace cohort::comm::testing {
namespace {

constexpr int kMostThreads = 3;  // the writer and two readers
constexpr int kMostSlots = 4;
constexpr int kMostBuffered = 6;

// Variables of shared memory, one byte each.
constexpr uint8_t Payload(int slot) { return static_cast<uint8_t>(slot); }
constexpr uint8_t StampOf(int slot) { return static_cast<uint8_t>(kMostSlots + slot); }
constexpr uint8_t AckOf(int reader) { return static_cast<uint8_t>(2 * kMostSlots + reader); }
constexpr uint8_t Parked(int thread) { return static_cast<uint8_t>(2 * kMostSlots + kMostThreads + thread); }
constexpr uint8_t Wake(int thread) { return static_cast<uint8_t>(2 * kMostSlots + 2 * kMostThreads + thread); }
constexpr int kVariables = 2 * kMostSlots + 3 * kMostThreads;

// The next thing that a thread does.
enum Pc : uint8_t {
  kLook,       // writer: is there a free slot? reader: is the message there?
  kToken,      // begin to sleep: read the own wake word
  kAnnounce,   // set the own parked word
  kLookAgain,  // the same as kLook, and back if there is something
  kLateToken,  // (read the wake word only now)
  kSleep,      // futex wait
  kWithdraw,   // clear the own parked word
  kFirst,      // writer: store the payload; reader: read it
  kSecond,     // writer: store the stamp; reader: acknowledge
  kFence,
  kPeers,  // look at each peer's parked word and wake it
  kWakePeer,
  kDone,
};

struct Store {
  uint8_t variable;
  uint8_t value;
  uint8_t release;
};

struct Thread {
  uint8_t pc;
  uint8_t number;     // of the message at hand, from 1
  uint8_t confirmed;  // writer: read by all readers; reader: acknowledged
  uint8_t token;
  uint8_t asleep;
  uint8_t peer;  // the next to be looked at by kPeers
  uint8_t buffered;
  Store buffer[kMostBuffered];
};

struct State {
  uint8_t memory[kVariables];
  Thread threads[kMostThreads];
};

class Explorer {
 public:
  explicit Explorer(const SlotModelOptions& options) : options_(options), threads_(1 + options.readers) {}

  SlotModelResult Run() {
    State first;
    std::memset(&first, 0, sizeof first);
    for (int i = 0; i < threads_; ++i) first.threads[i].number = 1;
    Reach(first);
    while (!open_.empty() && result_.verdict == SlotVerdict::kProved) {
      const State state = open_.back();
      open_.pop_back();
      Expand(state);
    }
    result_.states = seen_.size();
    return result_;
  }

 private:
  void Reach(const State& state) {
    if (seen_.emplace(reinterpret_cast<const char*>(&state), sizeof state).second) open_.push_back(state);
  }

  void Expand(const State& state) {
    bool finished = true;
    bool moved = false;
    for (int i = 0; i < threads_; ++i) {
      moved |= Drain(state, i);
      State next = state;
      if (next.threads[i].pc == kDone) continue;
      finished = false;
      if (Step(next, i)) {
        moved = true;
        Reach(next);
      }
    }
    if (!finished && !moved) result_.verdict = SlotVerdict::kStuck;
  }

  // Every store of thread `i` that may become visible now does, each in a state of its own.
  bool Drain(const State& state, int i) {
    const Thread& thread = state.threads[i];
    for (int s = 0; s < thread.buffered; ++s) {
      const Store& store = thread.buffer[s];
      const bool free = std::none_of(thread.buffer, thread.buffer + s, [&store](const Store& earlier) {
        return store.release != 0 || earlier.variable == store.variable;
      });
      if (!free) continue;
      State next = state;
      Thread& changed = next.threads[i];
      next.memory[store.variable] = store.value;
      std::copy(changed.buffer + s + 1, changed.buffer + kMostBuffered, changed.buffer + s);
      changed.buffer[kMostBuffered - 1] = {};
      --changed.buffered;
      Reach(next);
    }
    return thread.buffered > 0;
  }

  static uint8_t Load(const State& state, const Thread& thread, uint8_t variable) {
    for (int s = thread.buffered; s-- > 0;) {
      if (thread.buffer[s].variable == variable) return thread.buffer[s].value;
    }
    return state.memory[variable];
  }
  // False: the buffer is full, a store has to leave first.
  static bool Put(Thread& thread, uint8_t variable, uint8_t value, bool release) {
    if (thread.buffered == kMostBuffered) return false;
    thread.buffer[thread.buffered++] = {variable, value, release};
    return true;
  }

  // Whether thread `i` finds what it waits for.
  bool Ready(const State& state, Thread& thread, int i) const {
    if (i == 0) {
      if (!options_.heed_acks) return true;
      uint8_t least = 255;
      for (int r = 1; r < threads_; ++r) least = std::min(least, Load(state, thread, AckOf(r)));
      thread.confirmed = std::max(thread.confirmed, least);
      return thread.number - thread.confirmed <= options_.slots;
    }
    const uint8_t stamp = Load(state, thread, StampOf(SlotOf(thread)));
    return options_.compare_number ? stamp == thread.number : stamp != 0;
  }
  int SlotOf(const Thread& thread) const { return (thread.number - 1) % options_.slots; }

  // One step of thread `i`; false when it can't do any now.
  bool Step(State& state, int i) {
    Thread& thread = state.threads[i];
    switch (thread.pc) {
      case kLook:
        thread.pc = Ready(state, thread, i) ? kFirst : options_.token_first ? kToken : kAnnounce;
        return true;
      case kToken:
        thread.token = Load(state, thread, Wake(i));
        thread.pc = kAnnounce;
        return true;
      case kAnnounce:
        return Announce(state, i);
      case kLookAgain:
        thread.pc = Ready(state, thread, i) ? kWithdraw : options_.token_first ? kSleep : kLateToken;
        return true;
      case kLateToken:
        thread.token = Load(state, thread, Wake(i));
        thread.pc = kSleep;
        return true;
      case kSleep:
        return Sleep(state, i);
      case kWithdraw:
        if (!Put(thread, Parked(i), 0, false)) return false;
        thread.pc = kLook;
        return true;
      case kFence:
        if (thread.buffered > 0) return false;
        thread.pc = kPeers;
        return true;
      case kPeers:
        return LookAtPeer(state, i);
      case kWakePeer:
        return WakePeer(state, i);
      default:
        return i == 0 ? Write(thread) : Read(state, i);
    }
  }

  bool Announce(State& state, int i) {
    Thread& thread = state.threads[i];
    if (options_.announce_fence) {
      if (thread.buffered > 0) return false;
      state.memory[Parked(i)] = 1;
    } else if (!Put(thread, Parked(i), 1, false)) {
      return false;
    }
    thread.pc = options_.look_again ? kLookAgain : options_.token_first ? kSleep : kLateToken;
    return true;
  }

  // The kernel compares and goes to sleep in one step.
  static bool Sleep(State& state, int i) {
    Thread& thread = state.threads[i];
    if (thread.asleep != 0) return false;
    if (state.memory[Wake(i)] == thread.token) {
      thread.asleep = 1;
    } else {
      thread.pc = kWithdraw;
    }
    return true;
  }

  bool Write(Thread& thread) const {
    const int slot = SlotOf(thread);
    if (thread.pc == kFirst) {
      if (!Put(thread, Payload(slot), thread.number, false)) return false;
      thread.pc = kSecond;
      return true;
    }
    if (!Put(thread, StampOf(slot), thread.number, options_.release_stamp)) return false;
    ++thread.number;
    thread.peer = 1;
    thread.pc = options_.publish_fence ? kFence : kPeers;
    return true;
  }

  bool Read(State& state, int i) {
    Thread& thread = state.threads[i];
    const uint8_t number = thread.number;
    const bool acknowledge = number - thread.confirmed >= std::max(1, options_.slots / 2);
    const bool reads = (thread.pc == kFirst) == options_.ack_after_read;
    if (reads) {
      if (Load(state, thread, Payload(SlotOf(thread))) != number) result_.verdict = SlotVerdict::kWrongData;
    } else if (acknowledge) {
      if (!Put(thread, AckOf(i), number, true)) return false;
    }
    if (thread.pc == kFirst) {
      thread.pc = kSecond;
      return true;
    }
    ++thread.number;
    if (!acknowledge) {
      NextMessage(thread);
      return true;
    }
    thread.confirmed = number;
    thread.peer = 0;
    thread.pc = options_.ack_fence ? kFence : kPeers;
    return true;
  }

  bool LookAtPeer(State& state, int i) const {
    Thread& thread = state.threads[i];
    if (Load(state, thread, Parked(thread.peer)) != 0) {
      thread.pc = kWakePeer;
    } else {
      NextPeer(thread, i);
    }
    return true;
  }

  bool WakePeer(State& state, int i) {
    Thread& thread = state.threads[i];
    if (thread.buffered > 0) return false;
    Thread& peer = state.threads[thread.peer];
    ++state.memory[Wake(thread.peer)];
    if (peer.asleep != 0) {
      peer.asleep = 0;
      peer.pc = kWithdraw;
    }
    NextPeer(thread, i);
    return true;
  }

  void NextPeer(Thread& thread, int i) const {
    if (i == 0 && ++thread.peer < threads_) {
      thread.pc = kPeers;
    } else {
      NextMessage(thread);
    }
  }
  void NextMessage(Thread& thread) const { thread.pc = thread.number > options_.messages ? kDone : kLook; }

  const SlotModelOptions options_;
  const int threads_;
  SlotModelResult result_;
  std::unordered_set<std::string> seen_;
  std::vector<State> open_;
};

}  // namespace

SlotModelResult ExploreSlotModel(const SlotModelOptions& options) { return Explorer(options).Run(); }

}  // namespace cohort::comm::testing
