// A rank whose loop under Join fails: the others get the error wherever they wait, and in whatever joinables.
#include <chrono>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "cohort/trainer/base/error.h"
#include "cohort/trainer/parallel/zero/zero_redundancy_optimizer.h"
#include "cohort/trainer/parallelize/sharded_data_parallel.h"
#include "cohort/trainer/state/grad_scaler.h"
#include "tests/trainer/wanderer.h"

namespace cohort::trainer {
namespace {

using testing::HasSubstr;
using torch::optim::SGD;

// The point at which the loop of the last rank fails. The others have begun their backward pass, their clipping or
// their optimizer's step.
enum class Fails { kBeforeBackward, kBeforeClip, kBeforeStep };
constexpr Fails kFails[] = {Fails::kBeforeBackward, Fails::kBeforeClip, Fails::kBeforeStep};

// `may_be_done`: a rank that waits for others only may have all that it waits for.
void ExpectHeard(Join& join, bool failing, const std::function<void()>& loop, bool may_be_done = false) {
  try {
    join.run(loop);
    EXPECT_TRUE(may_be_done && !failing) << "nobody noticed";
  } catch (const DistributedError& error) {
    EXPECT_FALSE(failing);
    EXPECT_EQ(error.code(), absl::StatusCode::kAborted);
    EXPECT_THAT(error.what_without_backtrace(), HasSubstr("a rank's loop under Join failed: no such file"));
  } catch (const std::runtime_error& error) {
    EXPECT_TRUE(failing) << error.what();
  }
  EXPECT_TRUE(world->Barrier().Wait().ok()) << "the user's own group has failed";
}

// `clips` has the clip_grad_norm_ of the model's gradients.
template <typename Model, typename Clips>
void ExpectAllHear(Model& model, Clips& clips, torch::optim::Optimizer& optimizer,
                   const std::vector<Joinable*>& joinables, Fails fails) {
  const bool failing = world->rank() == world->size() - 1;
  const auto fail_before = [&](Fails now) {
    if (failing && fails == now) throw std::runtime_error("no such file");
  };
  Join join(joinables);
  ExpectHeard(join, failing, [&] {
    const at::Tensor loss = model.forward(InputOf(world->rank())).pow(2).mean();
    fail_before(Fails::kBeforeBackward);
    loss.backward();
    fail_before(Fails::kBeforeClip);
    clips.clip_grad_norm_(kMaxNorm);
    fail_before(Fails::kBeforeStep);
    optimizer.step();
  });
}

TEST(JoinErrors, ErrorsReachRanksAmidCollectivesOfReplicas) {
  for (const Fails fails : kFails) {
    for (const bool second_stage : {false, true}) {
      auto model = std::make_shared<Net>();
      ZeroRedundancyOptimizer<SGD> optimizer(model->parameters(), *world, Momentum());
      std::unique_ptr<DistributedDataParallel<Net>> ddp;
      if (second_stage) {
        ddp = std::make_unique<ShardedDataParallel<Net>>(model, optimizer, *world);
      } else {
        ddp = std::make_unique<DistributedDataParallel<Net>>(model, *world);
      }
      ExpectAllHear(*ddp, optimizer, optimizer, {ddp.get(), &optimizer}, fails);
    }
  }
}

template <typename Where>
void ExpectAllHearUnderShards(Where& where) {
  for (const Fails fails : kFails) {
    auto sharded = ShardWanderer(where, {});
    sharded->module()->Turn(0, kNothingElse);
    SGD optimizer(sharded->parameters(), Momentum());
    ExpectAllHear(*sharded, *sharded, optimizer, {sharded.get()}, fails);
  }
}

TEST(JoinErrors, ErrorsReachRanksAmidCollectivesOfShards) { ExpectAllHearUnderShards(*world); }

TEST(JoinErrors, ErrorsReachRanksAmidCollectivesOfReplicatedShards) {
  if (world->size() % 2 != 0) GTEST_SKIP() << "needs an even number of ranks";
  auto mesh = DeviceMesh::Create(*world, {2, world->size() / 2}, {"replicate", "shard"});
  ASSERT_TRUE(mesh.ok());
  ExpectAllHearUnderShards(**mesh);
}

// The backward pass throws on the last rank when one layer has its gradients, and the loop goes on; for good.
TEST(JoinErrors, ErrorsReachRanksThatWaitForTheLastBackwardPass) {
  if (world->size() == 1) GTEST_SKIP() << "needs two ranks";
  struct Throwing : Net {
    at::Tensor forward(const at::Tensor& x) {
      const at::Tensor hidden = torch::tanh(first(x));
      hidden.register_hook([](const at::Tensor& gradient) {
        if (world->rank() == world->size() - 1) throw std::runtime_error("no such file");
        return gradient;
      });
      return second(hidden);
    }
  };
  auto model = std::make_shared<Throwing>();
  DistributedDataParallelOptions options;
  options.buckets = {.first_bytes = 8, .cap_bytes = 70};
  DistributedDataParallel<Throwing> ddp(model, *world, options);
  Join join({&ddp});
  const auto start = std::chrono::steady_clock::now();
  EXPECT_THROW(join.run([&] {
    const at::Tensor loss = ddp.forward(InputOf(world->rank())).pow(2).mean();
    if (world->rank() == world->size() - 1) {
      EXPECT_THROW(loss.backward(), std::runtime_error);
    } else {
      loss.backward();
    }
  }),
               DistributedError);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(30));
}

// With so much in a buffer that nobody can send it before the others take it.
struct Weighty : torch::nn::Module {
  Weighty() {
    linear = register_module("linear", torch::nn::Linear(4, 3));
    table = register_buffer("table", torch::zeros({1 << 20}));
  }
  at::Tensor forward(const at::Tensor& x) { return linear(x) + table[0]; }
  torch::nn::Linear linear{nullptr};
  at::Tensor table;
};

// A rank without inputs fails in its schedule, where an iteration of the others has ended: they broadcast buffers at
// the beginning of the next one, or the final model.
TEST(JoinErrors, ErrorsReachRanksThatBroadcastBuffersOrTheFinalModel) {
  if (world->size() == 1) GTEST_SKIP() << "needs two ranks";
  for (const int inputs : {3, 2}) {
    auto model = std::make_shared<Weighty>();
    DistributedDataParallel<Weighty> ddp(model, *world);
    SGD optimizer(model->parameters(), Momentum());
    JoinableOptimizer steps(optimizer, *world, [] { throw std::runtime_error("no such file"); });
    Join join({&ddp, &steps});
    const auto loop = [&] {
      for (int step = 0; step < (world->rank() == 0 ? 1 : inputs); ++step) {
        ddp.forward(InputOf(world->rank(), step)).pow(2).mean().backward();
      }
    };
    ExpectHeard(join, world->rank() == 0, loop, /*may_be_done=*/inputs == 2);
  }
}

// Counts how often it is told to fail its groups.
class Telling : public Joinable {
 public:
  comm::Communicator& join_group() override { return *world; }
  void Shadow(int /*call*/, const JoinIteration& /*iteration*/) override {}
  void AfterJoin(const JoinIteration& /*last*/) override {}
  std::string NameOf(int /*call*/) const override { return "nothing"; }
  void AbortGroups(const std::string& why) override { told.push_back(why); }
  std::vector<std::string> told;
};

struct Holder : torch::nn::Module {
  explicit Holder(std::shared_ptr<torch::nn::Module> held) { register_module("held", std::move(held)); }
};

// A wrapper around modules that have been used can have no root; others have groups all the same.
TEST(JoinErrors, ErrorsReachGroupsBesideAWrapperWithoutARoot) {
  auto inside = ShardWanderer(*world, {});
  inside->root();
  FullyShardedDataParallel<Holder> outside(std::make_shared<Holder>(inside), *world);
  Telling other;
  Join join({&outside, &other});
  EXPECT_THROW(join.run([] {}), c10::Error);
  EXPECT_THAT(other.told, testing::ElementsAre(HasSubstr("used before it was wrapped")));
}

TEST(JoinErrors, ErrorsNameCallsThatRanksWithoutInputsCannotAnswer) {
  auto model = ShardWanderer(*world, {});
  model->module()->Turn(0, kWanders);
  SGD optimizer(model->parameters(), Momentum());
  JoinableOptimizer steps(optimizer, *world);
  EXPECT_THROW(Join({&steps}), c10::Error) << "nothing begins iterations";
  GradScaler scaler({}, {world.get()});
  Join join({model.get(), &steps});
  join.run([&] { EXPECT_THROW(join.run([] {}), c10::Error); });
  join.run([&] {
    if (world->size() == 1 || world->rank() == 0) return;
    scaler.scale(model->forward(InputOf(0)).pow(2).mean()).backward();
    EXPECT_THROW(scaler.step(optimizer), c10::Error);
    EXPECT_THROW(model->root().UnshardAll(), c10::Error);
  });
}

}  // namespace
}  // namespace cohort::trainer
