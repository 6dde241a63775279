// The same training with 1, 2, 3 and 4 ranks ends with the weights of a single process.
//
// Tolerance. All runs see the same batches; they differ in the association of float32 sums only (over a rank's share of
// the batch, then over the ranks), about 1e-7 relative a step, which 3 epochs (87 steps) of SGD amplify. Stated bound:
// 2e-4 of the largest weight; weights of a run with another seed differ by more than 0.1 of it.
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <sstream>
#include <string>
#include <sys/wait.h>

#include "gtest/gtest.h"
#include "torch/torch.h"
#include "trainer/examples/digits_net.h"

namespace cohort::examples {
namespace {

constexpr double kTolerance = 2e-4;

class DigitsEquivalence : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = (std::filesystem::temp_directory_path() / "cohort-digits-XXXXXX").string();
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    folder_ = name;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  // Runs `launch` train_digits `options`, and returns the weights that it saved, as one vector.
  at::Tensor Train(const std::string& launch, const std::string& options) {
    const std::filesystem::path saved = folder_ / "weights.pt";
    const std::filesystem::path log = folder_ / "log";
    const std::string command = "timeout 300 " + launch + " " COHORT_TRAIN_DIGITS " --epochs 3 " + options +
                                " --save " + saved.string() + " > " + log.string() + " 2>&1";
    const int status = std::system(command.c_str());
    std::stringstream text;
    text << std::ifstream(log).rdbuf();
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << command << "\n" << text.str();
    auto net = std::make_shared<DigitsNet>(trainer::LocalDevice{}, trainer::LocalDevice{});
    std::shared_ptr<torch::nn::Module> module = net;
    torch::load(module, saved.string());
    std::filesystem::remove(saved);
    std::vector<at::Tensor> flat;
    for (const auto& parameter : net->parameters()) flat.push_back(parameter.detach().reshape({-1}));
    return torch::cat(flat);
  }

  std::filesystem::path folder_;
};

TEST_F(DigitsEquivalence, AnyNumberOfRanksEndsWithTheSingleProcessesWeights) {
  const at::Tensor single = Train("", "--single");
  const double scale = single.abs().max().item<double>();
  for (const std::string launch : {"--nproc-per-node 1", "--nproc-per-node 2", "--nproc-per-node 3",
                                   "--simulate-nodes 2 --nproc-per-node 2"}) {
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

}  // namespace
}  // namespace cohort::examples
