#include "cohort/launcher/agent/watch/process_state.h"

#include <gtest/gtest.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <fstream>
#include <string>
#include <thread>

#include "cohort/launcher/agent/watch/sweep.h"
#include "cohort/launcher/base/pipe.h"
#include "cohort/runtime/base/sanitizer.h"

namespace cohort::launcher {
namespace {

std::string Stat(const std::string& name, char state, unsigned long flags, int exit_status) {
  std::string text = "4711 (" + name + ") " + state + " 12 4711 4711 0 -1 " + std::to_string(flags);
  text += " 0 0 0 0 300 45 7 7";
  text += " 20 0 3 0";
  text += " 987 1000 25";
  for (int field = 25; field < 52; ++field) text += " 7";
  return text + " " + std::to_string(exit_status) + "\n";
}

TEST(ProcessState, ReadsStatWhateverTheName) {
  for (const char* name : {"sh", "a b", ") R 1 (", "((", ""}) {
    const auto state = ParseProcessStat(Stat(name, 'S', 0, 0));
    ASSERT_TRUE(state) << name;
    EXPECT_EQ(state->name, name);
    EXPECT_EQ(state->state, 'S');
    EXPECT_EQ(state->parent, 12);
    EXPECT_EQ(state->group, 4711);
    EXPECT_EQ(state->threads, 3);
    EXPECT_EQ(state->start_time, 987u);
    EXPECT_EQ(state->cpu_ticks, 345u);
    EXPECT_EQ(state->resident_bytes, 25 * ::sysconf(_SC_PAGESIZE));
    EXPECT_FALSE(state->exiting);
  }
}

TEST(ProcessState, ExitingNeedsASignalOrTheEnd) {
  EXPECT_FALSE(ParseProcessStat(Stat("x", 'R', 0x4, 0))->exiting) << "a leader thread that merely left";
  EXPECT_TRUE(ParseProcessStat(Stat("x", 'R', 0x404, 9))->exiting);
  EXPECT_EQ(ParseProcessStat(Stat("x", 'R', 0x404, 9))->exit_status, 9);
  EXPECT_TRUE(ParseProcessStat(Stat("x", 'Z', 0, 256))->exiting);
}

TEST(ProcessState, RefusesWhatIsNoStat) {
  for (const char* text : {"", "1", "1 (x", "1 (x) S", "1 (x) S a b c"}) EXPECT_FALSE(ParseProcessStat(text)) << text;
}

TEST(ProcessState, SeesThisProcessAndItsChild) {
  EXPECT_EQ(ReadProcessState(::getpid())->parent, ::getppid());
  const pid_t child = ::fork();
  if (child == 0) {
    ::raise(SIGSTOP);
    ::_exit(0);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, WUNTRACED), child);
  EXPECT_EQ(ReadProcessState(child)->state, 'T');
  EXPECT_EQ(TracerOf(child), 0);
  ::kill(child, SIGKILL);
  ::waitpid(child, &status, 0);
  EXPECT_FALSE(ReadProcessState(child));
}

// A process that waits for a child of its own, and may have a second thread, which could be what supervises the child.
// `*child` is nobody's to wait for once the process has ended.
pid_t StartWrapper(bool with_thread, pid_t* child) {
  Pipe told;
  EXPECT_TRUE(told.Open());
  const pid_t wrapper = ::fork();
  if (wrapper == 0) {
    const pid_t self = ::getpid();
    const pid_t program = ::fork();
    if (program == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (::getppid() != self) ::_exit(0);  // it has been killed already
      for (;;) ::pause();
    }
    std::thread other;  // ends with the process, which runs no destructors
    if (with_thread) {
      other = std::thread([] {
        for (;;) ::pause();
      });
    }
    (void)!::write(told.write_end.get(), &program, sizeof program);
    ::waitpid(program, nullptr, 0);
    ::_exit(0);
  }
  EXPECT_EQ(::read(told.read_end.get(), child, sizeof *child), static_cast<ssize_t>(sizeof *child));
  return wrapper;
}

bool Waits(pid_t pid) {
  std::string place;
  std::getline(std::ifstream("/proc/" + std::to_string(pid) + "/wchan"), place);
  return place == "do_wait";
}

TEST(ProcessState, AWrapperIsAProcessThatOnlyWaits) {
  if (COHORT_THREAD_SANITIZER) GTEST_SKIP() << "TSan gives the wrapper a second thread";
  for (const bool with_thread : {false, true}) {
    pid_t program = 0;
    const pid_t wrapper = StartWrapper(with_thread, &program);
    const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    while (!Waits(wrapper) && std::chrono::steady_clock::now() < limit) std::this_thread::yield();
    const bool waits = Waits(wrapper);
    const pid_t found = WrappedProgram(wrapper);
    ::kill(wrapper, SIGKILL);
    ::waitpid(wrapper, nullptr, 0);
    if (!waits) GTEST_SKIP() << "this kernel does not tell where a process waits";
    EXPECT_EQ(found, with_thread ? 0 : program) << "threads: " << with_thread;
  }
}

pid_t StartMarked(const char* mark) {
  const pid_t child = ::fork();
  if (child == 0) {
    const char* const argv[] = {"sleep", "1000", nullptr};
    const char* const environment[] = {"A=1", mark, "PATH=/usr/bin:/bin", nullptr};
    ::execve("/bin/sleep", const_cast<char**>(argv), const_cast<char**>(environment));
    ::_exit(1);
  }
  // Until it has executed; bounded, so that a machine without /bin/sleep fails the test and does not stop it.
  for (int tries = 0; ReadProcessEnvironment(child).find(mark) == std::string::npos; ++tries) {
    if (tries == 30'000) {
      ADD_FAILURE() << "/bin/sleep did not start";
      break;
    }
    ::usleep(1000);
  }
  return child;
}

TEST(Sweep, KillsExactlyTheMarkedProcesses) {
  const std::string mark = "COHORT_SWEEP_TEST=" + std::to_string(::getpid());
  const pid_t marked = StartMarked(mark.c_str());
  const pid_t longer = StartMarked((mark + "7").c_str());
  const pid_t spared = StartMarked(mark.c_str());
  EXPECT_TRUE(Sweep(mark, {{spared}}, false, std::chrono::seconds(20)));
  int status = 0;
  ASSERT_EQ(::waitpid(marked, &status, 0), marked);
  EXPECT_EQ(WTERMSIG(status), SIGKILL);
  for (const pid_t alive : {longer, spared}) {
    EXPECT_EQ(::waitpid(alive, &status, WNOHANG), 0);
    ::kill(alive, SIGKILL);
    ::waitpid(alive, &status, 0);
  }
}

}  // namespace
}  // namespace cohort::launcher
