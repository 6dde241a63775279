// train_gpt on a mesh with a pipeline axis: the stages of a rank under DDP or FSDP.
#pragma once

#include "cohort/trainer/examples/gpt_training.h"

namespace cohort::examples {

// Makes the stages of `training`, their optimizer and the pipeline, on its mesh, which has a pipeline axis. The mesh,
// the tensor axis and the rank's part of the batch are set. Collective. Throws c10::Error.
void MakePipeline(Training& training);

}  // namespace cohort::examples
