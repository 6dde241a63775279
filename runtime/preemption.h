// Preemption: this rank's side of the agreement before which step a preempted job stops.
//
//   not asked ──first Ask()──► listening ──a notice came──► reported ──the stop step came──► known
//
// The agent tells every rank of the notice. Each reports the steps it has begun, and all of them stop before the first
// step that nobody has begun (launcher/control/parts/step_agreement.h).
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cohort/runtime/bootstrap/bootstrap.h"
#include "cohort/runtime/engine/engine.h"

namespace cohort::runtime {

class Preemption {
 public:
  // News, by the engine's owner. A notice is answered at once, also in the midst of a step: its calls may wait for a
  // rank that has heard before it began the step.
  void OnNotice(int signal, Bootstrap& bootstrap);
  void OnStopStep(std::optional<uint64_t> step);
  // Something has failed, on any thread: programs may go back to earlier steps.
  void OnSetback() { setback_.store(true, std::memory_order_relaxed); }
  void OnLoss() { losses_.fetch_add(1, std::memory_order_relaxed); }

  // Runtime::OnPreemption without the checks of the process. `poll` looks for news, with engine ownership;
  // `latest_loss` describes the rank that was lost last.
  absl::StatusOr<bool> Ask(uint64_t step, std::chrono::nanoseconds timeout, Engine& engine, Bootstrap& bootstrap,
                           const std::function<void()>& poll, const std::function<absl::Status()>& latest_loss);

 private:
  // Engine ownership. It only goes forward.
  enum class Stage { kNotAsked, kListening, kReported };

  absl::StatusOr<bool> NoteStep(uint64_t step, Bootstrap& bootstrap);
  void ReportBegun(Bootstrap& bootstrap);
  absl::StatusOr<bool> StopsBefore(uint64_t step, Engine& engine, Bootstrap& bootstrap);
  bool known() const { return stop_known_.load(std::memory_order_acquire); }

  Stage stage_ = Stage::kNotAsked;
  uint64_t begun_below_ = 0;  // this rank has begun all steps below it; engine ownership
  // The thread that asks.
  uint64_t latest_step_ = 0;
  std::optional<uint64_t> unanswered_;  // the step before which Ask failed
  std::optional<uint64_t> stop_step_;   // written before stop_known_
  std::atomic<int> notice_{0};
  std::atomic<bool> stop_known_{false};
  std::atomic<bool> setback_{false};
  std::atomic<uint32_t> losses_{0};
};

}  // namespace cohort::runtime
