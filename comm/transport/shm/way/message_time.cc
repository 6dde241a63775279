#include "cohort/comm/transport/shm/way/message_time.h"

#include <algorithm>

namespace cohort::comm::shm {

uint64_t MessageTime::OfCopies(uint64_t now_ns, uint64_t reading_ns, uint64_t sender_reading_ns) const {
  const uint64_t elapsed = now_ns - began_ns_;
  const uint64_t reads = std::max(reading_ns - reading_before_ns_, sender_reading_ns);
  if (reads <= parts_ns_) return elapsed;
  return elapsed > reads ? elapsed - (reads - parts_ns_) : parts_ns_;
}

}  // namespace cohort::comm::shm
