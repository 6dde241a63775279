#include "cohort/trainer/transfer/join.h"

#include <algorithm>
#include <string>

#include "cohort/trainer/base/caught_error.h"
#include "cohort/trainer/base/error.h"
#include "cohort/trainer/transfer/collectives.h"

namespace cohort::trainer {
namespace {

constexpr int32_t kNoInputs = -1;
constexpr int kMostJoinables = 64;

thread_local Join* running = nullptr;

}  // namespace

// One word:  call | joinable, 6 bits | averages | begins
struct Join::Call {
  int number = 0;
  int joinable = 0;
  bool averages = false;
  bool begins = false;
};

int JoinIteration::active_count() const {
  return static_cast<int>(std::count_if(calls_.begin(), calls_.end(), [](int32_t call) { return call != kNoInputs; }));
}

int JoinIteration::lowest_active() const {
  const auto found = std::find_if(calls_.begin(), calls_.end(), [](int32_t call) { return call != kNoInputs; });
  return found == calls_.end() ? 0 : static_cast<int>(found - calls_.begin());
}

Join::Join(std::vector<Joinable*> joinables, JoinOptions options)
    : joinables_(std::move(joinables)), options_(options) {
  TORCH_CHECK(!joinables_.empty(), "Join: needs at least one joinable");
  TORCH_CHECK(joinables_.size() <= kMostJoinables, "Join: ", joinables_.size(), " joinables; it takes up to ",
              kMostJoinables);
  for (const Joinable* joinable : joinables_) TORCH_CHECK(joinable != nullptr, "Join: a joinable is null");
  for (Joinable* joinable : joinables_) {
    TORCH_CHECK(joinable->join_group().members() == joinables_.front()->join_group().members(),
                "Join: its joinables must have groups of the same ranks");
  }
  TORCH_CHECK(
      std::any_of(joinables_.begin(), joinables_.end(), [](Joinable* each) { return each->begins_iterations(); }),
      "Join: needs the model too (DistributedDataParallel, FullyShardedDataParallel), whose forward passes tell "
      "ranks without inputs that another iteration begins");
  auto group = joinables_.front()->join_group().Duplicate();
  ThrowUnlessOk(group.status(), "making the communicator of a Join");
  group_ = *std::move(group);
}

Join* Join::Running() { return running; }

int32_t Join::Write(const Call& call) const {
  TORCH_CHECK(call.number >= 0 && call.number < Joinable::kMostCalls, "Join: a call of number ", call.number);
  return call.number << 8 | call.joinable << 2 | (call.averages ? 2 : 0) | (call.begins ? 1 : 0);
}

Join::Call Join::Read(int32_t word) const {
  return {.number = word >> 8,
          .joinable = word >> 2 & (kMostJoinables - 1),
          .averages = (word & 2) != 0,
          .begins = (word & 1) != 0};
}

JoinIteration Join::Exchange(int32_t word) {
  std::vector<int32_t> all(group_->size());
  ThrowUnlessOk(
      AllGather(*group_, comm::ConstBuffer(&word, 1), comm::Buffer(all.data(), static_cast<int64_t>(all.size())))
          .Wait(),
      "learning which ranks have inputs");
  return JoinIteration(std::move(all));
}

// All ranks have seen the same, so all throw.
void Join::CheckAlike(const JoinIteration& iteration) {
  const int first = iteration.lowest_active();
  for (int rank = first + 1; rank < iteration.size(); ++rank) {
    if (iteration.call(rank) == kNoInputs || iteration.call(rank) == iteration.call(first)) continue;
    const auto name = [&](int of) {
      const Call call = Read(iteration.call(of));
      return joinables_.at(call.joinable)->NameOf(call.number);
    };
    all_know_ = true;
    throw DistributedError(absl::StatusCode::kFailedPrecondition,
                           "Join: ranks with inputs must make the same calls, but rank " + std::to_string(first) +
                               " makes " + name(first) + " and rank " + std::to_string(rank) + " " + name(rank));
  }
}

void Join::CheckTermination(const JoinIteration& iteration) {
  if (!options_.throw_on_early_termination || iteration.active_count() == group_->size()) return;
  int rank = 0;
  while (iteration.call(rank) != kNoInputs) ++rank;
  all_know_ = true;
  throw DistributedError(absl::StatusCode::kFailedPrecondition,
                         "Join: rank " + std::to_string(rank) +
                             " has no inputs left while others have, and throw_on_early_termination is set");
}

JoinIteration Join::Begin(const Joinable& who, int call, bool averages) {
  const auto place = std::find(joinables_.begin(), joinables_.end(), &who) - joinables_.begin();
  last_ = Exchange(Write({.number = call, .joinable = static_cast<int>(place), .averages = averages, .begins = true}));
  begun_ = true;
  CheckTermination(last_);
  CheckAlike(last_);
  return last_;
}

void Join::Tell(const Joinable& who, int call, bool averages) {
  if (shadowing_ || all_have_inputs()) return;
  const auto place = std::find(joinables_.begin(), joinables_.end(), &who) - joinables_.begin();
  last_ = Exchange(Write({.number = call, .joinable = static_cast<int>(place), .averages = averages, .begins = false}));
  CheckAlike(last_);
}

void Join::Tell(const Joinable& who, int call, std::span<const double> values) {
  if (shadowing_ || all_have_inputs()) return;
  Tell(who, call);
  std::vector<double> theirs(values.begin(), values.end());
  Share(theirs);
  TORCH_CHECK(std::equal(values.begin(), values.end(), theirs.begin()), "Join: in ", who.NameOf(call),
              " this rank has other arguments than rank ", last_.lowest_active());
}

void Join::Share(std::span<double> values) {
  ThrowUnlessOk(
      Broadcast(*group_, comm::Buffer(values.data(), static_cast<int64_t>(values.size())), last_.lowest_active())
          .Wait(),
      "learning the arguments of a call under Join");
}

void Join::EndIteration() {
  if (!std::exchange(averaged_, false)) return;
  for (Joinable* joinable : joinables_) joinable->AfterIteration();
}

void Join::ShadowCall(const JoinIteration& iteration) {
  const Call call = Read(iteration.call(iteration.lowest_active()));
  if (call.begins) EndIteration();
  joinables_.at(call.joinable)->Shadow(call.number, iteration);
  averaged_ = averaged_ || call.averages;
}

void Join::RunAndShadow(const std::function<void()>& inputs) {
  inputs();
  for (Joinable* joinable : joinables_) joinable->AfterInputs();
  shadowing_ = true;
  while (true) {
    JoinIteration iteration = Exchange(kNoInputs);
    if (iteration.active_count() == 0) break;
    CheckTermination(iteration);
    CheckAlike(iteration);
    last_ = std::move(iteration);
    begun_ = true;
    ShadowCall(last_);
  }
  EndIteration();
  for (Joinable* joinable : joinables_) joinable->AfterJoin(last_);
}

// Ranks that wait for this rank's answers must fail too.
void Join::Leave(const std::string& why) {
  Attach(nullptr);
  if (all_know_) return;
  const std::string reason = "a rank's loop under Join failed: " + why;
  group_->Abort(reason);
  for (Joinable* joinable : joinables_) joinable->AbortGroups(reason);
}

void Join::Attach(Join* join) {
  running = join;
  for (Joinable* joinable : joinables_) {
    joinable->join_ = join;
    joinable->OnJoin();
  }
}

void Join::run(const std::function<void()>& inputs) {
  if (!options_.enable) return inputs();
  TORCH_CHECK(running == nullptr, "Join: run() within another one");
  last_ = JoinIteration(std::vector<int32_t>(group_->size(), 0));
  begun_ = shadowing_ = averaged_ = all_know_ = false;
  try {
    Attach(this);
    RunAndShadow(inputs);
  } catch (...) {
    Leave(TextOfCaught());
    throw;
  }
  Attach(nullptr);
}

}  // namespace cohort::trainer
