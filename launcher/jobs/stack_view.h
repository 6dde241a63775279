// The stacks of a job's ranks, gathered from the agents when somebody asks. See agent/stacks/README.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <utility>

#include "cohort/launcher/jobs/live_view.h"
#include "cohort/v1/job.pb.h"
#include "cohort/v1/rendezvous.pb.h"

namespace cohort::launcher {

class StackView {
 public:
  using Ask = std::function<void(size_t agent, const v1::StacksWanted& wanted)>;

  explicit StackView(Ask ask) : ask_(std::move(ask)) {}

  // Has the agents gather, or tells what they have answered to the question of that number: the ranks from
  // `first_rank` on, as many as take `max_bytes`, at least one, and which have not answered.
  void Answer(const JobMembers& members, const v1::JobRequest& request, size_t max_bytes, v1::JobSnapshot* snapshot);
  // Ignored where that agent was not asked for that rank.
  void OnStack(size_t agent, const v1::RankStack& stack);
  // Another epoch has begun: the ranks are other processes.
  void Forget() { questions_.clear(); }

 private:
  static constexpr size_t kMaxQuestions = 4;  // kept, the latest
  static constexpr size_t kMaxBytes = 16u << 20;
  static constexpr int kMostMissing = 1000;

  struct Question {
    std::map<uint32_t, size_t> missing;  // rank: agent
    std::map<uint32_t, v1::RankStack> stacks;
    size_t bytes = 0;
  };

  uint64_t Begin(const JobMembers& members, const v1::JobRequest& request);

  Ask ask_;
  uint64_t latest_ = 0;
  std::map<uint64_t, Question> questions_;
};

}  // namespace cohort::launcher
