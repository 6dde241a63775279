#include "cohort/trainer/examples/gpt_training.h"

#include <algorithm>
#include <cstdlib>
#include <sstream>
#include <utility>
#include <vector>

#include "cohort/trainer/autograd/activation_checkpoint.h"
#include "cohort/trainer/autograd/random_place.h"
#include "cohort/trainer/base/error.h"
#include "cohort/trainer/examples/mesh_option.h"
#include "cohort/trainer/parallel/fsdp/fully_sharded_data_parallel.h"
#include "cohort/trainer/parallel/replicate/distributed_data_parallel.h"
#include "cohort/trainer/parallelize/sharded_data_parallel.h"
#include "cohort/trainer/placement/placement_table.h"
#include "cohort/trainer/state/grad_norm.h"
#include "torch/torch.h"

namespace cohort::examples {
namespace {

using torch::optim::AdamW;
using torch::optim::AdamWOptions;
using trainer::StateOf;
using trainer::ThrowUnlessOk;

AdamWOptions Adam(const TrainGptOptions& options) { return AdamWOptions(options.learning_rate).betas({0.9, 0.95}); }

// `module`, and its forward with or without keeping activations.
template <typename Module>
std::pair<std::shared_ptr<torch::nn::Module>, Gpt::Forward> Block(std::shared_ptr<Module> module,
                                                                  const TrainGptOptions& options) {
  const Gpt::Forward forward = [module](const at::Tensor& x) { return module->forward(x); };
  if (!options.checkpoint_activations) return {module, forward};
  return {module, [forward](const at::Tensor& x) { return trainer::checkpoint(forward, x); }};
}

// `where` is a Communicator or a DeviceMesh.
template <typename Where>
void MakeFsdp(Training& training, Where& where) {
  using trainer::FullyShardedDataParallel;
  const Gpt::WrapBlock wrap = [&](const std::shared_ptr<GptBlock>& block) {
    return Block(std::make_shared<FullyShardedDataParallel<GptBlock>>(block, where), training.options);
  };
  auto gpt = std::make_shared<Gpt>(training.options.model, training.tensor, wrap);
  auto model = std::make_shared<FullyShardedDataParallel<Gpt>>(gpt, where);
  training.module = model;
  training.optimizer = std::make_unique<AdamW>(model->parameters(), Adam(training.options));
  training.state = StateOf(*model, *training.optimizer);
  training.forward = [model](const at::Tensor& codes) { return model->forward(codes); };
  training.clip_grad_norm = [model](double norm) { return model->clip_grad_norm_(norm); };
}

void MakeReplicated(Training& training) {
  using trainer::DistributedDataParallel;
  using Zero = trainer::ZeroRedundancyOptimizer<AdamW>;
  const std::string& mode = training.options.mode;
  auto gpt =
      std::make_shared<Gpt>(training.options.model, training.tensor,
                            [&](const std::shared_ptr<GptBlock>& block) { return Block(block, training.options); });
  training.module = gpt;
  std::shared_ptr<DistributedDataParallel<Gpt>> ddp;
  trainer::DistributedDataParallelOptions options;
  options.gradient_as_bucket_view = mode != "zero2";
  if (mode == "ddp") {
    ddp = std::make_shared<DistributedDataParallel<Gpt>>(gpt, *training.world, options);
    training.optimizer = std::make_unique<AdamW>(gpt->parameters(), Adam(training.options));
    training.state = StateOf(*gpt, *training.optimizer, *training.world);
    training.clip_grad_norm = [gpt](double norm) {
      return torch::tensor(torch::nn::utils::clip_grad_norm_(gpt->parameters(), norm));
    };
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
  training.forward = [ddp](const at::Tensor& codes) { return ddp->forward(codes); };
}

// Norms count each element of the unsplit model once: cut gradients on every rank, others on the first.
at::Tensor ClipGradNorm(Gpt& gpt, const trainer::TensorAxis& axis, double max_norm) {
  std::vector<at::Tensor> gradients, counted;
  for (const at::Tensor& parameter : gpt.parameters()) {
    if (!parameter.grad().defined()) continue;
    gradients.push_back(parameter.grad());
    const bool cut = trainer::Placements().OrWhole(parameter)->use(trainer::kTensorAxis) == trainer::AxisUse::kSplit;
    if (cut || axis.rank() == 0) counted.push_back(parameter.grad());
  }
  std::vector<comm::Communicator*> groups;
  if (axis.size() > 1) groups.push_back(&axis.group());
  at::Tensor norm = trainer::ShardedNorm(counted, 2.0, groups);
  trainer::ClipByNorm(gradients, norm, max_norm);
  return norm;
}

// A mesh without shards: tensor-parallel layers, and DDP over the replicas if there are any.
void MakeCut(Training& training, comm::Communicator* replicas) {
  using trainer::DistributedDataParallel;
  auto gpt =
      std::make_shared<Gpt>(training.options.model, training.tensor,
                            [&](const std::shared_ptr<GptBlock>& block) { return Block(block, training.options); });
  training.module = gpt;
  training.forward = [gpt](const at::Tensor& codes) { return gpt->forward(codes); };
  if (replicas != nullptr) {
    trainer::DistributedDataParallelOptions options;
    options.gradient_as_bucket_view = true;
    auto ddp = std::make_shared<DistributedDataParallel<Gpt>>(gpt, *replicas, options);
    training.forward = [ddp](const at::Tensor& codes) { return ddp->forward(codes); };
    training.wrapper = ddp;
  }
  training.optimizer = std::make_unique<AdamW>(gpt->parameters(), Adam(training.options));
  training.state = StateOf(*gpt, *training.optimizer, *training.mesh);
  training.clip_grad_norm = [gpt, axis = training.tensor](double norm) { return ClipGradNorm(*gpt, axis, norm); };
}

using Mesh = std::pair<std::vector<std::string>, std::vector<int>>;

// Reads "tensor=2" or "replicate=2,tensor=2", and what ParseMesh does.
Mesh ReadMesh(const std::string& text) {
  if (text.find("tensor=") == std::string::npos) return ParseMesh(text);
  Mesh mesh;
  std::stringstream parts(text);
  for (std::string part; std::getline(parts, part, ',');) {
    const size_t equals = std::min(part.find('='), part.size() - 1);
    mesh.first.push_back(part.substr(0, equals));
    mesh.second.push_back(std::atoi(part.c_str() + equals + 1));
  }
  const std::vector<std::string> alone = {"tensor"}, replicated = {"replicate", "tensor"};
  TORCH_CHECK((mesh.first == alone || mesh.first == replicated) && mesh.second.front() > 0 && mesh.second.back() > 0,
              "--mesh with a tensor axis wants tensor=N, or replicate=M,tensor=N in this order, not \"", text, "\"");
  return mesh;
}

// Makes the mesh and the model on it.
void MakeMeshAndModel(Training& training) {
  const TrainGptOptions& options = training.options;
  const auto [names, sizes] = ReadMesh(options.mesh);
  auto made = trainer::DeviceMesh::Create(*training.world, sizes, names);
  ThrowUnlessOk(made.status(), "--mesh " + options.mesh);
  training.mesh = *std::move(made);
  if (names.back() != trainer::kTensorAxis) return MakeFsdp(training, *training.mesh);
  TORCH_CHECK(options.checkpoints.empty(),
              "--checkpoints does not go with a tensor axis: it would keep one rank's part");
  const auto group = training.mesh->get_group(trainer::kTensorAxis);
  ThrowUnlessOk(group.status(), "the tensor axis of --mesh");
  training.tensor = trainer::TensorAxis(
      **group, {.sequence_parallel = options.sequence_parallel, .sequence_dim = 1, .chunks = options.chunks});
  comm::Communicator* replicas = nullptr;
  if (names.size() == 2) {
    const auto found = training.mesh->get_group(trainer::kReplicateAxis);
    ThrowUnlessOk(found.status(), "the replicas of --mesh");
    replicas = *found;
  }
  training.data_rank = replicas == nullptr ? 0 : replicas->rank();
  training.data_ranks = replicas == nullptr ? 1 : replicas->size();
  MakeCut(training, replicas);
}

void CheckBatch(const Training& training) {
  TORCH_CHECK(training.options.batch_size % training.data_ranks == 0, "a batch of ", training.options.batch_size,
              " passages can't be shared evenly by ", training.data_ranks, " ranks; choose another --batch-size");
}

}  // namespace

void SetUp(Training& training) {
  TrainGptOptions& options = training.options;
  runtime::RuntimeOptions runtime_options;
  runtime_options.progress_thread = true;  // gradients and parameters move while the model computes
  auto runtime = runtime::Runtime::Init(std::move(runtime_options));
  ThrowUnlessOk(runtime.status(), "joining the job");
  training.runtime = *std::move(runtime);
  // The same bits in every run on the same ranks.
  auto world = comm::Communicator::World(*training.runtime, {.determinism = comm::Determinism::kReproducible});
  ThrowUnlessOk(world.status(), "making the world communicator");
  training.world = *std::move(world);
  training.text = std::make_unique<Text>(options.data.empty() ? FindShakespeare() : options.data);
  options.model.vocabulary = training.text->vocabulary();
  training.data_rank = training.world->rank();
  training.data_ranks = training.world->size();
  torch::manual_seed(options.seed);
  if (!options.mesh.empty()) {
    MakeMeshAndModel(training);
  } else if (options.mode == "fsdp") {
    MakeFsdp(training, *training.world);
  } else {
    MakeReplicated(training);
  }
  CheckBatch(training);
}

TextBatch BatchOf(Training& training, bool train, int64_t step) {
  const TrainGptOptions& options = training.options;
  trainer::set_random_place(
      {.seed = options.seed, .step = step, .first_row = training.data_rank, .row_stride = training.data_ranks});
  return training.text->Batch(train, options.seed, step, options.batch_size, options.model.context, training.data_rank,
                              training.data_ranks);
}

at::Tensor Loss(Training& training, const TextBatch& batch) {
  return Gpt::Loss(training.forward(batch.inputs), batch.targets, training.options.model, training.tensor);
}

double Mean(Training& training, double value) {
  const comm::Buffer buffer(&value, 1);
  ThrowUnlessOk(training.world->AllReduce(buffer, buffer, comm::ReduceOp::kAvg).Wait(), "averaging the loss");
  return value;
}

void TearDown(Training& training) {
  training.forward = nullptr;
  training.clip_grad_norm = nullptr;
  training.checkpointer.reset();
  training.state = {};
  training.wrapper.reset();
  training.optimizer.reset();
  training.module.reset();
  training.mesh.reset();
  training.world.reset();
  ThrowUnlessOk(training.runtime->Finalize(), "ending");
}

}  // namespace cohort::examples
