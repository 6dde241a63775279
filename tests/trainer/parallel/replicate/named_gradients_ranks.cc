// Under --check nan the error of a gradient that is not finite names the parameter.
// `dlaunch --check nan --nproc-per-node N <this>`: every rank runs all tests.
#include <cmath>
#include <memory>
#include <string>

#include "cohort/trainer/parallel/fsdp/fully_sharded_data_parallel.h"
#include "cohort/trainer/parallel/replicate/distributed_data_parallel.h"
#include "tests/trainer/ranks.h"

namespace cohort::trainer {
namespace {

using testing::AllOf;
using testing::AnyOf;
using testing::HasSubstr;

int LastRank() { return world->size() - 1; }
std::string Odd() { return "rank " + std::to_string(LastRank()) + "'s input of "; }

// The last rank's gradient of `parameter` has a NaN.
void Poison(const at::Tensor& parameter) {
  if (world->rank() != LastRank()) return;
  parameter.register_hook([](const at::Tensor& gradient) {
    at::Tensor poisoned = gradient.clone();
    poisoned.view({-1})[poisoned.numel() - 1] = NAN;
    return poisoned;
  });
}

TEST(NamedGradients, TheErrorOfABucketNamesTheParameter) {
  if (world->size() == 1) GTEST_SKIP() << "a group of one rank sends no gradients";
  for (const bool views : {false, true}) {
    for (const std::string name : {"first.weight", "first.bias", "second.weight", "second.bias"}) {
      const auto model = std::make_shared<Net>();
      DistributedDataParallelOptions options;
      options.gradient_as_bucket_view = views;
      DistributedDataParallel<Net> ddp(model, *world, options);
      ASSERT_TRUE(world->Barrier().Wait().ok());  // or the error meets a rank that still makes its buckets
      Poison(model->named_parameters()[name]);
      EXPECT_THAT(ErrorOf([&] { ddp.forward(InputOf(world->rank())).pow(2).mean().backward(); }),
                  AllOf(HasSubstr(Odd() + "all_reduce(sum, float32, "), HasSubstr(" holds NaN at element "),
                        HasSubstr(", in the gradient of " + name + " (1 NaN, 0 inf)")));
    }
  }
}

TEST(NamedGradients, TheErrorOfAShardedUnitNamesTheParameter) {
  if (world->size() == 1) GTEST_SKIP() << "a group of one rank sends no gradients";
  FullyShardedDataParallel<Net> fsdp(std::make_shared<Net>(), *world);
  ASSERT_TRUE(world->Barrier().Wait().ok());
  const at::Tensor input = InputOf(world->rank());
  if (world->rank() == LastRank()) input[0][0] = NAN;
  EXPECT_THAT(ErrorOf([&] { fsdp.forward(input).pow(2).mean().backward(); }),
              AllOf(HasSubstr(Odd() + "reduce_scatter"), HasSubstr(" holds NaN at element "),
                    AnyOf(HasSubstr(", in the gradient of first."), HasSubstr(", in the gradient of second."))));
}

}  // namespace
}  // namespace cohort::trainer
