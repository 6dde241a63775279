#include "cohort/launcher/agent/rank/rank_input.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "cohort/launcher/base/event_loop.h"
#include "cohort/runtime/base/file_descriptor.h"
#include "tests/support/resident_memory.h"

namespace cohort::launcher {
namespace {

constexpr size_t kTotal = 200u << 20;
constexpr size_t kMuch = 16u << 20;

// Bytes that tell where in the stream they are.
std::string Pattern() {
  std::string bytes(RankInput::kWindow + 8191, '\0');
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>(i % 8191 * 31 / 16);
  return bytes;
}

// The rank's side of a pipe, and dlaunch's, which sends as much as it is asked for.
class RankInputTest : public ::testing::Test {
 protected:
  RankInputTest() {
    ::signal(SIGPIPE, SIG_IGN);
    int ends[2] = {-1, -1};
    EXPECT_EQ(::pipe(ends), 0);
    reader_ = runtime::FileDescriptor(ends[0]);
    writer_ = runtime::FileDescriptor(ends[1]);
  }
  void SendWhatIsWanted(RankInput* input) {
    const size_t size = std::min<size_t>(wanted_, kTotal - sent_);
    wanted_ -= size;
    const size_t from = sent_;
    sent_ += size;
    input->Take(std::string_view(pattern_).substr(from % 8191, size), sent_ == kTotal);
  }
  // Reads what there is, at most 64 KiB; false at the end.
  bool ReadSome() {
    char buffer[64u << 10];
    const ssize_t n = ::read(reader_.get(), buffer, sizeof buffer);
    if (n <= 0) return false;
    const std::string_view expected = std::string_view(pattern_).substr(read_ % 8191, static_cast<size_t>(n));
    EXPECT_EQ(std::string_view(buffer, static_cast<size_t>(n)).compare(expected), 0) << "after " << read_;
    read_ += static_cast<size_t>(n);
    return true;
  }

  const std::string pattern_ = Pattern();
  EventLoop loop_;
  runtime::FileDescriptor reader_;
  runtime::FileDescriptor writer_;
  RankInput::Want want_ = [this](uint64_t bytes, bool) { wanted_ += bytes; };
  uint64_t wanted_ = 0;
  size_t sent_ = 0;
  size_t read_ = 0;
};

TEST_F(RankInputTest, HoldsLittleOfWhatPassesToASlowReader) {
  RankInput input(&loop_, std::move(writer_), want_);
  SendWhatIsWanted(&input);
  const size_t before = testing::ResidentMemory(::getpid());
  while (sent_ < kTotal && !HasFailure()) {
    ASSERT_TRUE(ReadSome());
    EXPECT_LE(sent_ + wanted_ - read_, RankInput::kWindow + (64u << 10)) << "the window, and what the pipe holds";
    SendWhatIsWanted(&input);
  }
  EXPECT_LT(testing::ResidentMemory(::getpid()), before + kMuch);
  while (ReadSome()) input.Take("", true);
  EXPECT_EQ(read_, kTotal);
}

}  // namespace
}  // namespace cohort::launcher
