#include "cohort/runtime/preemption.h"

#include <algorithm>
#include <string>
#include <utility>

#include "cohort/runtime/base/status_macros.h"

namespace cohort::runtime {

void Preemption::OnNotice(int signal, Bootstrap& bootstrap) {
  notice_.store(signal, std::memory_order_relaxed);
  if (stage_ != Stage::kNotAsked) ReportBegun(bootstrap);
}

void Preemption::OnStopStep(std::optional<uint64_t> step) {
  if (stop_known_.load(std::memory_order_relaxed)) return;
  stop_step_ = step;
  stop_known_.store(true, std::memory_order_release);
}

void Preemption::ReportBegun(Bootstrap& bootstrap) {
  if (std::exchange(stage_, Stage::kReported) != Stage::kReported) bootstrap.ReportPreemptionStep(begun_below_);
}

// Whether there is a notice to wait for. With engine ownership.
absl::StatusOr<bool> Preemption::NoteStep(uint64_t step, Bootstrap& bootstrap) {
  if (step < latest_step_ && !setback_.load(std::memory_order_relaxed)) {
    return absl::InvalidArgumentError("OnPreemption before step " + std::to_string(step) + ", after step " +
                                      std::to_string(latest_step_) +
                                      "; steps are counted upwards unless something has failed");
  }
  latest_step_ = step;
  if (notice_.load(std::memory_order_relaxed) == 0) {
    begun_below_ = std::max(begun_below_, step + 1);
    return false;
  }
  ReportBegun(bootstrap);  // where the notice came with the answer to AskForNotices
  return true;
}

absl::StatusOr<bool> Preemption::Ask(uint64_t step, std::chrono::nanoseconds timeout, Engine& engine,
                                     Bootstrap& bootstrap, const std::function<void()>& poll,
                                     const std::function<absl::Status()>& latest_loss) {
  const uint32_t losses = losses_.load(std::memory_order_relaxed);
  {
    EngineLock lock(engine);
    if (stage_ == Stage::kNotAsked) {
      stage_ = Stage::kListening;
      bootstrap.AskForNotices();
    }
    poll();
    COHORT_ASSIGN_OR_RETURN(const bool noticed, NoteStep(step, bootstrap));
    if (!noticed) return false;
  }
  if (!unanswered_.has_value()) unanswered_ = step;
  const auto lost = [&] { return losses_.load(std::memory_order_relaxed) != losses; };
  engine.DriveUntil([&] { return known() || lost(); }, Deadline::After(timeout));
  if (known()) return StopsBefore(step, engine, bootstrap);
  if (lost()) return latest_loss();
  return absl::DeadlineExceededError(
      "the job is preempted, and not every rank has come to its next step in time; "
      "does each call OnPreemption before every step?");
}

// Once the stop step is known.
absl::StatusOr<bool> Preemption::StopsBefore(uint64_t step, Engine& engine, Bootstrap& bootstrap) {
  const std::optional<uint64_t> first_try = std::exchange(unanswered_, std::nullopt);
  if (!stop_step_.has_value() || step < *stop_step_) return false;
  if (first_try.has_value() && step > *first_try) {
    unanswered_ = first_try;
    return absl::FailedPreconditionError(
        "the job is preempted and its ranks stop before step " + std::to_string(std::max(*first_try, *stop_step_)) +
        ", which this one has passed: what it would save at step " + std::to_string(step) +
        " does not fit the others'. After an error of OnPreemption call it again before the step is begun");
  }
  EngineLock lock(engine);
  bootstrap.ReportPreempted(step);
  return true;
}

}  // namespace cohort::runtime
