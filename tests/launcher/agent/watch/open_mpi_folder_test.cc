// The folders for what Open MPI makes: what is removed, and what is not ours to remove.
#include "cohort/launcher/agent/watch/open_mpi_folder.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace cohort::launcher {
namespace {

// No other process's, so that the test may run several times at once.
std::string Address() {
  static const std::string address = "@cohort-0123456789ab" + std::to_string(100'000'000'000 + ::getpid());
  return address;
}

std::vector<std::string> Both() {
  const OpenMpiFolders folders = OpenMpiFolders::Of(Address());
  return {folders.files, folders.memory};
}

TEST(OpenMpiFoldersTest, GoWithAllThatIsInThem) {
  for (const std::string& folder : Both()) {
    ASSERT_FALSE(folder.empty());
    std::filesystem::create_directories(folder + "/0/deep");
    std::ofstream(folder + "/0/deep/file") << "x";
  }
  RemoveOpenMpiFolders(Address());
  for (const std::string& folder : Both()) EXPECT_FALSE(std::filesystem::exists(folder));
  RemoveOpenMpiFolders(Address());  // they are gone
}

TEST(OpenMpiFoldersTest, AnythingElseOfTheirNamesStays) {
  for (const std::string& folder : Both()) {
    const std::string other = folder + ".other";
    std::filesystem::create_directories(other + "/kept");
    std::filesystem::create_directory_symlink(other, folder);
    RemoveOpenMpiFolders(Address());
    EXPECT_TRUE(std::filesystem::is_symlink(folder));
    EXPECT_TRUE(std::filesystem::exists(other + "/kept"));
    std::filesystem::remove(folder);
    std::filesystem::remove_all(other);
  }
}

TEST(OpenMpiFoldersTest, AShortAddressHasNone) {
  const OpenMpiFolders none = OpenMpiFolders::Of("short").Within("inner");
  EXPECT_EQ(none.files, "");
  EXPECT_EQ(none.memory, "");
}

}  // namespace
}  // namespace cohort::launcher
