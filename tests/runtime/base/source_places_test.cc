#include "cohort/runtime/base/source_places.h"

#include <gtest/gtest.h>

#include <source_location>
#include <string>

namespace cohort::runtime {
namespace {

TEST(SourcePlacesTest, APlaceHasTheNameAndLineThatItWasMadeFrom) {
  SourcePlaces places("nowhere");
  std::string file = "solver.f90";
  const std::source_location first = places.At(places.Keep(file), 12);
  const std::source_location second = places.At(places.Keep(file), 13);
  file.assign(file.size(), 'x');
  EXPECT_STREQ(first.file_name(), "solver.f90");
  EXPECT_STREQ(first.function_name(), "");
  EXPECT_EQ(first.line(), 12u);
  EXPECT_EQ(second.line(), 13u);
  EXPECT_EQ(first.file_name(), second.file_name()) << "a name is kept once";
}

TEST(SourcePlacesTest, PlacesBeyondTheBoundAreUnknownAndEarlierOnesStay) {
  SourcePlaces places("nowhere");
  const char* const file = places.Keep("made.jl");
  for (unsigned line = 1; line <= SourcePlaces::kMostPlaces; ++line) ASSERT_EQ(places.At(file, line).line(), line);
  EXPECT_STREQ(places.At(file, 70'000).file_name(), "nowhere");
  EXPECT_STREQ(places.At(file, 1).file_name(), "made.jl");
}

TEST(SourcePlacesTest, NamesBeyondTheBoundAreUnknown) {
  SourcePlaces places("nowhere");
  EXPECT_STREQ(places.At(places.Keep(std::string(SourcePlaces::kLongestName + 1, 'n')), 7).file_name(), "nowhere");
  for (size_t i = 0; i < SourcePlaces::kMostPlaces; ++i) ASSERT_STRNE(places.Keep(std::to_string(i)), "nowhere");
  EXPECT_STREQ(places.Keep("one more"), "nowhere");
  EXPECT_STREQ(places.Keep("17"), "17");
}

}  // namespace
}  // namespace cohort::runtime
