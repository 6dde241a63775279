// StagePlacements: the stages of a rank in the table of placements, while their pipeline lives.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "ATen/core/Tensor.h"
#include "cohort/comm/communicator.h"
#include "cohort/trainer/parallel/pipeline/pipeline_stage.h"
#include "cohort/trainer/placement/placement.h"

namespace cohort::trainer {

class StagePlacements {
 public:
  StagePlacements() = default;
  // The placements are again what they were, but for those that others have changed since.
  ~StagePlacements();
  StagePlacements(const StagePlacements&) = delete;
  StagePlacements& operator=(const StagePlacements&) = delete;

  // Says that this rank owns the parameters of its stages along the axis "pipeline", which has the ranks of `group`,
  // and names them as in the whole. Leaves parameters that another pipeline has entered. Throws c10::Error.
  void Enter(const std::vector<PipelineStage>& stages, comm::Communicator& group);
  // Says that a parameter is copy `copy` of `copies` of a weight of this name that stages share.
  void EnterCopy(const at::Tensor& parameter, const std::string& name, int copy, int copies);

 private:
  // `before` is null for a parameter that had no placement.
  struct Entered {
    at::Tensor parameter;
    std::shared_ptr<const Placement> before, now;
  };
  void Set(const at::Tensor& parameter, Placement placement);

  std::vector<Entered> entered_;
};

// Returns the groups in which the layers of a stage may wait for other ranks: of the axes over which its parameters are
// cut, or their gradients are summed.
std::vector<comm::Communicator*> GroupsOfLayers(const PipelineStage& stage);

}  // namespace cohort::trainer
