#include "cohort/launcher/agent/stacks/rank_stacks.h"

#include <utility>

namespace cohort::launcher {

RankStacks::~RankStacks() {
  loop_->Cancel(timer_);
  for (const auto& [pid, rank] : ranks_) loop_->Cancel(rank->limit);
}

RankStacks::OfRank& RankStacks::Of(pid_t rank) {
  std::unique_ptr<OfRank>& found = ranks_[rank];
  if (found == nullptr) found = std::make_unique<OfRank>(loop_);
  return *found;
}

void RankStacks::Gather(pid_t rank, std::shared_ptr<PythonHook> hook, pid_t program,
                        std::function<void(const std::string& text)> done) {
  to_begin_.push_back([this, rank, hook = std::move(hook), program, done = std::move(done)] {
    Of(rank).gatherer.Gather(StackGatherer::Wish::kAll, hook, program,
                             [done](const std::string& text, const RankPlace&) { done(text); });
  });
  if (timer_ == 0) timer_ = loop_->After(std::chrono::milliseconds(0), [this] { BeginNext(); });
}

void RankStacks::BeginNext() {
  timer_ = 0;
  const std::function<void()> begin = std::move(to_begin_.front());
  to_begin_.pop_front();
  if (!to_begin_.empty()) timer_ = loop_->After(std::chrono::milliseconds(0), [this] { BeginNext(); });
  begin();
}

void RankStacks::FindPlace(pid_t rank, std::shared_ptr<PythonHook> hook, pid_t program, std::chrono::milliseconds limit,
                           std::function<void(const RankPlace& place)> done) {
  OfRank& of = Of(rank);
  const auto answer = [this, &of](const RankPlace& place) {
    loop_->Cancel(std::exchange(of.limit, 0));
    if (const auto wanted = std::exchange(of.place_wanted, nullptr)) wanted(place);
  };
  of.place_wanted = std::move(done);
  of.limit = loop_->After(limit, [answer, &of] { answer(of.gatherer.place()); });
  of.gatherer.Gather(StackGatherer::Wish::kPlace, std::move(hook), program,
                     [answer](const std::string&, const RankPlace& place) { answer(place); });
}

}  // namespace cohort::launcher
