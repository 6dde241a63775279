#include "cohort/launcher/report/diagnosis.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>

namespace cohort::launcher {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

v1::JobReport KilledReport() {
  v1::JobReport report;
  report.set_exit_code(137);
  report.set_culprit_rank(3);
  report.set_headline("rank 3 (node1, pid 4711) killed by SIGKILL");
  report.add_last_lines("step 40 loss 0.33");
  report.add_last_lines("step 41 loss 0.31");
  report.add_others("rank 0 (node0): in all_reduce #42 at train.cc:88 for 120 ms");
  v1::RankExit& exit = *report.add_exits();
  exit.set_rank(3);
  exit.set_started(true);
  exit.set_signal(SIGKILL);
  exit.set_log_path("log/rank3.err");
  return report;
}

TEST(Diagnosis, ASuccessfulJobPrintsNothing) { EXPECT_EQ(FormatReport(v1::JobReport()), ""); }

TEST(Diagnosis, TheRootCauseComesFirst) {
  EXPECT_EQ(FormatReport(KilledReport()),
            "dlaunch: rank 3 (node1, pid 4711) killed by SIGKILL\n"
            "  dlaunch did not send that signal: most often it is the kernel, out of memory (see dmesg), or a person\n"
            "  last lines of rank 3 (log/rank3.{out,err}):\n"
            "    | step 40 loss 0.33\n"
            "    | step 41 loss 0.31\n"
            "  the others:\n"
            "    rank 0 (node0): in all_reduce #42 at train.cc:88 for 120 ms\n");
}

TEST(Diagnosis, ACodeOfAWrapperHasTheSignalsHint) {
  v1::JobReport report = KilledReport();
  v1::RankExit& exit = *report.mutable_exits(0);
  exit.set_signal(0);
  exit.set_exit_code(139);
  EXPECT_THAT(FormatReport(report), HasSubstr("  if so: an invalid memory access"));
  exit.set_exit_code(200);
  EXPECT_THAT(FormatReport(report), Not(HasSubstr("if so")));
  report.add_last_lines("sh: 1: cannot open /dev/tty: No such device or address");
  EXPECT_THAT(FormatReport(report),
              HasSubstr("  ranks have no terminal, and only rank 0 reads dlaunch's input: what is redirected"));
}

TEST(Diagnosis, FactsThatWerePrintedAreNotPrintedAgain) {
  DiagnosisOptions options;
  options.told = true;
  EXPECT_THAT(FormatReport(KilledReport(), options),
              StartsWith("dlaunch: more on the failure of rank 3 that is told above:\n  dlaunch did not send"));
  v1::JobReport bare;
  bare.set_exit_code(5);
  bare.set_headline("rank 0 (a, pid 1) exited with code 5");
  EXPECT_EQ(FormatReport(bare, options), "");
}

TEST(Diagnosis, LinesThatStandAboveAreNotRepeated) {
  DiagnosisOptions options;
  options.lines_stand_above = true;
  EXPECT_EQ(FormatReport(KilledReport(), options),
            "dlaunch: rank 3 (node1, pid 4711) killed by SIGKILL\n"
            "  dlaunch did not send that signal: most often it is the kernel, out of memory (see dmesg), or a person\n"
            "  log of rank 3: log/rank3.{out,err}\n"
            "  the others:\n"
            "    rank 0 (node0): in all_reduce #42 at train.cc:88 for 120 ms\n");
  options.told = true;
  v1::JobReport bare;
  bare.set_exit_code(5);
  bare.set_headline("rank 0 (a, pid 1) exited with code 5");
  bare.add_last_lines("no tensor");
  EXPECT_EQ(FormatReport(bare, options), "");
}

TEST(Diagnosis, TheLastLineInTheHeadlineIsNotRepeatedBelowIt) {
  v1::JobReport report;
  report.set_exit_code(5);
  report.set_headline("rank 0 (a, pid 1) exited with code 5 while in barrier #1; its last line: \"no tensor\"");
  report.set_last_words("no tensor");
  EXPECT_EQ(FormatReport(report), "dlaunch: " + report.headline() + "\n");
  report.add_last_lines("\x1b[31mno tensor\x1b[0m");
  DiagnosisOptions options;
  options.lines_stand_above = true;
  EXPECT_EQ(FormatReport(report, options), "dlaunch: rank 0 (a, pid 1) exited with code 5 while in barrier #1\n");
  for (int i = 0; i < 5; ++i) report.add_last_lines("retry " + std::to_string(i));  // of the other stream
  EXPECT_THAT(FormatReport(report, options), HasSubstr("; its last line: \"no tensor\"\n"));
}

TEST(Diagnosis, ReportsAreColouredOnlyWhenAsked) {
  EXPECT_THAT(FormatReport(KilledReport()), Not(HasSubstr("\x1b")));
  DiagnosisOptions options;
  options.colour = true;
  EXPECT_THAT(FormatReport(KilledReport(), options), StartsWith("\x1b[1;31mdlaunch: rank 3"));
}

TEST(Diagnosis, NothingThatRanksPrintSteersTheTerminal) {
  v1::JobReport report = KilledReport();
  report.set_headline("bad\x1b[2Jname\r\n");
  report.set_last_lines(0,
                        "\x1b]0;title\x07 \xc2\x9b"
                        "31m \xff caf\xc3\xa9 \xe2\x80\xaetxt\ttab");
  const std::string text = FormatReport(report);
  EXPECT_THAT(text, HasSubstr("dlaunch: bad\\x1b[2Jname\\x0d\\x0a\n"));
  EXPECT_THAT(text, HasSubstr("\\x1b]0;title\\x07 \\xc2\\x9b31m \\xff caf\xc3\xa9 \\xe2\\x80\\xaetxt  tab\n"));
}

TEST(Diagnosis, ListsInAReportAreBounded) {
  v1::JobReport report = KilledReport();
  report.clear_last_lines();
  report.clear_others();
  for (int i = 0; i < 100; ++i) {
    report.add_last_lines("line " + std::to_string(i));
    report.add_others("rank " + std::to_string(i));
  }
  DiagnosisOptions options;
  options.last_lines = 5;
  options.others = 7;
  const std::string text = FormatReport(report, options);
  EXPECT_THAT(text, Not(HasSubstr("line 94\n")));
  EXPECT_THAT(text, HasSubstr("line 95\n"));
  EXPECT_THAT(text, HasSubstr("    rank 6\n    and 93 more\n"));
  report.set_others_left_out(200);  // the rendezvous does not send all
  EXPECT_THAT(FormatReport(report, options), HasSubstr("    rank 6\n    and 293 more\n"));
}

// A rank that was told to end.
v1::RankExit& AddEnded(uint32_t rank, const std::vector<std::string>& frames, v1::JobReport* report) {
  v1::RankExit& exit = *report->add_exits();
  exit.set_rank(rank);
  exit.set_killed_by_us(true);
  exit.mutable_frames()->Assign(frames.begin(), frames.end());
  exit.set_state("python3 sleeps in futex");
  return exit;
}

TEST(Diagnosis, PlacesOfFewRanksComeFirst) {
  v1::JobReport report = KilledReport();
  for (const uint32_t rank : {0u, 1u, 5u}) AddEnded(rank, {"train.py:30 in step", "train.py:44 in main"}, &report);
  AddEnded(2, {"data.py:7 in load\x1b"}, &report);
  EXPECT_THAT(FormatReport(report), HasSubstr("  when they were told to end:\n"
                                              "    rank 2: data.py:7 in load\\x1b\n"
                                              "    ranks 0, 1 and 5: train.py:30 in step\n"
                                              "      called from train.py:44 in main\n"
                                              "  the others:\n"));
  DiagnosisOptions options;
  options.places = 1;
  EXPECT_THAT(FormatReport(report, options), HasSubstr("in load\\x1b\n    and 3 more elsewhere\n"));
  report.set_culprit_rank(1);
  EXPECT_THAT(FormatReport(report, options), HasSubstr("in main\n    and 1 more elsewhere\n"));
}

TEST(Diagnosis, ASystemCallIsAPlaceWhereNothingBetterIsKnown) {
  v1::JobReport report = KilledReport();
  v1::RankExit& exit = AddEnded(0, {}, &report);
  EXPECT_THAT(FormatReport(report), HasSubstr("    rank 0: python3 sleeps in futex\n"));
  exit.mutable_doing()->set_present(true);
  EXPECT_THAT(FormatReport(report), Not(HasSubstr("futex")));  // its call is told among the others
  exit.mutable_doing()->set_done(true);
  EXPECT_THAT(FormatReport(report), HasSubstr("futex"));
}

TEST(Diagnosis, AProgramThatIsNotFoundGetsTheRemedy) {
  v1::JobReport report;
  report.set_exit_code(127);
  report.set_culprit_rank(0);
  report.set_headline("ranks 0-3 could not be started: main: no such file");
  report.add_exits()->set_rank(0);
  EXPECT_THAT(FormatReport(report), HasSubstr("looked up in PATH"));
}

TEST(Diagnosis, AKillMayComeOfTheLimitOnCpuTimeWhereThereIsOne) {
  EXPECT_THAT(FormatReport(KilledReport()), Not(HasSubstr("ulimit -t")));
  DiagnosisOptions options;
  options.cpu_time_limited = true;
  EXPECT_THAT(FormatReport(KilledReport(), options), HasSubstr("ulimit -t"));
}

TEST(Diagnosis, AnAssertionOfUcxAboutAMessageIsPutDownToStrangers) {
  v1::JobReport report = KilledReport();
  report.mutable_exits(0)->set_signal(SIGABRT);
  EXPECT_THAT(FormatReport(report), HasSubstr("uncaught exception"));
  report.add_last_lines("[vm:1:0] tcp_ep.c:1404 Assertion `hdr->length <= 266240' failed");
  EXPECT_THAT(FormatReport(report), HasSubstr("COHORT_PORT_RANGE"));
}

TEST(Diagnosis, ARankKilledByDlaunchHasNoHintOfMemory) {
  v1::JobReport report = KilledReport();
  report.mutable_exits(0)->set_killed_by_us(true);
  EXPECT_THAT(FormatReport(report), Not(HasSubstr("memory")));
}

}  // namespace
}  // namespace cohort::launcher
