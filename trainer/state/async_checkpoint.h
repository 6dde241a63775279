// AsyncCheckpointer writes checkpoints while training goes on.
//
//   training   step  step  Save ── step  step  step   Save (waits for the last one first)
//                           │ copy of this rank's part
//   writer                  └──► files ──► agreement of all ranks ──► rename
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "cohort/comm/communicator.h"
#include "cohort/trainer/state/training_state.h"

namespace cohort::trainer {

class AsyncCheckpointer {
 public:
  // Collective over `world`, which must outlive this. A rank that is done waits up to `timeout` for the others. Throws
  // DistributedError.
  explicit AsyncCheckpointer(comm::Communicator& world, std::chrono::nanoseconds timeout = kTogetherTimeout);
  // Waits for the last checkpoint. An error that no Wait or Save has reported goes to standard error output.
  ~AsyncCheckpointer();
  AsyncCheckpointer(const AsyncCheckpointer&) = delete;
  AsyncCheckpointer& operator=(const AsyncCheckpointer&) = delete;

  // As SaveTrainingState, but returns when every rank has copied its part: the state may change from then on. Every
  // rank calls it the same number of times. Throws on every rank the error that one rank met while it copied. Also
  // throws the error of the checkpoint before; the new one has then not begun.
  void Save(const std::string& directory, const TrainingState& state, const CheckpointValues& values);
  // Blocks until the last checkpoint is complete. Throws its error.
  void Wait();

 private:
  struct Writer;
  comm::Communicator& world_;
  std::chrono::nanoseconds timeout_;
  std::unique_ptr<comm::Communicator> group_;  // the writer's own; between checkpoints the caller's
  std::unique_ptr<Writer> writer_;             // writes the last checkpoint
};

}  // namespace cohort::trainer
