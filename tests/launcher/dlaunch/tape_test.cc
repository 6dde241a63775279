// `dlaunch --tape` and `dlaunch replay`: real jobs, whose ranks are run again alone.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <string>
#include <system_error>
#include <vector>

#include "cohort/runtime/tape/tape_writer.h"
#include "cohort/v1/agent.pb.h"
#include "tests/launcher/dlaunch/dlaunch_process.h"

namespace cohort::launcher {
namespace {

using std::string;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using ::testing::Not;

class Tape : public ::testing::Test {
 protected:
  std::vector<string> Job(const std::vector<string>& options, const std::vector<string>& arguments) const {
    std::vector<string> command = {"--simulate-nodes", "2", "--nproc-per-node", "2", "--tape", tapes_};
    command.insert(command.end(), options.begin(), options.end());
    command.insert(command.end(), {"--", COHORT_TRACE_RANKS});
    command.insert(command.end(), arguments.begin(), arguments.end());
    return command;
  }
  std::vector<string> Replay(const std::vector<string>& options, const std::vector<string>& program) const {
    std::vector<string> command = {"replay", tapes_};
    command.insert(command.end(), options.begin(), options.end());
    command.push_back("--");
    command.insert(command.end(), program.begin(), program.end());
    return command;
  }

  TemporaryFolder folder_;
  const string tapes_ = folder_.path() + "/tapes";
};

TEST_F(Tape, EachRankRunsAgainAlone) {
  DlaunchProcess job(Job({}, {"40", "0"}));
  ASSERT_EQ(job.Wait(), 0) << job.err();
  for (const string rank : {"0", "1", "2", "3"}) {
    DlaunchProcess replay(Replay({"--rank", rank}, {COHORT_TRACE_RANKS, "40", "0"}));
    EXPECT_EQ(replay.Wait(), 0) << replay.err();
    EXPECT_THAT(replay.out(), HasSubstr("calls 43"));
    EXPECT_THAT(replay.err(), AllOf(HasSubstr("replays rank " + rank + " of 4, epoch 1: 43 calls"),
                                    Not(HasSubstr("is not what it was"))));
  }
  DlaunchProcess list({"replay", tapes_});
  EXPECT_EQ(list.Wait(), 0);
  EXPECT_THAT(list.out(),
              MatchesRegex("(.*\n)*rank 3, epoch 1: 43 calls, [0-9]+ bytes for [0-9]+ that it received, of 4 "
                           "ranks; the rank ended in order\n"));
}

TEST_F(Tape, AToolStandsBeforeTheProgram) {
  DlaunchProcess job(Job({"--tape-ranks", "3"}, {"5", "0"}));
  ASSERT_EQ(job.Wait(), 0) << job.err();
  DlaunchProcess replay(Replay({}, {"env", "A=1", COHORT_TRACE_RANKS, "5", "0"}));  // the only rank that was recorded
  EXPECT_EQ(replay.Wait(), 0) << replay.err();
  EXPECT_THAT(replay.err(), HasSubstr("replays rank 3 of 4"));
}

TEST_F(Tape, AnotherProgramIsNamedWithBothCalls) {
  DlaunchProcess job(Job({"--tape-ranks", "1"}, {"5", "0"}));
  ASSERT_EQ(job.Wait(), 0) << job.err();
  DlaunchProcess replay(Replay({}, {COHORT_TRACE_RANKS, "6", "0"}));
  EXPECT_EQ(replay.Wait(), 1);
  EXPECT_THAT(replay.err(), AllOf(HasSubstr("rank 1 calls all_reduce(max, float32, 2) at trace_ranks.cc:"),
                                  HasSubstr("its tape has as call 6 send(float32, 2, to 2) at trace_ranks.cc:")));
}

TEST_F(Tape, AProgramThatEndsBeforeItsTapeFails) {
  DlaunchProcess job(Job({"--tape-ranks", "1"}, {"5", "0"}));
  ASSERT_EQ(job.Wait(), 0) << job.err();
  DlaunchProcess replay(Replay({}, {COHORT_TRACE_RANKS, "stop", "3"}));
  EXPECT_EQ(replay.Wait(), 1);
  EXPECT_THAT(replay.err(), HasSubstr("replay of rank 1: the program ended after 3 of 8 calls"));
}

TEST_F(Tape, ADamagedTapeIsRefused) {
  DlaunchProcess job(Job({"--tape-ranks", "0"}, {"50", "0"}));
  ASSERT_EQ(job.Wait(), 0) << job.err();
  const string path = tapes_ + "/rank-0.epoch-1.tape";
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(static_cast<std::streamoff>(std::filesystem::file_size(path) / 2));
  file.put('\x55');
  file.close();
  DlaunchProcess replay(Replay({}, {COHORT_TRACE_RANKS, "50", "0"}));
  EXPECT_EQ(replay.Wait(), 2);
  EXPECT_THAT(replay.err(), AllOf(HasSubstr("is damaged at byte"), HasSubstr("[tape-unreadable]")));
  DlaunchProcess list({"replay", tapes_});
  EXPECT_EQ(list.Wait(), 2);
  EXPECT_THAT(list.out(), AllOf(HasSubstr("rank 0, epoch 1: "), HasSubstr("is damaged at byte")));
}

TEST_F(Tape, ATapeOfAnotherVersionIsRefused) {
  runtime::TapeHead head;
  head.version = "9.9.9";
  head.id = 1;
  v1::Welcome rank;
  rank.set_world_size(2);
  head.welcome = rank.SerializeAsString();
  ASSERT_TRUE(runtime::TapeWriter::Create(tapes_, "rank-0.epoch-1.tape", head).ok());
  DlaunchProcess replay(Replay({}, {COHORT_TRACE_RANKS, "50", "0"}));
  EXPECT_EQ(replay.Wait(), 2);
  EXPECT_THAT(replay.err(), AllOf(HasSubstr("Cohort 9.9.9 wrote it"), HasSubstr("[tape-unreadable]")));
  DlaunchProcess list({"replay", tapes_});
  EXPECT_EQ(list.Wait(), 0);
  EXPECT_THAT(list.out(), HasSubstr("rank 0, epoch 1: the tape " + tapes_ + "/rank-0.epoch-1.tape: Cohort 9.9.9"));
}

TEST_F(Tape, AKilledRanksTapeHoldsWhatItGotBefore) {
  DlaunchProcess job(Job({"--tape-ranks", "1"}, {"1000000", "0"}));
  ASSERT_TRUE(job.WaitUntil([this] {
    std::error_code error;
    return std::filesystem::file_size(tapes_ + "/rank-1.epoch-1.tape", error) > 2'000 && !error;
  }));
  ASSERT_GT(job.RankProcess(1), 0);
  ::kill(job.RankProcess(1), SIGKILL);
  EXPECT_EQ(job.Wait(), 128 + SIGKILL) << job.err();
  DlaunchProcess list({"replay", tapes_});
  EXPECT_EQ(list.Wait(), 0);
  EXPECT_THAT(list.out(), HasSubstr("the rank was killed, or its disk was full"));
  DlaunchProcess replay(Replay({}, {COHORT_TRACE_RANKS, "1000000", "0"}));
  EXPECT_EQ(replay.Wait(), 1);
  EXPECT_THAT(replay.err(), AllOf(HasSubstr("ends here"), HasSubstr("what it did next is not known")));
}

TEST_F(Tape, AFullDiskEndsTheTapeAndNotTheJob) {
  std::filesystem::create_directory(tapes_);
  const auto with_small_disk = [this] {
    return ::unshare(CLONE_NEWNS) == 0 && ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
           ::mount("none", tapes_.c_str(), "tmpfs", 0, "size=4k") == 0;
  };
  DlaunchProcess job(Job({"--tape-ranks", "0"}, {"500", "0"}), {.enter = with_small_disk});
  const int status = job.Wait();
  if (status == 97) GTEST_SKIP() << "no file system can be mounted here";
  EXPECT_EQ(status, 0) << job.err();
  EXPECT_THAT(job.err(), HasSubstr("rank 0: the tape " + tapes_ +
                                   "/rank-0.epoch-1.tape ends here: No space left on "
                                   "device; what it holds can be replayed, and the job goes on"));
}

TEST_F(Tape, WrongOptionsAreRefusedBeforeTheJob) {
  std::ofstream(folder_.path() + "/file") << "";
  struct Case {
    std::vector<string> arguments;
    string says;
  };
  for (const Case& c : {Case{{"--tape", folder_.path() + "/file/x", "true"}, "[tape-folder]"},
                        Case{{"-n", "2", "--tape", tapes_, "--tape-ranks", "2", "true"}, "[tape-rank]"},
                        Case{{"--tape-last", "3", "true"}, "[tape-alone]"},
                        Case{{"replay", folder_.path(), "--", "true"}, "[no-tape]"}, Case{{"replay"}, "[usage]"}}) {
    DlaunchProcess job(c.arguments);
    EXPECT_EQ(job.Wait(), 2) << job.err();
    EXPECT_THAT(job.err(), HasSubstr(c.says));
  }
}

}  // namespace
}  // namespace cohort::launcher
