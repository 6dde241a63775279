// The directory that a checkpoint is written into, and the files that it must not lose.
#include "cohort/trainer/state/checkpoint/checkpoint_directory.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "cohort/trainer/base/error.h"
#include "cohort/trainer/state/checkpoint/checkpoint_folder.h"
#include "cohort/trainer/state/checkpoint/remove_tree.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace {

// A file system without locks, without exchanges, or with renames that fail: what the calls below say, 0 for the truth.
// They stand before the C library's, in this program.
int lock_error = 0;
int exchange_error = 0;
int renames_left = -1;  // then one fails

int Fail(int error) {
  errno = error;
  return -1;
}

}  // namespace

extern "C" int flock(int fd, int operation) noexcept {
  return lock_error != 0 ? Fail(lock_error) : static_cast<int>(::syscall(SYS_flock, fd, operation));
}
extern "C" int renameat2(int from_folder, const char* from, int to_folder, const char* to,
                         unsigned int flags) noexcept {
  if (exchange_error != 0) return Fail(exchange_error);
  return static_cast<int>(::syscall(SYS_renameat2, from_folder, from, to_folder, to, flags));
}
extern "C" int rename(const char* from, const char* to) noexcept {
  if (renames_left >= 0 && --renames_left < 0) return Fail(EIO);
  return static_cast<int>(::syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0));
}

namespace cohort::trainer {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class PartialDirectories : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = (fs::temp_directory_path() / "cohort-partial-XXXXXX").string();
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    folder_ = name;
  }
  void TearDown() override {
    lock_error = exchange_error = 0;
    renames_left = -1;
    RemoveTree(folder_);
  }

  std::string At(const std::string& name) const { return (folder_ / name).string(); }
  // A directory with these files, each with its name in it.
  std::string Directory(const std::string& name, const std::vector<std::string>& files) const {
    fs::create_directory(At(name));
    for (const std::string& file : files) std::ofstream(At(name) + "/" + file) << file;
    return At(name);
  }
  // A checkpoint whose index says `text`, saved as `name`.
  void Save(const std::string& name, const std::string& text) const {
    PartialDirectory partial(At(name));
    std::ofstream(At(name + ".partial") + "/index.json") << text;
    std::ofstream(At(name + ".partial") + "/rank-00000-of-00001.safetensors") << text;
    partial.Publish();
  }
  // Returns the index that a reader of `name` finds.
  std::string Read(const std::string& name) const {
    std::string text;
    std::ifstream(ReadablePath(At(name)) + "/index.json") >> text;
    return text;
  }
  std::vector<std::string> Names() const {
    std::vector<std::string> names;
    for (const fs::directory_entry& entry : fs::directory_iterator(folder_)) names.push_back(entry.path().filename());
    std::sort(names.begin(), names.end());
    return names;
  }
  std::vector<std::string> Found() const {
    std::vector<std::string> names;
    for (const std::string& path : CheckpointsIn(folder_.string())) names.push_back(fs::path(path).filename());
    return names;
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

TEST_F(PartialDirectories, APartialDirectoryTakesItsPlaceOrGoes) {
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

TEST_F(PartialDirectories, APartialDirectoryIsMadeWithItsParents) {
  PartialDirectory partial(At("runs/first/step-1"));
  EXPECT_TRUE(fs::is_directory(At("runs/first/step-1.partial")));
  partial.Publish();
  EXPECT_TRUE(fs::is_directory(At("runs/first/step-1")));
  std::ofstream(At("file")) << "precious";
  EXPECT_THROW(PartialDirectory(At("file/step-1")), fs::filesystem_error);
}

TEST_F(PartialDirectories, PublishingReplacesNothingButCheckpoints) {
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

TEST_F(PartialDirectories, APartialDirectoryBelongsToOneJob) {
  PartialDirectory first(At("step-1"));
  std::ofstream(At("step-1.partial") + "/rank-00000-of-00001.safetensors") << "half";
  EXPECT_THAT(ErrorOfMaking(At("step-1")), AllOf(HasSubstr("another job"), HasSubstr("step-1.partial")));
  EXPECT_TRUE(fs::exists(At("step-1.partial/rank-00000-of-00001.safetensors")));
  first.Publish();
  EXPECT_EQ(ErrorOfMaking(At("step-1")), "") << "when it is done the next one may";
}

// Without locks another job may take it away.
TEST_F(PartialDirectories, APartialDirectoryOfAnotherJobIsNotPublished) {
  {
    PartialDirectory first(At("step-1"));
    RemoveTree(At("step-1.partial"));
    EXPECT_THAT(ErrorOf([&] { first.Publish(); }), HasSubstr("removed or replaced"));
    Directory("step-1.partial", {"rank-00000-of-00001.safetensors"});
    EXPECT_THAT(ErrorOf([&] { first.Publish(); }), HasSubstr("another job"));
  }
  EXPECT_TRUE(fs::exists(At("step-1.partial/rank-00000-of-00001.safetensors"))) << "the other's";
  EXPECT_FALSE(fs::exists(At("step-1")));
}

TEST_F(PartialDirectories, LeftoversOfKilledRunsAreSwept) {
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

// As on NFS, or under a kernel or a filter that does not know the call.
TEST_F(PartialDirectories, PublishingReplacesInStepsWhereNothingCanBeExchanged) {
  for (const int error : {EINVAL, ENOSYS, EOPNOTSUPP}) {
    exchange_error = 0;
    Save("latest", "old");
    exchange_error = error;
    Save("latest", "new");
    EXPECT_EQ(Read("latest"), "new") << error;
    EXPECT_THAT(Names(), ElementsAre("latest")) << error;
  }
  exchange_error = EACCES;
  EXPECT_THAT(ErrorOf([&] { Save("latest", "newer"); }), AllOf(HasSubstr("can't rename"), HasSubstr("latest")));
  EXPECT_EQ(Read("latest"), "new");
  exchange_error = EINVAL;
  Directory("latest.replaced", {"precious"});
  EXPECT_THAT(ErrorOf([&] { Save("latest", "newer"); }),
              AllOf(HasSubstr("latest.replaced"), HasSubstr("no checkpoint")));
  EXPECT_EQ(Read("latest"), "new");
  EXPECT_TRUE(fs::exists(At("latest.replaced/precious")));
}

// Whatever a job is killed before, or a rename that fails: one of the two checkpoints is whole and found.
TEST_F(PartialDirectories, NothingIsLostBetweenTheSteps) {
  exchange_error = EINVAL;
  Save("latest", "old");
  for (const int done : {0, 1}) {
    renames_left = done;
    EXPECT_THAT(ErrorOf([&] { Save("latest", "new"); }), HasSubstr("can't rename")) << done;
    EXPECT_EQ(Read("latest"), "old") << done;
    EXPECT_THAT(Names(), ElementsAre("latest")) << "put back";
    renames_left = -1;
  }
  fs::rename(At("latest"), At("latest.replaced"));  // killed between the renames
  EXPECT_EQ(Read("latest"), "old");
  EXPECT_THAT(Found(), ElementsAre("latest"));
  Save("other", "x");
  EXPECT_EQ(Read("latest"), "old") << "others' are left alone";
  fs::copy(At("latest.replaced"), At("latest.partial"));  // and so is the next one, before it is published
  EXPECT_EQ(Read("latest"), "old");
  Save("latest", "new");
  EXPECT_EQ(Read("latest"), "new");
  EXPECT_THAT(Names(), ElementsAre("latest", "other"));
  Directory("latest.replaced", {"index.json"});  // killed before the old one was gone
  EXPECT_EQ(Read("latest"), "new");
  EXPECT_THAT(Found(), ElementsAre("other", "latest"));
  Save("latest", "newest");
  EXPECT_EQ(Read("latest"), "newest");
  EXPECT_THAT(Names(), ElementsAre("latest", "other"));
}

// The one that came first gets an error; what is published is the other's, whole.
TEST_F(PartialDirectories, TheFirstOfTwoJobsWithoutLocksFails) {
  for (const int error : {ENOLCK, EOPNOTSUPP, EINVAL, EBADF}) {
    lock_error = error;
    Save("step-1", "alone");
    EXPECT_EQ(Read("step-1"), "alone");
    PartialDirectory first(At("step-1"));
    std::ofstream(At("step-1.partial") + "/index.json") << "first";
    PartialDirectory second(At("step-1"));
    EXPECT_THAT(ErrorOf([&] { first.Publish(); }), HasSubstr("another job"));
    std::ofstream(At("step-1.partial") + "/index.json") << "second";
    std::ofstream(At("step-1.partial") + "/rank-00000-of-00001.safetensors") << "second";
    second.Publish();
    EXPECT_EQ(Read("step-1"), "second");
  }
}

class CheckpointFolder : public PartialDirectories {};

TEST_F(CheckpointFolder, ListsCheckpointsThatHaveLostTheirIndex) {
  for (const char* name : {"step-9", "step-10", "step-11"}) Save(name, name);
  fs::remove(At("step-10/index.json"));
  Directory("step-12", {"note"});
  Directory("step-13.partial", {"index.json"});
  EXPECT_THAT(Found(), ElementsAre("step-11", "step-10", "step-9"));
}

TEST_F(CheckpointFolder, PruningKeepsTheNewestCheckpoints) {
  for (const char* name : {"step-2", "step-4", "step-6", "step-8", "step-10", "step-20", "best-1"}) Save(name, name);
  fs::remove(At("step-6/index.json"));
  std::ofstream(At("step-2/note")) << "for ever";
  PruneCheckpoints(At("step-10"), 0);
  EXPECT_EQ(Names().size(), 7U);
  PruneCheckpoints(At("step-10"), 1, {{"step-10", "best-1"}});  // the others are of other runs
  EXPECT_EQ(Names().size(), 7U);
  PruneCheckpoints(At("step-10"), 2, {{"step-10", "step-8"}});
  EXPECT_EQ(Names().size(), 7U);
  PruneCheckpoints(At("step-10"), 2);
  EXPECT_THAT(Names(), ElementsAre("best-1", "step-10", "step-2", "step-20", "step-6", "step-8"));
  PruneCheckpoints(At("step-10"), 1);
  EXPECT_THAT(Names(), ElementsAre("best-1", "step-10", "step-2", "step-20", "step-6"));
  PruneCheckpoints(At("best-1"), 1);
  PruneCheckpoints(At("latest"), 1);
  EXPECT_EQ(Names().size(), 5U);
}

}  // namespace
}  // namespace cohort::trainer
