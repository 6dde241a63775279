#include "trainer/join.h"

#include <algorithm>
#include <exception>
#include <string>

#include "trainer/collectives.h"
#include "trainer/error.h"

namespace cohort::trainer {

int JoinIteration::active_count() const {
  return static_cast<int>(std::count_if(flags_.begin(), flags_.end(), [](int32_t flags) { return flags >= 0; }));
}

int JoinIteration::lowest_active() const {
  const auto found = std::find_if(flags_.begin(), flags_.end(), [](int32_t flags) { return flags >= 0; });
  return found == flags_.end() ? 0 : static_cast<int>(found - flags_.begin());
}

Join::Join(std::vector<Joinable*> joinables, JoinOptions options)
    : joinables_(std::move(joinables)), options_(options) {
  TORCH_CHECK(!joinables_.empty(), "Join: needs at least one joinable");
  for (const Joinable* joinable : joinables_) TORCH_CHECK(joinable != nullptr, "Join: a joinable is null");
  for (Joinable* joinable : joinables_) {
    TORCH_CHECK(joinable->join_group().members() == joinables_.front()->join_group().members(),
                "Join: its joinables must have groups of the same ranks");
  }
  auto group = joinables_.front()->join_group().Duplicate();
  ThrowUnlessOk(group.status(), "making the communicator of a Join");
  group_ = *std::move(group);
  last_ = JoinIteration(std::vector<int32_t>(group_->size(), 0));
}

JoinIteration Join::Exchange(int flags) {
  const int32_t mine = flags;
  std::vector<int32_t> all(group_->size());
  ThrowUnlessOk(
      AllGather(*group_, comm::ConstBuffer(&mine, 1), comm::Buffer(all.data(), static_cast<int64_t>(all.size())))
          .Wait(),
      "learning which ranks have inputs");
  return JoinIteration(std::move(all));
}

void Join::CheckTermination(const JoinIteration& iteration) {
  if (!options_.throw_on_early_termination || iteration.active_count() == group_->size()) return;
  int rank = 0;
  while (iteration.flags(rank) >= 0) ++rank;
  all_know_ = true;
  throw DistributedError(absl::StatusCode::kFailedPrecondition,
                         "Join: rank " + std::to_string(rank) +
                             " has no inputs left while others have, and throw_on_early_termination is set");
}

JoinIteration Join::Notify(int flags) {
  last_ = Exchange(flags);
  CheckTermination(last_);
  return last_;
}

void Join::RunAndShadow(const std::function<void()>& inputs) {
  inputs();
  while (true) {
    JoinIteration iteration = Exchange(-1);
    if (iteration.active_count() == 0) break;
    CheckTermination(iteration);
    for (Joinable* joinable : joinables_) joinable->ShadowIteration(iteration);
    last_ = std::move(iteration);
  }
  for (Joinable* joinable : joinables_) joinable->AfterJoin(last_);
}

// Those who wait for this rank's answers must hear of it.
void Join::Leave(const std::string& why) {
  joinables_.front()->join_ = nullptr;
  if (!all_know_) group_->Abort("a rank's loop under Join failed: " + why);
}

void Join::run(const std::function<void()>& inputs) {
  if (!options_.enable) return inputs();
  joinables_.front()->join_ = this;
  all_know_ = false;
  try {
    RunAndShadow(inputs);
  } catch (const c10::Error& error) {
    Leave(error.what_without_backtrace());
    throw;
  } catch (const std::exception& error) {
    Leave(error.what());
    throw;
  }
  joinables_.front()->join_ = nullptr;
}

}  // namespace cohort::trainer
