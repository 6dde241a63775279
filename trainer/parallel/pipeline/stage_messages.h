// The messages of one place of a pipeline: outputs that go to the next stage, gradients that go back.
//
// A place is what a schedule calls a rank: a device of a rank. Messages between places of one process are handed over;
// all others are sent. Sizes and type of a stage's output are sent before its first message of a step, so batches of
// different steps may have different sizes.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "ATen/core/Tensor.h"
#include "cohort/comm/communicator.h"
#include "cohort/runtime/base/mutex.h"
#include "cohort/runtime/engine/work.h"
#include "cohort/trainer/base/local_device.h"
#include "cohort/trainer/parallel/pipeline/schedule/schedule.h"

namespace cohort::trainer {

// The part that the places of one process share. Thread-safe.
class PlaceExchange {
 public:
  // `group`: a rank for each process; `devices` places on each. Collective where there are several ranks; blocks.
  PlaceExchange(comm::Communicator& group, int devices);
  ~PlaceExchange();
  // Makes the connections that `schedule` needs for messages in the memory of `device`, the only place here. Making
  // NCCL's communicator takes all ranks, and its connection to a neighbour in one direction takes that one: were they
  // left to the first messages, a turn that sends an output and receives a gradient would not send before the next
  // stage sends, which waits for the output. Collective; blocks. Does nothing for host memory, nor where a rank has
  // several places. Throws DistributedError.
  void Connect(const LocalDevice& device, const Schedule& schedule);
  PlaceExchange(const PlaceExchange&) = delete;
  PlaceExchange& operator=(const PlaceExchange&) = delete;

  int devices() const { return devices_; }
  int rank() const { return group_.rank(); }
  bool IsHere(int place) const { return place / devices_ == group_.rank(); }
  comm::Communicator& group() { return group_; }
  // That of the channels: the same on all ranks that made this pipeline with each other.
  uint64_t id() const { return channels_.front()->id(); }

  // Hands a message to another place of this process; `receive` names it.
  void Hand(const Action& receive, at::Tensor tensor);
  // Waits for one, at most default_timeout() (collectives.h). Throws DistributedError if the step has failed elsewhere.
  at::Tensor TakeHanded(const Action& receive);
  // Ends the step on all places of this process. Fails the channels and the pipeline's group here and on all its ranks;
  // one that is ahead may wait in the group, for a norm over all stages.
  void Fail(const std::string& why);
  // Another step begins, a training one or an evaluation. Throws c10::Error if an earlier one has failed.
  void BeginStep(bool trains);
  // The step's number, for tags.
  uint64_t iteration() const { return iteration_; }

  // Calls `call` with the communicator from one device index to another, which no other thread uses meanwhile.
  template <typename Call>
  auto With(int from_place, int to_place, Call call) {
    runtime::MutexLock lock(posting_);
    return call(*channels_[static_cast<size_t>(from_place % devices_ * devices_ + to_place % devices_)]);
  }

 private:
  comm::Communicator& group_;
  const int devices_;
  std::vector<std::unique_ptr<comm::Communicator>> channels_;  // by device index of sender and receiver
  uint64_t iteration_ = 0;
  runtime::Mutex posting_;
  runtime::Mutex mutex_;
  runtime::CondVar changed_;
  std::map<std::tuple<ActionKind, int, int>, at::Tensor> handed_ COHORT_GUARDED_BY(mutex_);
  std::string failure_ COHORT_GUARDED_BY(mutex_);
};

class StageMessages {
 public:
  // `one_batch`: a turn's sends and receives are one batch, and a pass waits for all of it. Otherwise each receive can
  // be waited for by itself, which hides more time; messages in device memory always are one batch. All must outlive
  // this.
  StageMessages(const Schedule& schedule, int place, LocalDevice device, PlaceExchange& exchange, bool one_batch);

  void BeginStep();
  // The message that `send` will send, or the neighbour on the same place gets at once.
  void Put(const Action& send, at::Tensor tensor);
  // Starts a turn.
  void Turn(std::span<const Action> messages);
  // Waits for the message of a receive, which its turn has started.
  at::Tensor Take(const Action& receive);
  // Waits until all sends have left. Throws DistributedError.
  void Finish();

 private:
  using Key = std::tuple<ActionKind, int, int>;
  struct Incoming {
    at::Tensor tensor;
    std::shared_ptr<runtime::Work> work;  // of a batch, shared; null: there already, or handed over
    bool handed = false;
  };
  struct Shape {
    at::ScalarType type = at::kFloat;
    std::vector<int64_t> sizes;
  };

  static Key KeyOf(const Action& action) { return {action.kind, action.stage, action.micro_batch}; }
  // The same for both ends of a message, and for no other one: all have equal sizes. `sizes`: for what goes before it.
  uint64_t TagOf(const Action& message, bool sizes = false) const;
  void Start(const std::vector<Action>& sends, const std::vector<Action>& receives);
  void SendShapes(std::span<const Action> sends);
  void LearnShapes(std::span<const Action> receives);
  void DropSent();
  std::string NameOf(const Action& message) const;
  at::Tensor Outgoing(const Action& send);

  const Schedule& schedule_;
  const int place_;
  const LocalDevice device_;
  PlaceExchange& exchange_;
  const bool one_batch_;
  std::map<Key, at::Tensor> outgoing_;
  std::map<Key, Incoming> incoming_;
  std::map<int, Shape> shapes_;  // of the outputs of stages, those that were sent or received in this step
  std::deque<std::pair<std::shared_ptr<runtime::Work>, std::vector<at::Tensor>>> sent_;  // not known to have left
};

}  // namespace cohort::trainer
