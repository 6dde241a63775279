// Rank 0 reads what is redirected to dlaunch, as it would without dlaunch. With --stdin rank0 what is written to
// dlaunch reaches rank 0 whole and nobody else, as fast as it is read and no faster; a terminal does not stop a job in
// the background.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <pty.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <fstream>
#include <random>
#include <string>
#include <thread>

#include "cohort/launcher/base/pipe.h"
#include "cohort/runtime/base/file_descriptor.h"
#include "tests/launcher/dlaunch/dlaunch_process.h"

namespace cohort::launcher {
namespace {

using std::string;
constexpr char kCount[] = "echo $(wc -c) bytes";  // blanks go

struct OpenPipe : Pipe {
  OpenPipe() {
    if (!Open()) std::abort();
    ::signal(SIGPIPE, SIG_IGN);
  }
};

void WriteAll(int fd, const string& bytes) {
  for (size_t written = 0; written < bytes.size();) {
    const ssize_t n = ::write(fd, bytes.data() + written, bytes.size() - written);
    if (n < 0 && errno != EINTR) return;
    if (n > 0) written += static_cast<size_t>(n);
  }
}

TEST(Input, InputReachesRankZeroWholeAndNobodyElse) {
  std::mt19937 random(7);
  string bytes(5'000'000, ' ');
  for (char& byte : bytes) byte = static_cast<char>(random());
  const TemporaryFolder folder;
  OpenPipe pipe;
  DlaunchProcess job({"--simulate-nodes", "2", "--nproc-per-node", "2", "--stdin", "rank0", "sh", "-c",
                      "cat > " + folder.path() + "/$RANK; wc -c < " + folder.path() + "/$RANK"},
                     {.input = pipe.read_end.get()});
  pipe.read_end.Close();
  std::thread writer([&] {
    WriteAll(pipe.write_end.get(), bytes);
    pipe.write_end.Close();
  });
  EXPECT_EQ(job.Wait(), 0) << job.err();
  writer.join();
  std::ifstream file(folder.path() + "/0", std::ios::binary);
  EXPECT_TRUE(string(std::istreambuf_iterator<char>(file), {}) == bytes);
  for (int rank = 1; rank < 4; ++rank) {
    EXPECT_NE(job.out().find("[" + std::to_string(rank) + "] 0\n"), string::npos) << job.out();
  }
}

TEST(Input, InputMayBeAPlainFileOrNothing) {
  const TemporaryFolder folder;
  std::ofstream(folder.path() + "/file") << string(300'000, 'x');
  const runtime::FileDescriptor file(::open((folder.path() + "/file").c_str(), O_RDONLY | O_CLOEXEC));
  DlaunchProcess job({"--stdin", "rank0", "sh", "-c", kCount}, {.input = file.get()});
  EXPECT_EQ(job.Wait(), 0) << job.err();
  EXPECT_EQ(job.out(), "[0] 300000 bytes\n");
  DlaunchProcess empty({"--stdin=rank0", "sh", "-c", kCount});
  EXPECT_EQ(empty.Wait(), 0) << empty.err();
  EXPECT_EQ(empty.out(), "[0] 0 bytes\n");
}

// A library has taken its descriptor before main.
TEST(Input, InputMayBeClosed) {
  DlaunchProcess job({"--stdin", "rank0", "sh", "-c", kCount}, {.enter = [] { return ::close(0) == 0; }});
  EXPECT_EQ(job.Wait(), 0) << job.err();
  EXPECT_EQ(job.out(), "[0] 0 bytes\n");
}

TEST(Input, AnAgentWhoseInputIsNoPipeIsRefused) {
  DlaunchProcess agent({"agent", "--node=0"});  // its standard input is /dev/null
  EXPECT_EQ(agent.Wait(), 125);
  EXPECT_NE(agent.err().find("standard input is no pipe"), string::npos) << agent.err();
}

// With --stdin none, and of a program that does not read: a loop of a shell over the same input goes on.
TEST(Input, InputIsNotTouchedUnlessTheRankReads) {
  const std::vector<std::vector<string>> jobs = {{"--stdin=none", "-n", "2", "sh", "-c", kCount},
                                                 {"-n", "2", "sh", "-c", "echo 0 bytes"}};
  for (const std::vector<string>& arguments : jobs) {
    OpenPipe pipe;
    WriteAll(pipe.write_end.get(), "mine");
    DlaunchProcess job(arguments, {.input = pipe.read_end.get()});
    EXPECT_EQ(job.Wait(), 0) << job.err();
    EXPECT_NE(job.out().find("[0] 0 bytes\n"), string::npos) << job.out();
    int left = 0;
    EXPECT_EQ(::ioctl(pipe.read_end.get(), FIONREAD, &left), 0);
    EXPECT_EQ(left, 4) << arguments[0];
  }
}

TEST(Input, RedirectedInputGoesToRankZero) {
  const TemporaryFolder folder;
  std::ofstream(folder.path() + "/file") << string(300'000, 'x');
  for (const std::vector<string>& nodes : {std::vector<string>{"-n", "2"}, {"--simulate-nodes", "2"}}) {
    const runtime::FileDescriptor file(::open((folder.path() + "/file").c_str(), O_RDONLY | O_CLOEXEC));
    std::vector<string> arguments = nodes;
    arguments.insert(arguments.end(), {"sh", "-c", kCount});
    DlaunchProcess job(arguments, {.input = file.get()});
    EXPECT_EQ(job.Wait(), 0) << job.err();
    EXPECT_NE(job.out().find("[0] 300000 bytes\n"), string::npos) << job.out();
    EXPECT_NE(job.out().find("[1] 0 bytes\n"), string::npos) << job.out();
  }
}

// One line is taken by the rank, the next by the program that comes after dlaunch.
TEST(Input, InputThatARankDoesNotReadIsLeftToOthers) {
  const TemporaryFolder folder;
  const string script =
      folder.AddScript("loop.sh", "#!/bin/sh\nprintf '1\\n2\\n3\\n' > list\nwhile read line; do " + ProgramFolder() +
                                      "/dlaunch --no-prefix -n 2 echo $line; done < list");
  const string all = folder.path() + "/all";
  EXPECT_EQ(std::system(("cd " + folder.path() + " && " + script + " > " + all + " 2> err").c_str()), 0);
  std::ifstream file(all);
  EXPECT_EQ(string(std::istreambuf_iterator<char>(file), {}), "1\n1\n2\n2\n3\n3\n");
}

// A restart finds a plain file as it was.
TEST(Input, APlainFileIsReadAgainAfterARestart) {
  const TemporaryFolder folder;
  std::ofstream(folder.path() + "/file") << "a line\n";
  const runtime::FileDescriptor file(::open((folder.path() + "/file").c_str(), O_RDONLY | O_CLOEXEC));
  DlaunchProcess job(
      {"--max-restarts", "1", "sh", "-c", "read line; [ $TORCHELASTIC_RESTART_COUNT = 0 ] && exit 3; echo $line"},
      {.input = file.get()});
  EXPECT_EQ(job.Wait(), 0) << job.err();
  EXPECT_EQ(job.out(), "[0] a line\n");
}

// A terminal is the shell's too.
TEST(Input, ATerminalIsNotReadUnlessItWasAskedFor) {
  int master = -1, terminal = -1;
  ASSERT_EQ(::openpty(&master, &terminal, nullptr, nullptr, nullptr), 0);
  const runtime::FileDescriptor ends[] = {runtime::FileDescriptor(master), runtime::FileDescriptor(terminal)};
  WriteAll(master, "mine\n");
  DlaunchProcess job({"sh", "-c", kCount}, {.input = terminal});
  EXPECT_EQ(job.Wait(), 0) << job.err();
  EXPECT_EQ(job.out(), "[0] 0 bytes\n");
}

// The pipe to dlaunch, what may be on its way, the pipe to the rank: no more is taken while the rank does not read.
TEST(Input, ASlowReaderSlowsTheWriterOfTheInput) {
  const TemporaryFolder folder;
  const string go = folder.path() + "/go";
  OpenPipe pipe;
  DlaunchProcess job({"--stdin", "rank0", "sh", "-c", "until [ -e " + go + " ]; do sleep 0.05; done; " + kCount},
                     {.input = pipe.read_end.get()});
  pipe.read_end.Close();
  ::fcntl(pipe.write_end.get(), F_SETFL, O_NONBLOCK);
  const string block(16 << 10, 'b');
  size_t written = 0;
  const auto write_until_full = [&] {
    for (pollfd room{pipe.write_end.get(), POLLOUT, 0}; ::poll(&room, 1, 500) == 1;) {
      const ssize_t n = ::write(pipe.write_end.get(), block.data(), block.size());
      if (n > 0) written += static_cast<size_t>(n);
      ASSERT_LT(written, 1u << 20) << "nobody reads it";
    }
  };
  ASSERT_TRUE(job.WaitUntil([&] { return job.RankProcess(0) > 0; })) << job.err();
  write_until_full();
  EXPECT_GT(written, 64u << 10);
  std::ofstream(go) << "now";
  ::fcntl(pipe.write_end.get(), F_SETFL, 0);
  std::thread writer([&] {
    for (int i = 0; i < 100; ++i) WriteAll(pipe.write_end.get(), block);
    pipe.write_end.Close();
  });
  EXPECT_EQ(job.Wait(), 0) << job.err();
  writer.join();
  EXPECT_EQ(job.out(), "[0] " + std::to_string(written + 100 * block.size()) + " bytes\n");
}

TEST(Input, TheWriterIsToldThatTheRankHasClosedItsInput) {
  OpenPipe pipe;
  DlaunchProcess job({"--stdin", "rank0", "sh", "-c", "exec < /dev/null; sleep 1000"}, {.input = pipe.read_end.get()});
  pipe.read_end.Close();
  pollfd broken{pipe.write_end.get(), 0, 0};
  EXPECT_EQ(::poll(&broken, 1, 60'000), 1);
  EXPECT_NE(broken.revents & POLLERR, 0);
  ::kill(job.pid(), SIGTERM);
  EXPECT_EQ(job.Wait(), 143) << job.err();
}

// A shell with job control on a terminal of its own: starts the job in the background, and on a word from the test
// makes it the terminal's foreground. Ends with 42 when the job was stopped.
[[noreturn]] void RunShell(int word) {
  ::signal(SIGTTOU, SIG_IGN);
  const pid_t job = ::fork();
  if (job == 0) {
    ::setpgid(0, 0);
    ::signal(SIGTTOU, SIG_DFL);
    const string program = ProgramFolder() + "/dlaunch";
    ::execl(program.c_str(), "dlaunch", "--stdin", "rank0", "sh", "-c", "echo ready; read line; echo got $line",
            static_cast<char*>(nullptr));
    ::_exit(98);
  }
  ::setpgid(job, job);
  char byte = 0;
  (void)!::read(word, &byte, 1);
  int status = 0;
  if (::waitpid(job, &status, WNOHANG | WUNTRACED) == 0) {
    ::tcsetpgrp(STDIN_FILENO, job);
    ::kill(-job, SIGCONT);
    ::waitpid(job, &status, WUNTRACED);
  }
  if (WIFSTOPPED(status)) ::kill(-job, SIGKILL);
  ::_exit(WIFSTOPPED(status) ? 42 : WEXITSTATUS(status));
}

TEST(Input, ATerminalDoesNotStopAJobInTheBackground) {
  OpenPipe word;
  int master = -1;
  const pid_t shell = ::forkpty(&master, nullptr, nullptr, nullptr);
  ASSERT_GE(shell, 0);
  if (shell == 0) RunShell(word.read_end.get());
  const runtime::FileDescriptor terminal(master);
  string seen;
  const auto wait_for = [&](const string& text) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (seen.find(text) == string::npos && std::chrono::steady_clock::now() < end) {
      char buffer[4096];
      pollfd ready{master, POLLIN, 0};
      if (::poll(&ready, 1, 100) <= 0) continue;
      const ssize_t n = ::read(master, buffer, sizeof buffer);
      if (n <= 0) break;
      seen.append(buffer, static_cast<size_t>(n));
    }
    return seen.find(text) != string::npos;
  };
  WriteAll(master, "a line\n");  // there to be read while the job is in the background
  EXPECT_TRUE(wait_for("[0] ready")) << seen;
  WriteAll(word.write_end.get(), "f");
  EXPECT_TRUE(wait_for("[0] got a line")) << seen;
  int status = 0;
  EXPECT_EQ(::waitpid(shell, &status, 0), shell);
  EXPECT_EQ(WEXITSTATUS(status), 0) << seen;
}

}  // namespace
}  // namespace cohort::launcher
