// The library as NCCL opens it, in a process that no agent has started.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <random>
#include <string>

#include "tests/support/profiled_nccl.h"

namespace cohort::comm::nccl_profiler {
namespace {

using testing::ProfiledNccl;

class NcclPluginTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { unsetenv("COHORT_AGENT"); }
};

TEST_F(NcclPluginTest, NcclTakesTheNewestVersionThatBothKnow) {
  EXPECT_EQ(ProfiledNccl(COHORT_NCCL_PLUGIN, 7).version(), 6);
  for (const int version : {3, 4, 5, 6}) EXPECT_EQ(ProfiledNccl(COHORT_NCCL_PLUGIN, version).version(), version);
  EXPECT_EQ(ProfiledNccl(COHORT_NCCL_PLUGIN, 2).version(), 0);  // 2.25: it says that it does not support the plug-in
}

TEST_F(NcclPluginTest, NothingIsSeenOfItButTheStructs) {
  void* const library = dlopen(COHORT_NCCL_PLUGIN, RTLD_NOW | RTLD_LOCAL);
  ASSERT_NE(library, nullptr) << dlerror();
  for (const char* const name : {"ncclProfiler_v3", "ncclProfiler_v4", "ncclProfiler_v5", "ncclProfiler_v6"}) {
    EXPECT_NE(dlsym(library, name), nullptr);
  }
  const std::string command = std::string("nm -D --defined-only ") + COHORT_NCCL_PLUGIN;
  FILE* const names = popen(command.c_str(), "r");
  ASSERT_NE(names, nullptr);
  std::string others;
  char line[512];
  while (fgets(line, sizeof line, names) != nullptr) {
    if (std::string(line).find(" ncclProfiler_v") == std::string::npos) others += line;
  }
  EXPECT_EQ(pclose(names), 0);
  EXPECT_EQ(others, "");
  dlclose(library);
}

TEST_F(NcclPluginTest, WithoutAnAgentItAsksForNothing) {
  for (const int version : {3, 4, 5, 6}) {
    ProfiledNccl nccl(COHORT_NCCL_PLUGIN, version);
    const ProfiledNccl::Communicator world = nccl.Init(1, 2, 0);
    EXPECT_EQ(nccl.mask(), 0u);
    EXPECT_EQ(world.context, nullptr);
    EXPECT_EQ(nccl.Start(world.context, kCollectiveEvent, nullptr, "AllReduce", "ncclFloat32"), nullptr);
    nccl.Destroy(world);
  }
}

TEST_F(NcclPluginTest, NonsenseIsAnsweredWithSuccess) {
  ProfiledNccl nccl(COHORT_NCCL_PLUGIN, 5);
  nccl.PassNulls();
  std::mt19937_64 random(7);
  for (int i = 0; i < 1'000; ++i) {
    void* const any = reinterpret_cast<void*>(static_cast<uintptr_t>(random()));
    nccl.Start(any, random() % 10'000, any, nullptr, nullptr);
    nccl.Stop(any);
  }
}

}  // namespace
}  // namespace cohort::comm::nccl_profiler
