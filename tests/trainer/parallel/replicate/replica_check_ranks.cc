// check_replicas_every: a flipped bit in a parameter or buffer of one rank ends training on all of them, and the error
// names it. `dlaunch --nproc-per-node N <this>`: every rank runs all tests.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "cohort/runtime/segment/call_compare.h"
#include "cohort/trainer/base/error.h"
#include "cohort/trainer/parallel/replicate/distributed_data_parallel.h"
#include "tests/trainer/ranks.h"

namespace cohort::trainer {
namespace {

using testing::AllOf;
using testing::HasSubstr;

// Layers of several types, a buffer of integers, and more than one bucket.
struct Mixed : torch::nn::Module {
  explicit Mixed(uint64_t seed) {
    torch::manual_seed(static_cast<int64_t>(seed) + world->rank());
    std::mt19937_64 random(seed);
    const auto width = [&random] { return static_cast<int64_t>(1 + random() % 40); };
    const int64_t hidden = width();
    first = register_module("first", torch::nn::Linear(4, hidden));
    norm = register_module("norm", torch::nn::BatchNorm1d(hidden));
    second = register_module("second", torch::nn::Linear(hidden, width()));
    frozen = register_parameter("frozen", torch::randn({width()}).to(torch::kBFloat16), /*requires_grad=*/false);
  }
  at::Tensor forward(const at::Tensor& x) { return second(torch::tanh(norm(first(x)))) + frozen.sum(); }
  torch::nn::Linear first{nullptr}, second{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
  at::Tensor frozen;
};

// A trial: `steps` steps, and a bit of a parameter that flips on rank `odd` before step `damaged`.
struct Trial {
  int64_t every = 1;
  int64_t damaged = 1;
  int odd = 0;
  size_t parameter = 0;
  uint64_t bit = 0;
};

void FlipBit(at::Tensor tensor, uint64_t bit) {
  auto* const bytes = static_cast<unsigned char*>(tensor.data_ptr());
  bit %= 8 * tensor.nbytes();
  bytes[bit / 8] ^= static_cast<unsigned char>(1u << bit % 8);
}

// The step in which each rank got an error, and the error; 0 where there was none.
std::pair<int64_t, std::string> Train(const std::shared_ptr<Mixed>& model, const Trial& trial, int64_t steps) {
  DistributedDataParallelOptions options;
  options.buckets = {.first_bytes = 64, .cap_bytes = 400};
  options.check_replicas_every = trial.every;
  DistributedDataParallel<Mixed> ddp(model, *world, options);
  torch::optim::SGD optimizer(model->parameters(), 0.01);
  const std::vector<at::Tensor> parameters = model->parameters();
  for (int64_t step = 1; step <= steps; ++step) {
    if (step == trial.damaged && world->rank() == trial.odd) FlipBit(parameters[trial.parameter], trial.bit);
    optimizer.zero_grad();
    try {
      ddp.forward(InputOf(world->rank(), static_cast<int>(step))).pow(2).mean().backward();
    } catch (const DistributedError& error) {
      EXPECT_EQ(error.code(), absl::StatusCode::kDataLoss);
      return {step, error.what_without_backtrace()};
    }
    optimizer.step();
  }
  return {0, ""};
}

// "rank 0", "ranks 0-2": all but `odd`.
std::string Others(int odd) {
  std::vector<int> ranks;
  for (int rank = 0; rank < world->size(); ++rank) {
    if (rank != odd) ranks.push_back(rank);
  }
  return runtime::DescribeRanks(ranks);
}

TEST(ReplicaCheck, ReplicasThatAreEqualTrainOn) {
  const auto checked = std::make_shared<Mixed>(7), plain = std::make_shared<Mixed>(7);
  EXPECT_EQ(Train(checked, {.every = 2, .damaged = 0}, 6).second, "");
  EXPECT_EQ(Train(plain, {.every = 0, .damaged = 0}, 6).second, "");
  for (size_t i = 0; i < plain->parameters().size(); ++i) {
    EXPECT_TRUE(torch::equal(checked->parameters()[i], plain->parameters()[i]));
  }
}

TEST(ReplicaCheck, NothingIsComparedUnlessAskedFor) {
  const auto model = std::make_shared<Mixed>(7);
  EXPECT_EQ(Train(model, {.every = 0, .damaged = 2, .bit = 1}, 4).first, 0);
}

// FLIPPED_BITS: how many trials. Bits flip right before a comparison, since a later step may heal what rounding loses.
TEST(ReplicaCheck, AFlippedBitIsNamedByParameterStepAndRank) {
  if (world->size() == 1) GTEST_SKIP() << "one replica equals itself";
  const char* const asked = std::getenv("FLIPPED_BITS");
  const int trials = asked == nullptr ? 20 : std::atoi(asked);
  int right = 0;
  for (int i = 0; i < trials; ++i) {
    std::mt19937_64 random(static_cast<uint64_t>(i) * 31 + static_cast<uint64_t>(world->size()));
    const auto model = std::make_shared<Mixed>(random());
    Trial trial;
    trial.every = static_cast<int64_t>(1 + random() % 3);
    trial.damaged = trial.every * static_cast<int64_t>(1 + random() % 3);
    trial.odd = static_cast<int>(random() % static_cast<uint64_t>(world->size()));
    trial.parameter = random() % model->parameters().size();
    trial.bit = random();
    const auto [step, error] = Train(model, trial, 9);
    const std::string name = model->named_parameters()[trial.parameter].key();
    const std::string at_step = "the replicas differ at step " + std::to_string(trial.damaged) + ": ";
    SCOPED_TRACE("trial " + std::to_string(i));
    EXPECT_EQ(step, trial.damaged) << error;
    EXPECT_THAT(error, AllOf(HasSubstr(at_step), HasSubstr(" (group "), HasSubstr("; 1 of ")));
    const std::string verdict =
        world->size() == 2
            ? "rank 0 and rank 1 have different values of " + name + ", and none is that of most ranks, so"
            : "rank " + std::to_string(trial.odd) + " has another value of " + name + " than " + Others(trial.odd);
    EXPECT_THAT(error, HasSubstr(at_step + verdict + " "));
    right += error.find(at_step + verdict) != std::string::npos ? 1 : 0;
  }
  if (world->rank() == 0) {
    std::printf("score: %d of %d flipped bits in parameters right, %d of them with two copies alone\n", right, trials,
                world->size() == 2 ? right : 0);
  }
}

TEST(ReplicaCheck, ABitThatFlipsBetweenComparisonsIsFoundByTheNextOne) {
  if (world->size() == 1) GTEST_SKIP() << "one replica equals itself";
  const auto [step, error] = Train(std::make_shared<Mixed>(7), {.every = 3, .damaged = 2, .bit = 22}, 4);
  EXPECT_EQ(step, 3);
  EXPECT_THAT(error, HasSubstr("the replicas differ at step 3: "));
}

TEST(ReplicaCheck, RanksMustAskForTheSame) {
  if (world->size() == 1) GTEST_SKIP() << "one rank agrees with itself";
  DistributedDataParallelOptions options;
  options.check_replicas_every = world->rank() == 1 ? 5 : 10;
  EXPECT_THAT(ErrorOf([&] { DistributedDataParallel<Net>(std::make_shared<Net>(), *world, options); }),
              HasSubstr("check_replicas_every 5"));
}

TEST(ReplicaCheck, StepsBelowZeroAreRefused) {
  DistributedDataParallelOptions options;
  options.check_replicas_every = -1;
  EXPECT_THAT(ErrorOf([&] { DistributedDataParallel<Net>(std::make_shared<Net>(), *world, options); }),
              HasSubstr("check_replicas_every is -1"));
}

// Ranks with fewer batches answer with stale parameters: they are not compared.
TEST(ReplicaCheck, RanksThatHaveEndedAreLeftOut) {
  const auto model = std::make_shared<Net>();
  DistributedDataParallelOptions options;
  options.check_replicas_every = 1;
  DistributedDataParallel<Net> ddp(model, *world, options);
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  Join join({&ddp});
  int done = 0;
  for (int epoch = 0; epoch < 2; ++epoch) {
    join.run([&] {
      for (int step = 0; step < 2 + world->rank(); ++step, ++done) {
        optimizer.zero_grad();
        ddp.forward(InputOf(world->rank(), step)).pow(2).mean().backward();
        optimizer.step();
      }
    });
  }
  EXPECT_EQ(done, 2 * (2 + world->rank()));
}

}  // namespace
}  // namespace cohort::trainer
