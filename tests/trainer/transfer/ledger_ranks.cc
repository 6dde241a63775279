// Bytes on the wire under every mode: exactly what the formulas of communication_ledger.h say.
#include <chrono>
#include <cstdio>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cohort/trainer/parallel/fsdp/fully_sharded_data_parallel.h"
#include "cohort/trainer/parallel/replicate/distributed_data_parallel.h"
#include "cohort/trainer/parallel/zero/zero_redundancy_optimizer.h"
#include "cohort/trainer/parallelize/sharded_data_parallel.h"
#include "cohort/trainer/transfer/communication_ledger.h"
#include "cohort/trainer/transfer/communication_timer.h"
#include "tests/trainer/ranks.h"

namespace cohort::trainer {
namespace {

using comm::CollectiveKind;
using torch::optim::SGD;
using torch::optim::SGDOptions;

constexpr int64_t kLedgerWidth = 12;
constexpr int64_t kLayerBytes = (kLedgerWidth + 1) * kLedgerWidth * 4;  // 156 elements, which 1 to 4 ranks share evenly
constexpr int64_t kLedgerLayers = 4;
constexpr int64_t kBytes = (kLedgerLayers + 1) * kLayerBytes;
constexpr int kLedgerSteps = 3;

struct LedgerLayers : torch::nn::Module {
  using Layer = std::shared_ptr<torch::nn::LinearImpl>;
  using Forward = std::function<at::Tensor(const at::Tensor&)>;
  explicit LedgerLayers(const std::function<std::pair<std::shared_ptr<torch::nn::Module>, Forward>(Layer)>& wrap) {
    for (int i = 0; i < kLedgerLayers; ++i) {
      auto [module, forward] = wrap(std::make_shared<torch::nn::LinearImpl>(kLedgerWidth, kLedgerWidth));
      register_module("layer" + std::to_string(i), module);
      layers.push_back(forward);
    }
    head = register_module("head", torch::nn::Linear(kLedgerWidth, kLedgerWidth));
  }
  at::Tensor forward(at::Tensor x) {
    for (const Forward& layer : layers) x = torch::tanh(layer(x));
    return head(x);
  }
  std::vector<Forward> layers;
  torch::nn::Linear head{nullptr};
};

std::shared_ptr<LedgerLayers> PlainLedgerLayers() {
  return std::make_shared<LedgerLayers>([](LedgerLayers::Layer layer) {
    return std::make_pair(layer, [layer](const at::Tensor& x) { return layer->forward(x); });
  });
}

// `where` is a Communicator or a DeviceMesh.
template <typename Where>
std::shared_ptr<FullyShardedDataParallel<LedgerLayers>> ShardLayers(Where& where,
                                                                    const FullyShardedDataParallelOptions& options) {
  using Unit = FullyShardedDataParallel<torch::nn::LinearImpl>;
  auto layers = std::make_shared<LedgerLayers>([&](LedgerLayers::Layer layer) {
    auto unit = std::make_shared<Unit>(layer, where, options);
    return std::make_pair(unit, [unit](const at::Tensor& x) { return unit->forward(x); });
  });
  return std::make_shared<FullyShardedDataParallel<LedgerLayers>>(layers, where, options);
}

using Entries = std::map<std::pair<CollectiveKind, int>, LedgerEntry>;

// The entries of some steps, after those that settle buckets.
template <typename Model>
Entries Entered(const std::string& mode, Model& model, torch::optim::Optimizer& optimizer) {
  const auto step = [&] {
    optimizer.zero_grad();
    model.forward(torch::ones({2, kLedgerWidth})).sum().backward();
    optimizer.step();
  };
  for (int i = 0; i < 2; ++i) step();
  const CommunicationLedger ledger;
  for (int i = 0; i < kLedgerSteps; ++i) step();
  if (world->rank() == 0) {
    std::printf("%s, %d steps, %lld bytes of parameters\n%s", mode.c_str(), kLedgerSteps,
                static_cast<long long>(kBytes), ledger.Table().c_str());
  }
  return ledger.entries();
}

// Expects the bytes that the groups of this rank send in a step; nothing else may be entered.
void ExpectSent(const std::string& mode, const Entries& entries,
                std::map<std::pair<CollectiveKind, int>, int64_t> sent) {
  for (const auto& [key, entry] : entries) {
    EXPECT_EQ(entry.sent_by_group, kLedgerSteps * sent[key]) << mode << ": " << Name(key.first) << " of " << key.second;
    sent.erase(key);
  }
  for (const auto& [key, bytes] : sent) {
    EXPECT_EQ(bytes, 0) << mode << ": no " << Name(key.first) << " of " << key.second << " ranks was called";
  }
}

DistributedDataParallelOptions BucketsOf1000Bytes() {
  DistributedDataParallelOptions options;
  options.buckets = {.first_bytes = 100, .cap_bytes = 1000};
  return options;
}

TEST(Ledger, ReplicatedModelsSendWhatTheFormulasSay) {
  const int n = world->size();
  {
    auto model = PlainLedgerLayers();
    DistributedDataParallel<LedgerLayers> ddp(model, *world, BucketsOf1000Bytes());
    SGD optimizer(model->parameters(), SGDOptions(0.1));
    ExpectSent("DDP", Entered("DDP", ddp, optimizer), {{{CollectiveKind::kAllReduce, n}, 2 * (n - 1) * kBytes}});
  }
  for (const bool views : {false, true}) {
    auto model = PlainLedgerLayers();
    DistributedDataParallel<LedgerLayers> ddp(model, *world, BucketsOf1000Bytes());
    ZeroRedundancyOptimizer<SGD> optimizer(model->parameters(), *world, SGDOptions(0.1),
                                           {.parameters_as_bucket_view = views});
    ExpectSent(
        "ZeRO-1", Entered("ZeRO-1", ddp, optimizer),
        {{{CollectiveKind::kAllReduce, n}, 2 * (n - 1) * kBytes}, {{CollectiveKind::kAllGather, n}, (n - 1) * kBytes}});
  }
  auto model = PlainLedgerLayers();
  ZeroRedundancyOptimizer<SGD> optimizer(model->parameters(), *world, SGDOptions(0.1));
  ShardedDataParallel<LedgerLayers> sharded(model, optimizer, *world, BucketsOf1000Bytes());
  ExpectSent(
      "ZeRO-2", Entered("ZeRO-2", sharded, optimizer),
      {{{CollectiveKind::kReduceScatter, n}, (n - 1) * kBytes}, {{CollectiveKind::kAllGather, n}, (n - 1) * kBytes}});
}

TEST(Ledger, ShardsSendWhatTheFormulasSay) {
  const int n = world->size();
  const auto expect = [&](const std::string& mode, const FullyShardedDataParallelOptions& options, int64_t gathered) {
    auto model = ShardLayers(*world, options);
    SGD optimizer(model->parameters(), SGDOptions(0.1));
    ExpectSent(mode, Entered(mode, *model, optimizer),
               {{{CollectiveKind::kAllGather, n}, (n - 1) * gathered},
                {{CollectiveKind::kReduceScatter, n}, (n - 1) * kBytes}});
  };
  FullyShardedDataParallelOptions options;
  expect("FSDP", options, 2 * kBytes - kLayerBytes);
  options.reshard_after_forward = true;
  expect("FSDP, the root too", options, 2 * kBytes);
  options.reshard_after_forward.reset();
  options.sharding_strategy = ShardingStrategy::kShardGradOp;
  expect("FSDP, SHARD_GRAD_OP", options, kBytes);
  options.mixed_precision.param_dtype = torch::kBFloat16;
  auto model = ShardLayers(*world, options);
  SGD optimizer(model->parameters(), SGDOptions(0.1));
  ExpectSent("FSDP in bfloat16", Entered("FSDP in bfloat16", *model, optimizer),
             {{{CollectiveKind::kAllGather, n}, (n - 1) * kBytes / 2},
              {{CollectiveKind::kReduceScatter, n}, (n - 1) * kBytes / 2}});
}

// Parameters of more than 64 KiB are gathered by a call of their own, the small ones of a unit together; rows are
// rounded up to a multiple of the ranks.
TEST(Ledger, ShardsCountPaddingAndEachCall) {
  struct Uneven : torch::nn::Module {
    Uneven() {
      wide = register_module("wide", torch::nn::Linear(kLedgerWidth, 1601));
      narrow = register_module("narrow", torch::nn::Linear(1601, kLedgerWidth));
      factor = register_parameter("factor", torch::ones({}));
    }
    at::Tensor forward(const at::Tensor& x) { return narrow(wide(x)) * factor; }
    torch::nn::Linear wide{nullptr}, narrow{nullptr};
    at::Tensor factor;
  };
  const int n = world->size();
  const auto padded = [n](int64_t rows, int64_t row) { return (rows + n - 1) / n * n * row * 4; };
  const int64_t bytes = padded(1601, kLedgerWidth) + padded(1601, 1) + padded(kLedgerWidth, 1601) +
                        padded(kLedgerWidth, 1) + padded(1, 1);
  FullyShardedDataParallelOptions options;
  options.reshard_after_forward = true;
  FullyShardedDataParallel<Uneven> model(std::make_shared<Uneven>(), *world, options);
  SGD optimizer(model.parameters(), SGDOptions(0.1));
  auto entries = Entered("FSDP, uneven", model, optimizer);
  ExpectSent(
      "FSDP, uneven", entries,
      {{{CollectiveKind::kAllGather, n}, 2 * (n - 1) * bytes}, {{CollectiveKind::kReduceScatter, n}, (n - 1) * bytes}});
  if (n == 1) return;
  EXPECT_EQ((entries[{CollectiveKind::kAllGather, n}].calls),
            kLedgerSteps * 2 * 3);  // two large ones, and the small ones
  EXPECT_EQ((entries[{CollectiveKind::kReduceScatter, n}].calls), kLedgerSteps);
}

TEST(Ledger, ReplicatedShardsSendWhatTheFormulasSay) {
  if (world->size() % 2 != 0) GTEST_SKIP() << "needs an even number of ranks";
  constexpr int kReplicas = 2;
  const int shards = world->size() / kReplicas;
  auto mesh = DeviceMesh::Create(*world, {kReplicas, shards}, {"replicate", "shard"});
  ASSERT_TRUE(mesh.ok());
  FullyShardedDataParallelOptions options;
  options.sharding_strategy = ShardingStrategy::kHybridShard;
  auto model = ShardLayers(**mesh, options);
  SGD optimizer(model->parameters(), SGDOptions(0.1));
  ExpectSent("HSDP", Entered("HSDP", *model, optimizer),
             {{{CollectiveKind::kAllGather, shards}, (shards - 1) * (2 * kBytes - kLayerBytes)},
              {{CollectiveKind::kReduceScatter, shards}, (shards - 1) * kBytes},
              {{CollectiveKind::kAllReduce, kReplicas}, 2 * (kReplicas - 1) * kBytes / shards}});
}

TEST(Ledger, CountsOnlyWhileItLives) {
  const auto call = [] {
    const DistributedDataParallel<torch::nn::LinearImpl> ddp(std::make_shared<torch::nn::LinearImpl>(2, 2), *world);
  };
  call();
  CommunicationLedger ledger;
  EXPECT_EQ(ledger.total().calls, 0);
  call();
  const LedgerEntry once = ledger.total();
  EXPECT_GT(once.calls, 0);
  call();
  EXPECT_EQ(ledger.total().calls, 2 * once.calls);
  EXPECT_EQ(ledger.total().bytes, 2 * once.bytes);
  EXPECT_NE(ledger.Table().find("broadcast"), std::string::npos);
  ledger.Reset();
  EXPECT_TRUE(ledger.entries().empty());
}

TEST(CommunicationTimer, TheTimerDistinguishesCallsAndWaitsWhileItLives) {
  auto model = std::make_shared<Net>();
  DistributedDataParallel<Net> ddp(model, *world);
  const auto gradients = [&] {
    ddp.module()->zero_grad();
    ddp.forward(InputOf(world->rank())).pow(2).mean().backward();
    return model->first->weight.grad().clone();
  };
  const at::Tensor expected = gradients();
  const auto start = std::chrono::steady_clock::now();
  double calling = 0, waiting = 0;
  {
    CommunicationTimer timer;
    EXPECT_EQ(timer.calling() + timer.waiting(), 0);
    EXPECT_TRUE(gradients().equal(expected));
    calling = timer.calling();
    waiting = timer.waiting();
    EXPECT_GT(calling, 0);
    EXPECT_GT(waiting, 0);
    gradients();
    EXPECT_GT(timer.calling(), calling);
    EXPECT_GT(timer.waiting(), waiting);
    calling = timer.calling();
    waiting = timer.waiting();
    timer.Reset();
    EXPECT_EQ(timer.calling() + timer.waiting(), 0);
  }
  const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - start;
  EXPECT_LE(calling + waiting, passed.count());
  gradients();
  const CommunicationTimer again;
  EXPECT_EQ(again.calling() + again.waiting(), 0);
}

}  // namespace
}  // namespace cohort::trainer
