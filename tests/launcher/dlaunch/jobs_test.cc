// `dlaunch status` and `dlaunch kill` against real jobs, and what they make of strange input.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstring>
#include <fstream>
#include <memory>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "cohort/launcher/jobs/job_socket.h"
#include "cohort/launcher/jobs/running_jobs.h"
#include "cohort/runtime/base/file_descriptor.h"
#include "tests/launcher/dlaunch/dlaunch_process.h"
#include "tests/launcher/dlaunch/running_job.h"

namespace cohort::launcher {
namespace {

using std::string;

TEST(RunningJobs, RunningJobsAreReadFromTheKernelsTable) {
  const string table =
      "Num       RefCount Protocol Flags    Type St Inode Path\n"
      "0000000000000000: 00000002 00000000 00010000 0005 01 101 @cohort-dlaunch.job-00ff00ff00ff00ff\n"
      "0000000000000000: 00000003 00000000 00000000 0005 03 102 @cohort-dlaunch.job-00ff00ff00ff00ff\n"
      "0000000000000000: 00000002 00000000 00010000 0005 01 103 @cohort-8d1c\n"
      "0000000000000000: 00000002 00000000 00010000 0005 01 104 /tmp/x@cohort-dlaunch.job-11\n"
      "0000000000000000: 00000002 00000000 00010000 0005 01 105 @cohort-dlaunch.job-\n"
      "0000000000000000: 00000002 00000000 00010000 0005 01 106 @cohort-dlaunch.job-1\x1b[2J\n"
      "0000000000000000: 00000002 00000000 00010000 0005 01 107 @cohort-dlaunch.job-0a";
  EXPECT_EQ(FindJobIds(table), (std::vector<string>{"job-00ff00ff00ff00ff", "job-0a"}));
  EXPECT_TRUE(FindJobIds("").empty());
  std::mt19937 random(5);
  for (int i = 0; i < 2000; ++i) {  // the table damaged anywhere
    string damaged = table.substr(0, random() % table.size());
    if (!damaged.empty()) damaged[random() % damaged.size()] = static_cast<char>(random());
    for (const string& id : FindJobIds(damaged)) EXPECT_TRUE(id.starts_with("job-"));
  }
}

TEST(RunningJobs, RunningJobsAreFoundByTheirFirstLetters) {
  const std::vector<string> ids = {"job-aa1", "job-aa2", "job-b"};
  EXPECT_EQ(MatchJobIds(ids, "job-aa1"), std::vector<string>{"job-aa1"});
  EXPECT_EQ(MatchJobIds(ids, "b"), std::vector<string>{"job-b"});
  EXPECT_EQ(MatchJobIds(ids, "aa").size(), 2u);
  for (const char* nothing : {"j", "job", "job-"}) EXPECT_TRUE(MatchJobIds({"job-aa1"}, nothing).empty()) << nothing;
  EXPECT_TRUE(MatchJobIds(ids, "").empty());
  EXPECT_TRUE(MatchJobIds(ids, "c").empty());
}

class Jobs : public RunningJob {};

TEST_F(Jobs, JobsOfOtherUsersAreNotShown) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can become another user";
  Start("echo up; sleep 1000");
  const auto shown = RunningJobIds();
  EXPECT_TRUE(std::find(shown.begin(), shown.end(), id_) != shown.end());
  const pid_t other = ::fork();
  if (other == 0) {
    if (::setresuid(65534, 65534, 65534) != 0) ::_exit(3);
    const auto ids = RunningJobIds();
    const bool hidden = std::find(ids.begin(), ids.end(), id_) == ids.end();
    ::_exit(hidden && absl::IsPermissionDenied(JobConnection::Open(id_).status()) ? 0 : 4);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(other, &status, 0), other);
  EXPECT_EQ(status, 0);
}

TEST_F(Jobs, StatusShowsAllJobsOrOne) {
  Start("echo up; sleep 1000", {"--max-restarts", "2"});
  DlaunchProcess all({"status"});
  EXPECT_THAT(all.Wait(), ::testing::AnyOf(0, 1));  // 1 where somebody else's dlaunch is stopped just now
  EXPECT_NE(all.out().find(id_ + "  running for "), string::npos) << all.out();
  EXPECT_NE(all.out().find("4 ranks on 2 simulated nodes"), string::npos) << all.out();
  EXPECT_NE(job_->err().find(", as " + id_ + "\n"), string::npos) << job_->err();  // told at the start, too
  EXPECT_NE(all.out().find("dlaunch pid " + std::to_string(job_->pid()) + "  0 of 2 restarts\n"), string::npos)
      << all.out();
  DlaunchProcess one({"status", id_.substr(4, 12)});
  EXPECT_EQ(one.Wait(), 0) << one.err();
  EXPECT_NE(one.out().find("-c echo up; sleep 1000\n"), string::npos) << one.out();
  for (const int node : {0, 1}) {
    const string line = "  node" + std::to_string(node) + ": ranks " + (node == 0 ? "0-1" : "2-3") + ", agent pid " +
                        std::to_string(job_->AgentProcess(node)) + "\n";
    EXPECT_NE(one.out().find(line), string::npos) << one.out();
  }
  EXPECT_FALSE(job_->Processes().empty());  // it was not disturbed
}

TEST_F(Jobs, StatusNamesSparesAsLongAsTheyAreIdle) {
  Start("echo up $COHORT_EPOCH; sleep 1000", {"--simulate-nodes", "3", "--spares", "1", "--max-restarts", "1"});
  DlaunchProcess before({"status", id_});
  EXPECT_EQ(before.Wait(), 0) << before.err();
  EXPECT_NE(before.out().find("\n  spare node: node2\n"), string::npos) << before.out();
  ::kill(job_->AgentProcess(1), SIGKILL);
  ASSERT_TRUE(job_->WaitForOutput("[3] up 2")) << job_->err();
  DlaunchProcess after({"status", id_});
  EXPECT_EQ(after.Wait(), 0) << after.err();
  EXPECT_NE(after.out().find("  node2: ranks 2-3, agent pid "), string::npos) << after.out();
  EXPECT_EQ(after.out().find("spare"), string::npos) << after.out();
}

TEST_F(Jobs, KillEndsAJobInOrder) {
  Start("trap 'echo bye; exit 0' TERM; echo up; sleep 1000 & wait");
  DlaunchProcess kill({"kill", id_});
  EXPECT_EQ(kill.Wait(), 0) << kill.err();
  EXPECT_EQ(kill.out(), id_ + " has ended\n");
  EXPECT_EQ(job_->Wait(), 143) << job_->err();
  EXPECT_NE(job_->out().find("[3] bye\n"), string::npos) << job_->out();
  EXPECT_NE(job_->err().find("stopped by dlaunch kill"), string::npos) << job_->err();
  EXPECT_EQ(job_->WaitUntilGone(kGone), "");
}

TEST_F(Jobs, KillNowDoesNotWaitForTheGrace) {
  const TemporaryFolder folder;
  Start("trap '' TERM; echo up; while :; do sleep 1000; done", {"--grace", "600", "--log-dir", folder.path()});
  DlaunchProcess kill({"kill", id_, "--now"});
  EXPECT_EQ(kill.Wait(), 0) << kill.err();
  EXPECT_EQ(job_->Wait(kGone), 143) << job_->err();
  EXPECT_TRUE(job_->err().ends_with("dlaunch: dlaunch kill: ending the job at once\ndlaunch: exit status 143\n"))
      << job_->err();
  std::stringstream record;
  record << std::ifstream(folder.path() + "/report.json").rdbuf();
  EXPECT_NE(record.str().find("\"text\": \"stopped by dlaunch kill, at once\""), string::npos) << record.str();
  EXPECT_EQ(job_->WaitUntilGone(kGone), "");
}

TEST_F(Jobs, KillNowKeepsTheCauseOfAFailure) {
  const TemporaryFolder folder;
  const string go = folder.path() + "/go";
  Start("trap '' TERM; echo up; while [ ! -e " + go +
            " ]; do sleep 0.05; done; [ $RANK = 1 ] && exit 3; "
            "while :; do sleep 1000; done",
        {"--grace", "600", "--log-dir", folder.path() + "/logs"});
  std::ofstream(go) << "";
  ASSERT_TRUE(job_->WaitUntil([&] { return job_->err().find("ending the other ranks") != string::npos; }));
  DlaunchProcess kill({"kill", "--now", id_});
  EXPECT_EQ(kill.Wait(), 0) << kill.err();
  EXPECT_EQ(job_->Wait(kGone), 143) << job_->err();
  std::stringstream record;
  record << std::ifstream(folder.path() + "/logs/report.json").rdbuf();
  EXPECT_NE(record.str().find("\"text\": \"rank 1 ("), string::npos) << record.str();
  EXPECT_NE(record.str().find("exited with code 3; its last line: \\\"up\\\"; then stopped by dlaunch kill, at once"),
            string::npos)
      << record.str();
}

TEST_F(Jobs, KillReportsAGraceThatTakesLong) {
  const TemporaryFolder folder;
  const string go = folder.path() + "/go";
  Start("trap 'until [ -e " + go + " ]; do sleep 0.05; done; exit 0' TERM; echo up; sleep 1000 & wait",
        {"--grace", "50"});
  DlaunchProcess kill({"kill", id_});
  EXPECT_TRUE(kill.WaitUntil([&] { return kill.err().ends_with("\n"); }));
  std::ofstream(go) << "";
  EXPECT_EQ(kill.Wait(), 0) << kill.err();
  EXPECT_EQ(kill.err(), "dlaunch: " + id_ +
                            " is told to end, and may take its grace of 50 s; dlaunch kill --now ends it "
                            "at once\n");
}

TEST_F(Jobs, AStoppedDlaunchIsNamed) {
  Start("echo up; sleep 1000");
  ::kill(job_->pid(), SIGSTOP);
  DlaunchProcess status({"status", id_});
  EXPECT_EQ(status.Wait(), 1) << status.out();
  EXPECT_NE(status.err().find("(pid " + std::to_string(job_->pid()) + ") does not answer"), string::npos)
      << status.err();
  ::kill(job_->pid(), SIGCONT);
}

// Each may take five seconds to be known as silent.
TEST(JobCommands, StatusAsksAllJobsAtOnce) {
  std::vector<std::unique_ptr<DlaunchProcess>> jobs;
  for (int i = 0; i < 3; ++i) {
    jobs.push_back(std::make_unique<DlaunchProcess>(std::vector<string>{"sh", "-c", "echo up; sleep 1000"}));
  }
  for (const auto& job : jobs) ASSERT_TRUE(job->WaitForOutput("[0] up")) << job->err();
  for (const auto& job : jobs) ::kill(job->pid(), SIGSTOP);
  const auto start = std::chrono::steady_clock::now();
  DlaunchProcess status({"status"});
  EXPECT_EQ(status.Wait(), 1) << status.out();
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(10));
  for (const auto& job : jobs) {
    EXPECT_NE(status.err().find("(pid " + std::to_string(job->pid()) + ") does not answer"), string::npos)
        << status.err();
  }
}

TEST_F(Jobs, GarbageOnAJobsSocketDoesNoHarm) {
  Start("echo up; sleep 1000");
  std::mt19937 random(7);
  for (int i = 0; i < 60; ++i) {
    const runtime::FileDescriptor fd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    sockaddr_un name{};
    name.sun_family = AF_UNIX;
    const string address = kJobSocketPrefix + id_;
    std::memcpy(name.sun_path + 1, address.data() + 1, address.size() - 1);
    ASSERT_EQ(::connect(fd.get(), reinterpret_cast<const sockaddr*>(&name),
                        static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + address.size())),
              0);
    string packet(1 + random() % 300, '\0');
    for (char& byte : packet) byte = static_cast<char>(random());
    packet[0] = '\x12';  // never a request to stop: field 2 with a length, which is none
    (void)!::send(fd.get(), packet.data(), packet.size(), MSG_NOSIGNAL);
  }
  v1::JobRequest request;
  request.set_protocol(99);
  auto connection = JobConnection::Open(id_);
  ASSERT_TRUE(connection.ok()) << connection.status();
  const auto refused = connection->Ask(request, runtime::Deadline::After(kGone));
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(string(refused.status().message()).find("version 99"), string::npos) << refused.status();
  DlaunchProcess status({"status", id_});
  EXPECT_EQ(status.Wait(), 0) << status.err();
}

TEST(JobCommands, CommandsRefuseJobsAndOptionsThatTheyCanNotServe) {
  struct Case {
    std::vector<string> arguments;
    int status;
    string text;
  };
  for (const Case& c : {Case{{"kill"}, 2, "use: dlaunch kill"}, Case{{"kill", "--now"}, 2, "use: dlaunch kill"},
                        Case{{"kill", "--force", "x"}, 2, "unknown option '--force'; use: dlaunch kill"},
                        Case{{"kill", "-9", "x"}, 2, "unknown option '-9'; use: dlaunch kill"},
                        Case{{"kill", "--now=maybe", "x"}, 2, "takes no value; use: dlaunch kill"},
                        Case{{"kill", "--", "job-zz"}, 1, "no job 'job-zz' runs on this machine"},
                        Case{{"top", "--interval", "-5"}, 2, "--interval '-5': give a time up to a day"},
                        Case{{"top", "--interval", "1", "--interval", "2"}, 2, "--interval is given twice"},
                        Case{{"join", "--token=secret"}, 2, "unknown option '--token'; use: dlaunch join"},
                        Case{{"top", "--interval"}, 2, "--interval has no value; use: dlaunch top"},
                        Case{{"join", "a", "b"}, 2, "one argument too many; use: dlaunch join"},
                        Case{{"kill", "job-zz"}, 1, "no job 'job-zz' runs on this machine"},
                        Case{{"status", "-x"}, 2, "use: dlaunch status"}, Case{{"status", "a", "b"}, 2, "use: dlaunch"},
                        Case{{"status", ""}, 2, "use: dlaunch"}, Case{{"status", "job-zz"}, 1, "no job 'job-zz'"}}) {
    DlaunchProcess command(c.arguments);
    EXPECT_EQ(command.Wait(), c.status) << command.err();
    EXPECT_NE(command.err().find(c.text), string::npos) << command.err();
    EXPECT_EQ(command.out(), "");
  }
}

}  // namespace
}  // namespace cohort::launcher
