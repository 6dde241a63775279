// train_gpt as a user runs it: a job is killed, resumed on its own mesh and on another.
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <random>
#include <regex>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "tests/support/nightly.h"

namespace cohort::examples {
namespace {

namespace fs = std::filesystem;
using std::chrono::steady_clock;

// How long and how large trainings are.
struct Length {
  std::string options;
  int steps;
  int save_every;
  double loss;       // that it ends below; a guess is worth 4.2
  double tolerance;  // between meshes, whose sums round elsewhere
};

Length Short() {
  return {" --steps 24 --save-every 6 --batch-size 12 --layers 2 --width 32 --context 32 --sample 0", 24, 6, 4.0, 1e-3};
}
// The default model. Measured: 2.3886 on both meshes.
Length Long() { return {" --steps 200 --save-every 10 --sample 0", 200, 10, 2.5, 2e-2}; }

class TrainGpt : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = (fs::temp_directory_path() / "cohort-gpt-XXXXXX").string();
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    folder_ = name;
  }
  void TearDown() override { fs::remove_all(folder_); }

  std::string Command(const std::string& launch, const std::string& options) const {
    return "timeout 200 " COHORT_DLAUNCH " " + launch + " " COHORT_TRAIN_GPT " " + options + length_.options + " > " +
           (folder_ / "log").string() + " 2>&1";
  }
  std::string Log() const {
    std::stringstream text;
    text << std::ifstream(folder_ / "log").rdbuf();
    return text.str();
  }
  // Runs to the end; the last line's number.
  double Loss(const std::string& launch, const std::string& options) const {
    const std::string command = Command(launch, options);
    const int status = std::system(command.c_str());
    const std::string log = Log();
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << command << "\n" << log;
    const std::string label = "validation loss ";
    const size_t at = log.rfind(label);
    EXPECT_NE(at, std::string::npos) << log;
    return at == std::string::npos ? 0 : std::stod(log.substr(at + label.size()));
  }
  // Starts, and kills the launcher once step `last` is done. All of the job is gone when this returns.
  void KillAfter(int last, const std::string& launch, const std::string& options) const {
    ASSERT_EQ(::prctl(PR_SET_CHILD_SUBREAPER, 1), 0);  // ranks whose parents died are this process's to wait for
    const std::string command = "exec " + Command(launch, options + " --log-every 1");
    const pid_t child = ::fork();
    if (child == 0) {
      ::setpgid(0, 0);
      ::execl("/bin/sh", "sh", "-c", command.c_str(), nullptr);
      ::_exit(127);
    }
    const std::string line = StepLine(last);
    const auto deadline = steady_clock::now() + std::chrono::seconds(150);
    while (Log().find(line) == std::string::npos && steady_clock::now() < deadline &&
           ::waitpid(child, nullptr, WNOHANG) == 0) {
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    EXPECT_NE(Log().find(line), std::string::npos) << Log();
    ::kill(-child, SIGKILL);
    while (::waitpid(-1, nullptr, WNOHANG) >= 0) {
      ASSERT_LT(steady_clock::now(), deadline) << "ranks outlive their launcher";
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
  }
  void KillAndResume(const std::string& mesh, const std::vector<std::pair<int, std::string>>& others);
  // The line that train_gpt prints after a step.
  std::string StepLine(int step) const {
    char line[32];
    std::snprintf(line, sizeof line, "step %4d/%d ", step, length_.steps);
    return line;
  }

  fs::path folder_;
  Length length_ = Short();
};

// Kills training on `mesh` of 4 ranks at a random step. It goes on there with equal bits, and on each of `others`.
void TrainGpt::KillAndResume(const std::string& mesh, const std::vector<std::pair<int, std::string>>& others) {
  if (cohort::testing::Nightly()) length_ = Long();
  const std::string launch = "--simulate-nodes 2 --nproc-per-node 2";
  const double undisturbed = Loss(launch, mesh);
  EXPECT_LT(undisturbed, length_.loss);
  const uint32_t seed = std::random_device()();
  std::mt19937 random(seed);
  // From the third save on the first is whole; what is being written then is no checkpoint.
  std::uniform_int_distribution<int> any_step(2 * length_.save_every + 1, length_.steps - 1);
  const int killed = any_step(random);
  std::cout << mesh << ": loss " << undisturbed << "; killed after step " << killed << " (seed " << seed << ")\n";
  const fs::path own = folder_ / "own";
  KillAfter(killed, launch, mesh + " --checkpoints " + own.string());
  for (size_t i = 0; i < others.size(); ++i) {
    fs::copy(own, folder_ / std::to_string(i), fs::copy_options::recursive);
  }
  EXPECT_EQ(Loss(launch, mesh + " --resume --checkpoints " + own.string()), undisturbed) << Log();
  EXPECT_NE(Log().find("resumed"), std::string::npos) << Log();
  for (size_t i = 0; i < others.size(); ++i) {
    const auto& [ranks, other] = others[i];
    const std::string options = other + " --resume --checkpoints " + (folder_ / std::to_string(i)).string();
    const double elsewhere = Loss("--nproc-per-node " + std::to_string(ranks), options);
    std::cout << "on " << other << ": " << elsewhere << "\n";
    EXPECT_NEAR(elsewhere, undisturbed, length_.tolerance) << other;
    EXPECT_NE(Log().find("resumed"), std::string::npos) << Log();
  }
}

TEST_F(TrainGpt, AKilledTrainingResumesOnItsOwnMeshAndOnAnother) {
  KillAndResume("--mesh replicate=2,shard=2", {{3, "--mesh shard=3"}});
}

TEST_F(TrainGpt, AKilledTrainingResumesWithATensorAxisAndWithout) {
  KillAndResume("--mesh shard=2,tensor=2", {{3, "--mesh tensor=3"}, {2, "--mode zero2"}});
}

TEST_F(TrainGpt, PredictsTheMemoryOfRanksWithoutAJob) {
  const std::string command =
      COHORT_TRAIN_GPT " --dry-run 8 --mesh replicate=2,shard=4 --width 64 > " + (folder_ / "log").string() + " 2>&1";
  EXPECT_EQ(std::system(command.c_str()), 0) << Log();
  // 162,561 parameters of 16 bytes in float32 with Adam, over 4 shards: 40,640.25 each, but for the 65 rows of the
  // vocabulary in two matrices of 64 columns and a bias, of which three ranks have 17 instead of 16.25 and the last 14.
  EXPECT_NE(Log().find("162561 parameters over 8 ranks, replicate=2, shard=4"), std::string::npos) << Log();
  const std::regex line(R"(0,1,2,4,5\.\.\. +159\.1 KiB +159\.1 KiB +318\.[23] KiB .* replicate 159\.[0-9] KiB shard )");
  EXPECT_TRUE(std::regex_search(Log(), line)) << Log();
  const std::string wrong = "timeout 60 " COHORT_TRAIN_GPT " --dry-run 3 --mesh shard=4 > /dev/null 2>&1";
  EXPECT_NE(std::system(wrong.c_str()), 0);
}

TEST_F(TrainGpt, RefusesMeshesThatItWouldShardInAnotherWay) {
  for (const std::string mesh : {"rows=2,columns=4", "shard=4,shard=2", "replicate=2,shard=2,more=2"}) {
    for (const std::string how : {" --dry-run 8", ""}) {
      const std::string command =
          "timeout 60 " COHORT_TRAIN_GPT + how + " --mesh " + mesh + " > " + (folder_ / "log").string() + " 2>&1";
      EXPECT_NE(std::system(command.c_str()), 0) << Log();
      EXPECT_NE(Log().find("replicate=M,"), std::string::npos) << Log();
      EXPECT_NE(Log().find(", not \"" + mesh), std::string::npos) << Log();
    }
  }
}

TEST_F(TrainGpt, TheLossIsTheSameUnderEveryMode) {
  const double single = Loss("--nproc-per-node 1", "--mode ddp");
  EXPECT_TRUE(std::regex_search(
      Log(), std::regex(R"(step .* tokens/s  [0-9.]+ [kMGT]FLOP/s  [0-9.]+ [MG]iB resident, [0-9.]+ [KM]iB model)")))
      << Log();
  EXPECT_LT(single, 4.0);
  for (const std::string mode : {"ddp", "zero1", "zero2", "fsdp"}) {
    EXPECT_NEAR(Loss("--nproc-per-node 2", "--mode " + mode), single, 1e-3) << mode;
  }
  // Recomputing changes no bit.
  const std::string file = (folder_ / "model.safetensors").string();
  const std::string saving = "--mode fsdp --checkpoint-activations --checkpoints " + (folder_ / "own").string();
  EXPECT_EQ(Loss("--nproc-per-node 2", saving + " --export " + file), Loss("--nproc-per-node 2", "--mode fsdp"));
  EXPECT_TRUE(fs::exists(file));
}

}  // namespace
}  // namespace cohort::examples
