// Trains digits in processes of their own and brings the final weights back, for tests that compare runs.
#pragma once

#include <sys/wait.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "cohort/trainer/examples/digits_net.h"
#include "cohort/trainer/state/checkpoint/remove_tree.h"
#include "gtest/gtest.h"
#include "torch/torch.h"

namespace cohort::examples {

class DigitsRuns : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = (std::filesystem::temp_directory_path() / "cohort-digits-XXXXXX").string();
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    folder_ = name;
  }
  void TearDown() override { trainer::RemoveTree(folder_); }

  struct Outcome {
    int status = 0;  // of waitpid
    std::string output;
    bool succeeded() const { return WIFEXITED(status) && WEXITSTATUS(status) == 0; }
  };

  // Runs `launch` digits_trainer `options` to its end.
  Outcome Run(const std::string& launch, const std::string& options) {
    const std::filesystem::path log = folder_ / "log";
    const std::string command =
        "timeout 300 " + launch + " " COHORT_DIGITS_TRAINER " " + options + " > " + log.string() + " 2>&1";
    Outcome outcome;
    outcome.status = std::system(command.c_str());
    std::stringstream text;
    text << command << "\n" << std::ifstream(log).rdbuf();
    outcome.output = text.str();
    return outcome;
  }

  // Trains, and returns the weights that were saved, as one vector.
  at::Tensor Train(const std::string& launch, const std::string& options) {
    const std::filesystem::path saved = folder_ / "weights.pt";
    const Outcome outcome = Run(launch, "--epochs 3 " + options + " --save " + saved.string());
    EXPECT_TRUE(outcome.succeeded()) << outcome.output;
    if (!outcome.succeeded()) return torch::zeros({1});
    auto net = std::make_shared<DigitsNet>(trainer::LocalDevice{}, trainer::LocalDevice{});
    std::shared_ptr<torch::nn::Module> module = net;
    torch::load(module, saved.string(), at::kCPU);
    std::filesystem::remove(saved);
    std::vector<at::Tensor> flat;
    for (const auto& parameter : net->parameters()) flat.push_back(parameter.detach().reshape({-1}));
    return torch::cat(flat);
  }

  std::filesystem::path folder_;
};

}  // namespace cohort::examples
