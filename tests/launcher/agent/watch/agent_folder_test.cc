// The folder of an agent: what is removed, and what is not ours to remove.
#include "cohort/launcher/agent/watch/agent_folder.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

namespace cohort::launcher {
namespace {

constexpr char kAddress[] = "@cohort-0123456789abcdef0123456789abcdef";

TEST(AgentFolder, GoesWithAllThatIsInIt) {
  const std::string folder = AgentFolder(kAddress);
  ASSERT_FALSE(folder.empty());
  std::filesystem::create_directories(folder + "/0/deep");
  std::ofstream(folder + "/0/deep/file") << "x";
  RemoveAgentFolder(kAddress);
  EXPECT_FALSE(std::filesystem::exists(folder));
  RemoveAgentFolder(kAddress);  // it is gone
}

TEST(AgentFolder, AnythingElseOfItsNameStays) {
  const std::string folder = AgentFolder(kAddress);
  const std::string other = folder + ".other";
  std::filesystem::create_directories(other + "/kept");
  std::filesystem::create_directory_symlink(other, folder);
  RemoveAgentFolder(kAddress);
  EXPECT_TRUE(std::filesystem::is_symlink(folder));
  EXPECT_TRUE(std::filesystem::exists(other + "/kept"));
  std::filesystem::remove(folder);
  std::filesystem::remove_all(other);
}

TEST(AgentFolder, AShortAddressHasNone) { EXPECT_EQ(AgentFolder("short"), ""); }

}  // namespace
}  // namespace cohort::launcher
