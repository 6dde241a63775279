// A model of ordinary layers that one call lays out on every mesh of the ranks trains as in one process.
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "cohort/trainer/base/error.h"
#include "cohort/trainer/nn/embedding.h"
#include "cohort/trainer/nn/linear.h"
#include "cohort/trainer/parallel/fsdp/fully_shard.h"
#include "cohort/trainer/parallelize/parallelize.h"
#include "cohort/trainer/parallelize/plan_text.h"
#include "cohort/trainer/placement/placement_table.h"
#include "tests/trainer/parallelize/mesh_model.h"

namespace cohort::trainer {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

struct PlainBlock : Shardable<PlainBlock> {
  PlainBlock() {
    norm = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({kWidth})));
    up = register_module("up", nn::Linear(kWidth, 2 * kWidth + 1));
    down = register_module("down", nn::Linear(2 * kWidth + 1, kWidth));
  }
  at::Tensor call(const at::Tensor& x) { return x + down(torch::gelu(up(norm(x)))); }
  torch::nn::LayerNorm norm{nullptr};
  nn::Linear up{nullptr}, down{nullptr};
};

// The head is torch's own layer in a Sequential.
struct PlainModel : torch::nn::Module {
  PlainModel() {
    tokens = register_module("tokens", nn::Embedding(kTokens, kWidth));
    for (const char* name : {"block0", "block1"}) {
      blocks.push_back(register_module(name, std::make_shared<PlainBlock>()));
    }
    head = register_module("head", torch::nn::Sequential(torch::nn::Linear(kWidth, kTokens)));
  }
  at::Tensor forward(const at::Tensor& codes) {
    at::Tensor x = tokens(codes);
    for (const auto& block : blocks) x = block->forward(x);
    return head->forward(x);
  }
  nn::Embedding tokens{nullptr};
  std::vector<std::shared_ptr<PlainBlock>> blocks;
  torch::nn::Sequential head{nullptr};
};

std::shared_ptr<PlainModel> Seeded() {
  torch::manual_seed(9);
  return std::make_shared<PlainModel>();
}

TensorPlan Cuts() {
  return {{"tokens", RowwiseParallel()},
          {"block*.up", ColwiseParallel()},
          {"block*.down", RowwiseParallel()},
          {"head.0", ColwiseParallel().gather_output(true)}};
}

// Losses and norms of three steps, by turns.
template <typename Forward, typename Clip>
std::vector<double> Train(const std::vector<at::Tensor>& parameters, const Forward& forward, const Clip& clip,
                          int64_t first_row, int64_t stride, bool averages) {
  torch::optim::SGD optimizer(parameters, torch::optim::SGDOptions(0.2).momentum(0.9));
  std::vector<double> trace;
  for (int64_t step = 0; step < 3; ++step) {
    optimizer.zero_grad();
    const at::Tensor text = torch::randint(kTokens, {kBatchRows, kPlaces + 1},
                                           at::detail::createCPUGenerator(static_cast<uint64_t>(step)), torch::kInt64);
    const at::Tensor own = text.slice(0, first_row, kBatchRows, stride);
    const at::Tensor logits = forward(own.narrow(1, 0, kPlaces));
    const at::Tensor loss =
        torch::nn::functional::cross_entropy(logits.flatten(0, 1), own.narrow(1, 1, kPlaces).flatten());
    loss.backward();
    const at::Tensor norm = clip();
    optimizer.step();
    double mean = loss.item<double>();
    const comm::Buffer buffer(&mean, 1);
    if (averages) {
      EXPECT_TRUE(world->AllReduce(buffer, buffer, comm::ReduceOp::kAvg).Wait().ok());
    }
    trace.push_back(mean);
    trace.push_back(norm.item<double>());
  }
  return trace;
}

TEST(Parallelize, TrainsOnEveryMeshAsOneProcess) {
  const auto whole = Seeded();
  const auto expected = Train(
      whole->parameters(), [&](const at::Tensor& codes) { return whole->forward(codes); },
      [&] { return clip_grad_norm_(whole->parameters(), 0.5); }, 0, 1, /*averages=*/false);
  for (const std::string& text : AllMeshes()) {
    const auto mesh = init_device_mesh(*world, text);
    ParallelizePlan plan = {.tensor = Cuts()};
    if (mesh->has(kShardAxis)) plan.units = {"block*"};
    auto model = parallelize(Seeded(), *mesh, plan);
    int64_t place = 0, places = 1;
    for (const char* axis : {kReplicateAxis, kShardAxis}) {
      if (!mesh->has(axis)) continue;
      place = place * mesh->size(axis).value() + mesh->get_local_rank(axis).value();
      places *= mesh->size(axis).value();
    }
    EXPECT_EQ(model.data_rank(), place) << text;
    EXPECT_EQ(model.data_ranks(), places) << text;
    const auto trace = Train(
        model.parameters(), [&](const at::Tensor& codes) { return model.forward(codes); },
        [&] { return model.clip_grad_norm_(0.5); }, place, places, /*averages=*/true);
    for (size_t i = 0; i < trace.size(); ++i) {
      EXPECT_NEAR(trace[i], expected[i], 1e-4) << text << ", step " << i / 2 << (i % 2 == 0 ? " loss" : " norm");
    }
  }
}

TEST(Parallelize, KeepsAPartOfEachLayerThatThePlanNames) {
  if (world->size() == 1) GTEST_SKIP() << "nothing is cut";
  const auto mesh = init_device_mesh(*world, {world->size()}, {"tensor"});
  auto model = parallelize(Seeded(), *mesh, {.tensor = Cuts()});
  const at::Tensor up = model.module()->blocks[0]->up->weight;
  EXPECT_LT(up.size(0), 2 * kWidth + 1);
  EXPECT_THAT(Placements().Of(up)->Describe(), HasSubstr("cuts dim 0"));
  EXPECT_THAT(Placements().Of(model.module()->tokens->weight)->Describe(), HasSubstr("cuts dim 0"));
  EXPECT_EQ(Placements().Of(model.module()->blocks[0]->norm->weight), nullptr);
}

TEST(Parallelize, NamesTheDifferenceBetweenRanks) {
  if (world->size() == 1) GTEST_SKIP() << "one rank has one setup";
  const auto mesh = init_device_mesh(*world, {world->size()}, {"tensor"});
  const bool odd = world->rank() == world->size() - 1;
  const std::string rank = "rank " + std::to_string(world->size() - 1);
  const auto with = [&](const TensorPlan& cuts, uint64_t seed) {
    torch::manual_seed(seed);
    return ErrorOf([&] { parallelize(std::make_shared<PlainModel>(), *mesh, {.tensor = cuts}); });
  };
  EXPECT_THAT(with(odd ? TensorPlan() : Cuts(), 9), AllOf(HasSubstr(rank), HasSubstr("plan")));
  EXPECT_THAT(with(Cuts(), odd ? 8 : 9), AllOf(HasSubstr(rank), HasSubstr("seed \"8\" there, \"9\" on rank 0")));
}

// Each change of one option, all of which ranks must have in common.
std::vector<std::function<void(ParallelizePlan&)>> Changes() {
  using Plan = ParallelizePlan;
  return {
      [](Plan&) {},
      [](Plan& plan) { plan.fsdp.sharding_strategy = ShardingStrategy::kShardGradOp; },
      [](Plan& plan) { plan.fsdp.reshard_after_forward = true; },
      [](Plan& plan) { plan.fsdp.reshard_after_forward = false; },
      [](Plan& plan) { plan.fsdp.mixed_precision.param_dtype = at::kBFloat16; },
      [](Plan& plan) { plan.fsdp.mixed_precision.reduce_dtype = at::kBFloat16; },
      [](Plan& plan) { plan.fsdp.mixed_precision.output_dtype = at::kBFloat16; },
      [](Plan& plan) { plan.fsdp.mixed_precision.cast_forward_inputs = false; },
      [](Plan& plan) { plan.fsdp.backward_prefetch = BackwardPrefetch::kNone; },
      [](Plan& plan) { plan.fsdp.forward_prefetch = false; },
      [](Plan& plan) { plan.fsdp.reduce_over_world = true; },
      [](Plan& plan) { plan.fsdp.cpu_offload = true; },
      [](Plan& plan) { plan.fsdp.device_id = at::kCPU; },
      [](Plan& plan) { plan.fsdp.sync_module_states = false; },
      [](Plan& plan) { plan.ddp.buckets.first_bytes = 7; },
      [](Plan& plan) { plan.ddp.buckets.cap_bytes = 7; },
      [](Plan& plan) { plan.ddp.broadcast_buffers = false; },
      [](Plan& plan) { plan.ddp.gradient_as_bucket_view = true; },
      [](Plan& plan) { plan.ddp.find_unused_parameters = true; },
      [](Plan& plan) { plan.ddp.static_graph = true; },
      [](Plan& plan) { plan.ddp.parts.emplace_back(); },
      [](Plan& plan) { plan.ddp.ignored_parameters.emplace_back(); },
  };
}

TEST(Parallelize, PlansThatDifferHaveDifferentTexts) {
  std::set<std::string> texts;
  for (const auto& change : Changes()) {
    ParallelizePlan plan;
    change(plan);
    texts.insert(ToText(plan.fsdp) + ToText(plan.ddp));
  }
  EXPECT_EQ(texts.size(), Changes().size());
}

TEST(Parallelize, NamesOptionsThatDifferBetweenRanks) {
  if (world->size() == 1) GTEST_SKIP() << "one rank has one setup";
  const auto mesh = init_device_mesh(*world, {world->size()}, {"tensor"});
  for (const auto& change : Changes()) {
    ParallelizePlan plan = {.tensor = Cuts()}, other = plan;
    change(other);
    if (ToText(plan.fsdp) + ToText(plan.ddp) == ToText(other.fsdp) + ToText(other.ddp)) continue;
    const bool odd = world->rank() == world->size() - 1;
    EXPECT_THAT(ErrorOf([&] { parallelize(Seeded(), *mesh, odd ? other : plan); }),
                HasSubstr("rank " + std::to_string(world->size() - 1) + " was set up otherwise than rank 0: options"));
  }
}

// Elements of a Sequential have the names that they were given.
struct NamedModel : torch::nn::Module {
  NamedModel() {
    torch::manual_seed(4);
    body = register_module("body", torch::nn::Sequential({{"up", torch::nn::Linear(kWidth, 2 * kWidth)},
                                                          {"tanh", torch::nn::Tanh()},
                                                          {"down", torch::nn::Linear(2 * kWidth, kWidth)}}));
  }
  at::Tensor forward(const at::Tensor& x) { return body->forward(x); }
  torch::nn::Sequential body{nullptr};
};

TEST(Parallelize, TakesElementsByTheirNames) {
  const at::Tensor x = torch::randn({3, kWidth}, at::detail::createCPUGenerator(8));
  const at::Tensor expected = NamedModel().forward(x);
  const auto mesh = init_device_mesh(*world, {world->size()}, {"shard"});
  auto model = parallelize(std::make_shared<NamedModel>(), *mesh, {.units = {"body.up", "body.down"}});
  EXPECT_TRUE(torch::allclose(model.forward(x), expected, 1e-5, 1e-6));
}

TEST(Parallelize, RefusesPlansThatDoNotFit) {
  const auto mesh = init_device_mesh(*world, {world->size()}, {"tensor"});
  const auto with = [&](const std::string& pattern) {
    return ErrorOf([&] { parallelize(Seeded(), *mesh, {.tensor = {{pattern, RowwiseParallel()}}}); });
  };
  EXPECT_THAT(with("block*.middle"), HasSubstr("fits \"block*.middle\""));
  EXPECT_THAT(with("block*.norm"), HasSubstr("block0.norm"));
  EXPECT_THAT(ErrorOf([&] { parallelize(Seeded(), *mesh, {.units = {"block*"}}); }), HasSubstr("no axis \"shard\""));
}

TEST(Parallelize, StarsStandForAPartOfAName) {
  EXPECT_TRUE(FitsPattern("block*.up", "block12.up"));
  EXPECT_TRUE(FitsPattern("blocks.*.up", "blocks.0.up"));
  EXPECT_FALSE(FitsPattern("block*", "block0.up"));
  EXPECT_FALSE(FitsPattern("block*.up", "block0.upper"));
}

}  // namespace
}  // namespace cohort::trainer
