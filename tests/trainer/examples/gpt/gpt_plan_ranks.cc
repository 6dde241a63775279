// The prediction of --dry-run is what a training keeps and sends.
#include <map>

#include "cohort/trainer/examples/gpt/gpt_plan.h"
#include "cohort/trainer/examples/mesh_option.h"
#include "cohort/trainer/state/model_memory.h"
#include "cohort/trainer/transfer/communication_ledger.h"
#include "tests/trainer/examples/gpt/gpt_ranks.h"

namespace cohort::examples {
namespace {

struct Sent {
  int64_t bytes = 0;
  int64_t calls = 0;
};

// The bytes that this rank sends in the third step, by axis; buckets have settled by then. Without the norm, of three
// numbers.
std::map<std::string, Sent> SentInAStep(OwnTraining& training) {
  for (int step = 0; step < 2; ++step) training.Step(step);
  std::map<std::string, Sent> sent;
  const trainer::CommunicationLedger ledger;
  training->optimizer->zero_grad();
  LossAndGradients(*training, BatchOf(*training, /*train=*/true, 2));
  training->optimizer->step();
  for (const auto& [key, entry] : ledger.by_axis(*training->mesh)) {
    if (key.first.empty() || entry.sent_by_rank == 0) continue;
    sent[key.first].bytes += entry.sent_by_rank;
    sent[key.first].calls += entry.calls;
  }
  return sent;
}

void ExpectPlanned(const TrainGptOptions& options) {
  OwnTraining training(options);
  const std::string what = options.mesh + " under " + options.schedule +
                           (options.sequence_parallel ? ", parts of the sequence" : "") +
                           (options.checkpoint_activations ? ", recomputed" : "") +
                           (options.model.tied ? ", tied" : "") + ", rank " + std::to_string(world->rank());
  std::map<std::string, Sent> sent = SentInAStep(training);
  const RankPlan plan = PlanGpt(training->options, ParseModelMesh(options.mesh))[static_cast<size_t>(world->rank())];
  for (const auto& [axis, bytes] : plan.sent) {
    // A rank sends an n-th of each call, which is rounded.
    EXPECT_NEAR(static_cast<double>(sent[axis].bytes), static_cast<double>(bytes),
                static_cast<double>(sent[axis].calls))
        << what << ": bytes over " << axis;
    sent.erase(axis);
  }
  for (const auto& [axis, rest] : sent) ADD_FAILURE() << what << ": " << rest.bytes << " bytes over " << axis;
  const trainer::ModelStateBytes kept = trainer::MeasureModelState(training->state);
  EXPECT_EQ(kept.parameters, plan.parameters) << what;
  EXPECT_EQ(kept.gradients, plan.gradients) << what;
  EXPECT_EQ(kept.optimizer, plan.optimizer) << what;
}

TEST(GptPlan, ThePlanIsWhatATrainingKeepsAndSends) {
  size_t turn = 0;
  for (const std::string& mesh : MeshesOfAllAxes()) {
    TrainGptOptions options = SmallGpt();
    options.mesh = mesh;
    const std::vector<std::string> schedules = SchedulesFor(mesh);
    const size_t count = world->size() <= 4 ? schedules.size() : 1;
    for (size_t i = 0; i < count; ++i) {
      options.schedule = schedules[turn++ % schedules.size()];
      options.sequence_parallel = options.checkpoint_activations = options.model.tied = false;
      ExpectPlanned(options);
      options.sequence_parallel = Has(mesh, "tensor");
      options.model.tied = true;
      ExpectPlanned(options);
      options.checkpoint_activations = true;
      ExpectPlanned(options);
    }
  }
}

}  // namespace
}  // namespace cohort::examples
