// Files of other writers (make_safetensors_corpus.py) are read, or refused with their tensor and what it has.
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "cohort/trainer/base/error.h"
#include "cohort/trainer/state/checkpoint/checkpoint_file.h"
#include "cohort/trainer/state/checkpoint/remove_tree.h"
#include "cohort/trainer/state/checkpoint/safetensors_file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "torch/torch.h"

namespace cohort::trainer {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

const std::string kCorpus = COHORT_SAFETENSORS_CORPUS "/";

// Element i is i % 5.
bool AreCounted(const at::Tensor& tensor) {
  const at::Tensor expected = torch::arange(tensor.numel()).remainder(5).view(tensor.sizes());
  const at::ScalarType type = at::isComplexType(tensor.scalar_type()) ? at::kComplexDouble : at::kDouble;
  return torch::equal(tensor.to(type), (tensor.scalar_type() == at::kBool ? expected.ne(0) : expected).to(type));
}

std::string ErrorOfReading(const std::string& path) {
  try {
    ReadSafetensors(path);
  } catch (const DistributedError& error) {
    EXPECT_NE(error.code(), absl::StatusCode::kOk);
    return error.what_without_backtrace();
  }
  return "";
}

TEST(SafetensorsCorpus, EveryTypeIsRead) {
  const auto tensors = ReadSafetensors(kCorpus + "types.safetensors");
  for (const char* name :
       {"bool", "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64"}) {
    SCOPED_TRACE(name);
    ASSERT_TRUE(tensors.contains(name));
    EXPECT_EQ(tensors.at(name).sizes(), (std::vector<int64_t>{2, 3}));
    EXPECT_TRUE(AreCounted(tensors.at(name)));
  }
  EXPECT_EQ(tensors.at("scalar").dim(), 0);
  EXPECT_EQ(tensors.at("scalar").item<float>(), 3);
  EXPECT_EQ(tensors.at("empty").sizes(), (std::vector<int64_t>{0, 4}));
  EXPECT_EQ(tensors.at("empty_inside").sizes(), (std::vector<int64_t>{2, 0, 3}));
  EXPECT_EQ(tensors.size(), 13u);
  EXPECT_TRUE(ReadSafetensors(kCorpus + "none.safetensors").empty());
}

// Types that not every libtorch has are read where they are there.
TEST(SafetensorsCorpus, NewerTypesAreReadOrNamed) {
  int refused = 0;
  for (const auto& entry : fs::directory_iterator(kCorpus)) {
    const std::string file = entry.path().filename().string();
    if (!file.starts_with("new")) continue;
    SCOPED_TRACE(file);
    const std::string name = entry.path().stem().string().substr(file.find('_') + 1);
    const std::string error = ErrorOfReading(entry.path().string());
    if (error.empty()) {
      EXPECT_TRUE(file.starts_with("new_"));
      EXPECT_TRUE(AreCounted(ReadSafetensors(entry.path().string()).at(name)));
    } else {
      EXPECT_THAT(error, HasSubstr("tensor " + name + " has the type "));
      EXPECT_THAT(error, HasSubstr("which libtorch " TORCH_VERSION " has not"));
      ++refused;
    }
  }
  EXPECT_GE(refused, 4);
}

TEST(SafetensorsCorpus, DataMayBeginAnywhere) {
  const auto tensors = ReadSafetensors(kCorpus + "unaligned.safetensors");
  EXPECT_TRUE(AreCounted(tensors.at("early")));
  EXPECT_TRUE(AreCounted(tensors.at("late")));
}

TEST(SafetensorsCorpus, FilesThatAreNoSafetensorsAreRefused) {
  EXPECT_THAT(ErrorOfReading(kCorpus + "refused_twice.safetensors"), HasSubstr("has the key a twice"));
  EXPECT_THAT(ErrorOfReading(kCorpus + "refused_overlap.safetensors"), HasSubstr("tensors share bytes: b"));
  EXPECT_THAT(ErrorOfReading(kCorpus + "refused_hole.safetensors"), HasSubstr("bytes before b are no tensor's"));
  EXPECT_THAT(ErrorOfReading(kCorpus + "refused_tail.safetensors"), HasSubstr("its last bytes are no tensor's"));
}

TEST(SafetensorsCorpus, AnIndexStandsForItsFiles) {
  const auto tensors = ReadSafetensors(kCorpus + "model.safetensors.index.json");
  EXPECT_EQ(tensors.size(), 3u);
  for (const auto& [name, tensor] : tensors) EXPECT_TRUE(AreCounted(tensor)) << name;
  std::string folder = testing::TempDir() + "shards.XXXXXX";
  ASSERT_NE(::mkdtemp(folder.data()), nullptr);
  for (const char* file : {"model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"}) {
    fs::copy_file(kCorpus + file, folder + "/" + file);
  }
  const std::string path = folder + "/model.safetensors.index.json";
  const auto error = [&](const std::string& map) {
    std::ofstream(path) << R"({"weight_map": {)" << map << "}}";
    return ErrorOfReading(path);
  };
  const std::string first = R"("up.weight": "model-00001-of-00002.safetensors")";
  const std::string weight = R"("down.weight": "model-00002-of-00002.safetensors")";
  const std::string bias = R"("down.bias": "model-00002-of-00002.safetensors")";
  EXPECT_EQ(error(first + "," + weight + "," + bias), "");
  EXPECT_THAT(error(first + "," + weight), HasSubstr("has tensor down.bias, which"));
  EXPECT_THAT(error(first + R"(, "other": "model-00001-of-00002.safetensors")"), HasSubstr("says that tensor other"));
  EXPECT_THAT(error(first + "," + first), HasSubstr("weight_map.up.weight twice"));
  EXPECT_THAT(error(R"("a": "../model.safetensors")"), HasSubstr("no name of one beside it"));
  EXPECT_THAT(error(R"("a": 3)"), HasSubstr("the file of a is 3"));
  EXPECT_THAT(error(R"("a": "gone.safetensors")"), HasSubstr("gone.safetensors"));
  std::ofstream(path) << "[]";
  EXPECT_THAT(ErrorOfReading(path), HasSubstr("has no weight_map"));
  RemoveTree(folder);
}

}  // namespace
}  // namespace cohort::trainer
