// SimulatedLink measures without a clock how much communication a program hides behind its computation.
#pragma once

#include "cohort/trainer/transfer/call_observer.h"

namespace cohort::trainer {

// While it lives, the calls of collectives.h are timed in virtual time, as if all transfers of this rank shared one
// link. The clock advances by the computation that the program declares, and by waiting for unfinished transfers. Time
// added by a Wait is exposed. The rest of the communication is hidden behind the computation. Results come as usual,
// and the machine's clock is not read. Only one may live.
//
//   clock     0 ─── compute ───────────────── Wait ▒▒▒▒▒▒▒ goes on
//   link          call A ══════════ call B ══════════════│             ▒ exposed
class [[nodiscard]] SimulatedLink final : private CallObserver {
 public:
  // Each call takes `latency` seconds plus `seconds_per_byte` for each byte sent by the best algorithm for large
  // messages. Calls that are started as one count as one. Gathering and scattering send (n - 1) / n of the whole
  // vector; all-reduce sends twice that.
  SimulatedLink(double latency, double seconds_per_byte);
  ~SimulatedLink() override;
  SimulatedLink(const SimulatedLink&) = delete;
  SimulatedLink& operator=(const SimulatedLink&) = delete;

  void Compute(double seconds);
  // Seconds since this was made or Reset.
  double computed() const;
  double communicated() const;
  double exposed() const;
  void Reset();

 private:
  runtime::Work OnCall(const ObservedCall& call, std::function<runtime::Work()> start) override;

  CallObserver* before_;
};

}  // namespace cohort::trainer
