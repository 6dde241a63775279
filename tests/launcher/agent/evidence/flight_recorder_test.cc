#include "cohort/launcher/agent/evidence/flight_recorder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace cohort::launcher {
namespace {

using std::chrono::seconds;
using testing::ElementsAre;

TEST(FlightRecorder, PathsOfDumpsAreThoseOfPyTorch) {
  EXPECT_THAT(DumpPaths({.rank = 12}), ElementsAre("/tmp/nccl_trace_rank_12"));
  EXPECT_THAT(DumpPaths({.rank = 0, .environment = {"HOME=/users", "XDG_CACHE_HOME=/c"}}),
              ElementsAre("/c/torch/comm_lib_trace_rank_0", "/users/.cache/torch/comm_lib_trace_rank_0",
                          "/tmp/nccl_trace_rank_0"));
  EXPECT_THAT(DumpPaths({.rank = 3, .environment = {"HOME=/h", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE=/d/of_"}}),
              ElementsAre("/d/of_3"));
  EXPECT_THAT(DumpPaths({.rank = 3,
                         .environment = {"TORCH_NCCL_DEBUG_INFO_TEMP_FILE=/d/of_", "TORCH_FR_DUMP_TEMP_FILE=new_"},
                         .working_directory = "/d"}),
              ElementsAre("/d/new_3"));
}

class FlightRecorderDumps : public testing::Test {
 protected:
  void SetUp() override {
    std::string folder = std::filesystem::temp_directory_path() / "cohort-dumps-XXXXXX";
    ASSERT_NE(::mkdtemp(folder.data()), nullptr);
    folder_ = folder;
  }
  ~FlightRecorderDumps() override { std::filesystem::remove_all(folder_); }
  std::string Write(const std::string& name, const std::string& content) const {
    std::ofstream(folder_ / name) << content;
    return folder_ / name;
  }
  EvidenceRank Rank(uint32_t rank) const {
    return {.rank = rank, .environment = {"TORCH_FR_DUMP_TEMP_FILE=" + (folder_ / "of_").string()}};
  }
  std::vector<Evidence> Ask(const std::vector<EvidenceRank>& ranks) {
    EventLoop loop;
    FlightRecorder recorder("flight recorder", &loop);
    std::optional<std::vector<Evidence>> found;
    EXPECT_TRUE(recorder.Ask({.ranks = ranks, .limit = seconds(60), .begun = begun_}, [&](std::vector<Evidence> all) {
      found = std::move(all);
      loop.Quit();
    }));
    EXPECT_FALSE(found.has_value());
    loop.Run();
    return *found;
  }

  std::filesystem::path folder_;
  // The file system's clock may lag behind by a tick.
  const std::chrono::system_clock::time_point begun_ = std::chrono::system_clock::now() - seconds(10);
};

TEST_F(FlightRecorderDumps, DumpsAreNamedWithTheirRanks) {
  const std::string one = Write("of_1", "12345");
  const std::string other = Write("of_3", "123");
  const std::vector<Evidence> found = Ask({Rank(0), Rank(1), Rank(3)});
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].text, one + ": 5 bytes, of rank 1\n" + other + ": 3 bytes, of rank 3\n");
  EXPECT_THAT(LinesOf(found[0], "says", 1), ElementsAre(testing::HasSubstr("c10d's flight recorder left dumps"),
                                                        testing::HasSubstr("of_1: 5 bytes"), "  and 1 more lines"));
}

TEST_F(FlightRecorderDumps, WithoutADumpThereIsNoEvidence) { EXPECT_TRUE(Ask({Rank(0), Rank(1)}).empty()); }

TEST_F(FlightRecorderDumps, DumpsOfAnotherJobOrOwnerAreNotNamed) {
  const std::string path = Write("of_1", "12345");
  EXPECT_NE(DescribeDump(path, 1, begun_), "");
  EXPECT_EQ(DescribeDump(path, 1, begun_ + seconds(600)), "");
  EXPECT_EQ(DescribeDump(Write("of_2", ""), 2, begun_), "");  // it is still written, or never was
  EXPECT_EQ(DescribeDump(folder_, 1, begun_), "");
  const std::string link = folder_ / "link";
  std::filesystem::create_symlink(path, link);
  EXPECT_EQ(DescribeDump(link, 1, begun_), "");
  if (::geteuid() != 0) GTEST_SKIP() << "only root can give a file away";
  ASSERT_EQ(::chown(path.c_str(), 12345, 12345), 0);
  EXPECT_EQ(DescribeDump(path, 1, begun_), "");
}

}  // namespace
}  // namespace cohort::launcher
