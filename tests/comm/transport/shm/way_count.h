// How many messages went each way.
#pragma once

namespace cohort::comm::testing {

struct WayCount {
  int copied = 0;
  int past_cache = 0;
  int read = 0;
  friend bool operator==(const WayCount&, const WayCount&) = default;
};

}  // namespace cohort::comm::testing
