#include "cohort/comm/nccl/profiler/recording.h"

#include <chrono>
#include <fstream>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "cohort/runtime/base/clock.h"
#include "cohort/runtime/base/deadline.h"
#include "cohort/runtime/base/status_macros.h"
#include "cohort/runtime/base/thread.h"
#include "cohort/runtime/env.h"

namespace cohort::comm::nccl_profiler {
namespace {

// News concern ranks that can do something about it.
class NoListener final : public runtime::BootstrapListener {
 public:
  void OnRanksLost(const std::vector<int>& ranks, const std::string& text) override { (void)ranks, (void)text; }
  void OnGroupFailure(const runtime::GroupFailure& failure) override { (void)failure; }
};

// A node segment is mapped where a runtime of Cohort has joined, which writes its calls itself.
bool CohortIsHere() {
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    if (line.find("/memfd:cohort-segment") != std::string::npos) return true;
  }
  return false;
}

}  // namespace

Recording::Recording(std::unique_ptr<runtime::Bootstrap> bootstrap, runtime::Bootstrap::Joined joined)
    : bootstrap_(std::move(bootstrap)),
      joined_(std::move(joined)),
      recorder_(joined_.segment.get(), static_cast<uint32_t>(joined_.identity.epoch)),
      members_(bootstrap_.get(), &joined_.identity, &recorder_),
      watch_(bootstrap_.get(), &recorder_, joined_.identity.epoch) {}

absl::StatusOr<Recording*> Recording::Begin() {
  COHORT_ASSIGN_OR_RETURN(const runtime::Environment environment, runtime::Environment::Read());
  if (environment.agent.empty() || CohortIsHere()) return nullptr;
  if (!environment.local_rank.has_value()) {
    return absl::InvalidArgumentError("COHORT_AGENT is set and COHORT_LOCAL_RANK is not");
  }
  std::unique_ptr<runtime::Bootstrap> bootstrap =
      runtime::RecorderFromAgent(environment.agent, *environment.local_rank);
  absl::StatusOr<runtime::Bootstrap::Joined> joined = bootstrap->Join(runtime::Deadline::After(kJoinWithin));
  if (absl::IsAlreadyExists(joined.status())) return nullptr;
  COHORT_RETURN_IF_ERROR(joined.status());
  auto* const recording = new Recording(std::move(bootstrap), *std::move(joined));
  try {
    recording->thread_ = runtime::StartThread("cohort-nccl", [recording] { recording->Watch(); });
  } catch (const std::system_error& error) {
    delete recording;
    return absl::ResourceExhaustedError(std::string("no thread can be started: ") + error.what());
  }
  return recording;
}

void Recording::Watch() {
  NoListener nobody;
  const runtime::MutexLock lock(mutex_);
  while (life_ == Life::kWatching && recorder_.open()) {
    mutex_.Unlock();
    bootstrap_->Poll(nobody);
    members_.Continue(runtime::Deadline::After(kAskFor));
    watch_.Look(runtime::SteadyNow());
    mutex_.Lock();
    if (life_ == Life::kWatching) changed_.Wait(mutex_, runtime::Deadline::After(kLookEvery));
  }
  life_ = Life::kStopped;
  changed_.NotifyAll();
}

bool Recording::Stop() {
  if (InChild()) return true;
  const runtime::Deadline deadline = runtime::Deadline::After(kStopWithin);
  {
    const runtime::MutexLock lock(mutex_);
    if (life_ == Life::kWatching) life_ = Life::kStopping;
    changed_.NotifyAll();
    while (life_ != Life::kStopped) {
      if (!changed_.Wait(mutex_, deadline)) break;
    }
    if (life_ != Life::kStopped) return false;
  }
  if (thread_.joinable()) thread_.join();  // it has nothing left to do
  return true;
}

}  // namespace cohort::comm::nccl_profiler
