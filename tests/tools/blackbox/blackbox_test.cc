#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <filesystem>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "cohort/runtime/base/clock.h"
#include "cohort/runtime/base/file_descriptor.h"
#include "cohort/runtime/segment/agent_protocol.h"
#include "cohort/runtime/segment/black_box.h"
#include "cohort/runtime/segment/layout.h"
#include "cohort/runtime/segment/segment.h"
#include "tools/blackbox/finder.h"
#include "tools/blackbox/segment_copy.h"
#include "tools/blackbox/table.h"

namespace cohort::blackbox {
namespace {

using runtime::CallRecord;
using runtime::CallState;
using runtime::Segment;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int kRanks = 3;

CallRecord Record(uint64_t sequence) {
  CallRecord record;
  record.signature.group = 0xabcd;
  record.signature.sequence = sequence;
  record.signature.kind = 3;
  record.signature.dtype = 11;
  record.bytes = 4096;
  record.group_size = kRanks;
  std::strcpy(record.site, "train.cc:88");
  return record;
}

// A rank that has finished call 41 and is in call 42, until it is killed.
pid_t StartRank(Segment& segment, int rank) {
  int ready[2];
  if (pipe(ready) != 0) return -1;
  const pid_t pid = fork();
  if (pid == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    auto attached = Segment::Attach(dup(segment.fd()), rank);
    if (!attached.ok()) _exit(1);
    runtime::BlackBoxWriter& box = (*attached)->black_box();
    box.Finish(box.Start(Record(41)), CallState::kDone);
    (void)box.Start(Record(42));
    if (write(ready[1], "x", 1) != 1) _exit(1);
    for (;;) pause();
  }
  close(ready[1]);
  char byte = 0;
  const bool came = read(ready[0], &byte, 1) == 1;
  close(ready[0]);
  return came ? pid : -1;
}

class BlackBoxTool : public ::testing::Test {
 protected:
  void SetUp() override {
    auto segment = Segment::Create({.local_ranks = kRanks, .job_id = "job-7", .node = "node-b"});
    ASSERT_TRUE(segment.ok());
    segment_ = std::move(*segment);
    for (int rank = 0; rank < kRanks; ++rank) {
      pids_.push_back(StartRank(*segment_, rank));
      ASSERT_GT(pids_.back(), 0);
    }
  }
  void TearDown() override {
    for (const pid_t pid : pids_) {
      if (pid <= 0) continue;
      kill(pid, SIGKILL);
      waitpid(pid, nullptr, 0);
    }
  }

  std::unique_ptr<Segment> segment_;
  std::vector<pid_t> pids_;
};

TEST_F(BlackBoxTool, ReadsLiveStoppedAndKilledRanks) {
  kill(pids_[1], SIGSTOP);
  ASSERT_EQ(waitpid(pids_[1], nullptr, WUNTRACED), pids_[1]);
  const pid_t killed = pids_[2];
  kill(killed, SIGKILL);
  ASSERT_EQ(waitpid(killed, nullptr, 0), killed);
  pids_[2] = -1;

  for (const int holder : {static_cast<int>(getpid()), static_cast<int>(pids_[0]), static_cast<int>(pids_[1])}) {
    const auto found = FindInProcess(holder);
    ASSERT_TRUE(found.ok()) << found.status();
    EXPECT_EQ(found->job_id, "job-7");
    const auto copy = CopySegment(found->fd.get(), 8);
    ASSERT_TRUE(copy.ok());
    ASSERT_EQ(copy->ranks.size(), static_cast<size_t>(kRanks));
    for (const RankCopy& rank : copy->ranks) {
      ASSERT_EQ(rank.records.size(), 2u);
      EXPECT_EQ(rank.records[0].state, CallState::kDone);
      EXPECT_EQ(rank.records[1].state, CallState::kStarted);
      EXPECT_EQ(rank.records[1].signature.sequence, 42u);
    }
    EXPECT_EQ(copy->ranks[2].pid, killed);
    const std::string table = TableText(*copy, ProcessState);
    EXPECT_THAT(table, HasSubstr("running"));
    EXPECT_THAT(table, HasSubstr("stopped"));
    EXPECT_THAT(table, HasSubstr("gone"));
    EXPECT_THAT(table, HasSubstr("all_reduce     float32           4096"));
    EXPECT_THAT(table, HasSubstr("train.cc:88"));
    EXPECT_THAT(table, HasSubstr("\nnode-b     2 "));
    EXPECT_THAT(JsonText(*copy, ProcessState), HasSubstr("\"node\": \"node-b\""));
  }
  EXPECT_EQ(FindInProcess(killed).status().code(), absl::StatusCode::kNotFound);
}

TEST_F(BlackBoxTool, FindsAJobOnceAndKeepsItForLater) {
  const absl::StatusOr<std::vector<Found>> job = FindJob("job-7");
  ASSERT_TRUE(job.ok()) << job.status();
  const std::vector<Found>& found = *job;
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(FindJob("another").status().code(), absl::StatusCode::kNotFound);
  const std::string path = (std::filesystem::temp_directory_path() / ("box-" + std::to_string(getpid()))).string();
  const uint64_t before = runtime::SteadyNow();
  ASSERT_TRUE(SaveSegment(found[0].fd.get(), path).ok());
  const uint64_t after = runtime::SteadyNow();
  EXPECT_FALSE(SaveSegment(found[0].fd.get(), path).ok());  // nothing is overwritten
  const runtime::FileDescriptor file(open(path.c_str(), O_RDONLY));
  std::filesystem::remove(path);
  const auto copy = CopySegment(file.get(), 1);
  ASSERT_TRUE(copy.ok()) << copy.status();
  EXPECT_EQ(copy->ranks.at(0).records.at(0).signature.sequence, 42u);
  EXPECT_EQ(copy->job_id, "job-7");
  // How long a call has hung counts up to when it was saved, not to the newest record.
  EXPECT_GE(copy->now_ns, before);
  EXPECT_LE(copy->now_ns, after);
}

TEST(BlackBoxJobs, JobsAreFoundByTheBeginningOfTheirNames) {
  const std::vector<std::string> ids = {"job-5f3a", "job-5f3b", "job-5f3a", "single-5", "job-5f"};
  EXPECT_EQ(*ResolveJob(ids, "job-5f3a"), "job-5f3a");
  EXPECT_EQ(*ResolveJob(ids, "5f3a"), "job-5f3a");
  EXPECT_EQ(*ResolveJob(ids, "si"), "single-5");
  EXPECT_EQ(*ResolveJob(ids, "job-5f"), "job-5f") << "the whole name of one of them";
  const absl::Status several = ResolveJob(ids, "5f3").status();
  EXPECT_EQ(several.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(several.message()), HasSubstr("job-5f3a, job-5f3b"));
  EXPECT_EQ(ResolveJob(ids, "6").status().code(), absl::StatusCode::kNotFound);
}

// A limit on files' size stands for the full disk.
TEST_F(BlackBoxTool, ABoxThatDoesNotFitIsNotKeptByHalf) {
  const auto found = FindInProcess(getpid());
  ASSERT_TRUE(found.ok()) << found.status();
  const std::filesystem::path folder =
      std::filesystem::temp_directory_path() / ("box-folder-" + std::to_string(getpid()));
  std::filesystem::create_directory(folder);
  rlimit before{};
  getrlimit(RLIMIT_FSIZE, &before);
  const rlimit small{100'000, before.rlim_max};
  std::signal(SIGXFSZ, SIG_IGN);
  setrlimit(RLIMIT_FSIZE, &small);
  const absl::Status status = SaveSegment(found->fd.get(), folder / "hung.box");
  setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, SIG_DFL);
  EXPECT_THAT(std::string(status.message()), HasSubstr("hung.box: File too large"));
  EXPECT_TRUE(std::filesystem::is_empty(folder));
  std::filesystem::remove_all(folder);
}

TEST(BlackBoxTables, EmptyRanksHaveALineAndJsonQuotes) {
  SegmentCopy copy{.job_id = "a\"b", .node = "", .epoch = 2, .ranks = {RankCopy{}}, .now_ns = 0};
  const auto state_of = [](int) { return std::string("-"); };
  EXPECT_THAT(TableText(copy, state_of), HasSubstr("no call"));
  EXPECT_THAT(JsonText(copy, state_of), HasSubstr("\"job\": \"a\\\"b\""));
}

// Bytes that mean nothing, in a segment whose header is right or nearly so.
TEST(BlackBoxTables, HostileContentsAreReadWithoutHarm) {
  const uint32_t seed = std::random_device()();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  for (int round = 0; round < 40; ++round) {
    const runtime::FileDescriptor fd(memfd_create("cohort-segment", MFD_CLOEXEC));
    ASSERT_TRUE(fd.valid());
    std::vector<uint64_t> words(runtime::FixedBytes(2) / 8);
    for (uint64_t& word : words) {
      const uint64_t kind = random();
      word = kind % 4 == 0 ? random() : kind % 4 == 1 ? ~uint64_t{0} : kind % 8;
    }
    runtime::SegmentHeader header{};
    std::memcpy(&header, words.data(), sizeof header);
    header.magic = runtime::kSegmentMagic;
    header.version = runtime::kSegmentVersion;
    if (round % 4 != 0) header.local_ranks = 2;
    std::memcpy(words.data(), &header, sizeof header);
    const size_t bytes = round % 5 == 4 ? random() % (words.size() * 8) : words.size() * 8;
    ASSERT_EQ(pwrite(fd.get(), words.data(), bytes, 0), static_cast<ssize_t>(bytes));
    const auto copy = CopySegment(fd.get(), 512);
    if (!copy.ok()) continue;
    for (const std::string& text : {TableText(*copy, ProcessState), JsonText(*copy, ProcessState)}) {
      for (const char c : text) EXPECT_TRUE(c == '\n' || (c >= 0x20 && c < 0x7f));
    }
  }
}

}  // namespace
}  // namespace cohort::blackbox
