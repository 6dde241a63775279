// Tells what the ranks of a running job do, as their agents last told dlaunch. Nobody looks unless somebody asks.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "cohort/launcher/jobs/wait_tally.h"
#include "cohort/v1/job.pb.h"
#include "cohort/v1/rendezvous.pb.h"

namespace cohort::launcher {

// The members of the job in this epoch: node i runs on agent agents[i].
struct JobMembers {
  const std::vector<v1::NodePlacement>* nodes = nullptr;
  const std::vector<size_t>* agents = nullptr;
};

class LiveView {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;
  // Asks an agent to look at its ranks; the answer comes through OnView.
  using Ask = std::function<void(size_t agent, uint64_t look)>;
  // A watcher that asks more often gets the same answer again: looking costs every node.
  static constexpr std::chrono::milliseconds kMinInterval{100};

  explicit LiveView(Ask ask) : ask_(std::move(ask)) {}

  // Asks the agents that have ranks, unless they were asked just now.
  void Refresh(const JobMembers& members, TimePoint now);
  void OnView(size_t agent, const v1::NodeView& view, TimePoint now);
  // Another epoch has begun: what was told is about other processes.
  void Forget() {
    latest_.clear();
    tally_.Forget();
  }

  // See WaitTally.
  std::string DescribeLongestWait() const { return tally_.DescribeLongest(); }

  // Whether waits are kept that are not counted yet.
  bool KeepsWaits() const;

  // Adds the ranks from `first_rank` on to the snapshot, as many as take `max_bytes`, at least one.
  void AddRanks(const JobMembers& members, uint32_t first_rank, size_t max_bytes, TimePoint now,
                v1::JobSnapshot* snapshot) const;

 private:
  // A call is told in as many bytes, so that 200 ranks fit into a packet.
  static constexpr size_t kMaxCall = 96;

  struct Latest {
    v1::NodeView view;
    TimePoint at;
  };

  void CountWaits(TimePoint now);
  // Drops what is large and only needed to count: progress in every group, and the groups' members.
  static void DropWaits(v1::NodeView* view);

  Ask ask_;
  std::map<size_t, Latest> latest_;  // by agent
  uint64_t look_ = 0;
  TimePoint asked_at_{};
  std::vector<size_t> asked_;  // agents, by node
  uint32_t world_size_ = 0;
  uint64_t counted_ = 0;  // the latest look that the tally has
  WaitTally tally_;
};

}  // namespace cohort::launcher
