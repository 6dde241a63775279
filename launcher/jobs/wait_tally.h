// Which ranks of a running job the others wait for, and how long they have done so, from one look at all ranks to the
// next.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "cohort/v1/rendezvous.pb.h"

namespace cohort::launcher {

class WaitTally {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;
  // After a longer time without a look only this much is counted: nobody knows what was in between.
  static constexpr std::chrono::seconds kLongestGap{5};

  // A look at a job of `world_size` ranks is over. `nodes`: what each node's agent said; null where it said nothing.
  // Ranks that are waited for now count as waited for since the look before.
  void Count(const std::vector<const v1::NodeView*>& nodes, uint32_t world_size, TimePoint now);
  // The ranks that waited for this one at the latest look, directly or through others.
  size_t WaitingFor(uint32_t rank) const;
  // The time during which others waited for it.
  std::chrono::milliseconds WaitedFor(uint32_t rank) const;
  // The rank for which others waited clearly longer than for any other, for a good part of the time; in words. A look
  // sees one moment, so this is empty where that many looks might show it by chance: "rank 3 was waited for at 41 of 60
  // looks".
  std::string DescribeLongest() const;
  // Another epoch has begun.
  void Forget() { *this = WaitTally(); }

 private:
  struct Entry {
    size_t waiting = 0;
    size_t looks = 0;  // at which it was waited for
    std::chrono::milliseconds total{0};
  };
  std::map<uint32_t, Entry> entries_;
  size_t looks_ = 0;
  TimePoint latest_{};
};

}  // namespace cohort::launcher
