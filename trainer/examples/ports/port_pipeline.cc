// Trains digits in pipeline stages under 1F1B, or any other schedule. The same as port_pipeline.py:
//
//   dlaunch --nproc-per-node 2 port_pipeline --micro-batches 4
#include <cstdio>

#include "cohort/trainer/base/error.h"
#include "cohort/trainer/examples/digits_data.h"
#include "cohort/trainer/examples/ports/argument_parser.h"
#include "cohort/trainer/parallel/pipeline/pipeline.h"
#include "cohort/trainer/transfer/job.h"
#include "torch/torch.h"

namespace cohort::examples {

using torch::nn::Linear;

torch::nn::Sequential MakeModel() {
  return torch::nn::Sequential(torch::nn::Flatten(), Linear(64, 256), torch::nn::SiLU(), Linear(256, 256),
                               torch::nn::SiLU(), Linear(256, 10));
}

struct Arguments {
  int epochs = 4;
  double lr = 0.003;
  int micro_batches = 4;
  std::string schedule = "1f1b";
};

void Train(const Arguments& args) {
  trainer::Job job;
  torch::manual_seed(0);
  const auto [train, test] = LoadDigits(FindDigits(), /*seed=*/0);
  const auto layers = trainer::LayersOf(MakeModel());
  const auto* const info = trainer::FindSchedule(args.schedule);
  const int stages_per_rank = info == nullptr ? 1 : info->traits.least_stages_per_rank;
  const auto schedule =
      trainer::BuildSchedule(args.schedule, {job.size(), job.size() * stages_per_rank, args.micro_batches});
  trainer::ThrowUnlessOk(schedule.status(), "--schedule");
  const auto cut = trainer::CutByNumber(layers, schedule->stages);
  std::vector<trainer::PipelineStage> stages;
  std::vector<at::Tensor> parameters;
  for (const int stage : StagesOf(*schedule, job.rank())) {
    stages.emplace_back(stage, TakeLayers(layers, cut, stage));
    for (const at::Tensor& parameter : stages.back().module->parameters()) parameters.push_back(parameter);
  }
  trainer::Pipeline pipeline(stages, *schedule, job.world(),
                             {.loss = [](const at::Tensor& output, const at::Tensor& labels) {
                               return torch::cross_entropy_loss(output, labels);
                             }});
  torch::optim::AdamW optimizer(parameters, torch::optim::AdamWOptions(args.lr));
  const int64_t batch = 12 * args.micro_batches;
  for (int epoch = 0; epoch < args.epochs; ++epoch) {
    trainer::StepResult result;
    for (const at::Tensor& rows : torch::randperm(train.count()).split(batch)) {
      if (rows.size(0) < batch) continue;
      optimizer.zero_grad();
      result = pipeline.step(train.images.index_select(0, rows), train.labels.index_select(0, rows));
      optimizer.step();
    }
    if (result.loss.defined()) std::printf("epoch %d: loss %.4f\n", epoch + 1, result.loss.item<double>());
  }
  const int64_t count = test.count() / args.micro_batches * args.micro_batches;
  const at::Tensor output = pipeline.eval(test.images.narrow(0, 0, count)).output;
  if (!output.defined()) return;
  const at::Tensor correct = output.argmax(1) == test.labels.narrow(0, 0, count);
  std::printf("test accuracy %.4f\n", correct.to(torch::kFloat32).mean().item<double>());
}

}  // namespace cohort::examples

int main(int argc, char** argv) {
  cohort::examples::Arguments args;
  cohort::examples::ArgumentParser parser("Trains digits in pipeline stages.");
  parser.AddCount("--epochs", args.epochs);
  parser.Add("--lr", args.lr);
  parser.AddCount("--micro-batches", args.micro_batches);
  parser.Add("--schedule", args.schedule);
  if (const auto end = parser.Parse(argc, argv)) return *end;
  return cohort::trainer::RunRank("port_pipeline", [&] { cohort::examples::Train(args); });
}
