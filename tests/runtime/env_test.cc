#include "cohort/runtime/env.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <string>
#include <utility>
#include <vector>

#include "cohort/runtime/runtime.h"

namespace cohort::runtime {
namespace {

constexpr const char* kVariables[] = {"COHORT_AGENT",
                                      "COHORT_LOCAL_RANK",
                                      "COHORT_INIT_TIMEOUT_MS",
                                      "COHORT_DETECT_DEADLOCKS",
                                      "COHORT_ENCRYPT_DATA",
                                      "COHORT_CHECK",
                                      "COHORT_UCX_LIBRARY",
                                      "COHORT_TRANSPORTS",
                                      "COHORT_NCCL_LIBRARY",
                                      "COHORT_CUDA_LIBRARY",
                                      "COHORT_DATA_ADDRESS",
                                      "COHORT_JOB_ID",
                                      "COHORT_ALLOW_SINGLE",
                                      "RANK",
                                      "WORLD_SIZE",
                                      "OMPI_COMM_WORLD_RANK",
                                      "OMPI_COMM_WORLD_SIZE",
                                      "PMI_RANK",
                                      "PMI_SIZE",
                                      "PMIX_RANK",
                                      "SLURM_PROCID",
                                      "SLURM_NTASKS",
                                      "SLURM_STEP_NUM_TASKS"};

class EnvironmentTest : public ::testing::Test {
 protected:
  void SetUp() override { Clear(); }
  void TearDown() override { Clear(); }
  static void Clear() {
    for (const char* name : kVariables) unsetenv(name);
  }
  static void ExpectRefused(const char* name, const std::string& value) {
    setenv(name, value.c_str(), 1);
    const absl::Status status = Environment::Read().status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << name << "=" << value;
    EXPECT_NE(status.message().find(name), std::string::npos) << status;
    EXPECT_NE(status.message().find("must be"), std::string::npos) << status;
    EXPECT_EQ(Runtime::Init().status().code(), absl::StatusCode::kInvalidArgument);
    unsetenv(name);
  }
};

TEST_F(EnvironmentTest, AnEmptyEnvironmentSetsNothing) {
  const auto environment = Environment::Read();
  ASSERT_TRUE(environment.ok()) << environment.status();
  EXPECT_TRUE(environment->agent.empty());
  EXPECT_FALSE(environment->local_rank.has_value());
  EXPECT_FALSE(environment->init_timeout.has_value());
  EXPECT_TRUE(environment->nccl_library.empty());
}

TEST_F(EnvironmentTest, ReadsEveryVariable) {
  setenv("COHORT_AGENT", "@cohort-1", 1);
  setenv("COHORT_LOCAL_RANK", "3", 1);
  setenv("COHORT_INIT_TIMEOUT_MS", "1500", 1);
  setenv("COHORT_UCX_LIBRARY", "/opt/libucp.so", 1);
  setenv("COHORT_NCCL_LIBRARY", "libfake.so", 1);
  setenv("COHORT_CUDA_LIBRARY", "", 1);
  setenv("COHORT_TRANSPORTS", "ucx,tcp", 1);
  setenv("COHORT_DETECT_DEADLOCKS", "0", 1);
  setenv("COHORT_ENCRYPT_DATA", "1", 1);
  const auto environment = Environment::Read();
  ASSERT_TRUE(environment.ok()) << environment.status();
  EXPECT_EQ(environment->agent, "@cohort-1");
  EXPECT_EQ(environment->local_rank, 3);
  EXPECT_EQ(environment->init_timeout, std::chrono::milliseconds(1500));
  EXPECT_EQ(environment->ucx_library, "/opt/libucp.so");
  EXPECT_EQ(environment->nccl_library, "libfake.so");
  EXPECT_TRUE(environment->cuda_library.empty());
  EXPECT_EQ(environment->transports, "ucx,tcp");
  for (const char* wrong : {"TCP", "tcp ucx", "tcp;ucx"}) ExpectRefused("COHORT_TRANSPORTS", wrong);
  EXPECT_EQ(environment->detect_deadlocks, false);
  ExpectRefused("COHORT_DETECT_DEADLOCKS", "no");
  EXPECT_EQ(environment->encrypt_data, true);
  ExpectRefused("COHORT_ENCRYPT_DATA", "yes");
}

TEST_F(EnvironmentTest, ChecksAreAList) {
  EXPECT_FALSE(Environment::Read()->checks.has_value());
  const std::pair<const char*, uint8_t> kTexts[] = {{"nan", Checks::kNanBit},
                                                    {"results", Checks::kResultsBit},
                                                    {"nan,results", Checks::kNanBit | Checks::kResultsBit},
                                                    {"results,nan", Checks::kNanBit | Checks::kResultsBit}};
  for (const auto& [text, bits] : kTexts) {
    setenv("COHORT_CHECK", text, 1);
    const auto environment = Environment::Read();
    ASSERT_TRUE(environment.ok()) << environment.status();
    ASSERT_TRUE(environment->checks.has_value());
    EXPECT_EQ(environment->checks->bits(), bits) << text;
  }
  for (const char* wrong : {"NaN", "nan,", ",nan", "nan,nan", "nan results", "0"}) ExpectRefused("COHORT_CHECK", wrong);
}

TEST_F(EnvironmentTest, DataAddressesAreAList) {
  for (const char* address : {"10.0.0.1", "fe80::1%eth0", "::1"}) {
    setenv("COHORT_DATA_ADDRESS", address, 1);
    const auto environment = Environment::Read();
    ASSERT_TRUE(environment.ok()) << environment.status();
    EXPECT_EQ(environment->data_addresses, std::vector<std::string>{address});
  }
  setenv("COHORT_DATA_ADDRESS", "", 1);
  EXPECT_TRUE(Environment::Read()->data_addresses.empty());
  setenv("COHORT_DATA_ADDRESS", "10.0.0.1,10.1.0.1,::1", 1);
  EXPECT_EQ(Environment::Read()->data_addresses, (std::vector<std::string>{"10.0.0.1", "10.1.0.1", "::1"}));
  for (const char* wrong :
       {"eth0", "10.0.0", "10.0.0.1:80", "node-b", "10.0.0.1,", ",10.0.0.1", "10.0.0.1, 10.1.0.1", "10.0.0.1,10.0.0.1"})
    ExpectRefused("COHORT_DATA_ADDRESS", wrong);
}

// Each rank of a job would take itself for a world of one, and end well with a wrong result.
TEST_F(EnvironmentTest, AJobWithoutItsAgentIsNoWorldOfOne) {
  setenv("COHORT_JOB_ID", "job", 1);
  const absl::Status status = Runtime::Init().status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_NE(status.message().find("COHORT_AGENT"), std::string::npos) << status;
}

// Four processes under mpirun are not four worlds of one.
TEST_F(EnvironmentTest, ProcessesOfAnotherLauncherAreNoWorldsOfOne) {
  const std::vector<std::pair<const char*, const char*>> launchers = {
      {"WORLD_SIZE", "RANK"},
      {"OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"},
      {"PMI_SIZE", "PMI_RANK"},
      {"SLURM_STEP_NUM_TASKS", "SLURM_PROCID"},
  };
  for (const auto& [size, rank] : launchers) {
    setenv(size, "4", 1);
    EXPECT_TRUE(Runtime::Init().ok()) << size << " alone is inherited by anybody";
    setenv(rank, "0", 1);
    const absl::Status status = Runtime::Init().status();
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << size;
    for (const std::string& part : {std::string(size) + "=4", std::string("dlaunch"), std::string("BootstrapFromStore"),
                                    std::string("COHORT_ALLOW_SINGLE=1")}) {
      EXPECT_NE(status.message().find(part), std::string::npos) << part << " in " << status;
    }
    RuntimeOptions options;
    options.bootstrap = BootstrapWorldOfOne();
    EXPECT_TRUE(Runtime::Init(std::move(options)).ok()) << "the program names it";
    setenv("COHORT_ALLOW_SINGLE", "1", 1);
    EXPECT_TRUE(Runtime::Init().ok()) << "the user insists";
    Clear();
    setenv(size, "1", 1);
    setenv(rank, "0", 1);
    EXPECT_TRUE(Runtime::Init().ok()) << size << "=1";
    Clear();
  }
}

TEST_F(EnvironmentTest, APmixRankAboveZeroIsNotAlone) {
  setenv("PMIX_RANK", "0", 1);
  EXPECT_TRUE(Runtime::Init().ok());
  setenv("PMIX_RANK", "2", 1);
  EXPECT_EQ(Runtime::Init().status().code(), absl::StatusCode::kFailedPrecondition);
}

// A batch script of Slurm, where one process may well run by itself; and values that are no numbers.
TEST_F(EnvironmentTest, CommonVariablesDoNotMeanALauncher) {
  setenv("SLURM_NTASKS", "64", 1);
  setenv("SLURM_PROCID", "0", 1);
  setenv("RANK", "major", 1);
  setenv("WORLD_SIZE", "4x", 1);
  EXPECT_TRUE(Runtime::Init().ok());
}

TEST_F(EnvironmentTest, RefusesBadValues) {
  for (const char* value : {"2", "yes"}) ExpectRefused("COHORT_ALLOW_SINGLE", value);
  for (const char* value : {"-1", "1024", "3x", " 3", "0x3", "99999999999999999999", "three", "1.5"}) {
    ExpectRefused("COHORT_LOCAL_RANK", value);
  }
  for (const char* value : {"0", "-5", "86400001", "1s"}) ExpectRefused("COHORT_INIT_TIMEOUT_MS", value);
  for (const std::string& value : {std::string("cohort"), std::string("@"), "@" + std::string(200, 'x')}) {
    ExpectRefused("COHORT_AGENT", value);
  }
  ExpectRefused("COHORT_UCX_LIBRARY", std::string(5000, 'x'));
}

TEST_F(EnvironmentTest, AnAgentWithoutLocalRankIsRefused) {
  setenv("COHORT_AGENT", "@cohort-nobody", 1);
  EXPECT_EQ(Runtime::Init().status().code(), absl::StatusCode::kFailedPrecondition);
  setenv("COHORT_LOCAL_RANK", "0", 1);
  EXPECT_EQ(Runtime::Init().status().code(), absl::StatusCode::kUnavailable);
}

}  // namespace
}  // namespace cohort::runtime
