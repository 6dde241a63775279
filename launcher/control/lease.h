// The lease under which an agent's ranks run: what keeps two worlds from existing at the same time.
//
// The rendezvous gives a node up when it has heard nothing from it for kSilenceTimeout, and may then let others take
// its place. A node on the far side of a broken network must have ended its ranks by then, whatever was delayed, lost
// or still lies in buffers. So a lease is counted from when the agent *sent* the latest beat that was answered: the
// rendezvous heard that beat later than that, so it gives the node up later than the lease ends.
//
//   agent        ──beat 7──►                              lease ends            ranks are gone
//                t            ◄──beat 7──                 t + 3.4 s             t + 4.4 s at the latest
//   rendezvous        heard at h > t          ... h + 3.4 s: lost ... h + 4.4 s: the next epoch may begin
//
// If others may take over for the rendezvous' host, an agent that has lost it keeps its ranks for kTakeOverTime more.
// The next epoch waits as much longer.
//
// Only the rates of the clocks must agree. An agent that was itself stopped, and so could not look at its lease, ends
// its ranks as soon as it hears that it was given up, or when nobody answers it for two seconds.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <deque>
#include <utility>

#include "cohort/launcher/control/rendezvous.h"

namespace cohort::launcher {

// From the end of a lease until the ranks under it are gone: SIGKILL, and the kernel's time.
inline constexpr std::chrono::milliseconds kKillTime{1000};
// From the loss of the host to the word of another that it has taken over.
inline constexpr std::chrono::milliseconds kTakeOverTime{8000};
// How long an agent that was stopped waits for an answer.
inline constexpr std::chrono::milliseconds kSecondChance{2000};

class Lease {
 public:
  // Begins when the agent sends its offer.
  explicit Lease(TimePoint now) : from_(now) {}

  // The number of a beat that is sent now.
  uint64_t NextBeat(TimePoint now) {
    unanswered_.emplace_back(++last_, now);
    return last_;
  }
  void OnAnswer(uint64_t number) {
    while (!unanswered_.empty() && unanswered_.front().first <= number) {
      from_ = std::max(from_, unanswered_.front().second);
      unanswered_.pop_front();
    }
  }
  // This process was stopped, and does not know what it has missed.
  void GiveSecondChance(TimePoint now) {
    if (End() < now + kSecondChance) from_ = now + kSecondChance - kSilenceTimeout;
  }
  TimePoint End() const { return from_ + kSilenceTimeout; }

 private:
  TimePoint from_;
  uint64_t last_ = 0;
  std::deque<std::pair<uint64_t, TimePoint>> unanswered_;  // as many as are sent in the time of a lease
};

}  // namespace cohort::launcher
