// SimulatedLink: how much of the communication a program hides behind its computation, found without a clock.
#pragma once

#include "cohort/trainer/transfer/call_observer.h"

namespace cohort::trainer {

// While it lives, the calls of collectives.h are timed as if all transfers of this rank shared one link, in virtual
// time: the clock goes on by what the program says that it computes, and by waiting for transfers that are not through
// yet. What a Wait adds is exposed; the rest of the communication is hidden behind the computation. Results come as
// usual, and no clock of the machine is looked at. One at a time.
//
//   clock     0 ─── compute ───────────────── Wait ▒▒▒▒▒▒▒ goes on
//   link          call A ══════════ call B ══════════════│             ▒ exposed
class [[nodiscard]] SimulatedLink final : private CallObserver {
 public:
  // Each call (those that are started as one are one) takes `latency` seconds and `seconds_per_byte` for each byte that
  // the best algorithm for large messages sends: (n - 1) / n of the whole vector for gathering and scattering, twice
  // that for all-reduce.
  SimulatedLink(double latency, double seconds_per_byte);
  ~SimulatedLink() override;
  SimulatedLink(const SimulatedLink&) = delete;
  SimulatedLink& operator=(const SimulatedLink&) = delete;

  void Compute(double seconds);
  // Since this was made or Reset.
  double computed() const;
  double communicated() const;
  double exposed() const;
  void Reset();

 private:
  runtime::Work OnCall(const ObservedCall& call, std::function<runtime::Work()> start) override;

  CallObserver* before_;
};

}  // namespace cohort::trainer
