// The same training with 1, 2, 3 and 4 ranks ends with the weights of a single process.
//
// Tolerance. All runs see the same batches; they differ in the association of float32 sums only (over a rank's share of
// the batch, then over the ranks), about 1e-7 relative a step, which 3 epochs (87 steps) of SGD amplify. Stated bound:
// 2e-4 of the largest weight; weights of a run with another seed differ by more than 0.1 of it.
#include <iostream>
#include <string>

#include "gtest/gtest.h"
#include "tests/trainer/examples/digits_runs.h"

namespace cohort::examples {
namespace {

constexpr double kTolerance = 2e-4;

using DigitsEquivalence = DigitsRuns;

TEST_F(DigitsEquivalence, AnyNumberOfRanksEndsWithTheSingleProcessesWeights) {
  const at::Tensor single = Train("", "--single");
  const double scale = single.abs().max().item<double>();
  for (const std::string launch :
       {"--nproc-per-node 1", "--nproc-per-node 2", "--nproc-per-node 3", "--simulate-nodes 2 --nproc-per-node 2"}) {
    const at::Tensor weights = Train(COHORT_DLAUNCH " " + launch + " --", "");
    const double difference = (weights - single).abs().max().item<double>() / scale;
    std::cout << launch << ": largest difference " << difference << " of the largest weight\n";
    EXPECT_LE(difference, kTolerance) << launch;
  }
  const double other = (Train("", "--single --seed 1") - single).abs().max().item<double>() / scale;
  EXPECT_GT(other, 0.1) << "the comparison can't tell different runs apart";
}

TEST_F(DigitsEquivalence, TwoDevicesPerRankChangeNothing) {
  const at::Tensor single = Train("", "--single");
  const at::Tensor halves = Train(COHORT_DLAUNCH " --simulate-nodes 2 --simulate-gpus 4 --gpus-per-rank 2 --", "");
  EXPECT_LE((halves - single).abs().max().item<double>(), kTolerance * single.abs().max().item<double>());
}

TEST_F(DigitsEquivalence, EveryModeEndsWithTheSingleProcessesWeights) {
  const at::Tensor single = Train("", "--single");
  for (const std::string mode : {"zero1", "zero2", "fsdp", "hsdp"}) {
    const at::Tensor weights = Train(COHORT_DLAUNCH " --nproc-per-node 2 --", "--mode " + mode);
    EXPECT_LE((weights - single).abs().max().item<double>(), kTolerance * single.abs().max().item<double>()) << mode;
  }
}

TEST_F(DigitsEquivalence, ShardsWithinNodesAndReplicasAmongThemChangeNothing) {
  const at::Tensor single = Train("", "--single");
  const at::Tensor weights = Train(COHORT_DLAUNCH " --simulate-nodes 2 --nproc-per-node 2 --", "--mode hsdp");
  EXPECT_LE((weights - single).abs().max().item<double>(), kTolerance * single.abs().max().item<double>());
  const Outcome outcome = Run(COHORT_DLAUNCH " --nproc-per-node 3 --", "--mode hsdp");
  EXPECT_FALSE(outcome.succeeded());
  EXPECT_NE(outcome.output.find("3 ranks are no multiple of 2"), std::string::npos) << outcome.output;
  const Outcome uneven = Run(COHORT_DLAUNCH " --simulate-nodes 2 --nproc-per-node 3 -n 4 --", "--mode hsdp");
  EXPECT_FALSE(uneven.succeeded());
  EXPECT_NE(uneven.output.find("ranks 2 and 3 of the same shards are on different ones"), std::string::npos)
      << uneven.output;
}

TEST_F(DigitsEquivalence, OneProcessWithSeveralDevicesChangesNothing) {
  const at::Tensor single = Train("", "--single");
  const std::string one = COHORT_DLAUNCH " --simulate-gpus 3 --gpus-per-rank 3 --";
  const at::Tensor weights = Train(one, "--mode data_parallel");
  EXPECT_LE((weights - single).abs().max().item<double>(), kTolerance * single.abs().max().item<double>());
  const Outcome outcome = Run(COHORT_DLAUNCH " --nproc-per-node 2 --", "--mode data_parallel");
  EXPECT_FALSE(outcome.succeeded());
  EXPECT_NE(outcome.output.find("--mode data_parallel is for one process"), std::string::npos) << outcome.output;
}

TEST_F(DigitsEquivalence, ABatchThatTheRanksCannotShareIsRefused) {
  const Outcome outcome = Run(COHORT_DLAUNCH " --nproc-per-node 2 --", "--batch-size 25");
  EXPECT_FALSE(outcome.succeeded());
  EXPECT_NE(outcome.output.find("can't be shared evenly by 2 ranks"), std::string::npos) << outcome.output;
}

}  // namespace
}  // namespace cohort::examples
