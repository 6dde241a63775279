// A child of this process stands for a rank: it waits in functions with names.
#include "cohort/launcher/agent/evidence/native_stacks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <filesystem>
#include <mutex>
#include <random>
#include <string>
#include <thread>

#include "cohort/launcher/agent/evidence/thread_snapshot.h"
#include "cohort/launcher/agent/evidence/unwinder.h"
#include "cohort/launcher/agent/evidence/unwound_stacks.h"
#include "cohort/launcher/agent/watch/process_state.h"
#include "cohort/launcher/base/pipe.h"

namespace cohort::launcher {

std::atomic<int> signals_seen{0};

// Not in the unnamed namespace, and with something to do behind the call, so that they are frames of their own.
[[gnu::noinline]] int WaitForNoOne(int out) {
  std::mutex mutex;
  mutex.lock();
  if (out >= 0) (void)!::write(out, "!", 1);
  mutex.lock();
  return signals_seen.load();
}

[[gnu::noinline]] int CallWaitForNoOne(int out) { return WaitForNoOne(out) + 1; }

namespace {

using testing::HasSubstr;

class NativeStacksOfChild : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(pipe_.Open());
    child_ = ::fork();
    if (child_ == 0) {
      ::signal(SIGUSR1, [](int) { (void)!::write(told_, "u", 1); });
      told_ = pipe_.write_end.get();
      std::thread other([this] { CallWaitForNoOne(pipe_.write_end.get()); });
      CallWaitForNoOne(pipe_.write_end.get());
      other.join();
      ::_exit(0);
    }
    ASSERT_GT(child_, 0);
    EXPECT_EQ(Hear() + Hear(), "!!");
  }
  ~NativeStacksOfChild() override {
    ::kill(child_, SIGKILL);
    ::waitpid(child_, nullptr, 0);
  }
  std::string Hear() const {
    char word = 0;
    return ::read(pipe_.read_end.get(), &word, 1) == 1 ? std::string(1, word) : "";
  }
  // Both threads have said that they are about to wait; a moment later they do.
  ProcessSnapshot SnapshotOfSleepers() const {
    ProcessSnapshot snapshot;
    const auto all_sleep = [this] {
      for (const auto& task : std::filesystem::directory_iterator("/proc/" + std::to_string(child_) + "/task")) {
        const auto state = ReadProcessState(std::stoi(task.path().filename()));
        if (!state || state->state != 'S') return false;
      }
      return true;
    };
    while (!all_sleep()) std::this_thread::yield();
    std::thread([&] { snapshot = TakeSnapshot(child_); }).join();
    return snapshot;
  }

  static int told_;
  Pipe pipe_;
  pid_t child_ = -1;
};

int NativeStacksOfChild::told_ = -1;

TEST_F(NativeStacksOfChild, StacksAreUnwoundToTheirFunctions) {
  const ProcessSnapshot snapshot = SnapshotOfSleepers();
  if (snapshot.threads.empty()) GTEST_SKIP() << "ptrace is forbidden here, or this is no x86-64";
  EXPECT_EQ(snapshot.threads.size(), 2u);
  if (!HasUnwinder()) GTEST_SKIP() << "no libdw.so.1, or a build without its headers: apt-get install libdw-dev";
  const std::string text = UnwindSnapshot(snapshot);
  EXPECT_THAT(text, HasSubstr("cohort::launcher::WaitForNoOne(int) (launcher_agent_evidence_test)\n"));
  EXPECT_THAT(text, HasSubstr("cohort::launcher::CallWaitForNoOne(int) (launcher_agent_evidence_test)\n"));
  EXPECT_EQ(UnwindSnapshot(SnapshotOfSleepers()), text);
}

TEST_F(NativeStacksOfChild, ASnapshotLetsTheProcessGoOnAndLosesNoSignal) {
  for (int i = 0; i < 200; ++i) {
    std::thread trace([&] { TakeSnapshot(child_); });
    ::kill(child_, SIGUSR1);
    EXPECT_EQ(Hear(), "u");
    trace.join();
  }
  int status = 0;
  // The stops that the kernel tells the tracer's process; after them nothing is left of them.
  while (::waitpid(-1, &status, WNOHANG | __WALL) > 0) EXPECT_TRUE(WIFSTOPPED(status));
  const auto state = ReadProcessState(child_);
  ASSERT_TRUE(state.has_value());
  EXPECT_NE(state->state, 't');
  EXPECT_EQ(TracerOf(child_), 0);
}

TEST_F(NativeStacksOfChild, StoppedProcessesAreLeftAlone) {
  ::kill(child_, SIGSTOP);
  int status = 0;
  ASSERT_EQ(::waitpid(child_, &status, WUNTRACED), child_);
  std::thread([&] { EXPECT_TRUE(TakeSnapshot(child_).threads.empty()); }).join();
}

TEST(NativeStacks, ANumberWithoutAProcessHasNoStacks) {
  EXPECT_TRUE(TakeSnapshot(0).threads.empty());
  EXPECT_EQ(UnwindSnapshot({}), "");
}

TEST(NativeStacks, SnapshotsAreReadAsTheyWereWritten) {
  ProcessSnapshot one;
  one.rank = 7;
  one.pid = 4711;
  one.threads.resize(2);
  one.threads[0].name = "a name of 15 by";
  one.threads[1].thread = 4712;
  one.threads[1].registers[ThreadSnapshot::kStackPointer] = 99;
  one.threads[1].stack = "stack";
  const std::string bytes = WriteSnapshot(one);
  std::string both = bytes + bytes;
  ASSERT_TRUE(ReadSnapshot(&both).has_value());
  const auto read = ReadSnapshot(&both);
  ASSERT_TRUE(read.has_value());
  EXPECT_EQ(both, "");
  EXPECT_EQ(read->rank, 7u);
  EXPECT_EQ(read->pid, 4711);
  ASSERT_EQ(read->threads.size(), 2u);
  EXPECT_EQ(read->threads[0].name, "a name of 15 by");
  EXPECT_EQ(read->threads[1].registers[ThreadSnapshot::kStackPointer], 99u);
  EXPECT_EQ(read->threads[1].stack, "stack");
  for (size_t size = 0; size < bytes.size(); ++size) {
    std::string part = bytes.substr(0, size);
    EXPECT_FALSE(ReadSnapshot(&part).has_value());
  }
  std::mt19937 random(5);
  for (int i = 0; i < 5000; ++i) {
    std::string damaged = bytes;
    for (int hits = 0; hits < 3; ++hits) damaged[random() % damaged.size()] = static_cast<char>(random());
    const auto any = ReadSnapshot(&damaged);
    EXPECT_LE(any ? any->threads.size() : 0, ProcessSnapshot::kMaxThreads);
  }
}

TEST(NativeStacks, AnswersOfAnUnwinderAreReadByRank) {
  const auto ranks = ReadUnwound("lost\n=3\nthread a:\n  main (a)\n=12\n=x\nthread b:\n  half");
  ASSERT_EQ(ranks.size(), 3u);
  EXPECT_EQ(ranks[0].rank, 3u);
  EXPECT_EQ(ranks[0].text, "thread a:\n  main (a)\n");
  EXPECT_EQ(ranks[1].rank, 12u);
  EXPECT_EQ(ranks[1].text, "");
  EXPECT_EQ(ranks[2].text, "thread b:\n  half\n");
}

TEST(NativeStacks, StacksAreNotGatheredWhereNoUnwinderIsOffered) {
  EventLoop loop;
  NativeStacks stacks("native stacks", &loop);
  const EvidenceQuestion question{.ranks = {{.rank = 0, .group = ::getpgrp(), .program = ::getpid()}},
                                  .limit = std::chrono::seconds(1)};
  EXPECT_FALSE(stacks.Ask(question, [](const std::vector<Evidence>&) { FAIL(); }));
}

}  // namespace
}  // namespace cohort::launcher
