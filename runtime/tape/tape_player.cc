#include "cohort/runtime/tape/tape_player.h"

#include <algorithm>
#include <cstdio>

namespace cohort::runtime {
namespace {

int KindOfLookup(TapeLookup::Kind kind, int call) { return static_cast<int>(kind) * 256 + call; }

}  // namespace

TapePlayer::TapePlayer(std::unique_ptr<OpenTape> tape)
    : tape_(std::move(tape)),
      contents_(tape_->contents()),
      begun_(contents_.calls.size()),
      progress_(std::make_shared<ReplayProgress>()) {
  progress_->rank = contents_.head.rank;
  progress_->calls = contents_.calls.size();
  for (size_t i = 0; i < contents_.calls.size(); ++i) {
    groups_[contents_.groups.at(contents_.calls[i].group).id].calls.push_back(i);
  }
  MutexLock lock(mutex_);
  for (const TapeLookup& lookup : contents_.lookups) {
    lookups_[{KindOfLookup(lookup.kind, lookup.call), lookup.key}].push_back(&lookup);
  }
}

void TapePlayer::Join(uint64_t group, ReplayedGroup* listener) { groups_[group].listener = listener; }

void TapePlayer::Leave(uint64_t group) { groups_[group].listener = nullptr; }

const TapedCall* TapePlayer::NextOfAll() const {
  size_t next = first_left_;
  while (next < begun_.size() && begun_[next]) ++next;
  return next == begun_.size() ? nullptr : &contents_.calls[next];
}

const TapedCall* TapePlayer::Next(uint64_t group) const {
  if (!contents_.several_threads) return NextOfAll();
  const auto found = groups_.find(group);
  if (found == groups_.end() || found->second.next == found->second.calls.size()) return nullptr;
  return &contents_.calls[found->second.calls[found->second.next]];
}

void TapePlayer::Begin(const TapedCall& call, ReplayedCall* waiting) {
  const size_t index = IndexOf(call);
  begun_[index] = true;
  progress_->begun.fetch_add(1);
  while (first_left_ < begun_.size() && begun_[first_left_]) ++first_left_;
  ++groups_[contents_.groups.at(call.group).id].next;
  latest_ = &call;
  waiting_[index] = waiting;
  Advance();
}

void TapePlayer::Forget(const TapedCall& call) { waiting_.erase(IndexOf(call)); }

void TapePlayer::Advance() {
  if (advancing_) return;  // a result's callback has begun a call: the loop below goes on with it
  struct Loop {
    explicit Loop(bool& goes) : goes_(goes) { goes_ = true; }
    ~Loop() { goes_ = false; }  // also where a callback throws
    bool& goes_;
  } const loop(advancing_);
  while (at_ < contents_.events.size() && Happen(contents_.events[at_])) {
  }
}

// False: the event has yet to come. `at_` is behind the event before others are told, since they may begin calls.
bool TapePlayer::Happen(const TapeEvent& event) {
  if (event.kind == TapeEvent::Kind::kBegin) {
    if (!begun_[event.index]) return false;
    ++at_;
    return true;
  }
  ++at_;
  if (event.kind == TapeEvent::Kind::kResult) {
    const auto waiting = waiting_.find(event.index);
    if (waiting == waiting_.end()) return true;  // its group has gone
    ReplayedCall* const call = waiting->second;
    waiting_.erase(waiting);
    call->OnResult(contents_.calls[event.index].result);
    return true;
  }
  const TapedFailure& failure = contents_.failures[event.index];
  ReplayedGroup* const group = groups_[contents_.groups.at(failure.group).id].listener;
  if (group != nullptr) group->OnTapedFailure(failure.status);
  return true;
}

absl::StatusOr<TapeLookup> TapePlayer::Answer(TapeLookup::Kind kind, int call, std::string_view key) {
  MutexLock lock(mutex_);
  const auto found = lookups_.find({KindOfLookup(kind, call), std::string(key)});
  if (found == lookups_.end() || found->second.empty()) {
    return absl::FailedPreconditionError("the tape " + path() + " has no further answer to a lookup of '" +
                                         std::string(key) +
                                         "': the program, its arguments or its input differ from the recorded run");
  }
  std::deque<const TapeLookup*>& answers = found->second;
  const TapeLookup& answer = *answers.front();
  const bool stays = kind == TapeLookup::Kind::kStoreGet && answers.size() == 1;
  if (!stays) answers.pop_front();
  return answer;
}

bool TapePlayer::AskStop(uint64_t step) {
  const std::vector<TapedStep>& steps = contents_.steps;
  {
    MutexLock lock(mutex_);
    if (!std::exchange(asked_, true) && contents_.left_out > 0 && !steps.empty() && step != steps.front().step) {
      std::fprintf(
          stderr,
          "cohort: replay of rank %d: the program begins with step %llu, and the tape holds steps %llu to %llu: "
          "let it go on from a checkpoint of step %llu\n",
          contents_.head.rank, static_cast<unsigned long long>(step),
          static_cast<unsigned long long>(steps.front().step), static_cast<unsigned long long>(steps.back().step),
          static_cast<unsigned long long>(steps.front().step));
    }
  }
  const auto stop = std::find_if(steps.begin(), steps.end(), [](const TapedStep& asked) { return asked.stop; });
  return stop != steps.end() && step >= stop->step;
}

}  // namespace cohort::runtime
