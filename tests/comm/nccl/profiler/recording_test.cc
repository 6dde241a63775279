#include "cohort/comm/nccl/profiler/recording.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

#include "tests/runtime/bootstrap/fake_agent.h"
#include "tests/runtime/child.h"

namespace cohort::comm::nccl_profiler {
namespace {

// A process with an agent of two ranks, since a recording begins only where no node segment is mapped. It welcomes a
// rank and answers nothing else.
class SilentAgent {
 public:
  SilentAgent() : child_([this] { return Serve(); }) {
    close(words_.write_end);
    close(ends_.read_end);
    for (char letter = 0; read(words_.read_end, &letter, 1) == 1 && letter != '\n';) address_ += letter;
  }
  ~SilentAgent() {
    close(words_.read_end);
    close(ends_.write_end);
    EXPECT_EQ(child_.Wait(), 0);
  }
  const std::string& address() const { return address_; }
  // Blocks until the rank has asked for something.
  bool WaitForQuestion() const {
    char letter = 0;
    return read(words_.read_end, &letter, 1) == 1;
  }

 private:
  struct Pipe {
    Pipe() {
      int ends[2];
      if (pipe(ends) != 0) std::abort();
      read_end = ends[0];
      write_end = ends[1];
    }
    int read_end = -1;
    int write_end = -1;
  };

  int Serve() const {
    close(words_.read_end);
    close(ends_.write_end);
    runtime::testing::FakeAgent agent(2, [this](runtime::testing::FakeAgent& self, const v1::RankMessage& message) {
      if (message.has_hello()) {
        self.Send(self.Welcome(static_cast<int>(message.hello().local_rank())), true);
      } else {
        (void)!write(words_.write_end, "?", 1);
      }
    });
    const std::string line = agent.address() + "\n";
    if (write(words_.write_end, line.data(), line.size()) < 0) return 1;
    char end = 0;
    return read(ends_.read_end, &end, 1) == 0 ? 0 : 1;
  }

  Pipe words_, ends_;
  std::string address_;
  runtime::testing::Child child_;
};

TEST(NcclRecordingTest, StopsInTimeBesideAnAgentThatDoesNotAnswer) {
  const SilentAgent agent;
  setenv("COHORT_AGENT", agent.address().c_str(), 1);
  setenv("COHORT_LOCAL_RANK", "0", 1);
  static const absl::StatusOr<Recording*> recording = Recording::Begin();  // never destroyed
  ASSERT_TRUE(recording.ok()) << recording.status();
  ASSERT_NE(*recording, nullptr);
  (*recording)->recorder().Add({.hash = 7, .rank = 1, .size = 2});
  ASSERT_TRUE(agent.WaitForQuestion());
  EXPECT_TRUE((*recording)->Stop());
}

}  // namespace
}  // namespace cohort::comm::nccl_profiler
