// Jobs that go well, and what they print: ranks, environment, exit statuses, output.
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "cohort/runtime/base/sanitizer.h"
#include "tests/launcher/dlaunch/dlaunch_process.h"
#include "tests/launcher/dlaunch/job_text.h"

namespace cohort::launcher {
namespace {

using std::string;
using std::vector;

// The lines of one rank, without their prefix.
vector<string> LinesOf(const string& text, int rank) {
  const string prefix = "[" + std::to_string(rank) + "] ";
  std::istringstream stream(text);
  vector<string> lines;
  for (string line; std::getline(stream, line);) {
    if (line.starts_with(prefix)) lines.push_back(line.substr(prefix.size()));
  }
  return lines;
}

std::map<string, string> VariablesOf(const string& text, int rank) {
  std::map<string, string> variables;
  for (const string& line : LinesOf(text, rank)) {
    const size_t equals = line.find('=');
    if (equals != string::npos) variables[line.substr(0, equals)] = line.substr(equals + 1);
  }
  return variables;
}

// With such a value gRPC aborts.
TEST(Run, VariablesOfGrpcReachTheProgramsAlone) {
  DlaunchProcess job({"sh", "-c", "echo $GRPC_POLL_STRATEGY $GRPC_SSL_CIPHER_SUITES"},
                     {.environment = {"GRPC_POLL_STRATEGY=x", "GRPC_SSL_CIPHER_SUITES=y"}});
  EXPECT_EQ(job.Wait(), 0) << job.err();
  EXPECT_EQ(job.out(), "[0] x y\n");
}

TEST(Run, GivesEveryRankItsVariables) {
  DlaunchProcess job({"--simulate-nodes", "2", "--nproc-per-node", "3", "--env", "COLOUR=blue=ish", "env"},
                     {.environment = {"SLURM_PROCID=7", "OMPI_COMM_WORLD_RANK=0", "OMPI_MCA_btl=tcp", "PMI_RANK=0",
                                      "RANK=99", "MASTER_ADDR=elsewhere"},
                      .working_directory = "",
                      .close_output_at_once = false});
  ASSERT_EQ(job.Wait(), 0) << job.err();
  std::set<string> ports, agents;
  for (int rank = 0; rank < 6; ++rank) {
    auto variables = VariablesOf(job.out(), rank);
    EXPECT_EQ(variables["RANK"], std::to_string(rank));
    EXPECT_EQ(variables["WORLD_SIZE"], "6");
    EXPECT_EQ(variables["COHORT_RANK"], variables["RANK"]);
    EXPECT_EQ(variables["COHORT_WORLD_SIZE"], variables["WORLD_SIZE"]);
    EXPECT_EQ(variables["LOCAL_RANK"], std::to_string(rank % 3));
    EXPECT_EQ(variables["LOCAL_WORLD_SIZE"], "3");
    EXPECT_EQ(variables["NODE_RANK"], std::to_string(rank / 3));
    EXPECT_EQ(variables["GROUP_RANK"], std::to_string(rank / 3));
    EXPECT_EQ(variables["MASTER_ADDR"], "127.0.0.1");
    EXPECT_EQ(variables["TORCHELASTIC_RESTART_COUNT"], "0");
    EXPECT_EQ(variables["TORCHELASTIC_RUN_ID"], variables["COHORT_JOB_ID"]);
    EXPECT_EQ(variables["COHORT_LOCAL_RANK"], std::to_string(rank % 3));
    EXPECT_EQ(variables["COLOUR"], "blue=ish");
    EXPECT_EQ(variables["OMPI_MCA_btl"], "tcp");
    EXPECT_FALSE(variables["OMP_NUM_THREADS"].empty());
    for (const char* gone : {"SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK"}) {
      EXPECT_FALSE(variables.contains(gone)) << gone;
    }
    ports.insert(variables["MASTER_PORT"]);
    agents.insert(variables["COHORT_AGENT"]);
  }
  EXPECT_EQ(ports.size(), 1u);
  EXPECT_GT(std::stoi(*ports.begin()), 1024);
  EXPECT_EQ(agents.size(), 2u);
  EXPECT_EQ(job.WaitUntilGone(std::chrono::seconds(10)), "");
}

TEST(Run, OptionsWithoutEffectAreNamedOnce) {
  DlaunchProcess job({"--standalone", "--rdzv_backend=c10d", "--master-port", "1", "-np", "2", "echo", "here"});
  ASSERT_EQ(job.Wait(), 0) << job.err();
  EXPECT_EQ(LinesOf(job.out(), 0), vector<string>{"here"});
  EXPECT_EQ(LinesOf(job.out(), 1), vector<string>{"here"});
  const string said = "--standalone, --rdzv-backend and --master-port have no effect here";
  const size_t at = job.err().find(said);
  ASSERT_NE(at, string::npos) << job.err();
  EXPECT_EQ(job.err().find("no effect", at + said.size()), string::npos) << job.err();
}

TEST(Run, OutputForProgramsHasNoPrefix) {
  DlaunchProcess job({"--no-prefix", "sh", "-c", "echo '{\"loss\": 0.5}'; echo '[7] warning' >&2"});
  ASSERT_EQ(job.Wait(), 0) << job.err();
  EXPECT_EQ(job.out(), "{\"loss\": 0.5}\n");
  EXPECT_NE(job.err().find("\n[7] warning\n"), string::npos) << job.err();
}

TEST(Run, RunsAScriptThatOnlyReadsRankAndWorldSize) {
  const TemporaryFolder folder;
  const string script = folder.AddScript("script.sh", "#!/bin/sh\necho \"hello from $RANK of $WORLD_SIZE: $1\"\n");
  DlaunchProcess job({"--nproc_per_node=3", script, "--nnodes"});
  ASSERT_EQ(job.Wait(), 0) << job.err();
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(LinesOf(job.out(), rank), vector<string>{"hello from " + std::to_string(rank) + " of 3: --nnodes"});
  }
}

TEST(Run, RanksHaveNoStandardInputAndOnlyThreeDescriptors) {
  DlaunchProcess job({"--nproc-per-node", "2", "sh", "-c", "cat; ls /proc/self/fd | tr '\\n' ' '"});
  ASSERT_EQ(job.Wait(), 0) << job.err();
  EXPECT_EQ(LinesOf(job.out(), 0), vector<string>{"0 1 2 3 "});  // 3 is the listed folder itself
}

struct ExitCase {
  const char* command;
  int expected;
};
class ExitStatus : public ::testing::TestWithParam<ExitCase> {};

TEST_P(ExitStatus, TheExitStatusIsThatOfTheFailedRank) {
  DlaunchProcess job({"--nproc-per-node", "3", "--grace", "1", "sh", "-c",
                      string("if [ $RANK = 1 ]; then ") + GetParam().command + "; else sleep 1000; fi"});
  EXPECT_EQ(job.Wait(), GetParam().expected) << job.err();
  EXPECT_NE(job.err().find("rank 1"), string::npos) << job.err();
  EXPECT_EQ(job.WaitUntilGone(std::chrono::seconds(10)), "");
}
INSTANTIATE_TEST_SUITE_P(Cases, ExitStatus,
                         ::testing::Values(ExitCase{"exit 1", 1}, ExitCase{"exit 77", 77}, ExitCase{"exit 255", 255},
                                           ExitCase{"kill -SEGV $$", 139}, ExitCase{"kill -TERM $$", 143},
                                           ExitCase{"kill -ABRT $$", 134}));

TEST(Run, PrintsTheRootCauseBeforeItsConsequences) {
  // The others complain when they are told to end: that comes after the cause.
  DlaunchProcess job({"--simulate-nodes", "2", "--nproc-per-node", "2", "sh", "-c",
                      "trap 'echo a consequence >&2; exit 9' TERM; echo up; "
                      "if [ $RANK = 2 ]; then echo last words; exit 5; fi; while :; do sleep 0.05; done"});
  ASSERT_EQ(job.Wait(), 5) << job.err();
  const size_t cause = job.err().find("rank 2");
  const size_t last_words = job.err().find("last words");
  const size_t consequence = job.err().find("a consequence");
  ASSERT_NE(cause, string::npos) << job.err();
  ASSERT_NE(last_words, string::npos) << job.err();
  ASSERT_NE(consequence, string::npos) << job.err();
  EXPECT_LT(cause, last_words);
  EXPECT_LT(last_words, consequence) << job.err();
}

// While the others take their time to end it is told already.
TEST(Run, ReportsAFailureOnce) {
  const TemporaryFolder folder;
  const string go = folder.path() + "/go";
  DlaunchProcess job({"--nproc-per-node", "2", "sh", "-c",
                      "if [ $RANK = 1 ]; then echo no tensor; exit 5; fi; "
                      "trap 'until [ -e " +
                          go + " ]; do sleep 0.05; done; exit 0' TERM; sleep 30 & wait"});
  const string failure = " exited with code 5; its last line: \"no tensor\"\n";
  EXPECT_TRUE(job.WaitUntil([&] { return job.err().find(failure) != string::npos; })) << job.err();
  std::ofstream(go) << "";
  EXPECT_EQ(job.Wait(), 5) << job.err();
  const size_t told = job.err().find(failure);
  ASSERT_NE(told, string::npos) << job.err();
  EXPECT_EQ(job.err().find(failure, told + 1), string::npos) << job.err();
  EXPECT_NE(job.err().find("dlaunch: more on the failure of rank 1 that is told above:\n  last lines of rank 1:\n"
                           "    | no tensor\n"),
            string::npos)
      << job.err();
}

// A line that stands on the screen just above is not repeated; one far above, or one that went elsewhere, is.
TEST(Run, AnErrorThatStandsAboveItsReportIsNotRepeated) {
  const string fail = "echo 'no tensor' >&2; exit 5";
  const string wait = "if [ $RANK != 2 ]; then sleep 1000; fi; ";
  DlaunchProcess above({"--nproc-per-node", "4", "sh", "-c", wait + fail});
  EXPECT_EQ(above.Wait(), 5) << above.err();
  EXPECT_EQ(CountOf(above.err(), "no tensor"), 1u) << above.err();
  EXPECT_NE(above.err().find("[2] no tensor\ndlaunch: rank 2 ("), string::npos) << above.err();

  DlaunchProcess elsewhere({"--nproc-per-node", "4", "sh", "-c", wait + "echo 'no tensor'; exit 5"});
  EXPECT_EQ(elsewhere.Wait(), 5) << elsewhere.err();
  EXPECT_EQ(CountOf(elsewhere.err(), "    | no tensor\n"), 1u) << elsewhere.err();

  DlaunchProcess unnamed({"--no-prefix", "--nproc-per-node", "4", "sh", "-c", wait + fail});
  EXPECT_EQ(unnamed.Wait(), 5) << unnamed.err();
  EXPECT_EQ(CountOf(unnamed.err(), "    | no tensor\n"), 1u) << unnamed.err();
}

class EndedByASignal : public ::testing::TestWithParam<int> {};

TEST_P(EndedByASignal, ASignalLeavesNothingAndSetsTheStatus) {
  const rlimit no_core_file{};
  const auto enter = [&] {  // a shell lets its background jobs ignore SIGINT and SIGQUIT, and so would dlaunch
    return signal(GetParam(), SIG_DFL) != SIG_ERR && setrlimit(RLIMIT_CORE, &no_core_file) == 0;
  };
  DlaunchProcess job({"--simulate-nodes", "2", "sh", "-c", "echo ready; sleep 60"}, {.enter = enter});
  ASSERT_TRUE(job.WaitForOutput("[0] ready")) << job.err();
  ASSERT_TRUE(job.WaitForOutput("[1] ready")) << job.err();
  ASSERT_EQ(kill(job.pid(), GetParam()), 0);
  EXPECT_EQ(job.Wait(), 128 + GetParam()) << job.err();
  EXPECT_EQ(job.WaitUntilGone(std::chrono::seconds(10)), "");
}

INSTANTIATE_TEST_SUITE_P(OfATerminal, EndedByASignal, ::testing::Values(SIGHUP, SIGINT, SIGQUIT, SIGTERM));

TEST(Run, ContinuesWithoutTheRankWhenAskedTo) {
  DlaunchProcess job({"--on-failure", "continue", "--nproc-per-node", "3", "sh", "-c",
                      "if [ $RANK = 1 ]; then exit 4; fi; sleep 0.5; echo finished"});  // outlives the failed rank
  job.Wait();
  EXPECT_EQ(LinesOf(job.out(), 0), vector<string>{"finished"}) << job.err();
  EXPECT_EQ(LinesOf(job.out(), 2), vector<string>{"finished"});
  EXPECT_NE(job.err().find("rank 1"), string::npos) << job.err();
}

TEST(Run, LosesAndTearsNoLine) {
  constexpr int kRanks = 16;
  constexpr int kLines = 3000;
  DlaunchProcess job({"--simulate-nodes", "2", "--nproc-per-node", std::to_string(kRanks / 2), "sh", "-c",
                      "i=0; while [ $i -lt " + std::to_string(kLines) +
                          " ]; do echo \"line $i of rank $RANK and some more text behind it\"; i=$((i+1)); done"});
  ASSERT_EQ(job.Wait(std::chrono::seconds(100)), 0) << job.err();
  for (int rank = 0; rank < kRanks; ++rank) {
    const vector<string> lines = LinesOf(job.out(), rank);
    ASSERT_EQ(lines.size(), static_cast<size_t>(kLines)) << "rank " << rank;
    for (int i = 0; i < kLines; ++i) {
      ASSERT_EQ(lines[i],
                "line " + std::to_string(i) + " of rank " + std::to_string(rank) + " and some more text behind it");
    }
  }
}

TEST(Run, LosesNothingOfMoreThanAllBuffersHold) {
  // 24 MiB, more than every buffer on the way together.
  DlaunchProcess job({"sh", "-c", "head -c 25165824 /dev/zero | tr '\\0' x | fold -w 1023; echo; echo the end"});
  ASSERT_EQ(job.Wait(std::chrono::seconds(100)), 0) << job.err();
  size_t bytes = 0;
  for (const string& line : LinesOf(job.out(), 0)) bytes += std::count(line.begin(), line.end(), 'x');
  EXPECT_EQ(bytes, 25165824u);
  EXPECT_EQ(LinesOf(job.out(), 0).back(), "the end");
}

// tqdm and the like: a user who watches sees how far it is, and at the end the last state as a line.
TEST(Run, ShowsProgressThatIsDrawnOverItself) {
  const TemporaryFolder folder;
  const string gate = folder.path() + "/gate";
  ASSERT_EQ(::mkfifo(gate.c_str(), 0600), 0);
  DlaunchProcess job({"sh", "-c", "printf '\\rstep 1\\rstep 2'; read x < \"$0\"; printf '\\rstep 3\\n'", gate});
  EXPECT_TRUE(job.WaitForOutput("[0] step 2\n")) << job.out();  // while it has not ended its line
  std::ofstream(gate) << "go\n";
  ASSERT_EQ(job.Wait(), 0) << job.err();
  EXPECT_EQ(LinesOf(job.out(), 0), (vector<string>{"step 2", "step 3"}));
}

TEST(Run, WritesLogFiles) {
  const TemporaryFolder folder;
  const string logs = folder.path() + "/deep/logs";
  DlaunchProcess job(
      {"--nproc-per-node", "2", "--log-dir", logs, "sh", "-c", "echo out $RANK; echo err $RANK >&2; printf tail"});
  ASSERT_EQ(job.Wait(), 0) << job.err();
  for (const string rank : {"0", "1"}) {
    EXPECT_EQ(ReadFile(logs + "/rank-" + rank + ".out"), "out " + rank + "\ntail");
    EXPECT_EQ(ReadFile(logs + "/rank-" + rank + ".err"), "err " + rank + "\n");
  }
  EXPECT_NE(ReadFile(logs + "/report.json").find("\"exit_code\": 0"), string::npos);
  EXPECT_EQ(job.err().find("another job"), string::npos) << job.err();
  DlaunchProcess again({"--log-dir", logs, "test", "!", "-e", logs + "/report.json"});
  EXPECT_EQ(again.Wait(), 0) << again.err();
  EXPECT_NE(ReadFile(logs + "/report.json").find("\"exit_code\": 0"), string::npos);
  EXPECT_NE(again.err().find(logs + " has the files of another job"), string::npos) << again.err();
}

TEST(Run, KeepsARecordOfAFailure) {
  const TemporaryFolder folder;
  DlaunchProcess job({"--nproc-per-node", "2", "--log-dir", folder.path(), "sh", "-c",
                      "if [ $RANK = 1 ]; then echo no tensor >&2; exit 7; fi; sleep 60"});
  EXPECT_EQ(job.Wait(), 7) << job.err();
  const string record = ReadFile(folder.path() + "/report.json");
  for (const char* text :
       {"\"exit_code\": 7", "\"rank\": 1,", "no tensor", "exited with code 7", "\"by_dlaunch\": true"}) {
    EXPECT_NE(record.find(text), string::npos) << text << " in " << record;
  }
}

TEST(Run, GoesOnWhenALogFileCanNotBeWritten) {
  const TemporaryFolder folder;
  std::filesystem::create_symlink("/dev/full", folder.path() + "/rank-0.out");
  DlaunchProcess job({"--nproc-per-node", "2", "--log-dir", folder.path(), "sh", "-c", "echo one; echo two"});
  EXPECT_EQ(job.Wait(), 0) << job.err();
  EXPECT_EQ(LinesOf(job.out(), 0), (vector<string>{"one", "two"}));
  EXPECT_EQ(ReadFile(folder.path() + "/rank-1.out"), "one\ntwo\n");
  const size_t first = job.err().find("rank-0.out: No space left");
  ASSERT_NE(first, string::npos) << job.err();
  EXPECT_EQ(job.err().find("rank-0.out: No space left", first + 1), string::npos) << "told once";
}

TEST(Run, EndsWhenNobodyReadsItsOutput) {
  DlaunchProcess job({"sh", "-c", "while :; do echo y; sleep 0.01; done"},
                     {.environment = {}, .working_directory = "", .close_output_at_once = true});
  EXPECT_EQ(job.Wait(), 141) << job.err();
  EXPECT_EQ(job.WaitUntilGone(std::chrono::seconds(10)), "");
}

TEST(Run, ReportsThatItsOutputCouldNotBeWritten) {
  for (const string& arguments : {string("--help"), string("--dry-run true"), string("doctor"), string("status"),
                                  string("echo hi"), string("sh -c 'while :; do echo y; sleep 0.01; done'")}) {
    // The outer job is only a way to collect what the inner one says.
    DlaunchProcess job({"sh", "-c", "env -u COHORT_AGENT $COHORT_TEST_BIN_DIR/dlaunch " + arguments + " > /dev/full"});
    EXPECT_EQ(job.Wait(), 125) << arguments;
    EXPECT_NE(job.err().find("can't write the standard output: No space left"), string::npos) << job.err();
  }
}

TEST(Run, ALimitOnFilesSizeIsAnErrorAndNoSignal) {
  if (COHORT_THREAD_SANITIZER) GTEST_SKIP() << "TSan's runtime dies of such a limit before main()";
  const TemporaryFolder folder;
  DlaunchProcess job(
      {"sh", "-c", "ulimit -f 0; env -u COHORT_AGENT $COHORT_TEST_BIN_DIR/dlaunch --help > " + folder.path() + "/out"});
  EXPECT_EQ(job.Wait(), 125) << job.err();
  EXPECT_NE(job.err().find("can't write the standard output: File too large"), string::npos) << job.err();
}

TEST(Run, EndsWhenNobodyReadsItsErrorOutput) {
  DlaunchProcess job({"sh", "-c",
                      "(env -u COHORT_AGENT $COHORT_TEST_BIN_DIR/dlaunch "
                      "sh -c 'while :; do echo y >&2; sleep 0.01; done' 2>&1 >/dev/null; echo ended $? >&2) | "
                      "head -1 >/dev/null"});
  EXPECT_EQ(job.Wait(), 0) << job.err();
  EXPECT_NE(job.err().find("ended 141"), string::npos) << job.err();
}

// Arguments, variables, folders and output are bytes: nothing says that they are UTF-8.
TEST(Run, PassesEveryByteOn) {
  const TemporaryFolder folder;
  const string odd = "b\xff\xc3";
  ASSERT_TRUE(std::filesystem::create_directory(folder.path() + "/" + odd));
  const string script = folder.AddScript(odd + "/" + odd, "#!/bin/sh\necho \"$A|$1|$PWD\"; exit $2\n");
  const string expected = odd + "|" + odd + "|" + folder.path() + "/" + odd;
  for (const string& status : {string("0"), string("5")}) {
    DlaunchProcess job(
        {"--env", "A=" + odd, "--log-dir", "log" + odd, "./" + odd, odd, status},
        {.environment = {}, .working_directory = folder.path() + "/" + odd, .close_output_at_once = false});
    EXPECT_EQ(job.Wait(), std::stoi(status)) << job.err();
    EXPECT_EQ(LinesOf(job.out(), 0), vector<string>{expected});
    EXPECT_EQ(job.err().find("protobuf"), string::npos) << job.err();
    EXPECT_EQ(job.err().find("| b\\xff\\xc3|") != string::npos, status == "5") << job.err();
  }
}

TEST(Run, FindsProgramsInPathThenHereThenBesideItself) {
  const TemporaryFolder here;
  const TemporaryFolder path;
  here.AddScript("both", "#!/bin/sh\necho here\n");
  here.AddScript("mine", "#!/bin/sh\necho mine\n");
  path.AddScript("both", "#!/bin/sh\necho path\n");
  const DlaunchSurroundings options{.environment = {"PATH=" + path.path() + ":/usr/bin:/bin"},
                                    .working_directory = here.path(),
                                    .close_output_at_once = false};
  DlaunchProcess both({"both"}, options);
  EXPECT_EQ(both.Wait(), 0) << both.err();
  EXPECT_EQ(LinesOf(both.out(), 0), vector<string>{"path"});
  EXPECT_NE(both.err().find(path.path() + "/both (in PATH)"), string::npos) << both.err();
  DlaunchProcess mine({"mine"}, options);
  EXPECT_EQ(mine.Wait(), 0) << mine.err();
  EXPECT_EQ(LinesOf(mine.out(), 0), vector<string>{"mine"});
  EXPECT_NE(mine.err().find("(in the working directory)"), string::npos) << mine.err();
}

// As dlaunch calls what it starts of itself.
TEST(Run, AProgramMayBeNamedSentinel) {
  const TemporaryFolder path;
  path.AddScript("sentinel", "#!/bin/sh\necho got $*\n");
  for (const vector<string>& words : {vector<string>{"--agent=a", "b", "c", "d"},
                                      vector<string>{"--agent=2000000000", "-1", "COHORT_AGENT=@mine", "d"}}) {
    vector<string> arguments = {"sentinel"};
    arguments.insert(arguments.end(), words.begin(), words.end());
    DlaunchProcess job(arguments, {.environment = {"PATH=" + path.path() + ":/usr/bin:/bin"}});
    EXPECT_EQ(job.Wait(), 0) << job.err();
    EXPECT_EQ(LinesOf(job.out(), 0), vector<string>{"got " + words[0] + " " + words[1] + " " + words[2] + " d"});
  }
}

TEST(Run, DryRunPrintsThePlanAndStartsNothing) {
  const TemporaryFolder folder;
  const string script = folder.AddScript("never", "#!/bin/sh\ntouch " + folder.path() + "/ran\n");
  DlaunchProcess job(
      {"--nnodes", "2", "--simulate-nodes", "2", "--simulate-gpus", "4", "--gpus-per-rank", "2", "--dry-run", script});
  ASSERT_EQ(job.Wait(), 0) << job.err();
  // The CPUs are this machine's; everything before them is not.
  std::istringstream stream(job.out());
  vector<string> lines;
  for (string line; std::getline(stream, line);) lines.push_back(line.substr(0, 49));
  ASSERT_EQ(lines.size(), 7u) << job.out();
  EXPECT_EQ(lines[2], "node  name   rank  local  group 0  group 1  CPUs");
  EXPECT_EQ(lines[3].substr(0, 44), "0     node0  0     0      sim:0    sim:1    ");
  EXPECT_EQ(lines[4].substr(0, 44), "0     node0  1     1      sim:2    sim:3    ");
  EXPECT_EQ(lines[5].substr(0, 44), "1     node1  2     0      sim:0    sim:1    ");
  EXPECT_EQ(lines[6].substr(0, 44), "1     node1  3     1      sim:2    sim:3    ");
  EXPECT_FALSE(std::filesystem::exists(folder.path() + "/ran"));
}

TEST(Run, ManyShortRanksEndWell) {
  DlaunchProcess job({"--nproc-per-node", "64", "true"});
  EXPECT_EQ(job.Wait(), 0) << job.err();
  EXPECT_EQ(job.WaitUntilGone(std::chrono::seconds(10)), "");
}

TEST(Notices, NoticesReachEveryRankAndTheJobGoesOn) {
  for (const int signal : {SIGUSR1, SIGUSR2}) {
    const string name = signal == SIGUSR1 ? "USR1" : "USR2";
    DlaunchProcess job({"--simulate-nodes", "2", "--nproc-per-node", "2", "sh", "-c",
                        "trap 'echo saved; exit 0' " + name + "; echo up; while :; do sleep 0.05; done"});
    for (int rank = 0; rank < 4; ++rank) ASSERT_TRUE(job.WaitForOutput("[" + std::to_string(rank) + "] up"));
    ::kill(job.pid(), signal);
    EXPECT_EQ(job.Wait(), 0) << job.err();
    for (int rank = 0; rank < 4; ++rank) {
      EXPECT_NE(job.out().find("[" + std::to_string(rank) + "] saved"), string::npos) << job.out();
    }
    EXPECT_NE(job.err().find("SIG" + name + ": telling all ranks"), string::npos) << job.err();
  }
}

TEST(Notices, ARankThatDiesOfANoticeIsReportedSo) {
  DlaunchProcess job({"--simulate-nodes", "2", "--nproc-per-node", "1", "sh", "-c",
                      "[ $RANK = 0 ] && trap : USR1; echo up; while :; do sleep 0.05; done"});
  for (int rank = 0; rank < 2; ++rank) ASSERT_TRUE(job.WaitForOutput("[" + std::to_string(rank) + "] up"));
  ::kill(job.pid(), SIGUSR1);
  EXPECT_EQ(job.Wait(), 128 + SIGUSR1) << job.err();
  EXPECT_NE(job.err().find("rank 1 (node1, pid "), string::npos) << job.err();
  EXPECT_NE(job.err().find("killed by SIGUSR1, which dlaunch or its agent was sent and passed on"), string::npos)
      << job.err();
}

// A rank that prints more than it may: dlaunch prints the first second's worth, what is missing is counted, the last
// lines come, and the file has everything.
TEST(Run, ALimitOnOutputDropsTheMiddleAndSaysSo) {
  const TemporaryFolder folder;
  DlaunchProcess job({"--log-rate", "1K", "--log-dir", folder.path(), "sh", "-c", "seq -f 'line %.0f' 1 100000"});
  ASSERT_EQ(job.Wait(), 0) << job.err();
  const vector<string> lines = LinesOf(job.out(), 0);
  ASSERT_GT(lines.size(), 1000u) << "64 KiB of the last ones";
  EXPECT_LT(job.out().size(), 200u << 10);
  EXPECT_EQ(lines.front(), "line 1");
  EXPECT_EQ(lines.back(), "line 100000");
  size_t printed = 0, dropped = 0;
  for (const string& line : lines) {
    if (line.starts_with("[dropped ")) {
      dropped += std::stoul(line.substr(9));
    } else {
      ++printed;
      EXPECT_EQ(line, "line " + std::to_string(printed + dropped));
    }
  }
  EXPECT_GT(dropped, 0u);
  EXPECT_EQ(printed + dropped, 100'000u);
  const string kept = ReadFile(folder.path() + "/rank-0.out");
  EXPECT_EQ(std::count(kept.begin(), kept.end(), '\n'), 100'000);
}

// Output above the limit follows while the rank lives on.
TEST(Run, ALimitOnOutputDelaysWhatItDoesNotDrop) {
  const TemporaryFolder folder;
  const string go = folder.path() + "/go";
  DlaunchProcess job({"--log-rate", "4K", "sh", "-c",
                      "for i in 1 2 3; do printf '%04000d\\n' $i; done; until [ -e " + go + " ]; do sleep 0.05; done"});
  EXPECT_TRUE(job.WaitForOutput("0003\n")) << job.out().size();
  std::ofstream(go) << "now";
  EXPECT_EQ(job.Wait(), 0) << job.err();
  EXPECT_EQ(job.out().size(), 3 * (4 + 4001u)) << "nothing is dropped";
}

}  // namespace
}  // namespace cohort::launcher
