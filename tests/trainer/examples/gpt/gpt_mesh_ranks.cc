// Every mesh of one, two or three axes trains as one process does.
#include "tests/trainer/examples/gpt/gpt_ranks.h"

namespace cohort::examples {
namespace {

// With dropout, an embedding that is the head's weight too, clipping, recomputation, and accumulation over two parts of
// a batch or the micro-batches of pipelines; under sequence parallelism where there is a tensor axis.
TrainGptOptions AllOptions() {
  TrainGptOptions options = SmallGpt();
  options.model.dropout = 0.2;
  options.model.tied = true;
  options.batch_size = 48;
  options.checkpoint_activations = true;
  return options;
}

void ExpectMeshesTrainAlike(const std::string& dtype, double tolerance) {
  TrainGptOptions options = AllOptions();
  options.dtype = dtype;
  const Trace plain = TraceOf(options, /*alone=*/true);
  options.mode = "fsdp";  // whose parameters are gathered in dtype
  const Trace sharded = dtype == "float32" ? plain : TraceOf(options, /*alone=*/true);
  for (const std::string& mesh : MeshesOfAllAxes()) {
    options.mesh = mesh;
    options.sequence_parallel = Has(mesh, "tensor");
    options.accumulate = Has(mesh, "pipeline") ? 1 : 2;
    for (const std::string& schedule : SchedulesFor(mesh)) {
      options.schedule = schedule;
      ExpectSame(TraceOf(options, /*alone=*/false), Has(mesh, "shard") ? sharded : plain, tolerance,
                 mesh + " under " + options.schedule + " in " + dtype);
    }
  }
}

TEST(GptMeshes, EveryMeshTrainsAsOneProcess) { ExpectMeshesTrainAlike("float32", 1e-4); }

// Sums round to 8 bits, in other places on each mesh; 2e-2 is five of such roundings.
TEST(GptMeshes, EveryMeshTrainsAsOneProcessInBfloat16ButForRounding) { ExpectMeshesTrainAlike("bfloat16", 2e-2); }

TEST(GptMeshes, ModesAccumulateAsOneProcess) {
  TrainGptOptions options = AllOptions();
  const Trace plain = TraceOf(options, /*alone=*/true);
  for (const char* mode : {"ddp", "zero1", "zero2", "fsdp"}) {
    options.mode = mode;
    for (options.accumulate = 1; options.accumulate <= 2; ++options.accumulate) {
      ExpectSame(TraceOf(options, /*alone=*/false), plain, 1e-4,
                 options.mode + " in " + std::to_string(options.accumulate) + " parts");
    }
  }
}

TEST(GptMeshes, TrainingInBfloat16DiffersFromFloat32) {
  TrainGptOptions options = AllOptions();
  const Trace exact = TraceOf(options, /*alone=*/true);
  options.dtype = "bfloat16";
  EXPECT_NE(TraceOf(options, /*alone=*/true), exact);
  options.mode = "fsdp";
  EXPECT_NE(TraceOf(options, /*alone=*/true), exact);
}

}  // namespace
}  // namespace cohort::examples
