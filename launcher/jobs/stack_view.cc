#include "cohort/launcher/jobs/stack_view.h"

#include <algorithm>

#include "cohort/launcher/remedies/remedies.h"

namespace cohort::launcher {

uint64_t StackView::Begin(const JobMembers& members, const v1::JobRequest& request) {
  const auto& named = request.stack_ranks();
  Question& question = questions_[++latest_];
  if (questions_.size() > kMaxQuestions) questions_.erase(questions_.begin());
  for (size_t node = 0; node < members.nodes->size(); ++node) {
    v1::StacksWanted wanted;
    wanted.set_number(latest_);
    for (const v1::RankPlacement& placed : (*members.nodes)[node].ranks()) {
      if (!named.empty() && std::find(named.begin(), named.end(), placed.rank()) == named.end()) continue;
      wanted.add_ranks(placed.rank());
      question.missing[placed.rank()] = (*members.agents)[node];
    }
    if (!wanted.ranks().empty()) ask_((*members.agents)[node], wanted);
  }
  return latest_;
}

void StackView::OnStack(size_t agent, const v1::RankStack& stack) {
  const auto found = questions_.find(stack.number());
  if (found == questions_.end()) return;
  Question& question = found->second;
  const auto asked = question.missing.find(stack.rank());
  if (asked == question.missing.end() || asked->second != agent) return;
  question.missing.erase(asked);
  v1::RankStack& kept = question.stacks[stack.rank()];
  kept = stack;
  question.bytes += kept.text().size();
  if (question.bytes > kMaxBytes || kept.text().size() > (32u << 10)) {
    kept.set_text(
        "  " +
        WithRemedy(Remedy::kStacksTooLong, "left out: the stacks of all are too long; name fewer ranks (--rank)") +
        "\n");
  }
}

void StackView::Answer(const JobMembers& members, const v1::JobRequest& request, size_t max_bytes,
                       v1::JobSnapshot* snapshot) {
  const uint64_t number = request.stacks_number() == 0 ? Begin(members, request) : request.stacks_number();
  const auto found = questions_.find(number);
  if (found == questions_.end()) return;
  const Question& question = found->second;
  snapshot->set_stacks_number(number);
  for (const auto& [rank, agent] : question.missing) {
    if (snapshot->stacks_missing_size() < kMostMissing) snapshot->add_stacks_missing(rank);
  }
  size_t bytes = 0;
  for (auto at = question.stacks.lower_bound(request.first_rank()); at != question.stacks.end(); ++at) {
    bytes += at->second.ByteSizeLong() + 8;
    if (bytes > max_bytes && !snapshot->stacks().empty()) return;
    *snapshot->add_stacks() = at->second;
  }
}

}  // namespace cohort::launcher
