#include "cohort/launcher/machine/program.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

namespace cohort::launcher {
namespace {

class FindProgramTest : public testing::Test {
 protected:
  FindProgramTest() {
    std::string pattern = (std::filesystem::temp_directory_path() / "program-test-XXXXXX").string();
    root_ = ::mkdtemp(pattern.data());
    for (const char* folder : {"first", "second", "here", "own"})
      std::filesystem::create_directory(root_ + "/" + folder);
  }
  ~FindProgramTest() override { std::filesystem::remove_all(root_); }
  void Add(const std::string& path, mode_t mode = 0755) {
    std::ofstream(root_ + "/" + path) << "#!/bin/sh\n";
    ::chmod((root_ + "/" + path).c_str(), mode);
  }
  absl::StatusOr<Program> Find(const std::string& name) {
    return FindProgram(name, root_ + "/first:" + root_ + "/second", root_ + "/here", root_ + "/own");
  }
  std::string root_;
};

TEST_F(FindProgramTest, LooksInPathThenHereThenBesideDlaunch) {
  Add("own/train");
  EXPECT_EQ(Find("train")->path, root_ + "/own/train");
  EXPECT_EQ(Find("train")->where, "beside dlaunch");
  Add("here/train");
  EXPECT_EQ(Find("train")->path, root_ + "/here/train");
  Add("second/train");
  EXPECT_EQ(Find("train")->path, root_ + "/second/train");
  EXPECT_EQ(Find("train")->where, "in PATH");
  Add("first/train");
  EXPECT_EQ(Find("train")->path, root_ + "/first/train");
}

TEST_F(FindProgramTest, NamesWithASlashAreRelativeToTheWorkingDirectory) {
  Add("here/train");
  EXPECT_EQ(Find("./train")->path, root_ + "/here/train");
  EXPECT_EQ(Find(root_ + "/here/train")->path, root_ + "/here/train");
  EXPECT_EQ(Find("./other").status().code(), absl::StatusCode::kNotFound);
}

TEST_F(FindProgramTest, NamesWhatIsNoFile) {
  ASSERT_EQ(::mkfifo((root_ + "/here/train").c_str(), 0755), 0);
  const absl::Status status = Find("./train").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(status.message(), root_ + "/here/train is a pipe, not a program");
}

TEST_F(FindProgramTest, PassesOverWhatCanNotBeExecuted) {
  Add("first/train", 0644);
  std::filesystem::create_directory(root_ + "/second/train");
  EXPECT_EQ(Find("train").status().code(), absl::StatusCode::kPermissionDenied);
  Add("own/train");
  EXPECT_EQ(Find("train")->path, root_ + "/own/train");
}

TEST_F(FindProgramTest, NamesThePlacesWhenThereIsNone) {
  const absl::Status status = Find("train").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_NE(std::string(status.message()).find(root_ + "/own"), std::string::npos) << status;
}

TEST_F(FindProgramTest, AnEmptyEntryOfPathIsTheWorkingDirectory) {
  Add("here/train");
  EXPECT_EQ(FindProgram("train", ":" + root_ + "/first", root_ + "/here", root_ + "/own")->where, "in PATH");
}

}  // namespace
}  // namespace cohort::launcher
