// The passes that DistributedDataParallel shows in traces. `dlaunch --nproc-per-node N <this>`: every rank runs all
// tests.
#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "cohort/runtime/base/clock.h"
#include "cohort/runtime/ranges/range_ring.h"
#include "cohort/runtime/segment/layout.h"
#include "cohort/runtime/segment/segment.h"
#include "cohort/trainer/parallel/replicate/distributed_data_parallel.h"
#include "tests/trainer/ranks.h"

namespace cohort::trainer {
namespace {

struct Skipping : torch::nn::Module {
  Skipping() { layer = register_module("layer", torch::nn::Linear(4, 3)); }
  at::Tensor forward(const at::Tensor& x, bool skip) {
    ran_ns = runtime::SteadyNow();
    return skip ? x : layer(x);
  }
  torch::nn::Linear layer{nullptr};
  uint64_t ran_ns = 0;
};

// All buckets of the first pass leave at once, and are waited for in the next.
TEST(PassRanges, AForwardPassAfterOneWithoutABackwardPassIsShownWhole) {
  const auto model = std::make_shared<Skipping>();
  DistributedDataParallelOptions options;
  options.find_unused_parameters = true;
  DistributedDataParallel<Skipping> ddp(model, *world, options);
  runtime::RangeMemory* const ring = runtime::RangesOf(job->segment(), job->segment().local_rank());
  ddp.forward(InputOf(world->rank()), true);
  const uint64_t before = ring->tickets.load();
  ring->wanted.store(1);
  const at::Tensor output = ddp.forward(InputOf(world->rank()), false);
  ring->wanted.store(0);
  std::vector<runtime::RangeRecord> passes;
  for (uint64_t ticket = before + 1; ticket <= ring->tickets.load(); ++ticket) {
    const std::optional<runtime::RangeRecord> record = runtime::RangeAt(ring, ticket);
    if (record.has_value() && record->lane == runtime::RangeLane::kPasses) passes.push_back(*record);
  }
  ASSERT_EQ(passes.size(), 1u);
  EXPECT_EQ(std::string_view(passes[0].name), "forward");
  EXPECT_LE(passes[0].start_ns, model->ran_ns);
  EXPECT_GE(passes[0].end_ns, model->ran_ns);
  output.pow(2).mean().backward();
}

}  // namespace
}  // namespace cohort::trainer
