// Training on a CUDA device ends with the CPU's weights, in one rank and in two that share the device (NCCL takes two
// ranks of one GPU for two hosts when their NCCL_HOSTID differs). Skipped with the reason where there is no device.
//
// Tolerance: convolutions on CUDA may use TF32 and other associations, so the bound is wider than between CPU runs.
#include <string>

#include "gtest/gtest.h"
#include "tests/trainer/examples/digits_runs.h"
#include "torch/torch.h"

namespace cohort::examples {
namespace {

constexpr double kTolerance = 2e-2;

class DigitsOnGpu : public DigitsRuns {
 protected:
  void SetUp() override {
    if (!torch::cuda::is_available()) {
      GTEST_SKIP() << "no CUDA device, or a libtorch built without CUDA (TORCH_VERSION " << TORCH_VERSION << ")";
    }
    DigitsRuns::SetUp();
  }
  void ExpectLikeCpu(const std::string& launch) {
    const at::Tensor cpu = Train("", "--single");
    const at::Tensor gpu = Train(launch, "");
    EXPECT_LE((gpu - cpu).abs().max().item<double>(), kTolerance * cpu.abs().max().item<double>());
  }
};

TEST_F(DigitsOnGpu, OneRankEqualsTheCpu) {
  ExpectLikeCpu("env CUDA_VISIBLE_DEVICES=0 NVIDIA_TF32_OVERRIDE=0 " COHORT_DLAUNCH " --gpus-per-rank 1 --");
}

TEST_F(DigitsOnGpu, TwoRanksOnOneDeviceEqualTheCpu) {
  // Each simulated node sees the same device and gives it to its one rank.
  ExpectLikeCpu("env CUDA_VISIBLE_DEVICES=0 NVIDIA_TF32_OVERRIDE=0 " COHORT_DLAUNCH
                " --simulate-nodes 2 --gpus-per-rank 1 -- sh -c 'NCCL_HOSTID=$RANK exec \"$@\"' sh");
}

}  // namespace
}  // namespace cohort::examples
