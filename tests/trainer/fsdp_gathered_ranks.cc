// What is read and written while units of FullyShardedDataParallel are gathered: SummonFullParams.
#include <memory>

#include "tests/trainer/tower.h"

namespace cohort::trainer {
namespace {

std::vector<at::Tensor> Shards(FullyShardedModule& model) {
  std::vector<at::Tensor> copies;
  for (const auto& part : model.sharded_parameters()) copies.push_back(part.tensor.detach().clone());
  return copies;
}

FullyShardedDataParallelOptions InBFloat16() {
  FullyShardedDataParallelOptions options;
  options.mixed_precision.param_dtype = torch::kBFloat16;
  return options;
}

TEST(FsdpSummon, KeepsWhatTheComputeTypeCannotHold) {
  auto model = Shard(*world, InBFloat16());
  const auto before = Shards(*model);
  {
    const SummonFullParams whole(*model);
  }
  ExpectSame(Shards(*model), before, /*bits=*/true);
}

// Elements that somebody wrote have the new value, the others every bit of theirs.
TEST(FsdpSummon, WritesBackWhatWasChangedOnly) {
  auto model = Shard(*world, InBFloat16());
  const auto before = Shards(*model);
  {
    const SummonFullParams whole(*model);
    const torch::NoGradGuard no_grad;
    for (const auto& parameter : model->parameters()) parameter.reshape({-1})[0].fill_(7);
  }
  const auto after = Shards(*model);
  const auto parts = model->sharded_parameters();
  for (size_t i = 0; i < parts.size(); ++i) {
    at::Tensor expected = before[i].clone();
    if (parts[i].begin == 0 && parts[i].end > 0) expected[0].fill_(7);
    EXPECT_TRUE(torch::equal(after[i], expected)) << parts[i].name;
  }
}

TEST(FsdpSummon, SurvivesAForwardPassWithin) {
  auto model = Shard(*world);
  const auto before = Shards(*model);
  {
    const SummonFullParams whole(*model);
    const torch::NoGradGuard no_grad;
    model->forward(InputOf(0));
  }
  ExpectSame(Shards(*model), before, /*bits=*/true);
}

}  // namespace
}  // namespace cohort::trainer
