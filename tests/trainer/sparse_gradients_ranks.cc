// Sparse gradients, which embeddings make when they are asked to, under every wrapper and against a single process.
#include <memory>
#include <string>
#include <vector>

#include "cohort/trainer/parallel/fsdp/fully_shard.h"
#include "cohort/trainer/state/grad_norm.h"
#include "cohort/trainer/state/grad_scaler.h"
#include "tests/trainer/ranks.h"
#include "tests/trainer/trained.h"

namespace cohort::trainer::sparse_gradients {
namespace {

using torch::optim::Adagrad;
using torch::optim::AdagradOptions;
using torch::optim::SGD;
using torch::optim::SGDOptions;

constexpr int64_t kWords = 23;
constexpr int kSteps = 4;

// kFunction: no module says that the gradient is sparse. kTied: the table is used for the output, too.
enum class Kind { kModule, kBag, kFunction, kTied };

struct Words : Shardable<Words> {
  Words(Kind kind, bool sparse) : kind(kind), sparse(sparse) {
    torch::manual_seed(40);
    if (kind == Kind::kBag) {
      bag = register_module(
          "words", torch::nn::EmbeddingBag(torch::nn::EmbeddingBagOptions(kWords, 4).mode(torch::kSum).sparse(sparse)));
      table = bag->weight;
    } else if (kind == Kind::kFunction) {
      table = register_parameter("table", torch::randn({kWords, 4}));
    } else {
      words = register_module("words", torch::nn::Embedding(torch::nn::EmbeddingOptions(kWords, 4).sparse(sparse)));
      table = words->weight;
    }
    linear = register_module("linear", torch::nn::Linear(4, 4));
  }
  at::Tensor call(const at::Tensor& ids) {
    at::Tensor x;
    if (kind == Kind::kBag) {
      x = bag(ids);
    } else if (kind == Kind::kFunction) {
      x = torch::embedding(table, ids, -1, false, sparse).sum(1);
    } else {
      x = words(ids).sum(1);
    }
    x = linear(torch::tanh(x));
    return kind == Kind::kTied ? x.matmul(table.t()) : x;
  }
  Kind kind;
  bool sparse;
  torch::nn::Embedding words{nullptr};
  torch::nn::EmbeddingBag bag{nullptr};
  torch::nn::Linear linear{nullptr};
  at::Tensor table;
};

constexpr Kind kKinds[] = {Kind::kModule, Kind::kBag, Kind::kFunction, Kind::kTied};

// Ranks have other words, some of them in common and some repeatedly.
at::Tensor IdsOf(int rank, int step) {
  return torch::randint(0, kWords, {5, 3}, at::detail::createCPUGenerator(500 + 10 * rank + step),
                        torch::TensorOptions(torch::kLong));
}

at::Tensor Dense(const at::Tensor& tensor) { return tensor.is_sparse() ? tensor.to_dense() : tensor; }

template <typename Model>
void Train(Model& model, torch::optim::Optimizer& optimizer, int rank) {
  for (int step = 0; step < kSteps; ++step) {
    optimizer.zero_grad();
    model.forward(IdsOf(rank, step)).pow(2).mean().backward();
    optimizer.step();
  }
}

// One process, whose table has dense gradients.
std::vector<at::Tensor> TrainedAlone(Kind kind) {
  Words net(kind, /*sparse=*/false);
  SGD optimizer(net.parameters(), SGDOptions(0.1));
  for (int step = 0; step < kSteps; ++step) {
    optimizer.zero_grad();
    for (int rank = 0; rank < world->size(); ++rank) {
      (net.forward(IdsOf(rank, step)).pow(2).mean() / world->size()).backward();
    }
    optimizer.step();
  }
  return net.parameters();
}

void ExpectSame(const std::vector<at::Tensor>& found, const std::vector<at::Tensor>& expected) {
  ASSERT_EQ(found.size(), expected.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_TRUE(torch::allclose(found[i], expected[i], 1e-4, 1e-6)) << (found[i] - expected[i]).abs().max();
  }
}

TEST(SparseGradients, DdpAveragesSparseGradients) {
  for (const Kind kind : kKinds) {
    for (const bool view : {false, true}) {
      SCOPED_TRACE(static_cast<int>(kind));
      auto net = std::make_shared<Words>(kind, /*sparse=*/true);
      DistributedDataParallelOptions options;
      options.gradient_as_bucket_view = view;
      DistributedDataParallel<Words> ddp(net, *world, options);
      SGD optimizer(net->parameters(), SGDOptions(0.1));
      Train(ddp, optimizer, world->rank());
      ExpectSame(net->parameters(), TrainedAlone(kind));
      const bool stays = kind == Kind::kModule || kind == Kind::kBag;
      EXPECT_EQ(net->table.grad().is_sparse(), stays) << "the layout of the gradient";
    }
  }
}

TEST(SparseGradients, SparseGradientsAccumulateUnderNoSync) {
  auto net = std::make_shared<Words>(Kind::kModule, /*sparse=*/true);
  DistributedDataParallel<Words> ddp(net, *world);
  {
    const auto guard = ddp.no_sync();
    ddp.forward(IdsOf(world->rank(), 0)).pow(2).mean().backward();
  }
  ddp.forward(IdsOf(world->rank(), 1)).pow(2).mean().backward();
  Words alone(Kind::kModule, /*sparse=*/false);
  for (int rank = 0; rank < world->size(); ++rank) {
    for (const int step : {0, 1}) (alone.forward(IdsOf(rank, step)).pow(2).mean() / world->size()).backward();
  }
  EXPECT_TRUE(torch::allclose(Dense(net->table.grad()), alone.table.grad(), 1e-5, 1e-6));
}

// A rank that has not used the table sends no rows; where no rank has, .grad stays as it is.
TEST(SparseGradients, ATableThatRanksDoNotUseSendsNoRows) {
  struct Chosen : torch::nn::Module {
    Chosen() {
      torch::manual_seed(41);
      words = register_module("words", torch::nn::Embedding(torch::nn::EmbeddingOptions(kWords, 3).sparse(true)));
      linear = register_module("linear", torch::nn::Linear(3, 2));
    }
    at::Tensor forward(const at::Tensor& ids, bool uses) {
      return linear(uses ? words(ids).sum(1) : torch::ones({ids.size(0), 3}));
    }
    torch::nn::Embedding words{nullptr};
    torch::nn::Linear linear{nullptr};
  };
  auto net = std::make_shared<Chosen>();
  DistributedDataParallelOptions options;
  options.find_unused_parameters = true;
  DistributedDataParallel<Chosen> ddp(net, *world, options);
  ddp.forward(IdsOf(world->rank(), 0), false).pow(2).mean().backward();
  EXPECT_FALSE(net->words->weight.grad().defined());
  net->zero_grad();
  ddp.forward(IdsOf(world->rank(), 1), world->rank() == 0).pow(2).mean().backward();
  Chosen alone;
  (alone.forward(IdsOf(0, 1), true).pow(2).mean() / world->size()).backward();
  ASSERT_TRUE(net->words->weight.grad().defined());
  EXPECT_TRUE(torch::allclose(Dense(net->words->weight.grad()), Dense(alone.words->weight.grad()), 1e-5, 1e-6));
}

// Ranks without inputs answer with no rows.
TEST(SparseGradients, SparseGradientsAreAveragedUnderJoin) {
  const auto batches = [](int rank) { return 1 + rank; };
  auto net = std::make_shared<Words>(Kind::kModule, /*sparse=*/true);
  DistributedDataParallel<Words> ddp(net, *world);
  SGD optimizer(net->parameters(), SGDOptions(0.1));
  Join({&ddp}).run([&] {
    for (int step = 0; step < batches(world->rank()); ++step) {
      optimizer.zero_grad();
      ddp.forward(IdsOf(world->rank(), step)).pow(2).mean().backward();
      optimizer.step();
    }
  });
  Words alone(Kind::kModule, /*sparse=*/false);
  SGD own(alone.parameters(), SGDOptions(0.1));
  for (int step = 0; step < batches(world->size() - 1); ++step) {
    own.zero_grad();
    for (int rank = 0; rank < world->size(); ++rank) {
      if (step >= batches(rank)) continue;
      (alone.forward(IdsOf(rank, step)).pow(2).mean() / world->size()).backward();
    }
    own.step();
  }
  ExpectSame(net->parameters(), alone.parameters());
}

// Adagrad steps the rows of a sparse gradient.
TEST(SparseGradients, AdagradStepsSparseGradients) {
  auto net = std::make_shared<Words>(Kind::kModule, /*sparse=*/true);
  DistributedDataParallel<Words> ddp(net, *world);
  Adagrad optimizer(net->parameters(), AdagradOptions(0.1));
  Train(ddp, optimizer, world->rank());
  Words alone(Kind::kModule, /*sparse=*/false);
  Adagrad own(alone.parameters(), AdagradOptions(0.1));
  for (int step = 0; step < kSteps; ++step) {
    own.zero_grad();
    for (int rank = 0; rank < world->size(); ++rank) {
      (alone.forward(IdsOf(rank, step)).pow(2).mean() / world->size()).backward();
    }
    own.step();
  }
  ExpectSame(net->parameters(), alone.parameters());
}

TEST(SparseGradients, SparseGradientsCountInNormsAndScalers) {
  auto net = std::make_shared<Words>(Kind::kModule, /*sparse=*/true);
  DistributedDataParallel<Words> ddp(net, *world);
  GradScaler scaler({.init_scale = 256}, {world.get()});
  SGD optimizer(net->parameters(), SGDOptions(0.1));
  scaler.scale(ddp.forward(IdsOf(world->rank(), 0)).pow(2).mean()).backward();
  scaler.unscale_(optimizer);
  Words alone(Kind::kModule, /*sparse=*/false);
  for (int rank = 0; rank < world->size(); ++rank) {
    (alone.forward(IdsOf(rank, 0)).pow(2).mean() / world->size()).backward();
  }
  EXPECT_TRUE(torch::allclose(Dense(net->table.grad()), alone.table.grad(), 1e-4, 1e-6));
  const double norm = clip_grad_norm_(net->parameters(), 0.01).item<double>();
  EXPECT_NEAR(norm, torch::nn::utils::clip_grad_norm_(alone.parameters(), 0.01), 1e-4 * norm);
  EXPECT_TRUE(torch::allclose(Dense(net->table.grad()), alone.table.grad(), 1e-3, 1e-7));
  EXPECT_TRUE(scaler.step(optimizer));
}

TEST(SparseGradients, SparseGradientsAreSteppedByTheirOwners) {
  for (const Kind kind : kKinds) {
    for (const bool second_stage : {false, true}) {
      auto net = std::make_shared<Words>(kind, /*sparse=*/true);
      ZeroRedundancyOptimizer<SGD> optimizer(net->parameters(), *world, SGDOptions(0.1));
      std::unique_ptr<DistributedDataParallel<Words>> ddp;
      if (second_stage) {
        ddp = std::make_unique<ShardedDataParallel<Words>>(net, optimizer, *world);
      } else {
        ddp = std::make_unique<DistributedDataParallel<Words>>(net, *world);
      }
      Train(*ddp, optimizer, world->rank());
      SCOPED_TRACE(second_stage ? "ZeRO-2" : "ZeRO-1");
      ExpectSame(net->parameters(), TrainedAlone(kind));
    }
  }
}

TEST(SparseGradients, SparseGradientsAreDenseInShards) {
  for (const Kind kind : kKinds) {
    auto net = std::make_shared<Words>(kind, /*sparse=*/true);
    FullyShardedModule& shards = fully_shard(*net, *world);
    SGD optimizer(net->parameters(), SGDOptions(0.1));
    Train(*net, optimizer, world->rank());
    const SummonFullParams whole(shards, /*writeback=*/false);
    ExpectSame(net->parameters(), TrainedAlone(kind));
  }
}

}  // namespace
}  // namespace cohort::trainer::sparse_gradients
