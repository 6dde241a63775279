#include "cohort/runtime/tape/tape.h"

#include <atomic>
#include <unordered_map>
#include <utility>

#include "cohort/runtime/base/mutex.h"

namespace cohort::runtime {
namespace {

std::atomic<int> tapes{0};

struct Register {
  Mutex mutex;
  std::unordered_map<const Segment*, Tape*> tapes COHORT_GUARDED_BY(mutex);
};

// Never destroyed: runtimes may end after static objects.
Register& TheRegister() {
  static auto* const the_register = new Register();
  return *the_register;
}

void Enter(const Segment* segment, Tape* tape) {
  MutexLock lock(TheRegister().mutex);
  TheRegister().tapes[segment] = tape;
  tapes.fetch_add(1);
}

}  // namespace

Tape::Tape(const Segment* segment, std::unique_ptr<TapeWriter> writer) : segment_(segment), writer_(std::move(writer)) {
  Enter(segment_, this);
}

Tape::Tape(const Segment* segment, std::unique_ptr<TapePlayer> player) : segment_(segment), player_(std::move(player)) {
  Enter(segment_, this);
}

Tape::~Tape() {
  MutexLock lock(TheRegister().mutex);
  TheRegister().tapes.erase(segment_);
  tapes.fetch_sub(1);
}

Tape* Tape::Of(const Segment& segment) {
  if (tapes.load() == 0) return nullptr;
  MutexLock lock(TheRegister().mutex);
  const auto found = TheRegister().tapes.find(&segment);
  return found == TheRegister().tapes.end() ? nullptr : found->second;
}

}  // namespace cohort::runtime
