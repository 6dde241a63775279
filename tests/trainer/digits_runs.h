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

#include "gtest/gtest.h"
#include "torch/torch.h"
#include "trainer/examples/digits_net.h"

namespace cohort::examples {

class DigitsRuns : public testing::Test {
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

}  // namespace cohort::examples
