#include "cohort/launcher/agent/rank_evidence.h"

#include <algorithm>
#include <memory>
#include <utility>

namespace cohort::launcher {
namespace {

constexpr size_t kMaxNoticeLines = 60;
constexpr size_t kMaxStackLines = 200;  // beside stacks, which may have 32 KiB in all

// The running ranks of the node of rank 0, none of another: such services know the whole job, and one answer is enough.
std::vector<EvidenceRank> RanksToAsk(const std::vector<SupervisedRank>& ranks) {
  const auto is_first = [](const SupervisedRank& rank) { return rank.placement.rank() == 0; };
  if (std::none_of(ranks.begin(), ranks.end(), is_first)) return {};
  std::vector<EvidenceRank> asked;
  for (const SupervisedRank& rank : ranks) {
    if (rank.running()) asked.push_back({rank.placement.rank(), rank.process.pid, rank.command.environment});
  }
  return asked;
}

class StacksWithEvidence {
 public:
  explicit StacksWithEvidence(RankEvidence::OnStack on_stack) : on_stack_(std::move(on_stack)) {}

  void Add(v1::RankStack stack) {
    if (!known_) return waiting_.push_back(std::move(stack));
    for (const Evidence& one : found_) {
      if (one.rank != stack.rank()) continue;
      for (const std::string& line : LinesOf(one, "says", kMaxStackLines)) *stack.mutable_text() += "  " + line + "\n";
    }
    on_stack_(std::move(stack));
  }
  void Know(std::vector<Evidence> found) {
    found_ = std::move(found);
    known_ = true;
    for (v1::RankStack& stack : std::exchange(waiting_, {})) Add(std::move(stack));
  }

 private:
  RankEvidence::OnStack on_stack_;
  std::vector<v1::RankStack> waiting_;
  std::vector<Evidence> found_;
  bool known_ = false;
};

}  // namespace

void RankEvidence::HoldBack(std::vector<SupervisedRank>* ranks, RankStacks* stacks, std::chrono::milliseconds limit,
                            const std::function<void(const std::string& text)>& on_notice) {
  if (at_stop_.has_value()) return;
  at_stop_.emplace(loop_);
  const auto done = [ranks, stacks, on_notice](const std::vector<Evidence>& found) {
    for (const Evidence& one : found) {
      const std::string words = "said at rank " + std::to_string(one.rank) + ", before ranks were told to end";
      for (const std::string& line : LinesOf(one, words, kMaxNoticeLines)) on_notice(line);
    }
    for (SupervisedRank& rank : *ranks) {
      if (std::exchange(rank.held_back, false)) rank.Ask(stacks, std::chrono::milliseconds(0), true);
    }
  };
  const bool asks = at_stop_->Gather(RanksToAsk(*ranks), limit, done);
  for (SupervisedRank& rank : *ranks) rank.held_back = asks && rank.running();
}

RankEvidence::OnStack RankEvidence::JoinTo(const std::vector<SupervisedRank>& ranks, std::chrono::milliseconds limit,
                                           OnStack on_stack) {
  const auto joined = std::make_shared<StacksWithEvidence>(std::move(on_stack));
  const auto done = [joined](std::vector<Evidence> found) { joined->Know(std::move(found)); };
  if (live_.busy() || !live_.Gather(RanksToAsk(ranks), limit, done)) joined->Know({});
  return [joined](v1::RankStack stack) { joined->Add(std::move(stack)); };
}

}  // namespace cohort::launcher
