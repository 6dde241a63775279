// AsyncCheckpointer: checkpoints that are written while training goes on.
//
//   training   step  step  Save ── step  step  step   Save (waits for the last one first)
//                           │ copy of this rank's part
//   writer                  └──► files ──► agreement of all ranks ──► rename
#pragma once

#include <memory>
#include <string>

#include "comm/communicator.h"
#include "trainer/training_state.h"

namespace cohort::trainer {

class AsyncCheckpointer {
 public:
  // `world` must outlive this. Collective. Throws DistributedError.
  explicit AsyncCheckpointer(comm::Communicator& world);
  // Waits. An error that nobody asked for (Wait) is lost.
  ~AsyncCheckpointer();
  AsyncCheckpointer(const AsyncCheckpointer&) = delete;
  AsyncCheckpointer& operator=(const AsyncCheckpointer&) = delete;

  // As SaveTrainingState, but returns when this rank's part has been copied: the state may change from then on. Throws
  // what the one before threw; that it did means that this one has not begun. Every rank calls it the same number of
  // times.
  void Save(const std::string& directory, const TrainingState& state, const CheckpointValues& values);
  // Blocks until the last checkpoint is complete. Throws what it threw.
  void Wait();

 private:
  struct Writer;
  comm::Communicator& world_;
  std::unique_ptr<comm::Communicator> group_;  // the writer's own
  std::unique_ptr<Writer> writer_;             // of the last checkpoint
};

}  // namespace cohort::trainer
