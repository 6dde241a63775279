// Gates: pages of private memory that peers write to before they write elsewhere in this process, in the same system
// call. A gate answers two questions that a late writer can't ask in time:
//   "does the owner still want it?"   its owner makes the page inaccessible when it gives the group up: the kernel then
//                                     stops at the gate and writes nothing
//   "is it still that process?"       the pages lie at an address drawn at random, and forks don't inherit them: a new
//                                     process under a dead one's number has no writable page there (chance below
//                                     2^-16 for one that uses a gigabyte, on top of that of getting the number within
//                                     the moment that the death takes to be known)
// So no write needs a call of its own that makes sure of the process.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace cohort::comm::shm {

// The gates of a process. One thread at a time.
class GateField {
 public:
  GateField() = default;
  ~GateField();
  GateField(const GateField&) = delete;
  GateField& operator=(const GateField&) = delete;

  // The address of an open gate; 0: there is no memory for it, or no free address.
  uint64_t Open();
  // Nobody is left who could write to it: it may be opened again.
  void Return(uint64_t gate);
  // Nobody passes any more, ever: the address is never used again, in this process' life. Where the process may make no
  // more mappings the gates next to it close too.
  void Close(uint64_t gate);

 private:
  bool Grow();

  std::vector<void*> regions_;
  std::vector<uint64_t> free_;
  bool closed_any_ = false;
};

// One gate of a field, which outlives it.
class Gate {
 public:
  explicit Gate(GateField& field) : field_(field), address_(field.Open()) {}
  ~Gate();
  Gate(const Gate&) = delete;
  Gate& operator=(const Gate&) = delete;
  // 0: there is none.
  uint64_t address() const { return address_; }
  void Close();

 private:
  GateField& field_;
  uint64_t address_;
};

}  // namespace cohort::comm::shm
