// Which tensors and which other values a file has, without libtorch: the corpus' test compares elements.
#include "cohort/trainer/compat/pt/reader.h"

#include <string>

#include "cohort/trainer/compat/pt/error.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace cohort::trainer::pt {
namespace {

using ::testing::ElementsAre;
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

TEST(Reader, SaysWhatAModuleHasBesideItsState) {
  Reader reader(COHORT_PT_CORPUS "/v1_net.pt");
  EXPECT_EQ(reader.contents().tensors.count("cache"), 0U);
  EXPECT_EQ(reader.contents().left_out.count("cache"), 1U);
  EXPECT_EQ(reader.contents().left_out.count("plain"), 1U);
}

TEST(Reader, SharesElementsThatTheFileShares) {
  Reader reader(COHORT_PT_CORPUS "/v1_tied.pt");
  const auto& tensors = reader.contents().tensors;
  EXPECT_EQ(reader.NameOfElements(tensors.at("a")), reader.NameOfElements(tensors.at("b")));
  EXPECT_EQ(reader.NameOfElements(tensors.at("a")), reader.NameOfElements(tensors.at("c")));
}

}  // namespace
}  // namespace cohort::trainer::pt
