// What a checkpoint is written into, and what must not get lost by it.
#include "trainer/checkpoint_directory.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "trainer/error.h"

namespace cohort::trainer {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;

class PartialDirectories : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = (fs::temp_directory_path() / "cohort-partial-XXXXXX").string();
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    folder_ = name;
  }
  void TearDown() override { fs::remove_all(folder_); }

  std::string At(const std::string& name) const { return (folder_ / name).string(); }
  // A directory with these files, each with its name in it.
  std::string Directory(const std::string& name, const std::vector<std::string>& files) const {
    fs::create_directory(At(name));
    for (const std::string& file : files) std::ofstream(At(name) + "/" + file) << file;
    return At(name);
  }
  static std::string ErrorOf(const std::function<void()>& work) {
    try {
      work();
      return "";
    } catch (const DistributedError& error) {
      return error.what_without_backtrace();
    }
  }
  static std::string ErrorOfMaking(const std::string& directory) {
    return ErrorOf([&] { PartialDirectory partial(directory); });
  }
  fs::path folder_;
};

TEST_F(PartialDirectories, TakeTheirPlaceOrGo) {
  {
    const PartialDirectory dropped(At("step-1"));
    EXPECT_TRUE(fs::is_directory(At("step-1.partial")));
  }
  EXPECT_TRUE(fs::is_empty(folder_));
  Directory("step-1", {"index.json", "rank-00000-of-00001.safetensors", "note-of-the-user"});
  {
    PartialDirectory partial(At("step-1"));
    std::ofstream(At("step-1.partial") + "/index.json") << "new";
    partial.ExpectFile("index.json", 3);
    EXPECT_THAT(ErrorOf([&] { partial.ExpectFile("index.json", 4); }), HasSubstr("another size"));
    EXPECT_THAT(ErrorOf([&] { partial.ExpectFile("rank-00000-of-00001.safetensors", 4); }), HasSubstr("not there"));
    partial.Publish();
  }
  EXPECT_FALSE(fs::exists(At("step-1.partial")));
  EXPECT_EQ(fs::file_size(At("step-1") + "/index.json"), 3u);
}

TEST_F(PartialDirectories, AreMadeWithTheirParents) {
  PartialDirectory partial(At("runs/first/step-1"));
  EXPECT_TRUE(fs::is_directory(At("runs/first/step-1.partial")));
  partial.Publish();
  EXPECT_TRUE(fs::is_directory(At("runs/first/step-1")));
  std::ofstream(At("file")) << "precious";
  EXPECT_THROW(PartialDirectory(At("file/step-1")), fs::filesystem_error);
}

TEST_F(PartialDirectories, ReplaceNothingButCheckpoints) {
  Directory("home", {"precious"});
  Directory("web", {"index.json", "precious"});
  std::ofstream(At("file")) << "precious";
  for (const char* name : {"home", "web", "file"}) {
    EXPECT_THAT(ErrorOfMaking(At(name)), AllOf(HasSubstr(name), HasSubstr("no checkpoint"))) << name;
    EXPECT_FALSE(fs::exists(At(name) + std::string(".partial"))) << name;
  }
  EXPECT_TRUE(fs::exists(At("home/precious")) && fs::exists(At("web/precious")) && fs::is_regular_file(At("file")));
  Directory("without-index", {"rank-00000-of-00001.safetensors"});
  Directory("empty", {});
  for (const char* name : {"without-index", "empty"}) EXPECT_EQ(ErrorOfMaking(At(name)), "") << name;
  PartialDirectory partial(At("later"));
  Directory("later", {"precious"});
  EXPECT_THAT(ErrorOf([&] { partial.Publish(); }), HasSubstr("no checkpoint"));
  EXPECT_TRUE(fs::exists(At("later/precious")));
}

TEST_F(PartialDirectories, BelongToOneJob) {
  PartialDirectory first(At("step-1"));
  std::ofstream(At("step-1.partial") + "/rank-00000-of-00001.safetensors") << "half";
  EXPECT_THAT(ErrorOfMaking(At("step-1")), AllOf(HasSubstr("another job"), HasSubstr("step-1.partial")));
  EXPECT_TRUE(fs::exists(At("step-1.partial/rank-00000-of-00001.safetensors")));
  first.Publish();
  EXPECT_EQ(ErrorOfMaking(At("step-1")), "") << "when it is done the next one may";
}

// Where there are no locks another job may take it away.
TEST_F(PartialDirectories, AreNotPublishedWhenTheyAreAnothers) {
  {
    PartialDirectory first(At("step-1"));
    fs::remove_all(At("step-1.partial"));
    EXPECT_THAT(ErrorOf([&] { first.Publish(); }), HasSubstr("removed or replaced"));
    Directory("step-1.partial", {"rank-00000-of-00001.safetensors"});
    EXPECT_THAT(ErrorOf([&] { first.Publish(); }), HasSubstr("another job"));
  }
  EXPECT_TRUE(fs::exists(At("step-1.partial/rank-00000-of-00001.safetensors"))) << "the other's";
  EXPECT_FALSE(fs::exists(At("step-1")));
}

TEST_F(PartialDirectories, SweepWhatKilledRunsHaveLeft) {
  const std::vector<std::string> files = {"rank-00000-of-00002.safetensors", "rank-00001-of-00002.safetensors"};
  const auto age = [&](const std::string& directory) {
    const auto then = fs::file_time_type::clock::now() - std::chrono::hours(2);
    for (const fs::directory_entry& entry : fs::directory_iterator(directory)) fs::last_write_time(entry, then);
    fs::last_write_time(directory, then);
    return directory;
  };
  Directory("step-1.partial", files);  // of the same name, whatever its age
  age(Directory("step-2.partial", files));
  age(Directory("step-3.partial", {"rank-00000-of-00002.safetensors", "precious"}));
  Directory("step-4.partial", files);  // may be at work
  const int held = ::open(age(Directory("step-5.partial", files)).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  ASSERT_EQ(::flock(held, LOCK_EX | LOCK_NB), 0);
  age(Directory("step-6", files));
  PartialDirectory partial(At("step-1"));
  EXPECT_TRUE(fs::is_empty(At("step-1.partial")));
  EXPECT_FALSE(fs::exists(At("step-2.partial")));
  for (const char* name : {"step-3.partial", "step-4.partial", "step-5.partial", "step-6"}) {
    EXPECT_TRUE(fs::exists(At(name))) << name;
  }
  ::close(held);
}

}  // namespace
}  // namespace cohort::trainer
