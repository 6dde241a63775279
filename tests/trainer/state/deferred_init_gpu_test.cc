// Modules made without memory get their shards on a CUDA device. Skipped with the reason where there is none. One rank
// without a job, so units are not gathered over ranks (FsdpUnit::gathers() is false): shards become gathered parameters
// by a change of type.
#include <memory>

#include "cohort/comm/communicator.h"
#include "cohort/runtime/runtime.h"
#include "cohort/trainer/parallel/fsdp/fully_sharded_data_parallel.h"
#include "cohort/trainer/state/deferred_init.h"
#include "cohort/trainer/state/sharded_init.h"
#include "gtest/gtest.h"
#include "torch/torch.h"

namespace cohort::trainer {
namespace {

// Parameters with and without memory, and a buffer: all say that they are on the CPU.
struct Net : torch::nn::Module {
  Net() {
    large = register_module("large", torch::nn::Linear(160, 160));
    small = register_module("small", torch::nn::Linear(160, 3));
    table = register_buffer("table", torch::arange(3, torch::kFloat32));
  }
  at::Tensor forward(const at::Tensor& x) { return small(torch::tanh(large(x))) * table; }
  torch::nn::Linear large{nullptr}, small{nullptr};
  at::Tensor table;
};

std::shared_ptr<Net> MadeWithoutMemory() {
  const DeferredInit deferred;
  return std::make_shared<Net>();
}

TEST(DeferredInitOnGpu, DeferredInitMakesShardsOnTheGpu) {
  if (!torch::cuda::is_available()) {
    GTEST_SKIP() << "no CUDA device, or a libtorch built without CUDA (TORCH_VERSION " << TORCH_VERSION << ")";
  }
  auto runtime = runtime::Runtime::Init({});
  ASSERT_TRUE(runtime.ok()) << runtime.status();
  auto world = comm::Communicator::World(**runtime);
  ASSERT_TRUE(world.ok()) << world.status();
  const torch::Device device(torch::kCUDA, 0);
  FullyShardedDataParallelOptions options;
  options.device_id = device;
  options.mixed_precision.param_dtype = torch::kDouble;  // so that shards and gathered parameters are different memory
  FullyShardedDataParallel<Net> model(MadeWithoutMemory(), **world, options);
  for (const auto& parameter : model.parameters()) EXPECT_EQ(parameter.device(), device);
  for (const auto& buffer : model.buffers()) EXPECT_EQ(buffer.device(), device);
  init_parameters(static_cast<FullyShardedModule&>(model), 3, LikeTorch);
  const auto plain = MadeWithoutMemory();
  materialize(*plain);
  init_parameters(*plain, 3, LikeTorch);
  const at::Tensor x = torch::randn({4, 160}, at::detail::createCPUGenerator(5));
  const at::Tensor loss = model.forward(x.to(device)).pow(2).mean();
  EXPECT_NEAR(loss.item<double>(), plain->forward(x).pow(2).mean().item<double>(), 1e-3);
  loss.backward();
  for (const auto& part : model.sharded_parameters()) EXPECT_EQ(part.tensor.grad().device(), device);
}

}  // namespace
}  // namespace cohort::trainer
