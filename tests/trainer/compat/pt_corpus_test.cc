// Files that PyTorch 1.13 and 2.15 wrote (pt_corpus/make.py), against what Python's own torch.load reads of them.
#include <algorithm>
#include <cctype>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "cohort/trainer/compat/pt_file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/trainer/error_of.h"
#include "torch/torch.h"

namespace cohort::trainer {
namespace {

using ::testing::HasSubstr;

struct Expected {
  std::map<std::string, std::string> tensors;  // "type sizes checksum" by name
  std::set<std::string> left_out;
  std::string refused;  // a part of the error
  std::string missing;  // a type that not every libtorch has, as it is called there
};

std::vector<std::string> Fields(const std::string& line) {
  std::vector<std::string> fields;
  std::istringstream text(line);
  for (std::string field; std::getline(text, field, '\t');) fields.push_back(field);
  return fields;
}

// Adds what a listing of tab-separated fields says: "file", "tensor", "left", "refused" and "needs".
void AddListing(const std::string& path, std::map<std::string, Expected>& listing) {
  std::ifstream text(path);
  Expected* file = nullptr;
  for (std::string line; std::getline(text, line);) {
    std::vector<std::string> fields = Fields(line);
    fields.resize(std::max<size_t>(fields.size(), 2));
    if (fields[0] == "file") {
      file = &listing[fields[1]];
    } else if (fields[0] == "tensor") {
      file->tensors[fields[1]] = fields.at(2);
    } else if (fields[0] == "left") {
      file->left_out.insert(fields[1]);
    } else if (fields[0] == "refused") {
      file->refused = fields[1];
    } else if (fields[0] == "needs") {
      file->missing = fields[1];
    }
  }
}

uint32_t Crc32(const uint8_t* data, size_t size) {
  uint32_t sum = 0xffffffff;
  for (size_t i = 0; i < size; ++i) {
    sum ^= data[i];
    for (int bit = 0; bit < 8; ++bit) sum = (sum >> 1) ^ ((sum & 1) != 0 ? 0xedb88320 : 0);
  }
  return ~sum;
}

std::string Described(const at::Tensor& tensor) {
  std::ostringstream text;
  text << c10::toString(tensor.scalar_type()) << ' ' << tensor.sizes() << ' ';
  if (tensor.is_meta()) {
    text << "meta";
    return text.str();
  }
  if (tensor.layout() != at::kStrided) text << tensor.layout() << ' ';
  const at::Tensor dense = (tensor.layout() == at::kStrided ? tensor : tensor.to_dense()).contiguous();
  text << std::hex << Crc32(static_cast<const uint8_t*>(dense.data_ptr()), dense.nbytes());
  return text.str();
}

bool Has(const std::string& type) {
  for (int i = 0; i < static_cast<int>(at::ScalarType::NumOptions); ++i) {
    if (type == c10::toString(static_cast<at::ScalarType>(i))) return true;
  }
  return false;
}

std::string ErrorOfReading(const std::string& path) {
  return ErrorOf([&] { ReadPtFile(path); });
}

TEST(PtCorpus, EveryTensorIsAsPythonReadsIt) {
  std::map<std::string, Expected> listing;
  for (const char version : {'1', '2'})
    AddListing(std::string(COHORT_PT_CORPUS "/expected_") + version + ".txt", listing);
  ASSERT_GE(listing.size(), 60U);
  for (const auto& [file, expected] : listing) {
    SCOPED_TRACE(file);
    const std::string path = std::string(COHORT_PT_CORPUS "/") + file;
    if (!expected.missing.empty() && !Has(expected.missing)) {
      std::string type = expected.missing;  // "UInt16", in Python "torch.uint16"
      for (char& letter : type) letter = static_cast<char>(std::tolower(static_cast<unsigned char>(letter)));
      EXPECT_THAT(ErrorOfReading(path), HasSubstr("the type torch." + type));
      continue;
    }
    if (!expected.refused.empty()) {
      const std::string error = ErrorOfReading(path);
      EXPECT_THAT(error, HasSubstr(expected.refused));
      EXPECT_THAT(error, HasSubstr(file));
      continue;
    }
    std::map<std::string, std::string> left_out, read;
    for (const auto& [name, tensor] : ReadPtFile(path, &left_out)) read[name] = Described(tensor);
    EXPECT_EQ(read, expected.tensors);
    for (const std::string& name : expected.left_out) EXPECT_EQ(left_out.count(name), 1U) << name;
  }
}

}  // namespace
}  // namespace cohort::trainer
