#include "cohort/trainer/state/checkpoint/remove_tree.h"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <system_error>

namespace cohort::trainer {
namespace {

namespace fs = std::filesystem;

class RemoveTreeTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = (fs::temp_directory_path() / "cohort-remove-XXXXXX").string();
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    folder_ = name;
  }
  void TearDown() override { RemoveTree(folder_); }
  static void Write(const fs::path& path) { std::ofstream(path) << "1"; }

  fs::path folder_;
};

TEST_F(RemoveTreeTest, RemovesAllBelowAndNothingElse) {
  fs::create_directories(folder_ / "gone" / "deep" / "deeper");
  Write(folder_ / "gone" / "deep" / "file");
  Write(folder_ / "kept");
  fs::create_symlink(folder_ / "kept", folder_ / "gone" / "link");
  fs::create_directory_symlink(folder_, folder_ / "gone" / "up");
  RemoveTree(folder_ / "gone");
  EXPECT_FALSE(fs::exists(folder_ / "gone"));
  EXPECT_TRUE(fs::exists(folder_ / "kept")) << "a link was followed";
}

TEST_F(RemoveTreeTest, RemovesAFileAndTakesAnAbsentPath) {
  Write(folder_ / "file");
  std::error_code error = std::make_error_code(std::errc::io_error);
  RemoveTree(folder_ / "file", error);
  EXPECT_FALSE(error) << error.message();
  EXPECT_FALSE(fs::exists(folder_ / "file"));
  EXPECT_NO_THROW(RemoveTree(folder_ / "file"));
}

TEST_F(RemoveTreeTest, ReportsThatSomethingIsLeft) {
  std::error_code error;
  RemoveTree("/proc/self/task", error);  // nobody may, root neither
  EXPECT_TRUE(error);
  EXPECT_THROW(RemoveTree("/proc/self/task"), fs::filesystem_error);
}

}  // namespace
}  // namespace cohort::trainer
