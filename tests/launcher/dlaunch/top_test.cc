// `dlaunch top`: its page from made-up jobs, and of real ones.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <pty.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstring>
#include <string>
#include <vector>

#include "cohort/launcher/agent/watch/group_use.h"
#include "cohort/launcher/agent/watch/process_state.h"
#include "cohort/launcher/commands/top_table.h"
#include "cohort/launcher/jobs/live_view.h"
#include "cohort/runtime/base/file_descriptor.h"
#include "tests/launcher/dlaunch/dlaunch_process.h"
#include "tests/launcher/dlaunch/running_job.h"

namespace cohort::launcher {
namespace {

using std::string;
using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr uint64_t kGiB = uint64_t{1} << 30;

// Four ranks on two nodes: two in a call, one outside, one ended.
JobFrame MakeFrame() {
  JobFrame frame;
  frame.pid = 4711;
  v1::JobSnapshot& job = frame.job;
  job.set_job_id("job-00ff");
  job.set_phase("running");
  job.set_epoch(1);
  job.set_age_ms(12'000);
  job.set_world_size(4);
  job.set_source("2 simulated nodes");
  job.add_programs()->add_command("/usr/bin/train");
  job.set_node_count(2);
  for (uint32_t i = 0; i < 2; ++i) {
    v1::JobNode& node = *job.add_nodes();
    node.set_name("node" + std::to_string(i));
    node.set_first_rank(2 * i);
    node.set_rank_count(2);
    node.set_agent(i == 0 ? 99 : 0);
  }
  for (uint32_t i = 0; i < 4; ++i) {
    v1::JobRank& rank = *job.add_ranks();
    rank.set_node(i / 2);
    rank.set_known(true);
    v1::RankView& view = *rank.mutable_view();
    view.set_rank(i);
    view.set_pid(static_cast<int32_t>(1000 + i));
    view.set_age_ms(10'000);
    view.set_cpu_ms(5'000);
    view.set_resident_bytes(kGiB);
    v1::CallState& call = *view.mutable_doing();
    call.set_present(true);
    call.set_call("all_reduce(sum, float32, 8)");
    call.set_site("train.cc:88");
    call.set_sequence(42);
    call.set_age_ms(i == 1 ? 7'300 : 120);
    call.set_done(i == 2);
  }
  job.mutable_ranks(3)->mutable_view()->set_pid(0);
  frame.at = std::chrono::steady_clock::time_point(std::chrono::hours(1));
  return frame;
}

std::vector<string> Lines(const string& text) {
  std::vector<string> lines;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = text.find('\n', begin);
    lines.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return lines;
}

TEST(TopTable, ShowsJobNodesAndRanks) {
  EXPECT_THAT(
      Lines(FormatJobFrame(MakeFrame(), nullptr, {})),
      ElementsAre("job-00ff  running for 12 s  4 ranks on 2 simulated nodes  dlaunch pid 4711", "  /usr/bin/train",
                  "ranks: 2 in calls, 1 outside calls, 1 ended; 150 % CPU, 4.0 GiB of memory",
                  "longest in its call: rank 1, in all_reduce #42 at train.cc:88 for 7.3 s",
                  "node0: ranks 0-1, 100 % CPU, 2.0 GiB", "node1: ranks 2-3, 50 % CPU, 2.0 GiB; its agent has ended",
                  "", "RANK  NODE    PID  CPU %   MEMORY  DOING",
                  "   0  node0  1000     50  1.0 GiB  in all_reduce #42 at train.cc:88 for 120 ms",
                  "   1  node0  1001     50  1.0 GiB  in all_reduce #42 at train.cc:88 for 7.3 s",
                  "   2  node1  1002     50  1.0 GiB  after all_reduce #42 at train.cc:88, for 120 ms",
                  "   3  node1     -      -        -  has ended"));
}

TEST(TopTable, CountsRanksOfMpiInTheWordsOfTheirLines) {
  JobFrame frame = MakeFrame();
  v1::CallState mpi;
  mpi.set_in_mpi(true);
  *frame.job.mutable_ranks(0)->mutable_view()->mutable_doing() = mpi;
  const std::vector<string> lines = Lines(FormatJobFrame(frame, nullptr, {}));
  EXPECT_THAT(lines[2], HasSubstr("ranks: 1 in calls, 1 in MPI, 1 outside calls, 1 ended"));
  EXPECT_EQ(lines[8], "   0  node0  1000     50  1.0 GiB  in MPI");
}

TEST(TopTable, NamesRanksThatOthersWaitFor) {
  JobFrame frame = MakeFrame();
  frame.job.mutable_ranks(2)->set_waiting_for(2);
  EXPECT_EQ(Lines(FormatJobFrame(frame, nullptr, {}))[3],
            "2 ranks wait for rank 2, after all_reduce #42 at train.cc:88, for 120 ms");
  frame.job.mutable_ranks(0)->set_waiting_for(1);
  EXPECT_THAT(Lines(FormatJobFrame(frame, nullptr, {}))[4], HasSubstr("1 rank waits for rank 0, in all_reduce #42"));
}

TEST(TopTable, NamesGroupsWhereThereAreSeveral) {
  JobFrame frame = MakeFrame();
  frame.job.mutable_ranks(1)->mutable_view()->mutable_doing()->set_group(0xb);
  const std::vector<string> lines = Lines(FormatJobFrame(frame, nullptr, {}));
  EXPECT_THAT(lines[8], HasSubstr("in all_reduce #42 of group 0000000000000000 at train.cc:88"));
  EXPECT_THAT(lines[9], HasSubstr("in all_reduce #42 of group 000000000000000b at train.cc:88"));
}

TEST(TopTable, DistinguishesARankWithoutCallsFromOneWithoutCohort) {
  JobFrame frame = MakeFrame();
  for (const int rank : {0, 1}) frame.job.mutable_ranks(rank)->mutable_view()->mutable_doing()->Clear();
  frame.job.mutable_ranks(1)->mutable_view()->mutable_doing()->set_joined(true);
  const std::vector<string> lines = Lines(FormatJobFrame(frame, nullptr, {}));
  const auto line_of = [&](const string& pid) {
    return *std::find_if(lines.begin(), lines.end(),
                         [&](const string& line) { return line.find(pid) != string::npos; });
  };
  EXPECT_THAT(line_of("  1000  "), HasSubstr("has not joined Cohort"));
  EXPECT_THAT(line_of("  1001  "), HasSubstr("no collective call yet"));
}

TEST(TopTable, CpuIsThatSinceTheLastPageOfTheSameProcess) {
  const JobFrame before = MakeFrame();
  JobFrame now = MakeFrame();
  now.at += seconds(2);
  now.job.mutable_ranks(0)->mutable_view()->set_cpu_ms(9'000);  // two CPUs
  now.job.mutable_ranks(1)->mutable_view()->set_cpu_ms(4'000);  // a child of it has ended
  now.job.mutable_ranks(2)->mutable_view()->set_pid(2002);      // another process
  const std::vector<string> lines = Lines(FormatJobFrame(now, &before, {}));
  EXPECT_THAT(lines[8], HasSubstr("   200  "));
  EXPECT_THAT(lines[9], HasSubstr("     0  "));
  EXPECT_THAT(lines[10], HasSubstr("    50  "));
  // Ages of the views count: the first was looked at a second before its page.
  JobFrame older = before;
  older.job.mutable_ranks(0)->set_ago_ms(2'000);
  EXPECT_THAT(Lines(FormatJobFrame(now, &older, {}))[8], HasSubstr("   100  "));
}

TEST(TopTable, NamesSpares) {
  JobFrame frame = MakeFrame();
  frame.job.set_spare_count(1);
  frame.job.add_spares("node2");
  EXPECT_THAT(Lines(FormatJobFrame(frame, nullptr, {}))[6], ::testing::StrEq("spare node: node2"));
  frame.job.set_spare_count(3);
  EXPECT_THAT(FormatJobFrame(frame, nullptr, {}), HasSubstr("\nspare nodes: node2, and 2 more\n"));
}

TEST(TopTable, KeepsToThePage) {
  JobFrame frame = MakeFrame();
  frame.job.mutable_ranks(0)->mutable_view()->mutable_doing()->set_site(string(44, 'x') + "\xc3\xa9\xc3\xa9");
  for (size_t rows = 1; rows < 14; ++rows) {
    const std::vector<string> lines = Lines(FormatJobFrame(frame, nullptr, {rows, 101}));
    EXPECT_LE(lines.size(), std::max<size_t>(rows, 9));
    for (const string& line : lines) {
      EXPECT_LE(line.size(), 101u);
      EXPECT_FALSE(line.ends_with('\xc3')) << "half a character";
    }
    const bool no_room = lines.back().starts_with("no room for the table of ");
    EXPECT_EQ(lines.back().ends_with(" more ranks") || no_room, rows < 12) << lines.back();
    EXPECT_EQ(std::none_of(lines.begin(), lines.end(), [](const string& line) { return line.starts_with("RANK"); }),
              no_room);
  }
}

TEST(TopTable, TextsOfRanksDoNotSteerTheTerminal) {
  JobFrame frame = MakeFrame();
  frame.job.mutable_nodes(0)->set_name("a\x1b[2Jb");
  frame.job.mutable_ranks(0)->mutable_view()->mutable_doing()->set_site("\x07\r");
  frame.job.mutable_ranks(1)->mutable_view()->mutable_doing()->set_call("\x1b]0;x");
  const string page = FormatJobFrame(frame, nullptr, {});
  EXPECT_EQ(page.find_first_of("\x1b\x07\r"), string::npos);
}

TEST(TopTable, MarksFactsThatAreUnknownOrOld) {
  JobFrame frame = MakeFrame();
  frame.job.mutable_ranks(0)->set_known(false);
  frame.job.mutable_ranks(0)->mutable_view()->set_pid(0);
  frame.job.mutable_ranks(1)->set_ago_ms(5'000);
  frame.job.mutable_ranks(2)->mutable_view()->set_stopped(true);
  const string page = FormatJobFrame(frame, nullptr, {});
  EXPECT_THAT(page, HasSubstr("1 not told yet"));
  EXPECT_THAT(page, HasSubstr("for 12.3 s (as told 5.0 s ago)"));
  EXPECT_THAT(page, HasSubstr("stopped by a signal; after all_reduce"));
}

TEST(LiveViewTest, LooksAtMostOncePerIntervalAndPages) {
  std::vector<v1::NodePlacement> nodes(2);
  for (uint32_t i = 0; i < 300; ++i) nodes[i / 150].add_ranks()->set_rank(i);
  const std::vector<size_t> agents = {0, 2};  // a spare took a place
  std::vector<std::pair<size_t, uint64_t>> asked;
  LiveView live([&](size_t agent, uint64_t look) { asked.emplace_back(agent, look); });
  const JobMembers members{&nodes, &agents};
  LiveView::TimePoint now(std::chrono::hours(1));
  live.Refresh(members, now);
  live.Refresh(members, now + milliseconds(50));
  EXPECT_THAT(asked, ElementsAre(std::pair(size_t{0}, uint64_t{1}), std::pair(size_t{2}, uint64_t{1})));
  v1::NodeView view;
  view.set_look(1);
  for (uint32_t i = 150; i < 300; ++i) {
    v1::RankView& rank = *view.add_ranks();
    rank.set_rank(i);
    rank.set_pid(7);
    rank.mutable_doing()->set_call(string(10'000, 'c'));
  }
  live.OnView(2, view, now);
  view.set_look(9);  // nobody has asked that
  live.OnView(0, view, now);
  v1::JobSnapshot all;
  while (all.ranks_size() < 300) {
    v1::JobSnapshot page;
    live.AddRanks(members, static_cast<uint32_t>(all.ranks_size()), 8'000, now + seconds(1), &page);
    ASSERT_GT(page.ranks_size(), 0);
    EXPECT_LE(page.ByteSizeLong(), 8'000u);
    all.MergeFrom(page);
  }
  for (int i = 0; i < 300; ++i) {
    EXPECT_EQ(all.ranks(i).view().rank(), static_cast<uint32_t>(i));
    EXPECT_EQ(all.ranks(i).known(), i >= 150);
    EXPECT_EQ(all.ranks(i).node(), static_cast<uint32_t>(i / 150));
    EXPECT_EQ(all.ranks(i).ago_ms(), i >= 150 ? 1000u : 0u);
  }
  live.Forget();
  v1::JobSnapshot none;
  live.AddRanks(members, 299, 8'000, now, &none);
  EXPECT_FALSE(none.ranks(0).known());
}

TEST(GroupUseTest, CountsWhatAGroupHolds) {
  const auto uses = LookAtGroups({::getpgrp()});
  ASSERT_EQ(uses.size(), 1u);
  const GroupUse& own = uses.at(::getpgrp());
  EXPECT_GE(own.processes, 1u);
  EXPECT_GE(own.resident_bytes, 100'000u);
  EXPECT_TRUE(LookAtGroups({}).empty());
}

class Top : public RunningJob {
 protected:
  void Start(const string& script) { RunningJob::Start(script, {"--max-restarts", "1"}); }
  // The first page with the views of all agents: on a busy machine one may be late.
  string WholePage() {
    string page;
    EXPECT_TRUE(job_->WaitUntil([&] {
      DlaunchProcess top({"top", id_});
      EXPECT_EQ(top.Wait(), 0) << top.err();
      page = top.out();
      return page.find("not told yet") == string::npos;
    })) << page;
    return page;
  }
};

TEST_F(Top, TopPrintsAPageOfTextWithoutATerminal) {
  Start("echo up; if [ $RANK = 3 ]; then while :; do :; done; fi; sleep 1000");
  const string page = WholePage();
  const std::vector<string> lines = Lines(page);
  ASSERT_EQ(lines.size(), 11u) << page;
  EXPECT_THAT(lines[0], HasSubstr(id_ + "  running for "));
  EXPECT_THAT(lines[2], HasSubstr("ranks: 4 outside calls; "));
  EXPECT_THAT(lines[4], HasSubstr("node1: ranks 2-3, "));
  for (int rank = 0; rank < 4; ++rank) {
    EXPECT_THAT(lines[7 + rank], HasSubstr(std::to_string(job_->RankProcess(rank))));
    EXPECT_THAT(lines[7 + rank], HasSubstr("has not joined Cohort"));
  }
  EXPECT_EQ(page.find('\x1b'), string::npos);
}

TEST_F(Top, TopOnATerminalGoesOnUntilTheJobEnds) {
  Start("echo up; sleep 1000");
  DlaunchProcess top({"top", "--interval", "0.2", id_}, {.on_terminal = true});
  ASSERT_TRUE(top.WaitForOutput("has not joined Cohort")) << top.err();
  const size_t first = top.out().size();
  ASSERT_TRUE(top.WaitUntil([&] { return top.out().find("RANK", first) != string::npos; })) << "a second page";
  ::kill(job_->pid(), SIGKILL);
  EXPECT_EQ(top.Wait(), 0) << top.err();
  EXPECT_THAT(top.out(), HasSubstr(id_ + " has ended\n"));
  EXPECT_EQ(job_->WaitUntilGone(seconds(20)), "");
}

TEST_F(Top, QEndsTopAndRestoresTheTerminal) {
  Start("echo up; sleep 1000");
  int keyboard = -1, terminal = -1;
  ASSERT_EQ(::openpty(&keyboard, &terminal, nullptr, nullptr, nullptr), 0);
  const runtime::FileDescriptor keys(keyboard), input(terminal);
  termios before{}, after{};
  ASSERT_EQ(::tcgetattr(terminal, &before), 0);
  for (const bool by_signal : {false, true}) {
    DlaunchProcess top({"top", id_}, {.on_terminal = true, .input = terminal});
    ASSERT_TRUE(top.WaitForOutput("has not joined Cohort")) << top.err();
    ASSERT_EQ(::tcgetattr(terminal, &after), 0);
    EXPECT_EQ(after.c_lflag & (ICANON | ECHO), 0u);
    ASSERT_EQ(by_signal ? ::kill(top.pid(), SIGINT) : ::write(keyboard, "xq", 2), by_signal ? 0 : 2);
    EXPECT_EQ(top.Wait(), by_signal ? 128 + SIGINT : 0) << top.err();
    EXPECT_EQ(top.out().find("has ended\n"), string::npos);
    ASSERT_EQ(::tcgetattr(terminal, &after), 0);
    EXPECT_EQ(after.c_lflag, before.c_lflag);
  }
  EXPECT_NE(job_->RankProcess(0), 0) << "the job goes on";
}

// A shell with jobs in a session of its own, its terminal, and all that it has shown.
class Shell {
 public:
  explicit Shell(const string& script, const string& program = "/bin/sh") {
    int keyboard = -1;
    pid_ = ::forkpty(&keyboard, nullptr, nullptr, nullptr);
    if (pid_ == 0) {
      ::execl(program.c_str(), program.c_str(), "-c", ("set -m; " + script).c_str(), nullptr);
      ::_exit(127);
    }
    keyboard_ = runtime::FileDescriptor(keyboard);
  }
  ~Shell() {
    keyboard_.Close();  // all of the session get SIGHUP
    if (pid_ > 0) ::kill(pid_, SIGKILL);
    if (pid_ > 0) ::waitpid(pid_, nullptr, 0);
  }
  Shell(const Shell&) = delete;
  Shell& operator=(const Shell&) = delete;

  void Type(const string& keys) {
    EXPECT_EQ(::write(keyboard_.get(), keys.data(), keys.size()), static_cast<ssize_t>(keys.size()));
  }
  // Until `text` has come since the last call.
  ::testing::AssertionResult Shows(const string& text) {
    const auto deadline = std::chrono::steady_clock::now() + seconds(60);
    for (;;) {
      const size_t at = shown_.find(text, seen_);
      if (at != string::npos) {
        seen_ = at + text.size();
        return ::testing::AssertionSuccess();
      }
      pollfd ready{keyboard_.get(), POLLIN, 0};
      const auto left = std::chrono::ceil<milliseconds>(deadline - std::chrono::steady_clock::now()).count();
      char buffer[4096];
      if (left <= 0 || ::poll(&ready, 1, static_cast<int>(left)) <= 0) break;
      const ssize_t n = ::read(keyboard_.get(), buffer, sizeof buffer);
      if (n <= 0) break;
      shown_.append(buffer, static_cast<size_t>(n));
    }
    return ::testing::AssertionFailure() << "no '" << text << "' in " << shown_.substr(std::min(seen_, shown_.size()));
  }

 private:
  pid_t pid_ = -1;
  runtime::FileDescriptor keyboard_;
  string shown_;
  size_t seen_ = 0;
};

constexpr char kStopIt[] = "\x1a";  // Ctrl-Z

TEST_F(Top, GivesTheTerminalBackWhileItIsStopped) {
  Start("echo up; sleep 1000");
  Shell shell(ProgramFolder() + "/dlaunch top " + id_ + "; echo; stty -a; echo as it was; fg; echo left with $?");
  ASSERT_TRUE(shell.Shows("has not joined Cohort"));
  shell.Type(kStopIt);
  EXPECT_TRUE(shell.Shows(" icanon "));
  EXPECT_TRUE(shell.Shows(" echo "));
  ASSERT_TRUE(shell.Shows("as it was"));
  ASSERT_TRUE(shell.Shows("has not joined Cohort"));
  shell.Type("q");  // and no Enter
  EXPECT_TRUE(shell.Shows("left with 0"));
}

// Unlike others, it sends no SIGCONT with an `fg` of what runs already.
TEST_F(Top, TakesKeysAgainInFrontOfBash) {
  if (::access("/bin/bash", X_OK) != 0) GTEST_SKIP() << "there is no /bin/bash";
  Start("echo up; sleep 1000");
  Shell shell(ProgramFolder() + "/dlaunch top " + id_ + "; bg; echo in the back; read; fg; echo left with $?",
              "/bin/bash");
  ASSERT_TRUE(shell.Shows("has not joined Cohort"));
  shell.Type(kStopIt);
  ASSERT_TRUE(shell.Shows("in the back"));
  ASSERT_TRUE(shell.Shows("has not joined Cohort"));
  shell.Type("\n");
  for (int page = 0; page < 2; ++page) ASSERT_TRUE(shell.Shows("has not joined Cohort"));
  shell.Type("q");  // and no Enter
  EXPECT_TRUE(shell.Shows("left with 0"));
}

TEST_F(Top, TopEndsInTheBackground) {
  Start("echo up; sleep 1000");
  for (const bool by_signal : {true, false}) {
    Shell shell(ProgramFolder() + "/dlaunch top " + id_ +
                "; bg; echo in the back; read line; if [ $line = kill ]; then kill %1; fi; "
                "wait %1; echo left with $?");
    ASSERT_TRUE(shell.Shows("has not joined Cohort"));
    shell.Type(kStopIt);
    ASSERT_TRUE(shell.Shows("in the back"));
    ASSERT_TRUE(shell.Shows("has not joined Cohort")) << "another page, so that it runs";
    shell.Type(by_signal ? "kill\n" : "wait\n");
    if (!by_signal) ::kill(job_->pid(), SIGKILL);
    EXPECT_TRUE(shell.Shows(by_signal ? "left with 143" : "left with 0"));
  }
  EXPECT_EQ(job_->WaitUntilGone(seconds(20)), "");
}

TEST_F(Top, ShowsTheRanksOfTheNextEpoch) {
  Start("echo up; if [ $COHORT_EPOCH = 2 ]; then echo again; fi; sleep 1000");
  const pid_t before = job_->RankProcess(2);
  ::kill(before, SIGKILL);
  for (int rank = 0; rank < 4; ++rank) {
    ASSERT_TRUE(job_->WaitForOutput("[" + std::to_string(rank) + "] again")) << job_->err();
  }
  const pid_t now = job_->RankProcess(2);
  ASSERT_NE(now, before);
  const string page = WholePage();
  EXPECT_THAT(page, HasSubstr(" " + std::to_string(now) + " "));
  EXPECT_THAT(page, HasSubstr("1 of 1 restarts"));
}

TEST(TopOfRealRanks, TopShowsTheCollectivesOfRanks) {
  DlaunchProcess job(
      {"--nproc-per-node", "2", ProgramFolder() + "/collperf", "all_reduce", "-b", "4M", "-e", "4M", "-n", "65536"});
  ASSERT_TRUE(job.WaitUntil([&] { return job.RankProcess(1) != 0; }));
  const string environment = ReadProcessEnvironment(job.RankProcess(1));
  const string id(environment.c_str() + environment.find("COHORT_JOB_ID=") + std::strlen("COHORT_JOB_ID="));
  string page;
  EXPECT_TRUE(job.WaitUntil([&] {
    DlaunchProcess top({"top", id});
    top.Wait();
    page = top.out() + top.err();
    return page.find("all_reduce #") != string::npos;
  })) << page;
}

}  // namespace
}  // namespace cohort::launcher
