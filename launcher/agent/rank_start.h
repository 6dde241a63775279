// The start of a node's ranks in an epoch. It does not wait for their programs: a file system that holds one may not
// answer.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "cohort/launcher/agent/life/supervised_rank.h"
#include "cohort/launcher/agent/rank_streams.h"
#include "cohort/launcher/base/event_loop.h"
#include "cohort/v1/rendezvous.pb.h"

namespace cohort::launcher {

class RankStart {
 public:
  // Executing all of them may take `limit`. `on_done` gets who runs, and who could not be executed, once.
  RankStart(EventLoop* loop, SupervisedRanks* ranks, RankStreams* streams, std::chrono::milliseconds limit,
            std::function<void(v1::RanksStarted)> on_done)
      : loop_(loop), ranks_(ranks), streams_(streams), limit_(limit), on_done_(std::move(on_done)) {}
  ~RankStart() { loop_->Cancel(timer_); }
  RankStart(const RankStart&) = delete;
  RankStart& operator=(const RankStart&) = delete;

  // Each rank is forked, was kept from the epoch before, or could not be forked: `forks`, by local rank.
  void Begin(const std::vector<absl::Status>& forks);
  // It may be known by now whether the program of that rank, which is starting, runs.
  void Look(size_t index);
  // `on_done` was called, or is being called.
  bool done() const { return done_; }

 private:
  void Note(size_t index, const absl::Status& status);
  void OnLate();
  void FinishIfKnown();

  EventLoop* const loop_;
  SupervisedRanks* const ranks_;
  RankStreams* const streams_;
  const std::chrono::milliseconds limit_;
  const std::function<void(v1::RanksStarted)> on_done_;
  size_t starting_ = 0;
  v1::RanksStarted outcome_;
  bool done_ = false;
  EventLoop::TimerId timer_ = 0;
};

}  // namespace cohort::launcher
