#include "cohort/launcher/agent/activity/activity_sampler.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/status/status.h"
#include "cohort/runtime/base/clock.h"
#include "cohort/runtime/base/deadline.h"
#include "cohort/runtime/base/mutex.h"
#include "cohort/runtime/base/status_macros.h"

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
  std::optional<Subject> at COHORT_GUARDED_BY(mutex);      // that is looked at, and since when
  uint64_t at_since_ns COHORT_GUARDED_BY(mutex) = 0;
  std::vector<Sample> samples COHORT_GUARDED_BY(mutex);

  // False: it is to end.
  bool Begin(const Subject& subject) {
    MutexLock lock(mutex);
    at = subject;
    at_since_ns = runtime::SteadyNow();
    return state != State::kEnds;
  }
  void End() {
    MutexLock lock(mutex);
    state = State::kEnds;
    changed.NotifyAll();
  }
};

ActivitySampler::ActivitySampler(LookAt look_at, Worker worker)
    : look_at_(std::move(look_at)), worker_(std::move(worker)) {}

absl::StatusOr<ActivitySampler::Worker> ActivitySampler::StartWorker(const LookAt& look_at) {
  Worker worker{.shared = std::make_shared<Shared>(), .looks = nullptr};
  worker.looks = std::make_unique<BoundedCall>([shared = worker.shared, look_at] {
    Run(shared.get(), look_at);
    return absl::OkStatus();
  });
  const std::optional<absl::Status> ended = worker.looks->Await(runtime::Deadline::After(std::chrono::seconds(0)));
  if (ended) return *ended;
  return worker;
}

absl::StatusOr<std::unique_ptr<ActivitySampler>> ActivitySampler::Start(LookAt look_at) {
  COHORT_ASSIGN_OR_RETURN(Worker worker, StartWorker(look_at));
  return std::unique_ptr<ActivitySampler>(new ActivitySampler(std::move(look_at), std::move(worker)));
}

ActivitySampler::~ActivitySampler() {
  worker_.shared->End();
  (void)worker_.looks->Await(runtime::Deadline::After(kEndsWithin));
}

// The process in whose look the thread has been for long.
std::optional<ActivitySampler::Subject> ActivitySampler::FindStuck() const {
  MutexLock lock(worker_.shared->mutex);
  constexpr auto kLongNs = static_cast<uint64_t>(std::chrono::nanoseconds(kStuckAfter).count());
  const bool stuck = worker_.shared->at && runtime::SteadyNow() - worker_.shared->at_since_ns >= kLongNs;
  return stuck ? worker_.shared->at : std::nullopt;
}

// Without another thread the stuck one is waited for.
void ActivitySampler::LeaveBehind(const Subject& subject) {
  if (stuck_.size() >= kMostStuck) return;
  absl::StatusOr<Worker> next = StartWorker(look_at_);
  if (!next.ok()) return;
  worker_.shared->End();
  for (Sample& sample : Take()) taken_.push_back(std::move(sample));
  stuck_.push_back({std::exchange(worker_, *std::move(next)), subject});
}

bool ActivitySampler::Look(std::vector<Subject> subjects) {
  std::erase_if(stuck_, [](const Stuck& one) {
    return one.worker.looks->Await(runtime::Deadline::After(std::chrono::seconds(0))).has_value();
  });
  if (const std::optional<Subject> subject = FindStuck()) LeaveBehind(*subject);
  std::erase_if(subjects, [this](const Subject& subject) {
    return std::any_of(stuck_.begin(), stuck_.end(), [&subject](const Stuck& one) {
      return one.subject.number == subject.number && one.subject.process == subject.process;
    });
  });
  {
    MutexLock lock(worker_.shared->mutex);
    if (worker_.shared->state != Shared::State::kIdle) return false;
    worker_.shared->state = Shared::State::kLooks;
    worker_.shared->subjects = std::move(subjects);
  }
  worker_.shared->changed.NotifyAll();  // with the lock held the thread would wake, and sleep again for it
  return true;
}

std::vector<ActivitySampler::Sample> ActivitySampler::Take() {
  std::vector<Sample> samples = std::exchange(taken_, {});
  MutexLock lock(worker_.shared->mutex);
  for (Sample& sample : worker_.shared->samples) samples.push_back(std::move(sample));
  worker_.shared->samples.clear();
  return samples;
}

void ActivitySampler::Run(Shared* shared, const LookAt& look_at) {
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
      if (!shared->Begin(subject)) return;
      ProcessActivity& its = known.try_emplace(subject.number, subject.process).first->second;
      std::optional<ProcessActivity::State> seen = look_at(its, subject.waits);
      MutexLock lock(shared->mutex);
      shared->at.reset();
      if (shared->state == Shared::State::kEnds) return;
      if (seen && shared->samples.size() < kMostSamples) shared->samples.push_back({subject.number, *std::move(seen)});
    }
    MutexLock lock(shared->mutex);
    if (shared->state == Shared::State::kLooks) shared->state = Shared::State::kIdle;
  }
}

}  // namespace cohort::launcher
