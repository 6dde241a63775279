// Asks the sources of evidence for a node's ranks, and passes the answers on. See evidence/README.md.
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "cohort/launcher/agent/evidence/evidence_gatherer.h"
#include "cohort/launcher/agent/life/supervised_rank.h"
#include "cohort/launcher/base/event_loop.h"
#include "cohort/v1/rendezvous.pb.h"

namespace cohort::launcher {

class RankEvidence {
 public:
  using OnStack = std::function<void(v1::RankStack)>;

  explicit RankEvidence(EventLoop* loop) : loop_(loop), live_(loop) {}
  ~RankEvidence() { loop_->Cancel(answered_); }
  RankEvidence(const RankEvidence&) = delete;
  RankEvidence& operator=(const RankEvidence&) = delete;

  // Keeps the ranks from SIGTERM until the sources have answered, since the services end with the ranks; at once where
  // there is nothing to ask. Each line of the answers goes to `on_notice`. Only the first call asks.
  void HoldBack(SupervisedRanks* ranks, std::chrono::milliseconds limit,
                const std::function<void(const std::string& text)>& on_notice);
  // Looks for what the ranks, which have all ended, have left. Each line goes to `on_notice`. Returns whether the
  // answer is to be waited for; then calls `on_answered` from the loop. Only the first call asks.
  bool LookBack(const SupervisedRanks& ranks, std::chrono::milliseconds limit,
                const std::function<void(const std::string& text)>& on_notice,
                const std::function<void()>& on_answered);
  // Begins to ask, and returns a function that passes a rank's stack on to `on_stack`, with the answer found at that
  // rank, as soon as it is known.
  OnStack JoinTo(const SupervisedRanks& ranks, const v1::StacksWanted& wanted, std::chrono::milliseconds limit,
                 OnStack on_stack);

 private:
  EvidenceQuestion QuestionOf(const SupervisedRanks& ranks, std::chrono::milliseconds limit, EvidenceTime time) const;

  EventLoop* loop_;
  const std::chrono::system_clock::time_point begun_ = std::chrono::system_clock::now();  // before the ranks
  EvidenceGatherer live_;                                                                 // for JoinTo
  std::optional<EvidenceGatherer> at_stop_;                                               // from the first HoldBack on
  std::optional<EvidenceGatherer> at_end_;                                                // from the first LookBack on
  EventLoop::TimerId answered_ = 0;                                                       // on its way to say so
};

}  // namespace cohort::launcher
