// Files as Python writes them (Debian's python3-torch, where it is there) and as somebody who means harm does.
#include "cohort/trainer/compat/pt_file.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <random>
#include <sstream>
#include <string>

#include "cohort/trainer/state/checkpoint/remove_tree.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "torch/torch.h"

namespace cohort::trainer {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

class PtFile : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = (fs::temp_directory_path() / "cohort-pt-XXXXXX").string();
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    folder_ = name;
    if (std::system("/usr/bin/python3 -c 'import torch' > /dev/null 2>&1") != 0) {
      GTEST_SKIP() << "needs python3-torch, which writes the files";
    }
  }
  void TearDown() override { RemoveTree(folder_); }

  // Returns the file that `save` makes as `path`, in Python, with torch and nn.
  std::string Written(const std::string& save) const {
    const std::string path = (folder_ / "file.pt").string(), script = (folder_ / "write.py").string();
    std::ofstream(script) << "import sys, collections, os\nimport torch\nfrom torch import nn\npath = sys.argv[1]\n"
                          << save << "\n";
    EXPECT_EQ(std::system(("/usr/bin/python3 " + script + " " + path).c_str()), 0);
    return path;
  }
  static std::string ErrorOf(const std::string& path) {
    try {
      ReadPtFile(path);
      return "";
    } catch (const c10::Error& error) {
      return error.what_without_backtrace();
    }
  }
  fs::path folder_;
};

struct Net : torch::nn::Module {
  torch::nn::Linear up = register_module("up", torch::nn::Linear(3, 4));
  torch::nn::BatchNorm1d norm = register_module("norm", torch::nn::BatchNorm1d(4));
};

TEST_F(PtFile, GivesTheStateOfAModule) {
  const std::string path = Written(R"(
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Linear(3, 4)
        self.norm = nn.BatchNorm1d(4)
net = Net()
with torch.no_grad():
    net.up.weight.copy_(torch.arange(12.0).view(4, 3))
    net.norm.running_mean.fill_(7)
torch.save(net.state_dict(), path))");
  Net net;
  load_state_dict(net, ReadPtFile(path));
  EXPECT_TRUE(torch::equal(net.up->weight, torch::arange(12.0).view({4, 3})));
  EXPECT_TRUE(torch::equal(net.norm->running_mean, torch::full({4}, 7.0)));
  struct Other : torch::nn::Module {
    torch::nn::Linear up = register_module("up", torch::nn::Linear(3, 5));
  } other;
  EXPECT_THROW(load_state_dict(other, ReadPtFile(path)), c10::Error);
}

TEST_F(PtFile, GivesViewsTypesAndNestedDictionaries) {
  const auto found = ReadPtFile(Written(R"(
whole = torch.arange(24.0).view(4, 6)
torch.save({"model": {"a": whole, "b": whole[1:3].t()}, "step": 7, "rate": 0.5, "name": "x", "none": None,
            "list": [torch.tensor([1, -2]), torch.tensor(True)], "half": torch.ones(2, dtype=torch.bfloat16),
            "big": 2 ** 40, "parameter": nn.Parameter(torch.zeros(0, 3))}, path))"));
  EXPECT_EQ(found.size(), 6u);
  const at::Tensor whole = torch::arange(24.0).view({4, 6});
  EXPECT_TRUE(torch::equal(found.at("model.a"), whole));
  EXPECT_TRUE(torch::equal(found.at("model.b"), whole.narrow(0, 1, 2).t()));
  EXPECT_TRUE(torch::equal(found.at("list.0"), torch::tensor({1, -2})));
  EXPECT_TRUE(torch::equal(found.at("list.1"), torch::tensor(true)));
  EXPECT_TRUE(torch::equal(found.at("half"), torch::ones({2}, torch::kBFloat16)));
  EXPECT_EQ(found.at("parameter").sizes(), (std::vector<int64_t>{0, 3}));
}

TEST_F(PtFile, ExecutesNoCodeOfAFile) {
  const std::string path = Written(R"(
class Evil:
    def __reduce__(self):
        return os.system, ("touch " + path + ".executed",)
torch.save({"a": torch.ones(2), "b": Evil(), "epoch": 7}, path))");
  std::map<std::string, std::string> left_out;
  const auto found = ReadPtFile(path, &left_out);
  EXPECT_EQ(found.size(), 1u);
  EXPECT_TRUE(torch::equal(found.at("a"), torch::ones(2)));
  EXPECT_EQ(left_out, (std::map<std::string, std::string>{{"b", "posix.system"}, {"epoch", "int"}}));
  EXPECT_FALSE(fs::exists(folder_ / "file.pt.executed"));
  EXPECT_THAT(ErrorOf((folder_ / "none.pt").string()), HasSubstr("none.pt"));
  EXPECT_THAT(ErrorOf(folder_.string()), HasSubstr("it is a directory"));
}

TEST_F(PtFile, GivesTheStateOfAWholeModule) {
  torch::nn::Linear linear(3, 2);
  load_state_dict(*linear, ReadPtFile(Written(R"(
linear = nn.Linear(3, 2)
with torch.no_grad():
    linear.weight.copy_(torch.arange(6.0).view(2, 3))
torch.save(linear, path))")));
  EXPECT_TRUE(torch::equal(linear->weight, torch::arange(6.0).view({2, 3})));
}

TEST_F(PtFile, SharesWhatTheFileShares) {
  const auto found = ReadPtFile(Written(R"(
w = torch.zeros(4)
torch.save({"a": w, "b": w[2:], "p": nn.Parameter(w)}, path))"));
  found.at("a").fill_(3);
  EXPECT_TRUE(torch::equal(found.at("b"), torch::full({2}, 3.0)));
  EXPECT_FALSE(found.at("p").requires_grad());
}

// Any bytes are refused or give some tensors; a sanitizer build sees whether they do harm.
TEST_F(PtFile, SurvivesDamage) {
  const std::string path = Written("torch.save(nn.Linear(3, 4).state_dict(), path)");
  std::stringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  const std::string whole = text.str();
  const uint32_t seed = std::random_device()();
  std::mt19937 random(seed);
  int refused = 0;
  for (int trial = 0; trial < 600; ++trial) {
    std::string damaged = whole;
    if (trial % 3 == 0) {
      damaged.resize(random() % whole.size());
    } else {
      damaged[random() % whole.size()] ^= static_cast<char>(1 << random() % 8);
    }
    const std::string broken = (folder_ / "broken.pt").string();
    std::ofstream(broken, std::ios::binary) << damaged;
    refused += ErrorOf(broken).empty() ? 0 : 1;
  }
  EXPECT_GE(refused, 200) << "all that are cut, seed " << seed;
}

}  // namespace
}  // namespace cohort::trainer
