// Options that users of other launchers type, and variables that their operators set.
#include <gtest/gtest.h>

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "cohort/launcher/nodes/kubernetes.h"
#include "cohort/launcher/options/idle_options.h"
#include "cohort/launcher/options/options.h"

namespace cohort::launcher {
namespace {

using std::string;

absl::StatusOr<CommandLine> ParseTrain(std::vector<string> arguments) {
  arguments.insert(arguments.begin(), "dlaunch");
  arguments.emplace_back("train");
  return ParseCommandLine(arguments);
}

TEST(Familiar, OptionNamesOfOtherLaunchersAreTaken) {
  const auto line = ParseTrain({"-H", "a,b", "--ppn", "4", "--gpus-per-task", "2", "--launcher", "auto"});
  ASSERT_TRUE(line.ok()) << line.status();
  EXPECT_EQ(line->options.hosts, "a,b");
  EXPECT_EQ(line->options.ranks_per_node, 4);
  EXPECT_EQ(line->options.gpus_per_rank, 2);
  EXPECT_EQ(line->options.launcher, "");
  EXPECT_EQ(line->options.programs[0].command, std::vector<string>{"train"});
  EXPECT_FALSE(ParseTrain({"--ppn", "4", "--nproc-per-node", "4"}).ok()) << "one option, given twice";
  EXPECT_FALSE(ParseTrain({"--ppn", "none"}).ok());
}

TEST(Familiar, OptionsOfTorchrunThatChangeNothingAreTakenAndCounted) {
  const std::pair<std::vector<string>, std::vector<string>> taken[] = {
      {{"--standalone"}, {"--standalone"}},
      {{"--rdzv_backend=c10d", "--rdzv_endpoint", "a:29400"}, {"--rdzv-backend", "--rdzv-endpoint"}},
      {{"--rdzv-id", "7", "--rdzv_conf", "timeout=900"}, {"--rdzv-id", "--rdzv-conf"}},
      {{"--rdzv-backend", "c10d", "--rdzv-endpoint=a:1", "--rdzv_id=7", "--rdzv-conf=x=1"},
       {"--rdzv-backend", "--rdzv-endpoint", "--rdzv-id", "--rdzv-conf"}},
      {{"--master_addr", "a", "--master_port=29500"}, {"--master-addr", "--master-port"}},
      {{"--master-addr=a", "--master-port", "29500"}, {"--master-addr", "--master-port"}},
      {{"--rdzv-id=1", "--rdzv-id=2"}, {"--rdzv-id"}},
      {{}, {}}};
  for (const auto& [arguments, names] : taken) {
    const auto line = ParseTrain(arguments);
    ASSERT_TRUE(line.ok()) << line.status();
    EXPECT_EQ(line->options.idle_options, names);
    EXPECT_EQ(line->options.programs[0].command, std::vector<string>{"train"});
  }
  EXPECT_EQ(DescribeIdleOptions({}), "");
  EXPECT_EQ(DescribeIdleOptions({"--rdzv-id"}), "--rdzv-id has no effect here: ranks find each other by themselves");
  EXPECT_EQ(DescribeIdleOptions({"--standalone", "--rdzv-id", "--monitor-interval"}),
            "--standalone, --rdzv-id and --monitor-interval have no effect here: ranks find each other by themselves, "
            "dlaunch starts and watches programs in its own way");
  EXPECT_EQ(DescribeIdleOptions({"--role"}),
            "--role has no effect here: dlaunch starts and watches programs in its own way");
}

TEST(Familiar, PythonRunsModulesAndScripts) {
  const auto command = [](std::vector<string> arguments) {
    arguments.insert(arguments.begin(), "dlaunch");
    const auto line = ParseCommandLine(arguments);
    return line.ok() ? line->options.programs[0].command : std::vector<string>{line.status().ToString()};
  };
  using Words = std::vector<string>;
  EXPECT_EQ(command({"-n", "2", "-m", "pkg.mod", "-m", "3"}), (Words{"python3", "-u", "-m", "pkg.mod", "-m", "3"}));
  EXPECT_EQ(command({"--module", "pkg.mod"}), (Words{"python3", "-u", "-m", "pkg.mod"}));
  EXPECT_EQ(command({"--", "./train.py", "--lr", "1"}), (Words{"python3", "-u", "./train.py", "--lr", "1"}));
  EXPECT_EQ(command({"python3", "train.py"}), (Words{"python3", "train.py"}));
  for (const char* const app : {"app.pyz", "app.pyzw", "./app.zip", "train.pyc"}) {
    EXPECT_EQ(command({app, "x"}), (Words{"python3", "-u", app, "x"}));
  }
  EXPECT_EQ(command({"train.pyx"}), (Words{"train.pyx"}));
}

TEST(Familiar, OtherOptionsForSeveralProgramsAreAnsweredWithOurs) {
  for (const char* const option : {"--app", "-configfile", "--het-group"}) {
    const absl::Status status = ParseTrain({option, "file"}).status();
    EXPECT_NE(status.message().find("dlaunch -n 1 ./server : -n 3 ./client"), string::npos) << status;
  }
}

TEST(Familiar, NpIsTheNumberOfRanks) {
  const auto line = ParseTrain({"--no_prefix", "-np", "16"});
  ASSERT_TRUE(line.ok()) << line.status();
  EXPECT_EQ(line->options.ranks, 16);
  EXPECT_FALSE(line->options.prefix);
  for (const char* const glued : {"-np2", "-np=2", "-n=2", "-n2", "--np=2"}) {
    const auto two = ParseTrain({glued, "true", glued});
    ASSERT_TRUE(two.ok()) << two.status();
    EXPECT_EQ(two->options.ranks, 2) << glued;
    EXPECT_EQ(two->options.programs[0].command, (std::vector<string>{"true", glued, "train"}))
        << "a word of the program is its own";
  }
  const auto value = ParseTrain({"--env", "-np", "--", "-np"});
  EXPECT_FALSE(value.ok()) << "-np is the value of --env here, without an equals sign";
  const auto program = ParseTrain({"--log-dir", "-np", "--", "-np"});
  ASSERT_TRUE(program.ok()) << program.status();
  EXPECT_EQ(program->options.log_directory, "-np");
  EXPECT_EQ(program->options.programs[0].command[0], "-np");
  EXPECT_TRUE(program->options.prefix);
}

TEST(Familiar, OptionsOfPythonsLaunchersAreAnsweredWithEitherHyphen) {
  const std::pair<std::vector<string>, string> refused[] = {
      {{"--num_processes", "2"}, "did you mean -n?"},
      {{"--num-machines", "2"}, "did you mean --nnodes?"},
      {{"--num_gpus=2"}, "did you mean --nproc-per-node?"},
      {{"--use_env"}, "RANK and LOCAL_RANK"},
      {{"--include", "localhost:0,1"}, "CUDA_VISIBLE_DEVICES=0,1 dlaunch"},
      {{"--gpu_ids", "0,1"}, "CUDA_VISIBLE_DEVICES=0,1 dlaunch"}};
  for (const auto& [arguments, says] : refused) {
    const absl::Status status = ParseTrain(arguments).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << arguments[0];
    EXPECT_NE(status.message().find(says), string::npos) << status;
  }
}

// CLI11 would take these for -h, -H or -n with something behind it.
TEST(Familiar, WordsAfterOneDashAreNoShortOptions) {
  const std::pair<std::vector<string>, string> refused[] = {
      {{"-hosts", "a,b"}, "did you mean --hosts?"},
      {{"-host=a"}, "did you mean --hosts?"},
      {{"--dry-run", "-hostfile", "f"}, "did you mean --hostfile?"},
      {{"-n", "2", "-np", "4"}, "once"},
      {{"-np=four"}, "--np 'four'"},
      {{"-n="}, "--np has no value"},
      {{"-np2x"}, "unknown option '-np2x'"},
      {{"-npernode", "2"}, "did you mean --nproc-per-node?"},
      {{"-nnodes=2"}, "did you mean --nnodes?"},
      {{"-ppn", "2"}, "did you mean --nproc-per-node?"},
      {{"-genvall"}, "--env-pass NAME"},
      {{"-wdir", "/tmp"}, "dlaunch env -C FOLDER PROGRAM"},
      {{"-prepend-rank"}, "leave it out"}};
  for (const auto& [arguments, says] : refused) {
    const absl::Status status = ParseTrain(arguments).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << arguments[0];
    EXPECT_NE(status.message().find(says), string::npos) << status;
  }
  const auto line = ParseTrain({"-n4", "--env", "A=-x", "--grace", "-hosts"});
  EXPECT_NE(line.status().message().find("--grace '-hosts'"), string::npos) << line.status();
  const auto program = ParseTrain({"-n4", "--", "-hosts"});
  ASSERT_TRUE(program.ok()) << program.status();
  EXPECT_EQ(program->options.ranks, 4);
  EXPECT_EQ(program->options.programs[0].command[0], "-hosts");
}

TEST(Familiar, UnknownOptionsWithoutALikenessAreNotGuessed) {
  for (const char* const name : {"--quiet", "--jobid", "--verbose", "--cpus"}) {
    const absl::Status status = ParseTrain({name}).status();
    EXPECT_NE(status.message().find("unknown option"), string::npos) << status;
    EXPECT_EQ(status.message().find("did you mean"), string::npos) << status;
  }
  for (const char* const name : {"--mca", "--gpus", "--wd", "--time", "--gres=gpu:2", "-x", "--export=ALL", "-l"}) {
    const absl::Status status = ParseTrain({name}).status();
    EXPECT_NE(status.message().find("is none of dlaunch's: "), string::npos) << status;
  }
}

TEST(Familiar, HelpNamesEachOptionOnce) {
  const auto line = ParseCommandLine({"dlaunch", "--help"});
  ASSERT_TRUE(line.ok() && line->print);
  EXPECT_NE(line->print->find("-H, --hosts HOSTS"), string::npos) << *line->print;
  EXPECT_NE(line->print->find("  --nproc-per-node N"), string::npos) << *line->print;
  EXPECT_EQ(line->print->find("--ppn"), string::npos);
}

absl::StatusOr<KubernetesPod> ReadPod(const std::map<string, string>& variables, bool wants_count = true) {
  return ReadKubernetesVariables(
      [&](const char* key) -> std::optional<string> {
        const auto found = variables.find(key);
        return found == variables.end() ? std::nullopt : std::optional(found->second);
      },
      "train-node-0-1.train", wants_count);
}

TEST(Familiar, KubeflowsPodsKnowHowManyTheyAre) {
  const auto pod = ReadPod({{"JOB_COMPLETION_INDEX", "1"}, {"PET_NNODES", "3"}});
  ASSERT_TRUE(pod.ok()) << pod.status();
  EXPECT_EQ(pod->count, 3);
  EXPECT_EQ(pod->first, "train-node-0-0.train");
  EXPECT_FALSE(ReadPod({{"JOB_COMPLETION_INDEX", "1"}, {"PET_NNODES", "1:4"}})->count);
  for (const char* nodes : {"many", "", "0"}) {
    const std::map<string, string> variables = {{"JOB_COMPLETION_INDEX", "1"}, {"PET_NNODES", nodes}};
    const absl::Status refused = ReadPod(variables).status();
    EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument) << nodes;
    EXPECT_NE(refused.message().find("no number of pods; give --nnodes N"), string::npos) << refused;
    EXPECT_TRUE(ReadPod(variables, /*wants_count=*/false).ok()) << "--nnodes was given, and PET_NNODES is '" << nodes;
  }
}

}  // namespace
}  // namespace cohort::launcher
