// A model of the slot protocol (comm/transport/shm/README.md) small enough to be explored whole: one writer, one or two
// readers, a few slots, acknowledgements, and sleeping on wake words, every interleaving of their steps.
//
// Memory. Each thread's stores wait in a buffer of its own before others see them. They leave it in any order, except
// that a release store leaves after all stores before it, that stores to one variable keep their order, and that a
// fence or an atomic read-modify-write waits for the buffer to be empty. That is weaker than x86 (whose stores leave in
// order) and lets through what C++ promises for the orders that the transport uses. Loads happen in program order: all
// those of the protocol are acquire loads, or follow one.
//
// There are no time-outs in the model: a wake-up that is lost leaves a state without successors.
#pragma once

#include <cstddef>
#include <cstdint>

namespace cohort::comm::testing {

// The protocol, and what may be left out of it to see that the model notices.
struct SlotModelOptions {
  int readers = 1;
  int slots = 2;
  int messages = 4;
  bool publish_fence = true;   // between the line and the look at the readers' parked words
  bool ack_fence = true;       // between the acknowledgement and the look at the writer's
  bool announce_fence = true;  // parked is set by an atomic read-modify-write and not by a plain store
  bool release_stamp = true;   // the stamp is stored with release order
  bool compare_number = true;  // a reader waits for the number of its message and not for any
  bool ack_after_read = true;  // a reader acknowledges a message after it has read it
  bool heed_acks = true;       // the writer waits for a slot that all readers are finished with
  bool look_again = true;      // who wants to sleep looks once more after it has announced it
  bool token_first = true;     // and has read the wake word before it announced
};

enum class SlotVerdict { kProved, kWrongData, kStuck };

struct SlotModelResult {
  SlotVerdict verdict = SlotVerdict::kProved;
  size_t states = 0;
};

// Explores all states.
SlotModelResult ExploreSlotModel(const SlotModelOptions& options);

}  // namespace cohort::comm::testing
