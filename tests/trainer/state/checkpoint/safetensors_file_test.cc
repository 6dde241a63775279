#include "cohort/trainer/state/checkpoint/safetensors_file.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>

#include "cohort/trainer/base/error.h"
#include "cohort/trainer/state/checkpoint/checkpoint_file.h"
#include "cohort/trainer/state/checkpoint/remove_tree.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "torch/torch.h"

namespace cohort::trainer {
namespace {

using testing::HasSubstr;

class SafetensorsFile : public testing::Test {
 protected:
  SafetensorsFile() {
    std::string name = testing::TempDir() + "safetensors.XXXXXX";
    folder_ = ::mkdtemp(name.data());
    path_ = folder_ + "/file";
  }
  ~SafetensorsFile() override { RemoveTree(folder_); }

  void Write(const std::string& header, const std::string& data = "", int64_t length = -1) const {
    const auto bytes = static_cast<uint64_t>(length < 0 ? static_cast<int64_t>(header.size()) : length);
    std::string text;
    for (int i = 0; i < 8; ++i) text += static_cast<char>(bytes >> (8 * i));
    std::ofstream(path_, std::ios::binary) << text << header << data;
  }
  // The error of reading the file.
  std::string Error() const {
    try {
      ReadSafetensors(path_);
    } catch (const DistributedError& error) {
      return error.what_without_backtrace();
    }
    return "";
  }

  std::string folder_, path_;
};

TEST_F(SafetensorsFile, ReadsTheFilesThatItWrites) {
  std::vector<FilePiece> pieces;
  const at::Tensor a = torch::randn({2, 3}), b = torch::arange(5), c = torch::empty({0, 4}, at::kBFloat16);
  for (const auto& [name, tensor] : std::map<std::string, at::Tensor>{{"a", a}, {"b", b}, {"c", c}}) {
    pieces.push_back({.key = name, .shape = tensor.sizes().vec(), .data = tensor});
  }
  WriteTensors(path_, pieces, FilePlace::kAlone, {{"format", "pt"}});
  const auto tensors = ReadSafetensors(path_);
  ASSERT_EQ(tensors.size(), 3u);
  EXPECT_TRUE(torch::equal(tensors.at("a"), a));
  EXPECT_TRUE(torch::equal(tensors.at("b"), b));
  EXPECT_EQ(tensors.at("c").sizes(), c.sizes());
  EXPECT_EQ(tensors.at("c").scalar_type(), at::kBFloat16);
}

TEST_F(SafetensorsFile, RefusesFilesThatAreNoSafetensors) {
  std::ofstream(path_) << "short";
  EXPECT_THAT(Error(), HasSubstr("shorter than 8 bytes"));
  Write("{}", "", 1000);
  EXPECT_THAT(Error(), HasSubstr("longer than the file"));
  Write("{}", "", -2);
  EXPECT_THAT(Error(), testing::Not(HasSubstr("terminate")));
  Write("[]");
  EXPECT_THAT(Error(), HasSubstr("no JSON object"));
  Write(std::string(100000, '['));
  EXPECT_THAT(Error(), HasSubstr("nested too deep"));
  for (const auto& [entry, why] : std::map<std::string, std::string>{
           {R"({})", "has no dtype"},
           {R"({"dtype": 1, "shape": [1], "data_offsets": [0, 4]})", "another kind"},
           {R"({"dtype": "F7", "shape": [1], "data_offsets": [0, 4]})", "unknown type F7"},
           {R"({"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]})", "impossible shape"},
           {R"({"dtype": "F32", "shape": [4611686018427387904, 4], "data_offsets": [0, 0]})", "impossible shape"},
           {R"({"dtype": "F32", "shape": [0, 4611686018427387903, 16], "data_offsets": [0, 0]})", "impossible shape"},
           {R"({"dtype": "F32", "shape": [2], "data_offsets": [0, 4]})", "data_offsets"},
           {R"({"dtype": "F32", "shape": [1], "data_offsets": [4, 0]})", "data_offsets"},
           {R"({"dtype": "F32", "shape": [2], "data_offsets": [0, 8]})", "data_offsets"},
           {R"({"dtype": "F32", "shape": [1], "data_offsets": [0]})", "data_offsets"}}) {
    Write("{\"x\": " + entry + "}", "1234");
    EXPECT_THAT(Error(), HasSubstr(why)) << entry;
  }
  Write(
      R"({"x": {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]}, "y": {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]}})",
      "1234");
  EXPECT_THAT(Error(), HasSubstr("share bytes"));
  std::filesystem::remove(path_);
  EXPECT_THAT(Error(), HasSubstr(path_));
}

// Whatever bytes are changed, the file is read or refused.
TEST_F(SafetensorsFile, SurvivesAnyDamage) {
  std::vector<FilePiece> pieces = {{.key = "a", .shape = {2, 3}, .data = torch::randn({2, 3})}};
  WriteTensors(path_, pieces, FilePlace::kAlone);
  std::ifstream file(path_, std::ios::binary);
  const std::string whole((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  std::mt19937 random(1);
  for (int trial = 0; trial < 2000; ++trial) {
    std::string text = whole;
    for (int change = 0; change < 3; ++change) text[random() % text.size()] = static_cast<char>(random());
    if (trial % 4 == 0) text.resize(random() % text.size());
    std::ofstream(path_, std::ios::binary) << text;
    Error();
  }
}

}  // namespace
}  // namespace cohort::trainer
