#include "cohort/launcher/agent/rank_evidence.h"

#include <algorithm>
#include <memory>
#include <utility>

namespace cohort::launcher {
namespace {

constexpr size_t kMaxNoticeLines = 60;
constexpr size_t kMaxStackLines = 200;  // beside stacks, which may have 32 KiB in all

std::vector<EvidenceRank> RanksToAsk(const SupervisedRanks& ranks) {
  std::vector<EvidenceRank> asked;
  for (const SupervisedRank& rank : ranks) {
    asked.push_back({.rank = rank.rank(),
                     .group = rank.handle().pid(),
                     .environment = rank.command().environment,
                     .program = rank.has_process() ? rank.handle().program_pid() : 0,
                     .working_directory = rank.command().working_directory});
  }
  return asked;
}

bool IsWanted(const v1::StacksWanted& wanted, uint32_t rank) {
  return wanted.ranks().empty() ||
         std::find(wanted.ranks().begin(), wanted.ranks().end(), rank) != wanted.ranks().end();
}

void Tell(const std::vector<Evidence>& found, const std::string& when,
          const std::function<void(const std::string& text)>& on_notice) {
  for (const Evidence& one : found) {
    for (const std::string& line : LinesOf(one, "said at rank " + std::to_string(one.rank) + when, kMaxNoticeLines)) {
      on_notice(line);
    }
  }
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

// The node of rank 0 asks services that know the whole job: one answer is enough.
EvidenceQuestion RankEvidence::QuestionOf(const SupervisedRanks& ranks, std::chrono::milliseconds limit,
                                          EvidenceTime time) const {
  const bool for_job =
      std::any_of(ranks.begin(), ranks.end(), [](const SupervisedRank& rank) { return rank.rank() == 0; });
  return {.ranks = RanksToAsk(ranks), .limit = limit, .for_job = for_job, .time = time, .begun = begun_};
}

void RankEvidence::HoldBack(SupervisedRanks* ranks, std::chrono::milliseconds limit,
                            const std::function<void(const std::string& text)>& on_notice) {
  if (at_stop_.has_value()) return;
  at_stop_.emplace(loop_);
  const auto done = [ranks, on_notice](const std::vector<Evidence>& found) {
    Tell(found, ", before ranks were told to end", on_notice);
    for (SupervisedRank& rank : *ranks) rank.signals().EndHoldBack();
  };
  const bool asks = at_stop_->Gather(QuestionOf(*ranks, limit, EvidenceTime::kBeforeEnd), done);
  for (SupervisedRank& rank : *ranks) rank.signals().HoldBack(asks && rank.has_process());
}

bool RankEvidence::LookBack(const SupervisedRanks& ranks, std::chrono::milliseconds limit,
                            const std::function<void(const std::string& text)>& on_notice,
                            const std::function<void()>& on_answered) {
  if (at_end_.has_value()) return at_end_->busy();
  at_end_.emplace(loop_);
  const auto done = [this, on_notice, on_answered](const std::vector<Evidence>& found) {
    Tell(found, "", on_notice);
    answered_ = loop_->After(std::chrono::milliseconds(0), on_answered);  // which may end this object
  };
  return at_end_->Gather(QuestionOf(ranks, limit, EvidenceTime::kAfterEnd), done);
}

RankEvidence::OnStack RankEvidence::JoinTo(const SupervisedRanks& ranks, const v1::StacksWanted& wanted,
                                           std::chrono::milliseconds limit, OnStack on_stack) {
  const auto joined = std::make_shared<StacksWithEvidence>(std::move(on_stack));
  const auto done = [joined](std::vector<Evidence> found) { joined->Know(std::move(found)); };
  EvidenceQuestion question = QuestionOf(ranks, limit, EvidenceTime::kLive);
  for (EvidenceRank& rank : question.ranks) rank.wanted = IsWanted(wanted, rank.rank);
  if (live_.busy() || !live_.Gather(question, done)) joined->Know({});
  return [joined](v1::RankStack stack) { joined->Add(std::move(stack)); };
}

}  // namespace cohort::launcher
