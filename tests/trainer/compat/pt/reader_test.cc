// Which tensors and which other values a file has, without libtorch: the corpus' test compares elements.
#include "cohort/trainer/compat/pt/reader.h"

#include <set>
#include <string>

#include "cohort/trainer/compat/pt/error.h"
#include "cohort/trainer/compat/pt/pickle.h"
#include "cohort/trainer/compat/pt/stored_tensor.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace cohort::trainer::pt {
namespace {

using std::string_literals::operator""s;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

TEST(Reader, NamesTensorsAndOtherValues) {
  Reader reader(COHORT_PT_CORPUS "/v1_scalars.pt");
  ASSERT_EQ(reader.contents().tensors.size(), 1U);
  const StoredTensor& tensor = reader.contents().tensors.at("w");
  EXPECT_EQ(tensor.type, "float32");
  EXPECT_THAT(tensor.sizes, ElementsAre(2));
  EXPECT_EQ(reader.Elements(tensor).size(), 8U);
  EXPECT_THAT(reader.contents().left_out, ElementsAre(Pair("b", "numpy.bool_"), Pair("f", "numpy.float64"),
                                                      Pair("i", "numpy.int32"), Pair("s", "numpy scalar")));
}

TEST(Reader, NamesValuesByTheirTypes) {
  Reader reader(COHORT_PT_CORPUS "/v1_library.pt");
  const auto& left_out = reader.contents().left_out;
  EXPECT_EQ(left_out.at("date"), "datetime.datetime");
  EXPECT_EQ(left_out.at("call"), "functools.partial");
  EXPECT_EQ(left_out.at("path"), "pathlib.PurePosixPath");
  EXPECT_EQ(left_out.at("color"), "__main__.Color");
}

TEST(Reader, NamesWhatAModuleHasBesideItsState) {
  Reader reader(COHORT_PT_CORPUS "/v1_net.pt");
  EXPECT_EQ(reader.contents().tensors.count("cache"), 0U);
  EXPECT_EQ(reader.contents().left_out.count("cache"), 1U);
  EXPECT_EQ(reader.contents().left_out.count("plain"), 1U);
}

// In dictionaries, lists, other objects and modules that are not registered. Tensors that are read are not named again.
TEST(Reader, NamesEveryTensorThatModulesHoldBesideTheirState) {
  Reader reader(COHORT_PT_CORPUS "/v1_beside.pt");
  EXPECT_EQ(reader.contents().tensors.size(), 2U);
  std::set<std::string> names;
  for (const auto& [name, type] : reader.contents().left_out) {
    EXPECT_EQ(type, "torch.Tensor, which state_dict() leaves out") << name;
    names.insert(name);
  }
  EXPECT_THAT(names, ElementsAre("config.scale", "plain", "table.a", "table.deep.0", "table.deep.1.weight",
                                 "unregistered.0.bias", "unregistered.0.weight", "up.own.x"));
}

TEST(Reader, SharesElementsThatTheFileShares) {
  Reader reader(COHORT_PT_CORPUS "/v1_tied.pt");
  const auto& tensors = reader.contents().tensors;
  EXPECT_EQ(reader.NameOfElements(tensors.at("a")), reader.NameOfElements(tensors.at("b")));
  EXPECT_EQ(reader.NameOfElements(tensors.at("a")), reader.NameOfElements(tensors.at("c")));
}

// A tensor of uint64 in an untyped storage, whose size is in bytes: the offset is the last element's.
std::string TensorInBytes(char offset) {
  return "ctorch._utils\n_rebuild_tensor_v3\n((X\7\0\0\0storagectorch.storage\nUntypedStorage\nX\1\0\0\0000"
         "X\3\0\0\0cpuK\x30tQK"s +
         offset + "K\1\x85K\1\x85\x89}ctorch\nuint64\ntR."s;
}

TEST(Reader, CountsAnUntypedStorageInTheTensorsElements) {
  const std::string inside = TensorInBytes(5), outside = TensorInBytes(6);
  EXPECT_EQ(ReadTensor(Pickle(inside).Run()).offset, 5);
  try {
    ReadTensor(Pickle(outside).Run());
    FAIL() << "took a tensor beyond its storage";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("reaches beyond its storage of 6 elements"));
  }
}

}  // namespace
}  // namespace cohort::trainer::pt
