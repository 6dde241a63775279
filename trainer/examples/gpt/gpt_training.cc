#include "cohort/trainer/examples/gpt/gpt_training.h"

#include <utility>
#include <vector>

#include "cohort/trainer/autograd/activation_checkpoint.h"
#include "cohort/trainer/autograd/random_place.h"
#include "cohort/trainer/base/error.h"
#include "cohort/trainer/base/local_device.h"
#include "cohort/trainer/examples/gpt/gpt_adapter.h"
#include "cohort/trainer/examples/gpt/gpt_pipeline.h"
#include "cohort/trainer/examples/mesh_option.h"
#include "cohort/trainer/parallel/fsdp/fully_sharded_data_parallel.h"
#include "cohort/trainer/parallel/replicate/distributed_data_parallel.h"
#include "cohort/trainer/parallelize/sharded_data_parallel.h"
#include "cohort/trainer/state/grad_norm.h"
#include "cohort/trainer/transfer/job.h"
#include "cohort/trainer/transfer/same_on_all_ranks.h"
#include "torch/torch.h"

namespace cohort::examples {
namespace {

using torch::optim::AdamW;
using torch::optim::AdamWOptions;
using trainer::StateOf;
using trainer::ThrowUnlessOk;

// `module`, and its forward with or without keeping activations.
template <typename Module>
std::pair<std::shared_ptr<torch::nn::Module>, Gpt::Forward> WrappedBlock(std::shared_ptr<Module> module,
                                                                         const TrainGptOptions& options) {
  const Gpt::Forward forward = [module](const at::Tensor& x) { return module->forward(x); };
  if (!options.checkpoint_activations) return {module, forward};
  return {module, [forward](const at::Tensor& x) { return trainer::checkpoint(forward, x); }};
}

// `where` is a Communicator or a DeviceMesh.
template <typename Where>
void MakeFsdp(Training& training, Where& where) {
  using trainer::FullyShardedDataParallel;
  const auto options = ShardOptions(training.options);
  const std::shared_ptr<Gpt> gpt = MakeGpt(training, [&](const std::shared_ptr<GptBlock>& block) {
    return WrappedBlock(std::make_shared<FullyShardedDataParallel<GptBlock>>(block, where, options), training.options);
  });
  auto model = std::make_shared<FullyShardedDataParallel<Gpt>>(gpt, where, options);
  training.module = model;
  training.optimizer = std::make_unique<AdamW>(Trainable(*model), Adam(training.options));
  training.state = training.mesh == nullptr ? StateOf(*model, *training.optimizer)
                                            : StateOf(*model, *training.optimizer, *training.mesh);
  training.forward = [model](const at::Tensor& codes) { return model->forward(codes); };
  training.no_sync = [model] { return std::shared_ptr<void>(new trainer::FsdpNoSyncGuard(model->no_sync())); };
  training.clip_grad_norm = [model](double norm) { return model->clip_grad_norm_(norm); };
}

void MakeReplicated(Training& training) {
  using trainer::DistributedDataParallel;
  using Zero = trainer::ZeroRedundancyOptimizer<AdamW>;
  const std::string& mode = training.options.mode;
  const std::shared_ptr<Gpt> gpt =
      MakeGpt(training, [&](const std::shared_ptr<GptBlock>& block) { return WrappedBlock(block, training.options); });
  training.module = gpt;
  std::shared_ptr<DistributedDataParallel<Gpt>> ddp;
  trainer::DistributedDataParallelOptions options;
  options.gradient_as_bucket_view = mode != "zero2";
  if (mode == "ddp") {
    ddp = std::make_shared<DistributedDataParallel<Gpt>>(gpt, *training.world, options);
    training.optimizer = std::make_unique<AdamW>(Trainable(*gpt), Adam(training.options));
    training.state = StateOf(*gpt, *training.optimizer, *training.world);
    training.clip_grad_norm = [gpt](double norm) { return trainer::clip_grad_norm_(gpt->parameters(), norm); };
  } else {
    auto zero = std::make_unique<Zero>(gpt->parameters(), *training.world, Adam(training.options));
    if (mode == "zero1") {
      ddp = std::make_shared<DistributedDataParallel<Gpt>>(gpt, *training.world, options);
    } else {
      ddp = std::make_shared<trainer::ShardedDataParallel<Gpt>>(gpt, *zero, *training.world, options);
    }
    training.state = StateOf(*gpt, *zero, *training.world);
    training.clip_grad_norm = [&zero = *zero](double norm) { return zero.clip_grad_norm_(norm); };
    training.optimizer = std::move(zero);
  }
  training.wrapper = ddp;
  training.no_sync = [ddp] { return std::shared_ptr<void>(new trainer::NoSyncGuard(ddp->no_sync())); };
  training.forward = [ddp](const at::Tensor& codes) { return ddp->forward(codes); };
}

// A mesh without shards: layers that may be cut, and DDP over the replicas if there are any.
void MakeCut(Training& training) {
  using trainer::DistributedDataParallel;
  const std::shared_ptr<Gpt> gpt =
      MakeGpt(training, [&](const std::shared_ptr<GptBlock>& block) { return WrappedBlock(block, training.options); });
  training.module = gpt;
  training.forward = [gpt](const at::Tensor& codes) { return gpt->forward(codes); };
  if (training.mesh->has(trainer::kReplicateAxis)) {
    const auto replicas = training.mesh->get_group(trainer::kReplicateAxis);
    ThrowUnlessOk(replicas.status(), "the replicas of --mesh");
    trainer::DistributedDataParallelOptions options;
    options.gradient_as_bucket_view = true;
    auto ddp = std::make_shared<DistributedDataParallel<Gpt>>(gpt, **replicas, options);
    training.forward = [ddp](const at::Tensor& codes) { return ddp->forward(codes); };
    training.no_sync = [ddp] { return std::shared_ptr<void>(new trainer::NoSyncGuard(ddp->no_sync())); };
    training.wrapper = ddp;
  }
  training.optimizer = std::make_unique<AdamW>(Trainable(*gpt), Adam(training.options));
  training.state = StateOf(*gpt, *training.optimizer, *training.mesh);
}

// Rows of the batch go to the ranks of the replicas and shards. Ranks along the tensor axis share theirs.
void ShareBatch(Training& training) {
  training.data_rank = 0;
  training.data_ranks = 1;
  for (const char* axis : {trainer::kReplicateAxis, trainer::kShardAxis}) {
    if (!training.mesh->has(axis)) continue;
    training.data_rank = training.data_rank * *training.mesh->size(axis) + *training.mesh->get_local_rank(axis);
    training.data_ranks *= *training.mesh->size(axis);
  }
}

// Makes the mesh and the model on it.
void MakeMeshAndModel(Training& training) {
  const TrainGptOptions& options = training.options;
  const trainer::MeshShape shape = ParseModelMesh(options.mesh);
  training.mesh = trainer::init_device_mesh(*training.world, shape.sizes, shape.names);
  trainer::DeviceMesh& mesh = *training.mesh;
  if (mesh.has(trainer::kTensorAxis)) {
    const auto axis = mesh.axis(trainer::kTensorAxis);
    ThrowUnlessOk(axis.status(), "the tensor axis of --mesh");
    training.tensor = trainer::TensorAxis(
        *axis, {.sequence_parallel = options.sequence_parallel, .sequence_dim = 1, .chunks = options.chunks});
  }
  ShareBatch(training);
  if (mesh.has(trainer::kPipelineAxis)) {
    MakePipeline(training);
  } else if (mesh.has(trainer::kShardAxis)) {
    std::vector<std::string> data = {trainer::kShardAxis};
    if (mesh.has(trainer::kReplicateAxis)) data.emplace_back(trainer::kReplicateAxis);
    const auto of_data = mesh.Slice(data);
    ThrowUnlessOk(of_data.status(), "the data axes of --mesh");
    MakeFsdp(training, **of_data);
  } else {
    MakeCut(training);
  }
  training.clip_grad_norm = [&training](double norm) {
    return trainer::clip_grad_norm_(training.module->parameters(), norm, 2.0, training.mesh.get());
  };
}

}  // namespace

AdamWOptions Adam(const TrainGptOptions& options) { return AdamWOptions(options.learning_rate).betas({0.9, 0.95}); }

std::vector<at::Tensor> Trainable(const torch::nn::Module& module) {
  std::vector<at::Tensor> trainable;
  for (const at::Tensor& parameter : module.parameters()) {
    if (parameter.requires_grad()) trainable.push_back(parameter);
  }
  return trainable;
}

trainer::FullyShardedDataParallelOptions ShardOptions(const TrainGptOptions& options) {
  trainer::FullyShardedDataParallelOptions shards;
  if (!options.in_bfloat16()) return shards;
  shards.mixed_precision.param_dtype = at::kBFloat16;
  shards.mixed_precision.reduce_dtype = at::kFloat;
  return shards;
}

void Join(Training& training) {
  runtime::RuntimeOptions runtime_options;
  runtime_options.progress_thread = true;  // gradients and parameters move while the model computes
  auto runtime = runtime::Runtime::Init(std::move(runtime_options));
  ThrowUnlessOk(runtime.status(), "joining the job");
  training.runtime = *std::move(runtime);
  training.device = trainer::LocalDevices(*training.runtime).front().device;
  // The same bits in every run on the same ranks.
  auto world = comm::Communicator::World(*training.runtime, {.determinism = comm::Determinism::kReproducible});
  ThrowUnlessOk(world.status(), "making the world communicator");
  training.world = *std::move(world);
}

void SetUp(Training& training) {
  TrainGptOptions& options = training.options;
  CheckOptions(options, training.world->size());
  training.text = std::make_unique<Text>(options.data.empty() ? FindShakespeare() : options.data);
  // Ranks that were started otherwise could train a model that no one process has.
  trainer::CheckSameSetup(*training.world, "comparing command lines",
                          {{"options", training.command_line}, {"text", training.text->Fingerprint()}});
  options.model.vocabulary = training.text->vocabulary();
  training.data_rank = training.world->rank();
  training.data_ranks = training.world->size();
  torch::manual_seed(options.seed);
  const bool shards = options.mesh.empty() ? options.mode == "fsdp" : options.mesh.find("shard") != std::string::npos;
  options.model.autocast = options.in_bfloat16() && !shards;  // shards are gathered in bfloat16
  if (!options.mesh.empty()) {
    MakeMeshAndModel(training);
  } else if (options.mode == "fsdp") {
    MakeFsdp(training, *training.world);
  } else {
    MakeReplicated(training);
  }
}

void MoveToDevice(const Training& training, torch::nn::Module& module) {
  const torch::NoGradGuard no_grad;
  std::vector<at::Tensor> all = module.parameters();
  for (const at::Tensor& buffer : module.buffers()) all.push_back(buffer);
  for (at::Tensor& tensor : all) {
    if (tensor.device() != training.device) tensor.set_data(tensor.to(training.device));
  }
}

TextBatch BatchOf(Training& training, bool train, int64_t step) {
  const TrainGptOptions& options = training.options;
  trainer::set_random_place(
      {.seed = options.seed, .step = step, .first_row = training.data_rank, .row_stride = training.data_ranks});
  const TextBatch batch = training.text->Batch(train, options.seed, step, options.batch_size, options.model.context,
                                               training.data_rank, training.data_ranks);
  return {batch.inputs.to(training.device), batch.targets.to(training.device)};
}

at::Tensor Loss(Training& training, const TextBatch& batch) {
  if (training.pipeline != nullptr) {
    const at::Tensor loss = training.pipeline->eval(batch.inputs, batch.targets).loss;
    return loss.defined() ? loss : torch::zeros({});
  }
  return Gpt::Loss(training.forward(batch.inputs), batch.targets, training.options.model, training.tensor);
}

at::Tensor LossAndGradients(Training& training, const TextBatch& batch) {
  if (training.pipeline != nullptr) {
    const at::Tensor loss = training.pipeline->step(batch.inputs, batch.targets).loss;
    return loss.defined() ? loss : torch::zeros({});
  }
  const int parts = training.options.accumulate;
  const int64_t rows = batch.inputs.size(0) / parts;
  at::Tensor sum = torch::zeros({}, training.device);
  for (int part = 0; part < parts; ++part) {
    // Masks are those of the whole batch.
    trainer::RandomPlace place = trainer::random_place();
    place.first_row = training.data_rank + part * rows * training.data_ranks;
    trainer::set_random_place(place);
    const bool last = part + 1 == parts;
    const std::shared_ptr<void> unaveraged = last || training.no_sync == nullptr ? nullptr : training.no_sync();
    const TextBatch rows_of_part = {batch.inputs.narrow(0, part * rows, rows),
                                    batch.targets.narrow(0, part * rows, rows)};
    const at::Tensor loss = Loss(training, rows_of_part) / parts;
    loss.backward();
    sum += loss.detach();
  }
  return sum;
}

double Mean(Training& training, double value) {
  if (training.pipeline != nullptr) value *= training.pipeline->group().size();
  const comm::Buffer buffer(&value, 1);
  ThrowUnlessOk(training.world->AllReduce(buffer, buffer, comm::ReduceOp::kAvg).Wait(), "averaging the loss");
  return value;
}

void TearDown(Training& training) {
  training.forward = nullptr;
  training.no_sync = nullptr;
  training.clip_grad_norm = nullptr;
  training.checkpointer.reset();
  training.state = {};
  training.pipeline.reset();
  training.wrapper.reset();
  training.optimizer.reset();
  training.lora.reset();
  training.module.reset();
  training.mesh.reset();
  training.world.reset();
  if (training.runtime != nullptr) ThrowUnlessOk(training.runtime->Finalize(), "ending");
}

}  // namespace cohort::examples
