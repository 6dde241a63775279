// The folder for Open MPI's files: what is removed, and what is not ours to remove.
#include "cohort/launcher/agent/watch/open_mpi_folder.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

namespace cohort::launcher {
namespace {

constexpr char kAddress[] = "@cohort-0123456789abcdef0123456789abcdef";

TEST(OpenMpiFolder, GoesWithAllThatIsInIt) {
  const std::string folder = OpenMpiFolder(kAddress);
  ASSERT_FALSE(folder.empty());
  std::filesystem::create_directories(folder + "/0/deep");
  std::ofstream(folder + "/0/deep/file") << "x";
  RemoveOpenMpiFolder(kAddress);
  EXPECT_FALSE(std::filesystem::exists(folder));
  RemoveOpenMpiFolder(kAddress);  // it is gone
}

TEST(OpenMpiFolder, AnythingElseOfItsNameStays) {
  const std::string folder = OpenMpiFolder(kAddress);
  const std::string other = folder + ".other";
  std::filesystem::create_directories(other + "/kept");
  std::filesystem::create_directory_symlink(other, folder);
  RemoveOpenMpiFolder(kAddress);
  EXPECT_TRUE(std::filesystem::is_symlink(folder));
  EXPECT_TRUE(std::filesystem::exists(other + "/kept"));
  std::filesystem::remove(folder);
  std::filesystem::remove_all(other);
}

TEST(OpenMpiFolder, AShortAddressHasNone) { EXPECT_EQ(OpenMpiFolder("short"), ""); }

}  // namespace
}  // namespace cohort::launcher
