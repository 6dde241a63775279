// A parameter that two modules share: C++'s Module::parameters() lists it twice, and it must be trained once. Against a
// single process.
#include <cstdint>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "cohort/trainer/base/distinct_parameters.h"
#include "cohort/trainer/compat/deepspeed_engine.h"
#include "cohort/trainer/parallel/fsdp/fully_sharded_data_parallel.h"
#include "cohort/trainer/parallel/replicate/distributed_data_parallel.h"
#include "cohort/trainer/parallel/zero/zero_redundancy_optimizer.h"
#include "cohort/trainer/parallelize/sharded_data_parallel.h"
#include "cohort/trainer/state/checkpoint/checkpoint_values.h"
#include "cohort/trainer/state/grad_scaler.h"
#include "cohort/trainer/state/master_weights.h"
#include "nlohmann/json.hpp"
#include "tests/trainer/ranks.h"
#include "tests/trainer/trained.h"

namespace cohort::trainer {
namespace {

using torch::optim::AdamW;
using torch::optim::AdamWOptions;

constexpr int kTiedSteps = 6;
constexpr double kTiedMaxNorm = 0.05;

struct Half : torch::nn::Module {
  explicit Half(const at::Tensor& shared) {
    weight = register_parameter("weight", shared);
    bias = register_parameter("bias", torch::full({4}, 0.1));
  }
  at::Tensor forward(const at::Tensor& x) { return torch::addmm(bias, x, weight); }
  at::Tensor weight, bias;
};

struct TiedNet : torch::nn::Module {
  TiedNet() {
    torch::manual_seed(60);
    const at::Tensor shared = torch::randn({4, 4}) * 0.5;
    encoder = register_module("encoder", std::make_shared<Half>(shared));
    decoder = register_module("decoder", std::make_shared<Half>(encoder->weight));
  }
  at::Tensor forward(const at::Tensor& x) { return decoder->forward(torch::tanh(encoder->forward(x))); }
  std::shared_ptr<Half> encoder, decoder;
};

std::vector<at::Tensor> Once(const TiedNet& net) { return {net.encoder->weight, net.encoder->bias, net.decoder->bias}; }

AdamWOptions Options() { return AdamWOptions(0.02).weight_decay(0.1); }

// The parameters of a net that one process trains on all ranks' inputs.
std::vector<at::Tensor> TrainedAlone() {
  TiedNet net;
  EXPECT_EQ(net.parameters().size(), 4) << "the shared weight is not listed twice";
  AdamW optimizer(Once(net), Options());
  for (int step = 0; step < kTiedSteps; ++step) {
    optimizer.zero_grad();
    for (int rank = 0; rank < world->size(); ++rank) {
      (net.forward(InputOf(rank, step)).pow(2).mean() / world->size()).backward();
    }
    torch::nn::utils::clip_grad_norm_(Once(net), kTiedMaxNorm);
    optimizer.step();
  }
  return Once(net);
}

void ExpectAsAlone(const TiedNet& net, const std::string& what) {
  const auto expected = TrainedAlone();
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_TRUE(torch::allclose(Once(net)[i], expected[i], 1e-4, 1e-5))
        << what << ", " << i << ": " << (Once(net)[i] - expected[i]).abs().max();
  }
}

TEST(TiedParameters, ZeroTrainsTiedParametersOnce) {
  for (const bool views : {false, true}) {
    for (const bool second_stage : {false, true}) {
      auto net = std::make_shared<TiedNet>();
      ZeroRedundancyOptimizer<AdamW> optimizer(net->parameters(), *world, Options(),
                                               {.parameters_as_bucket_view = views});
      std::unique_ptr<DistributedDataParallel<TiedNet>> ddp;
      if (second_stage) {
        ddp = std::make_unique<ShardedDataParallel<TiedNet>>(net, optimizer, *world);
      } else {
        ddp = std::make_unique<DistributedDataParallel<TiedNet>>(net, *world);
      }
      for (int step = 0; step < kTiedSteps; ++step) {
        optimizer.zero_grad();
        ddp->forward(InputOf(world->rank(), step)).pow(2).mean().backward();
        optimizer.clip_grad_norm_(kTiedMaxNorm);
        optimizer.step();
      }
      EXPECT_EQ(optimizer.owners().size(), 3);
      ExpectAsAlone(*net, std::string(second_stage ? "ZeRO-2" : "ZeRO-1") + (views ? ", bucket views" : ""));
    }
  }
}

TEST(TiedParameters, DeepSpeedTrainsTiedParametersOnce) {
  for (const int stage : {0, 1, 2}) {
    auto net = std::make_shared<TiedNet>();
    DeepSpeedEngine<TiedNet> engine(
        net,
        ParseDeepSpeedConfig(R"({"train_micro_batch_size_per_gpu": 6, "gradient_clipping": 0.05,
                                 "optimizer": {"type": "AdamW", "params": {"lr": 0.02, "weight_decay": 0.1}},
                                 "zero_optimization": {"stage": )" +
                                 std::to_string(stage) + "}}",
                             world->size()),
        *world);
    for (int step = 0; step < kTiedSteps; ++step) {
      engine.backward(engine.forward(InputOf(world->rank(), step)).pow(2).mean());
      engine.step();
    }
    ExpectAsAlone(*net, "DeepSpeed's stage " + std::to_string(stage));
  }
}

// torch's own optimizers take the list as it is.
template <typename Wrapper>
void TrainWithATorchOptimizer(Wrapper& wrapper, const torch::nn::Module& listed, const std::function<void()>& clip) {
  EXPECT_EQ(listed.parameters().size(), 4);
  AdamW optimizer(DistinctParameters(listed.parameters()), Options());
  for (int step = 0; step < kTiedSteps; ++step) {
    optimizer.zero_grad();
    wrapper.forward(InputOf(world->rank(), step)).pow(2).mean().backward();
    clip();
    optimizer.step();
  }
}

TEST(TiedParameters, TorchsOptimizersOfDistinctParametersTrainTiedOnesOnce) {
  auto net = std::make_shared<TiedNet>();
  DistributedDataParallel<TiedNet> ddp(net, *world);
  TrainWithATorchOptimizer(ddp, *net, [&] { torch::nn::utils::clip_grad_norm_(Once(*net), kTiedMaxNorm); });
  ExpectAsAlone(*net, "DDP");
  net = std::make_shared<TiedNet>();
  FullyShardedDataParallel<TiedNet> fsdp(net, *world);
  TrainWithATorchOptimizer(fsdp, fsdp, [&] { fsdp.clip_grad_norm_(kTiedMaxNorm); });
  const SummonFullParams whole(fsdp, /*writeback=*/false);
  ExpectAsAlone(*net, "FSDP");
}

TEST(TiedParameters, TiedParametersAreUnscaledAndCopiedOnce) {
  TiedNet net;
  torch::optim::SGD plain(net.parameters(), 0.1);
  const auto expected = torch::autograd::grad({net.forward(InputOf(0)).pow(2).mean()}, Once(net));
  GradScaler scaler({.init_scale = 1024});
  scaler.scale(net.forward(InputOf(0)).pow(2).mean()).backward();
  scaler.unscale_(plain);
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_TRUE(torch::allclose(Once(net)[i].grad(), expected[i], 1e-5, 1e-7)) << i;
  }
  MasterWeights<torch::optim::SGD> copies(net.parameters(), torch::optim::SGDOptions(0.1));
  std::vector<at::Tensor> stepped;
  for (size_t i = 0; i < expected.size(); ++i) stepped.push_back((Once(net)[i] - 0.1 * expected[i]).detach());
  copies.step();
  for (size_t i = 0; i < expected.size(); ++i) EXPECT_TRUE(torch::allclose(Once(net)[i], stepped[i])) << i;
}

class TiedParametersFiles : public Checkpoints {};

// The tensors of a safetensors file, whose values are float32, by name.
std::map<std::string, std::vector<float>> ReadSafetensors(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  uint64_t length = 0;
  file.read(reinterpret_cast<char*>(&length), sizeof length);
  std::string header(length, '\0');
  file.read(header.data(), static_cast<std::streamsize>(length));
  std::map<std::string, std::vector<float>> tensors;
  const auto entries = nlohmann::json::parse(header);
  for (const auto& [name, entry] : entries.items()) {
    if (name == "__metadata__") continue;
    const std::vector<size_t> range = entry.at("data_offsets");
    std::vector<float>& values = tensors[name];
    values.resize((range[1] - range[0]) / sizeof(float));
    file.seekg(static_cast<std::streamoff>(sizeof length + length + range[0]));
    file.read(reinterpret_cast<char*>(values.data()), static_cast<std::streamsize>(range[1] - range[0]));
  }
  EXPECT_TRUE(file.good()) << path;
  return tensors;
}

// As Python's state_dict() has them: a strict load_state_dict asks for all.
TEST_F(TiedParametersFiles, AnExportHasEachNameOfATiedParameter) {
  for (const bool sharded : {false, true}) {
    auto net = std::make_shared<TiedNet>();
    const auto expected = Once(*net);  // before they become shards
    std::vector<at::Tensor> whole;
    for (const at::Tensor& tensor : expected) whole.push_back(tensor.detach().clone());
    std::shared_ptr<FullyShardedDataParallel<TiedNet>> fsdp;
    if (sharded) fsdp = std::make_shared<FullyShardedDataParallel<TiedNet>>(net, *world);
    AdamW optimizer(Once(*net), Options());
    const TrainingState state = sharded ? StateOf(*fsdp, optimizer) : StateOf(*net, optimizer, *world);
    const std::string place = At(sharded ? "fsdp" : "ddp");
    const CheckpointValues values = {{"step", "7"}, {"aliases", "the user's"}};
    SaveTrainingState(*world, place, state, values);
    EXPECT_EQ(LoadTrainingState(*world, place, state), values);
    EXPECT_THROW(CheckpointValuesOf(state, {{kCheckpointAliases, "mine"}}), c10::Error);
    if (world->rank() != 0) continue;
    ExportSafetensors(place, place + ".safetensors");
    const auto tensors = ReadSafetensors(place + ".safetensors");
    EXPECT_EQ(tensors.size(), 4);
    const auto expect_values = [&](const std::string& name, const at::Tensor& values) {
      ASSERT_TRUE(tensors.contains(name)) << name;
      const float* first = values.data_ptr<float>();
      EXPECT_EQ(tensors.at(name), std::vector<float>(first, first + values.numel())) << name;
    };
    expect_values("encoder.weight", whole[0]);
    expect_values("decoder.weight", whole[0]);
    expect_values("encoder.bias", whole[1]);
    expect_values("decoder.bias", whole[2]);
  }
}

// Two modules with a parameter and a buffer each, which they share or not; in the one order or the other.
struct Pair : torch::nn::Module {
  struct Part : torch::nn::Module {
    Part(const at::Tensor& shared, const at::Tensor& counted) {
      weight = register_parameter("weight", shared);
      count = register_buffer("count", counted);
    }
    at::Tensor weight, count;
  };
  Pair(bool tied, bool reversed) {
    const auto make = [] { return std::make_shared<Part>(torch::full({6, 2}, 5.0), torch::full({3}, 6.0)); };
    a = make();
    b = tied ? std::make_shared<Part>(a->weight, a->count) : make();
    if (reversed) register_module("b", b);
    register_module("a", a);
    if (!reversed) register_module("b", b);
  }
  at::Tensor forward(const at::Tensor& x) { return x.matmul(a->weight) + x.matmul(b->weight); }
  std::shared_ptr<Part> a, b;
};

// One, plain or sharded, and what a checkpoint takes of it.
struct SavedPair {
  SavedPair(bool tied, bool reversed, bool sharded) : net(std::make_shared<Pair>(tied, reversed)) {
    if (sharded) fsdp = std::make_shared<FullyShardedDataParallel<Pair>>(net, *world);
    optimizer = std::make_unique<AdamW>(std::vector<at::Tensor>{net->a->weight}, Options());
    state = sharded ? StateOf(*fsdp, *optimizer) : StateOf(*net, *optimizer, *world);
  }
  std::shared_ptr<Pair> net;
  std::shared_ptr<FullyShardedDataParallel<Pair>> fsdp;
  std::unique_ptr<AdamW> optimizer;
  TrainingState state;
};

// A strict load_state_dict takes what has the same names, whichever of them share a tensor: here, there or on neither
// side.
TEST_F(TiedParametersFiles, TiedParametersAreFoundUnderAnyOfTheirNames) {
  enum Kept { kNow, kFirstNames, kAllNames };  // the last two were written before other names were kept
  struct Case {
    std::string name;
    bool tied_there, reversed_there, tied_here, reversed_here;
    Kept kept;
  };
  const Case cases[] = {{"each_name_there", true, false, true, false, kAllNames},
                        {"one_name_there", true, false, true, true, kFirstNames},
                        {"other_order", true, false, true, true, kNow},
                        {"tied_there", true, true, false, false, kNow},
                        {"tied_here", false, false, true, true, kNow}};
  for (const auto& [name, tied_there, reversed_there, tied_here, reversed_here, kept] : cases) {
    for (const bool sharded : {false, true}) {
      SCOPED_TRACE(name + (sharded ? ", FSDP" : ""));
      const std::string place = At(name + (sharded ? "-fsdp" : "-ddp"));
      const SavedPair saved(tied_there, reversed_there, sharded);
      auto tensors = CheckpointTensorsOf(saved.state);
      auto values = CheckpointValuesOf(saved.state, {});
      EXPECT_EQ(values.erase(kept == kNow ? "" : kCheckpointAliases), kept == kNow ? 0 : 1);
      for (size_t i = 0, count = tensors.size(); kept == kAllNames && i < count; ++i) {
        tensors.push_back(tensors[i]);
        tensors.back().name.replace(tensors[i].name.find(".a."), 3, ".b.");
      }
      SaveCheckpoint(*world, place, tensors, values);
      SavedPair loaded(tied_here, reversed_here, sharded);
      const torch::NoGradGuard no_grad;
      for (const auto& parameter : loaded.state.parameters) at::Tensor(parameter.data).zero_();
      for (const auto& buffer : loaded.state.buffers) at::Tensor(buffer.data).zero_();
      EXPECT_NO_THROW(LoadTrainingState(*world, place, loaded.state));
      for (const auto& parameter : loaded.state.parameters) EXPECT_TRUE(parameter.data.eq(5).all().item<bool>());
      for (const auto& buffer : loaded.state.buffers) EXPECT_TRUE(buffer.data.eq(6).all().item<bool>());
    }
  }
}

}  // namespace
}  // namespace cohort::trainer
