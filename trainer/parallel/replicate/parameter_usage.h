// ParameterUsage: which parameters no rank has used, so that they keep their .grad.
#pragma once

#include <cstddef>
#include <vector>

#include "ATen/core/Tensor.h"
#include "cohort/comm/communicator.h"
#include "cohort/runtime/engine/work.h"

namespace cohort::trainer {

class ParameterUsage {
 public:
  // Legal transition: kOnce -> kKnown, when the first average has ended.
  enum class State {
    kNever,   // all parameters count as used
    kAlways,  // ranks count their users for each average
    kOnce,    // they count them for the first average alone: the graph is static
    kKnown,   // they have
  };

  ParameterUsage(size_t parameters, State state);
  ~ParameterUsage();
  ParameterUsage(const ParameterUsage&) = delete;
  ParameterUsage& operator=(const ParameterUsage&) = delete;

  // This rank had a gradient of the parameter since the last average.
  void Mark(int parameter);
  // Starts adding up the users, where they are counted.
  void Start(comm::Communicator& group);
  // Ends that. Blocks. Throws DistributedError.
  void Finish();
  // By parameter.
  const std::vector<bool>& unused() const { return unused_; }

 private:
  bool counts() const { return state_ == State::kAlways || state_ == State::kOnce; }

  State state_;
  at::Tensor users_;  // int32, by parameter: ranks that had a gradient since the last average
  runtime::Work work_;
  std::vector<bool> unused_;
};

}  // namespace cohort::trainer
