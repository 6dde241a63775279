// The findings on this machine, and the environment that ranks get.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "cohort/launcher/base/process_environment.h"
#include "cohort/launcher/machine/cpus.h"
#include "cohort/launcher/machine/cuda_devices.h"
#include "cohort/launcher/machine/numa_nodes.h"
#include "cohort/launcher/machine/rank_environment.h"
#include "cohort/launcher/nodes/node_source.h"

namespace cohort::launcher {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::Each;
using testing::Not;
using testing::StartsWith;

const std::vector<NvmlDevice> kFour = {{0, "GPU-aa0"}, {1, "GPU-bb1"}, {2, "GPU-bc2"}, {3, "GPU-dd3"}};

std::vector<int> Indices(const std::vector<v1::Device>& devices) {
  std::vector<int> indices;
  for (const v1::Device& device : devices) indices.push_back(static_cast<int>(device.node_index()));
  return indices;
}

TEST(JobVariables, TheTableCallsExactlyTheseEqualOnAllRanks) {
  const char* const source = std::getenv("COHORT_TEST_SOURCE_DIR");
  ASSERT_NE(source, nullptr);
  std::ifstream page(std::string(source) + "/runtime/README.md");
  int rows = 0;
  for (std::string line; std::getline(page, line);) {
    if (!line.starts_with("| `COHORT_")) continue;
    const std::string name = line.substr(3, line.find('`', 3) - 3);
    EXPECT_EQ(IsJobVariable(name), line.find("equal on all ranks") != std::string::npos) << name;
    ++rows;
  }
  EXPECT_GT(rows, 10);
}

TEST(CudaDevices, VisibleDevicesFollowTheVariable) {
  EXPECT_EQ(Indices(*SelectVisibleDevices(kFour, std::nullopt)), (std::vector<int>{0, 1, 2, 3}));
  EXPECT_EQ(Indices(*SelectVisibleDevices(kFour, "3,1")), (std::vector<int>{3, 1}));
  EXPECT_EQ(Indices(*SelectVisibleDevices(kFour, " 2 , 0")), (std::vector<int>{2, 0}));
  EXPECT_EQ(Indices(*SelectVisibleDevices(kFour, "GPU-bc,GPU-aa0")), (std::vector<int>{2, 0}));
  EXPECT_TRUE(SelectVisibleDevices(kFour, "")->empty());
  EXPECT_TRUE(SelectVisibleDevices(kFour, "-1")->empty());
  EXPECT_EQ(Indices(*SelectVisibleDevices(kFour, "1,-1,2")), std::vector<int>{1});
  EXPECT_EQ(SelectVisibleDevices(kFour, "MIG-7,MIG-8")->at(1).id(), "MIG-8");
  EXPECT_EQ(SelectVisibleDevices(kFour, "4").status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(SelectVisibleDevices(kFour, "abc").status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(SelectVisibleDevices({}, "0,1")->empty()) << "no driver, no devices, whatever the variable says";
}

TEST(CudaDevices, TheMaskOfDevicesNamesExactlyTheRanksOwn) {
  const auto devices = *SelectVisibleDevices(kFour, "3,1");
  EXPECT_EQ(VisibleDevicesMask(devices), "3,1");
  EXPECT_EQ(VisibleDevicesMask(*SelectVisibleDevices(kFour, "MIG-7,2")), "MIG-7,2");
}

TEST(Cpus, ThereAreCpusToShare) {
  const std::vector<int> cpus = AvailableCpus();
  ASSERT_FALSE(cpus.empty());
  EXPECT_GE(CpusWithinQuota(1), 1);
  EXPECT_EQ(CpusToShare(), CpusWithinQuota(static_cast<int>(cpus.size())));
}

TEST(Cpus, TheShareOfCpusIsEvenAndAtLeastOne) {
  EXPECT_EQ(CpuShare(64, 1, 64), 64);
  EXPECT_EQ(CpuShare(64, 3, 64), 21);
  EXPECT_EQ(CpuShare(8, 3, 64), 8);
  EXPECT_EQ(CpuShare(0, 4, 64), 16) << "a rank that is not bound";
  EXPECT_EQ(CpuShare(2, 1024, 64), 1);
  EXPECT_EQ(CpuShare(0, 0, 0), 1);
}

TEST(Cpus, CoresHoldAllCpusInTheirOrder) {
  std::vector<int> flat;
  for (const std::vector<int>& core : AvailableCores()) {
    EXPECT_FALSE(core.empty());
    flat.insert(flat.end(), core.begin(), core.end());
  }
  EXPECT_EQ(flat, AvailableCpus());
  using Groups = std::vector<std::vector<int>>;
  EXPECT_EQ(Restrict({{0, 4}, {1, 5}, {2, 6}}, {4, 1, 5}), (Groups{{4}, {1, 5}}));
}

TEST(NumaNodes, NumaNodesAreThoseOfTheGivenCpus) {
  using Groups = std::vector<std::vector<int>>;
  ASSERT_EQ(::setenv("HWLOC_SYNTHETIC", "pack:2 numa:1 core:2 pu:2", 1), 0);  // instead of this machine
  EXPECT_EQ(FindNumaNodes({0, 1, 2, 3, 4, 5, 6, 7}), (Groups{{0, 1, 2, 3}, {4, 5, 6, 7}}));
  EXPECT_EQ(FindNumaNodes({6, 1, 5}), (Groups{{1}, {6, 5}}));
  EXPECT_EQ(FindNumaNodes({2}), (Groups{{2}}));
  EXPECT_EQ(FindNumaNodes({2, 900}), (Groups{{2, 900}})) << "a CPU that it does not know: it tells nothing";
  ::unsetenv("HWLOC_SYNTHETIC");
  size_t found = 0;
  for (const std::vector<int>& node : FindNumaNodes(AvailableCpus())) found += node.size();
  EXPECT_EQ(found, AvailableCpus().size());
}

TEST(NodeSource, SimulatedNodesShareThisMachine) {
  Options options;
  options.simulate_nodes = 3;
  options.simulate_gpus = 2;
  const auto found = FindNodes(options);
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_TRUE(found->share_host);
  ASSERT_EQ(found->nodes.size(), 3u);
  EXPECT_EQ(found->nodes[2].name, "node2");
  EXPECT_EQ(found->nodes[2].devices[1].id(), "sim:1");
  EXPECT_FALSE(found->nodes[2].cpus.empty());
}

class RankEnvironmentTest : public testing::Test {
 protected:
  RankEnvironmentTest() {
    assignment_.set_epoch(2);
    assignment_.set_world_size(4);
    assignment_.set_master_address("10.0.0.1");
    assignment_.set_master_port(23456);
    assignment_.mutable_job()->set_job_id("job-1");
    assignment_.mutable_job()->add_environment("OMP_NUM_THREADS=3");
    assignment_.mutable_job()->add_environment("RANK=77");
    v1::RankPlacement* rank = assignment_.mutable_placement()->add_ranks();
    rank->set_rank(2);
    rank->set_local_rank(0);
    v1::Device* device = rank->add_devices();
    device->set_kind(v1::Device::KIND_CUDA);
    device->set_node_index(5);
    assignment_.add_nodes();
    assignment_.add_nodes();
  }
  std::vector<std::string> Build(const std::vector<std::string>& inherited, const std::string& torch_switch = "",
                                 const std::string& nccl_plugin = "") {
    return BuildRankEnvironment(inherited, {.assignment = &assignment_,
                                            .rank = &assignment_.placement().ranks(0),
                                            .node = 1,
                                            .agent_address = "@cohort-x",
                                            .cpu_share = 8,
                                            .torch_switch = torch_switch,
                                            .nccl_plugin = nccl_plugin});
  }
  v1::Assignment assignment_;
};

TEST_F(RankEnvironmentTest, ReplacesWhatOtherLaunchersLeft) {
  const auto variables = Build({"SLURM_PROCID=3", "SLURM_JOB_ID=9", "PMIX_RANK=1", "OMPI_COMM_WORLD_RANK=1",
                                "HOME=/root", "OMPI_MCA_btl=tcp", "PMIX_MCA_ptl_base_verbose=1", "PMIX_MCA_gds=shmem",
                                "COHORT_AGENT=@other", "TORCHELASTIC_USE_AGENT_STORE=True", "odd"});
  EXPECT_THAT(variables, Contains("SLURM_JOB_ID=9"));
  EXPECT_THAT(variables, Contains("HOME=/root"));
  EXPECT_THAT(variables, Contains("OMPI_MCA_btl=tcp"));
  EXPECT_THAT(variables, Contains("PMIX_MCA_ptl_base_verbose=1"));
  EXPECT_THAT(variables, Contains("COHORT_AGENT=@cohort-x"));
  EXPECT_THAT(variables,
              Each(AllOf(Not(StartsWith("SLURM_PROCID")), Not(StartsWith("PMIX_RANK")), Not(StartsWith("PMIX_MCA_gds")),
                         Not(StartsWith("OMPI_COMM")), Not(StartsWith("TORCHELASTIC_USE_AGENT_STORE")))));
}

TEST_F(RankEnvironmentTest, AProgramsVariablesComeAfterTheJobs) {
  for (const uint32_t rank : {1u, 2u}) {
    v1::RankProgram& program = *assignment_.mutable_job()->add_programs();
    program.add_environment("OMP_NUM_THREADS=" + std::to_string(10 * rank));
    v1::RankSpan& ranks = *program.add_ranks();
    ranks.set_first(rank);
    ranks.set_last(rank);
  }
  EXPECT_THAT(Build({}), Contains("OMP_NUM_THREADS=20"));
}

TEST_F(RankEnvironmentTest, TheRanksNamesWinTheUsersValuesBeatOurs) {
  const auto variables = Build({"OMP_NUM_THREADS=5", "CUDA_VISIBLE_DEVICES=0,1"});
  EXPECT_THAT(variables, Contains("OMP_NUM_THREADS=3"));
  EXPECT_THAT(variables, Contains("RANK=2"));
  EXPECT_THAT(variables, Contains("CUDA_VISIBLE_DEVICES=5"));
  EXPECT_THAT(variables, Contains("CUDA_DEVICE_ORDER=PCI_BUS_ID"));
  EXPECT_THAT(variables, Contains("MASTER_ADDR=10.0.0.1"));
  EXPECT_THAT(variables, Contains("MASTER_PORT=23456"));
  EXPECT_THAT(variables, Contains("TORCHELASTIC_RESTART_COUNT=1"));
  EXPECT_THAT(variables, Contains("NODE_RANK=1"));
  EXPECT_THAT(variables, Contains("WORLD_SIZE=4"));
  EXPECT_THAT(variables, Contains("LOCAL_WORLD_SIZE=1"));
}

TEST_F(RankEnvironmentTest, ThePathOfPythonBeginsWithTheTorchSwitch) {
  EXPECT_THAT(Build({"PYTHONPATH=/user"}), Contains("PYTHONPATH=/user"));
  EXPECT_THAT(Build({"PYTHONPATH=/user"}, "/wheel/switch"), Contains("PYTHONPATH=/wheel/switch:/user"));
  EXPECT_THAT(Build({}, "/wheel/switch"), Contains("PYTHONPATH=/wheel/switch"));
}

TEST_F(RankEnvironmentTest, TheUsersPluginOfNcclStays) {
  EXPECT_THAT(Build({}, "", "/lib/ours.so"), Contains("NCCL_PROFILER_PLUGIN=/lib/ours.so"));
  EXPECT_THAT(Build({"NCCL_PROFILER_PLUGIN=mine"}, "", "/lib/ours.so"), Contains("NCCL_PROFILER_PLUGIN=mine"));
  EXPECT_THAT(Build({}), Each(Not(StartsWith("NCCL_PROFILER_PLUGIN"))));
  assignment_.mutable_job()->add_environment("NCCL_PROFILER_PLUGIN=none");
  EXPECT_THAT(Build({}, "", "/lib/ours.so"), Contains("NCCL_PROFILER_PLUGIN=none"));
}

TEST(NcclPluginOf, LiesBesideTheFolderOfDlaunch) {
  namespace fs = std::filesystem;
  const fs::path root = fs::path(testing::TempDir()) / "nccl_plugin";
  EXPECT_EQ(NcclPluginOf(root / "bin/dlaunch"), "");
  fs::create_directories(root / "lib/cohort");
  std::ofstream(root / "lib/cohort/libnccl-profiler-cohort.so") << "\n";
  EXPECT_EQ(NcclPluginOf(root / "bin/dlaunch"), root / "lib/cohort/libnccl-profiler-cohort.so");
  const fs::path deep = root / std::string(200, 'd');
  fs::create_directories(deep / "lib/cohort");
  std::ofstream(deep / "lib/cohort/libnccl-profiler-cohort.so") << "\n";
  EXPECT_EQ(NcclPluginOf(deep / "bin/dlaunch"), "") << "NCCL would cut the path";
  fs::remove_all(root);
}

TEST(TorchSwitchFolder, LiesBesideDlaunchInTheWheelAndInABuild) {
  namespace fs = std::filesystem;
  const fs::path root = fs::path(testing::TempDir()) / "torch_switch";
  v1::JobSpec job;
  job.add_environment("COHORT_TORCH_BACKEND=cohort");
  for (const char* const place : {"switch", "python/dlaunch/switch"}) {
    fs::remove_all(root);
    EXPECT_EQ(TorchSwitchFolder({}, job, root / "bin/dlaunch").status().code(), absl::StatusCode::kFailedPrecondition);
    fs::create_directories(root / place);
    std::ofstream(root / place / "sitecustomize.py") << "\n";
    EXPECT_EQ(TorchSwitchFolder({}, job, root / "bin/dlaunch").value(), (root / place).string());
  }
  fs::remove_all(root);
}

TEST(TorchSwitchFolder, LiesInAFolderOfTheRanksPythonPath) {
  namespace fs = std::filesystem;
  const fs::path root = fs::path(testing::TempDir()) / "torch_switch_path";
  fs::create_directories(root / "dlaunch/switch");
  std::ofstream(root / "dlaunch/switch/sitecustomize.py") << "\n";
  v1::JobSpec job;
  job.add_environment("COHORT_TORCH_BACKEND=cohort");
  const std::vector<std::string> inherited = {"PYTHONPATH=:/none:" + root.string() + ":/other"};
  EXPECT_EQ(TorchSwitchFolder(inherited, job, "/none/bin/dlaunch").value(), (root / "dlaunch/switch").string());
  job.set_working_directory(testing::TempDir());
  const std::vector<std::string> relative = {"PYTHONPATH=torch_switch_path"};
  EXPECT_EQ(TorchSwitchFolder(relative, job, "/none/bin/dlaunch").value(), (root / "dlaunch/switch").string());
  job.add_environment("PYTHONPATH=/none");
  EXPECT_FALSE(TorchSwitchFolder(inherited, job, "/none/bin/dlaunch").ok());
  fs::remove_all(root);
}

TEST(TorchSwitchFolder, RanksWantOneWhereTheLastValueOfTheVariableIsCohort) {
  v1::JobSpec job;
  EXPECT_EQ(TorchSwitchFolder({}, job, "/none/bin/dlaunch").value(), "");
  EXPECT_FALSE(TorchSwitchFolder({"COHORT_TORCH_BACKEND=cohort"}, job, "/none/bin/dlaunch").ok());
  job.add_environment("COHORT_TORCH_BACKEND=torch");
  EXPECT_EQ(TorchSwitchFolder({"COHORT_TORCH_BACKEND=cohort"}, job, "/none/bin/dlaunch").value(), "");
}

}  // namespace
}  // namespace cohort::launcher
