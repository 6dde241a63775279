// Models whose parts lie on the devices of a rank, replicated over the ranks: DistributedDataParallel over device
// groups, in layers and in micro-batches. Compared with one process.
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "cohort/trainer/parallel/replicate/distributed_data_parallel.h"
#include "tests/trainer/parallel/pipeline/pipeline_model.h"
#include "tests/trainer/ranks.h"

namespace cohort::trainer {
namespace {

// The rank's own two devices (dlaunch --gpus-per-rank 2), or two numbers for the CPU.
std::vector<LocalDevice> TwoDevices() {
  const std::vector<LocalDevice> own = LocalDevices(*job);
  return own.size() == 2 ? own : std::vector<LocalDevice>{{0, at::kCPU}, {1, at::kCPU}};
}

struct HeadTail : torch::nn::Module {
  explicit HeadTail(const std::vector<LocalDevice>& devices) : first(devices[0].device), last(devices[1].device) {
    torch::manual_seed(4);
    head = register_module("head", torch::nn::Linear(4, 5));
    tail = register_module("tail", torch::nn::Linear(5, 3));
    head->to(first);
    tail->to(last);
  }
  at::Tensor forward(const at::Tensor& x) {
    input = x;
    return tail(torch::tanh(head(x.to(first))).to(last));
  }
  c10::Device first, last;
  torch::nn::Linear head{nullptr}, tail{nullptr};
  at::Tensor input;
};

TEST(DeviceStages, LayersOnDevicesHaveOneProcessesGradients) {
  const std::vector<LocalDevice> devices = TwoDevices();
  const auto model = std::make_shared<HeadTail>(devices);
  DistributedDataParallelOptions options;
  options.parts = {{model->head.get(), devices[0]}, {model->tail.get(), devices[1]}};
  DistributedDataParallel<HeadTail> ddp(model, *world, options);
  EXPECT_EQ(ddp.reducer().buckets().size(), 2u) << "a bucket on each device";
  for (int step = 0; step < 3; ++step) {  // buckets are rebuilt after the first
    const auto expected = ExpectedGradients(*model, step);
    for (at::Tensor& parameter : model->parameters()) parameter.mutable_grad() = at::Tensor();
    const at::Tensor x = InputOf(world->rank(), step);
    ddp.forward(x).pow(2).mean().backward();
    EXPECT_TRUE(model->input.is_same(x)) << "inputs are moved by the model alone";
    ExpectGradients(*model, expected);
  }
}

// Each rank has all stages, a device each, and DistributedDataParallel around each of them.
TEST(DeviceStages, PipelinesOnDevicesHaveOneProcessesGradients) {
  const std::vector<LocalDevice> devices = TwoDevices();
  const int self[] = {world->rank()};
  auto alone = world->Subgroup(self);
  ASSERT_TRUE(alone.ok()) << alone.status();
  for (const char* const name : {"gpipe", "1f1b", "interleaved", "zb_h1", "zbv"}) {
    const int stages_per_device = FindSchedule(name)->traits.least_stages_per_rank;
    const Schedule schedule = *BuildSchedule(name, {2, 2 * stages_per_device, 4});
    torch::nn::Sequential model = Model(), reference = Model();
    const std::vector<NamedLayer> layers = LayersOf(model);
    const LayerCut cut = CutByNumber(layers, schedule.stages);
    std::vector<PipelineStage> stages;
    std::map<std::string, at::Tensor> parameters;
    for (size_t device = 0; device < 2; ++device) {
      for (const int stage : StagesOf(schedule, static_cast<int>(device))) {
        const auto module = TakeLayers(layers, cut, stage);
        module->to(devices[device].device);
        DistributedDataParallelOptions options;
        options.parts = {{module.get(), devices[device]}};
        for (const auto& item : module->named_parameters()) parameters[item.key()] = item.value();
        stages.emplace_back(stage, std::make_shared<DistributedDataParallel<StageModule>>(module, *world, options));
      }
    }
    Pipeline pipeline(stages, schedule, **alone, {.loss = Loss, .devices = devices});
    for (int step = 0; step < 2; ++step) {
      for (auto& [key, parameter] : parameters) parameter.mutable_grad() = at::Tensor();
      for (at::Tensor& parameter : reference->parameters()) parameter.mutable_grad() = at::Tensor();
      const Batch batch = BatchOf(8, 40 + world->size() * step + world->rank());
      pipeline.step(batch.inputs, batch.targets);
      for (int r = 0; r < world->size(); ++r) Alone(reference, BatchOf(8, 40 + world->size() * step + r), 4);
      for (const auto& item : reference->named_parameters()) {
        const at::Tensor found = parameters.at(item.key()).grad(), wanted = item.value().grad() / world->size();
        ASSERT_TRUE(found.defined()) << name << " " << item.key();
        EXPECT_TRUE(torch::allclose(found, wanted, 1e-5, 1e-6)) << name << " " << item.key();
      }
    }
  }
}

}  // namespace
}  // namespace cohort::trainer
