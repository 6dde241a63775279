// Command lines as users type them, and the resulting options. Refusals are tested with the real program, in
// tests/launcher/dlaunch/.
#include "cohort/launcher/options/options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "cohort/launcher/remedies/remedies.h"

namespace cohort::launcher {
namespace {

using std::string;
using std::vector;
using testing::ElementsAre;
using testing::EndsWith;
using testing::HasSubstr;
using testing::Pair;

absl::StatusOr<CommandLine> Parse(vector<string> arguments) {
  arguments.insert(arguments.begin(), "dlaunch");
  return ParseCommandLine(arguments);
}

Options ParseOk(const vector<string>& arguments) {
  const absl::StatusOr<CommandLine> parsed = Parse(arguments);
  EXPECT_TRUE(parsed.ok()) << parsed.status();
  return parsed.ok() ? parsed->options : Options();
}

TEST(Options, OptionsThatAreNotGivenAreNotSet) {
  const Options options = ParseOk({"train"});
  EXPECT_FALSE(options.nodes || options.ranks_per_node || options.gpus_per_rank || options.simulate_nodes ||
               options.simulate_gpus || options.dry_run);
  EXPECT_EQ(options.on_failure, OnFailure::kEnd);
  EXPECT_EQ(options.grace, std::chrono::seconds(10));
  EXPECT_THAT(options.programs[0].command, ElementsAre("train"));
}

TEST(Options, AnErrorBehindAColonKeepsItsId) {
  const absl::Status twice = Parse({"-n", "1", "a", ":", "-n", "x", "b"}).status();
  EXPECT_EQ(TextOf(twice).find("program 2: --np 'x': give a whole number"), 0) << TextOf(twice);
  EXPECT_THAT(TextOf(twice), EndsWith(" [wrong-value]"));
}

TEST(Options, ReadsEveryOption) {
  const Options options = ParseOk({"--nnodes",
                                   "2",
                                   "--nproc-per-node=3",
                                   "--gpus-per-rank",
                                   "4",
                                   "--simulate-nodes",
                                   "2",
                                   "--simulate-gpus=12",
                                   "--on-failure",
                                   "continue",
                                   "--dry-run",
                                   "--env",
                                   "A=1",
                                   "--env",
                                   "B=x=y",
                                   "--env=C=",
                                   "--log-dir",
                                   "logs",
                                   "--grace",
                                   "2.5",
                                   "train"});
  EXPECT_EQ(options.nodes, 2);
  EXPECT_EQ(options.ranks_per_node, 3);
  EXPECT_EQ(options.gpus_per_rank, 4);
  EXPECT_EQ(options.simulate_nodes, 2);
  EXPECT_EQ(options.simulate_gpus, 12);
  EXPECT_EQ(options.on_failure, OnFailure::kContinue);
  EXPECT_TRUE(options.dry_run);
  EXPECT_THAT(options.environment, ElementsAre(Pair("A", "1"), Pair("B", "x=y"), Pair("C", "")));
  EXPECT_EQ(options.log_directory, "logs");
  EXPECT_EQ(options.grace, std::chrono::milliseconds(2500));
}

TEST(Options, JsonBelongsToADryRun) {
  EXPECT_TRUE(ParseOk({"--dry-run", "--json", "train"}).json);
  EXPECT_TRUE(ParseOk({"--json", "--explain", "train"}).json);
  EXPECT_FALSE(ParseOk({"--dry-run", "train"}).json);
  EXPECT_THAT(Parse({"--json", "train"}).status().message(), HasSubstr("give --dry-run too"));
}

TEST(Options, EveryTimeHasOneForm) {
  const std::pair<const char*, int> times[] = {
      {"0", 0},          {"2.5", 2500},       {"2.5s", 2500},        {"500ms", 500},     {"10m", 600'000},
      {"1h", 3'600'000}, {"0.5h", 1'800'000}, {"86400", 86'400'000}, {"24h", 86'400'000}};
  for (const auto& [text, milliseconds] : times) {
    EXPECT_EQ(ParseOk({"--grace", text, "train"}).grace, std::chrono::milliseconds(milliseconds)) << text;
    EXPECT_EQ(ParseOk({"--wait", text, "train"}).wait, std::chrono::milliseconds(milliseconds)) << text;
  }
  for (const char* wrong :
       {"", "s", "ms", "-1", "-1s", "1x", "1 s", "1sm", "24.1h", "86401", "1e3", "inf", "nan", "1d"}) {
    EXPECT_FALSE(Parse({"--grace", wrong, "train"}).ok()) << wrong;
    EXPECT_FALSE(Parse({"--wait", wrong, "train"}).ok()) << wrong;
  }
}

TEST(Options, ReadsTheBindingOfRanks) {
  EXPECT_EQ(ParseOk({"train"}).bind, Bind::kCore);
  EXPECT_EQ(ParseOk({"--bind", "core", "train"}).bind, Bind::kCore);
  EXPECT_EQ(ParseOk({"--bind", "numa", "train"}).bind, Bind::kNuma);
  EXPECT_EQ(ParseOk({"--bind=none", "train"}).bind, Bind::kNone);
  for (const char* wrong : {"", "cores", "NUMA", "0"}) EXPECT_FALSE(Parse({"--bind", wrong, "train"}).ok()) << wrong;
}

TEST(Options, ReadsTheAddressOfMetrics) {
  EXPECT_EQ(ParseOk({"--trace", "a.pftrace", "train"}).trace, "a.pftrace");
  EXPECT_FALSE(Parse({"--trace", "", "train"}).ok());
  EXPECT_EQ(ParseOk({"--trace", "a", "--trace-last", "60s", "train"}).trace_last, std::chrono::minutes(1));
  EXPECT_FALSE(Parse({"--trace-last", "60s", "train"}).ok());
  EXPECT_FALSE(Parse({"--trace", "a", "--trace-last", "0", "train"}).ok());
  EXPECT_EQ(ParseOk({"train"}).metrics, "");
  EXPECT_EQ(ParseOk({"--metrics", "9400", "train"}).metrics, "127.0.0.1:9400");
  EXPECT_EQ(ParseOk({"--metrics", "0", "train"}).metrics, "127.0.0.1:0");
  EXPECT_EQ(ParseOk({"--metrics", "0.0.0.0:80", "train"}).metrics, "0.0.0.0:80");
  EXPECT_EQ(ParseOk({"--metrics", "[::1]:9400", "train"}).metrics, "[::1]:9400");
  for (const char* wrong : {"", ":", "x", "65536", "-1", "1,2", "a:9400", "::1:9400", "[]:1", "127.0.0.1:", "9400s"}) {
    EXPECT_FALSE(Parse({"--metrics", wrong, "train"}).ok()) << wrong;
  }
}

TEST(Options, ACountThatIsNoneIsRefusedWithItsRange) {
  const auto error = [](const std::vector<string>& words) { return string(Parse(words).status().message()); };
  for (const char* const option : {"--max-restarts", "--spares", "--standby"}) {
    EXPECT_TRUE(Parse({option, "0", "train"}).ok()) << option;
    EXPECT_THAT(error({option, "x", "train"}), HasSubstr("give a whole number from 0 to "));
  }
  EXPECT_THAT(error({"--nproc-per-node", "0", "train"}), HasSubstr("give a whole number from 1 to "));
  EXPECT_THAT(error({"--grace", "1", "--grace", "2", "train"}), HasSubstr("--grace is given twice"));
}

TEST(Options, ReadsTheLimitOnOutput) {
  EXPECT_EQ(ParseOk({"train"}).log_rate, 0u);
  EXPECT_EQ(ParseOk({"--log-rate", "5000", "train"}).log_rate, 5000u);
  EXPECT_EQ(ParseOk({"--log-rate=64K", "train"}).log_rate, 65536u);
  EXPECT_EQ(ParseOk({"--log_rate", "2M", "train"}).log_rate, 2u << 20);
  EXPECT_EQ(ParseOk({"--log-rate", "1024G", "train"}).log_rate, uint64_t{1} << 40);
  for (const char* wrong : {"", "0", "-1", "K", "5X", "5KB", "1.5M", "1025G", "99999999999999999999", "5 K"}) {
    EXPECT_FALSE(Parse({"--log-rate", wrong, "train"}).ok()) << wrong;
  }
}

TEST(Options, ReadsTheRankOfTheStandardInput) {
  EXPECT_EQ(ParseOk({"train"}).input, RankInputOption::kRedirected);
  EXPECT_EQ(ParseOk({"--stdin=redirected", "--max-restarts", "2", "train"}).input, RankInputOption::kRedirected);
  EXPECT_EQ(ParseOk({"--stdin", "none", "train"}).input, RankInputOption::kNone);
  EXPECT_EQ(ParseOk({"--stdin=rank0", "train"}).input, RankInputOption::kForwarded);
  EXPECT_EQ(ParseOk({"--stdin=none", "--max-restarts", "2", "train"}).input, RankInputOption::kNone);
  for (const char* wrong : {"", "all", "0", "rank1"}) EXPECT_FALSE(Parse({"--stdin", wrong, "train"}).ok()) << wrong;
}

TEST(Options, UnderscoresMayStandForDashes) {
  const Options options = ParseOk({"--nproc_per_node", "3", "--simulate_gpus=6", "--log_dir", "a_b", "--dry_run", "x"});
  EXPECT_EQ(options.ranks_per_node, 3);
  EXPECT_EQ(options.simulate_gpus, 6);
  EXPECT_EQ(options.log_directory, "a_b");
  EXPECT_TRUE(options.dry_run);
}

TEST(Options, ArgumentsAfterTheProgramAreTheProgramsOwn) {
  EXPECT_THAT(ParseOk({"train", "--nnodes", "7", "-x", "--", "--help"}).programs[0].command,
              ElementsAre("train", "--nnodes", "7", "-x", "--", "--help"));
  EXPECT_FALSE(ParseOk({"train", "--nnodes", "7"}).nodes);
  EXPECT_THAT(ParseOk({"--nnodes", "1", "--", "--odd name", "", "a b"}).programs[0].command,
              ElementsAre("--odd name", "", "a b"));
  EXPECT_THAT(ParseOk({"--env", "A=1", "train", "B=2"}).programs[0].command, ElementsAre("train", "B=2"));
}

TEST(Options, EncryptDataReachesRanksAsAVariable) {
  for (const char* option : {"--encrypt-data", "--encrypt_data"}) {
    EXPECT_THAT(ParseOk({"--env", "A=1", option, "train"}).environment,
                ElementsAre(testing::Pair("A", "1"), testing::Pair("COHORT_ENCRYPT_DATA", "1")));
  }
  EXPECT_TRUE(ParseOk({"train"}).environment.empty());
  const absl::StatusOr<CommandLine> parsed = Parse({"--encrypt-data", "--env", "COHORT_ENCRYPT_DATA=0", "train"});
  ASSERT_FALSE(parsed.ok());
  EXPECT_NE(parsed.status().message().find("contradict each other"), string::npos) << parsed.status();
}

TEST(Options, CheckIsAVariableOfTheRanks) {
  for (const auto& [given, told] : {std::pair{"nan", "nan"}, {"results", "results"}, {"results,nan", "nan,results"}}) {
    EXPECT_THAT(ParseOk({"--check", given, "train"}).environment, ElementsAre(testing::Pair("COHORT_CHECK", told)));
  }
  for (const char* wrong : {"", "NaN", "nan,", "nan,nan", "all"}) {
    EXPECT_THAT(Parse({"--check", wrong, "train"}).status().message(), HasSubstr("give nan, results or nan,results"));
  }
  EXPECT_THAT(Parse({"--check", "nan", "--env", "COHORT_CHECK=results", "train"}).status().message(),
              HasSubstr("--check nan and --env COHORT_CHECK=results contradict each other"));
}

TEST(Options, TorchBackendIsAVariableOfTheRanks) {
  for (const char* backend : {"cohort", "torch"}) {
    EXPECT_THAT(ParseOk({"--torch_backend", backend, "train"}).environment,
                ElementsAre(testing::Pair("COHORT_TORCH_BACKEND", backend)));
  }
  EXPECT_THAT(Parse({"--torch-backend", "gloo", "train"}).status().message(),
              HasSubstr("--torch-backend 'gloo': give cohort or torch"));
  EXPECT_THAT(Parse({"--torch-backend", "cohort", "--env", "COHORT_TORCH_BACKEND=torch", "train"}).status().message(),
              HasSubstr("contradict each other"));
}

TEST(Options, HelpAndVersionAreTextToPrint) {
  for (const char* option : {"--help", "-h", "--version"}) {
    const absl::StatusOr<CommandLine> parsed = Parse({option});
    ASSERT_TRUE(parsed.ok());
    EXPECT_TRUE(parsed->print.has_value()) << option;
  }
}

// Whatever is typed: an answer, never a crash; and what is accepted keeps the bounds.
TEST(Options, AnySequenceOfWordsIsAnswered) {
  const unsigned seed = std::random_device()();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  const vector<string> words = {"--nnodes",
                                "--nproc-per-node",
                                "--gpus-per-rank",
                                "--env",
                                "--grace",
                                "--",
                                "-",
                                "train",
                                "0",
                                "1",
                                "4096",
                                "-1",
                                "A=B",
                                "=",
                                "",
                                "--dry-run",
                                "--dry-run=1",
                                "--help",
                                "-h",
                                "--nnodes=2",
                                "--nnodes=",
                                "--=",
                                "---",
                                "-nnodes",
                                "\xff\xfe",
                                "continue",
                                ":",
                                "-n",
                                "--multi-prog",
                                "--on-failure",
                                "1e9",
                                "0x10",
                                "--version",
                                "\n"};
  for (int i = 0; i < 3000; ++i) {
    vector<string> arguments(random() % 7);
    for (string& argument : arguments) argument = words[random() % words.size()];
    const absl::StatusOr<CommandLine> parsed = Parse(arguments);
    if (!parsed.ok()) {
      EXPECT_EQ(parsed.status().code(), absl::StatusCode::kInvalidArgument);
      EXPECT_FALSE(parsed.status().message().empty());
    } else if (!parsed->print) {
      EXPECT_EQ(parsed->options.programs.empty(), !parsed->options.program_file.empty());
      for (const RankProgram& program : parsed->options.programs) EXPECT_FALSE(program.command.empty());
      EXPECT_GE(parsed->options.nodes.value_or(1), 1);
      EXPECT_LE(parsed->options.ranks_per_node.value_or(1), kMaxRanksPerNode);
    }
  }
}

TEST(Options, RestartsAreAskedForInThreeWays) {
  EXPECT_EQ(ParseOk({"train"}).max_restarts, 0);
  const Options counted = ParseOk({"--max_restarts", "7", "train"});
  EXPECT_EQ(counted.max_restarts, 7);
  EXPECT_EQ(counted.on_failure, OnFailure::kRestart);
  const Options usual = ParseOk({"--on-failure", "restart", "train"});
  EXPECT_EQ(usual.max_restarts, kUsualRestarts);
  EXPECT_EQ(usual.on_failure, OnFailure::kRestart);
  EXPECT_EQ(ParseOk({"--on-failure", "restart", "--max-restarts=2", "train"}).max_restarts, 2);
  const Options none = ParseOk({"--max-restarts", "0", "train"});  // as torchrun's scripts have it
  EXPECT_EQ(none.max_restarts, 0);
  EXPECT_EQ(none.on_failure, OnFailure::kEnd);
  EXPECT_EQ(ParseOk({"--max-restarts", "0", "--on-failure", "continue", "train"}).on_failure, OnFailure::kContinue);
}

TEST(Stopped, RanksAreKilledUnlessTheJobWaits) {
  EXPECT_EQ(Parse({"train"})->options.stopped, Stopped::kKill);
  EXPECT_EQ(Parse({"--stopped", "kill", "train"})->options.stopped, Stopped::kKill);
  EXPECT_EQ(Parse({"--stopped=wait", "train"})->options.stopped, Stopped::kWait);
  const absl::Status refused = Parse({"--stopped", "forever", "train"}).status();
  EXPECT_EQ(refused.message(), "--stopped 'forever': give kill or wait");
}

}  // namespace
}  // namespace cohort::launcher
