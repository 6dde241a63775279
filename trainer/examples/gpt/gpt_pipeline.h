// train_gpt on a mesh with a pipeline axis: the stages of a rank under DDP or FSDP.
#pragma once

#include <vector>

#include "cohort/trainer/examples/gpt/gpt_model.h"
#include "cohort/trainer/examples/gpt/gpt_training.h"
#include "cohort/trainer/parallel/pipeline/schedule/schedule.h"

namespace cohort::examples {

// The schedule that the options name, on a pipeline axis of `ranks` ranks. Throws c10::Error where the model has too
// few layers for its stages.
trainer::Schedule ScheduleOf(const TrainGptOptions& options, int ranks);
// The layers of each stage.
std::vector<GptPart> PartsOf(const TrainGptOptions& options, int stages);

// Makes the stages of `training`, their optimizer and the pipeline, on its mesh, which has a pipeline axis. The mesh,
// the tensor axis and the rank's part of the batch are set. Collective. Throws c10::Error.
void MakePipeline(Training& training);

}  // namespace cohort::examples
