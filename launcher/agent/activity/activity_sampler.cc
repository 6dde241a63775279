#include "cohort/launcher/agent/activity/activity_sampler.h"

#include <map>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "cohort/runtime/base/deadline.h"
#include "cohort/runtime/base/mutex.h"

namespace cohort::launcher {

using runtime::CondVar;
using runtime::Mutex;
using runtime::MutexLock;

struct ActivitySampler::Shared {
  enum class State : uint8_t { kIdle, kLooks, kEnds };  // the owner ends it from either of the first two

  Mutex mutex;
  CondVar changed;
  State state COHORT_GUARDED_BY(mutex) = State::kIdle;
  std::vector<Subject> subjects COHORT_GUARDED_BY(mutex);  // of the look that is to begin
  std::vector<Sample> samples COHORT_GUARDED_BY(mutex);
};

ActivitySampler::ActivitySampler()
    : shared_(std::make_shared<Shared>()), looks_([shared = shared_] {
        Run(shared.get());
        return absl::OkStatus();
      }) {}

absl::StatusOr<std::unique_ptr<ActivitySampler>> ActivitySampler::Start() {
  std::unique_ptr<ActivitySampler> sampler(new ActivitySampler());
  const std::optional<absl::Status> ended = sampler->looks_.Await(runtime::Deadline::After(std::chrono::seconds(0)));
  if (ended) return *ended;
  return sampler;
}

ActivitySampler::~ActivitySampler() {
  {
    MutexLock lock(shared_->mutex);
    shared_->state = Shared::State::kEnds;
    shared_->changed.NotifyAll();
  }
  (void)looks_.Await(runtime::Deadline::After(kEndsWithin));
}

bool ActivitySampler::Look(std::vector<Subject> subjects) {
  MutexLock lock(shared_->mutex);
  if (shared_->state != Shared::State::kIdle) return false;
  shared_->state = Shared::State::kLooks;
  shared_->subjects = std::move(subjects);
  shared_->changed.NotifyAll();
  return true;
}

std::vector<ActivitySampler::Sample> ActivitySampler::Take() {
  MutexLock lock(shared_->mutex);
  return std::exchange(shared_->samples, {});
}

void ActivitySampler::Run(Shared* shared) {
  std::map<size_t, ProcessActivity> known;  // by the subject's number
  while (true) {
    std::vector<Subject> subjects;
    {
      MutexLock lock(shared->mutex);
      while (shared->state == Shared::State::kIdle) shared->changed.Wait(shared->mutex);
      if (shared->state == Shared::State::kEnds) return;
      subjects = std::exchange(shared->subjects, {});
    }
    for (const Subject& subject : subjects) {
      const auto before = known.find(subject.number);
      if (before != known.end() && before->second.process() != subject.process) known.erase(before);
      if (subject.process.pid == 0) continue;
      ProcessActivity& its = known.try_emplace(subject.number, subject.process).first->second;
      std::optional<ProcessActivity::State> seen = its.Look(subject.waits);
      MutexLock lock(shared->mutex);
      if (shared->state == Shared::State::kEnds) return;
      if (seen && shared->samples.size() < kMostSamples) shared->samples.push_back({subject.number, *std::move(seen)});
    }
    MutexLock lock(shared->mutex);
    if (shared->state == Shared::State::kLooks) shared->state = Shared::State::kIdle;
  }
}

}  // namespace cohort::launcher
