// `dlaunch --trace` and `dlaunch trace`: real jobs, whose traces are read.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <set>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "cohort/launcher/agent/watch/process_state.h"
#include "tests/launcher/dlaunch/dlaunch_process.h"
#include "tests/support/read_trace.h"

namespace cohort::launcher {
namespace {

using std::string;
using std::chrono::seconds;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

// The numbers that ranks have printed behind "calls", by rank.
std::map<int, uint64_t> CallsOf(const string& output) {
  std::map<int, uint64_t> calls;
  for (size_t at = 0; (at = output.find("] calls ", at)) != string::npos; ++at) {
    const size_t open = output.rfind('[', at);
    calls[std::atoi(output.c_str() + open + 1)] = std::strtoull(output.c_str() + at + 8, nullptr, 10);
  }
  return calls;
}

// The slices of an all-reduce of all ranks, by rank.
using AllReduce = std::map<int, const ReadSlice*>;

// The all-reduces that trace_ranks counts, in their order.
std::vector<AllReduce> AllReducesOf(const ReadTrace& trace) {
  std::map<uint64_t, AllReduce> by_sequence;
  for (const ReadSlice& slice : trace.slices) {
    if (slice.name != "all_reduce" || slice.arguments.at("call") != "all_reduce(max, float32, 2)") continue;
    const uint64_t sequence = std::strtoull(slice.arguments.at("sequence").c_str(), nullptr, 10);
    by_sequence[sequence][std::atoi(slice.track.c_str() + string("rank ").size())] = &slice;
  }
  std::vector<AllReduce> calls;
  for (auto& [sequence, call] : by_sequence) calls.push_back(std::move(call));
  return calls;
}

bool HasArrow(const AllReduce& call) {
  return std::any_of(call.begin(), call.end(), [](const auto& slice) { return !slice.second->waited.empty(); });
}

class Trace : public ::testing::Test {
 protected:
  std::vector<string> Command(const std::vector<string>& options, const std::vector<string>& arguments) const {
    std::vector<string> command = {"--simulate-nodes", "2", "--nproc-per-node", "2"};
    command.insert(command.end(), options.begin(), options.end());
    command.insert(command.end(), {"--", COHORT_TRACE_RANKS});
    command.insert(command.end(), arguments.begin(), arguments.end());
    return command;
  }
  // Runs a job of 400 all-reduces and compares the arrows of its trace with the beginnings of the calls. `late`: how
  // many of the 25 waits that the ranks make for sure have an arrow.
  void CheckArrows(size_t* late) const;

  TemporaryFolder folder_;
  const string path_ = folder_.path() + "/job.pftrace";
};

TEST_F(Trace, TheFileHasExactlyTheCallsOfTheBlackBoxes) {
  DlaunchProcess job(Command({"--trace", path_}, {"400", "200"}));
  ASSERT_EQ(job.Wait(), 0) << job.err();
  const ReadTrace trace = ReadTrace::Of(path_);
  EXPECT_THAT(trace.problems, IsEmpty());
  const std::map<int, uint64_t> calls = CallsOf(job.out());
  ASSERT_EQ(calls.size(), 4u) << job.out();
  uint64_t all = 0;
  for (const auto& [rank, count] : calls) {
    EXPECT_GE(count, 403u);  // with a barrier and two messages
    EXPECT_EQ(trace.CountOf("rank " + std::to_string(rank)), count) << rank << "\n" << job.err();
    all += count;
  }
  EXPECT_THAT(job.err(),
              HasSubstr("dlaunch: trace " + path_ + ": " + std::to_string(all) + " calls; the clocks of 2 nodes"));
  EXPECT_FALSE(trace.HasEvent("calls missing"));
  EXPECT_THAT(job.err(), Not(HasSubstr("have jumped")));
  for (const ReadSlice& slice : trace.slices) {
    EXPECT_EQ(slice.node, slice.track <= "rank 1" ? "node0" : "node1");
  }
  const auto ours = [](const ReadSlice& slice) {
    const auto call = slice.arguments.find("call");
    const auto site = slice.arguments.find("site");
    return call != slice.arguments.end() && call->second == "all_reduce(max, float32, 2)" &&
           site != slice.arguments.end() && site->second.starts_with("trace_ranks.cc:");
  };
  EXPECT_EQ(std::count_if(trace.slices.begin(), trace.slices.end(), ours), 4 * 400);
  for (const ReadSlice& slice : trace.slices) {
    const auto algorithm = slice.arguments.find("algorithm");
    const bool is_message = slice.name == "send" || slice.name == "recv";
    EXPECT_EQ(algorithm == slice.arguments.end(), is_message) << slice.name;
    const auto transports = slice.arguments.find("transports");
    ASSERT_NE(transports, slice.arguments.end()) << slice.name;
    // Rank 0 sends to rank 1 of its node, rank 1 to rank 2 of the other one.
    const bool near = is_message && (slice.name == "send") == (slice.track == "rank 0" || slice.track == "rank 2");
    EXPECT_EQ(transports->second, near ? "shm" : is_message ? "tcp" : "shm+tcp") << slice.name << " of " << slice.track;
  }
}

TEST_F(Trace, HasTheRangesAndStepsOfPrograms) {
  constexpr int kSteps = 160;  // whose three records each fit the ring, however late the agent looks
  DlaunchProcess job(Command({"--trace", path_}, {std::to_string(kSteps), "200"}));
  ASSERT_EQ(job.Wait(), 0) << job.err();
  const ReadTrace trace = ReadTrace::Of(path_);
  EXPECT_THAT(trace.problems, IsEmpty());
  EXPECT_FALSE(trace.HasEvent("ranges missing")) << job.err();
  std::map<string, int> ranges;              // by track
  std::map<string, std::set<string>> steps;  // the file is in no order of time
  for (const ReadSlice& range : trace.ranges) {
    ++ranges[range.track + ": " + range.name];
    EXPECT_EQ(range.arguments.count("number"), range.name == "inner" ? 1u : 0u);
  }
  for (const ReadSlice& event : trace.instants) {
    if (event.name != "step") continue;
    EXPECT_TRUE(steps[event.track].insert(event.arguments.at("number")).second);
  }
  EXPECT_EQ(ranges.size(), 8u);
  EXPECT_EQ(steps.size(), 4u);
  for (int rank = 0; rank < 4; ++rank) {
    const string track = "rank " + std::to_string(rank);
    EXPECT_EQ(ranges[track + " program: compute"], kSteps);
    EXPECT_EQ(ranges[track + " program: inner"], kSteps);
    EXPECT_EQ(steps[track].size(), size_t{kSteps});
    EXPECT_THAT(steps[track], AllOf(Contains("0"), Contains(std::to_string(kSteps - 1))));
  }
}

void Trace::CheckArrows(size_t* late) const {
  DlaunchProcess job(Command({"--trace", path_}, {"400", "200"}));
  ASSERT_EQ(job.Wait(), 0) << job.err();
  const ReadTrace trace = ReadTrace::Of(path_);
  const std::vector<AllReduce> calls = AllReducesOf(trace);
  ASSERT_EQ(calls.size(), 400u);
  std::map<uint64_t, const ReadSlice*> causes;  // by flow
  for (const ReadSlice& slice : trace.slices) {
    for (const uint64_t flow : slice.causes) EXPECT_TRUE(causes.emplace(flow, &slice).second);
  }
  // Without arrows are those before the clocks of the nodes are known.
  size_t known_from = 0;
  while (known_from < calls.size() && !HasArrow(calls[known_from])) ++known_from;
  *late = 0;
  for (size_t i = known_from; i < calls.size(); ++i) {
    const AllReduce& call = calls[i];
    const ReadSlice& last = *std::max_element(call.begin(), call.end(), [](const auto& one, const auto& other) {
                               return one.second->start_ns < other.second->start_ns;
                             })->second;
    for (const auto& [rank, slice] : call) {
      SCOPED_TRACE("all-reduce " + std::to_string(i) + " of rank " + std::to_string(rank));
      const uint64_t before_ns = std::min(last.start_ns, slice->end_ns) - slice->start_ns;
      if (slice->waited.empty()) continue;
      ASSERT_EQ(causes.count(slice->waited[0]), 1u);
      EXPECT_EQ(causes.at(slice->waited[0]), &last);
      EXPECT_EQ("rank " + slice->arguments.at("waited for rank"), last.track);
      EXPECT_EQ(slice->arguments.at("waited ns"), std::to_string(before_ns));
    }
    if (i % 16 != 0) continue;
    const int late_rank = static_cast<int>(i / 16 % 4);
    const ReadSlice& neighbour = *call.at(late_rank ^ 1);
    EXPECT_GE(call.at(late_rank)->start_ns, neighbour.start_ns + 2'900'000) << i;
    if (!neighbour.waited.empty()) ++*late;
  }
}

// In each sixteenth all-reduce a rank comes three milliseconds after its neighbour. The neighbour waits for it, or for
// a rank of the other node that is later still.
TEST_F(Trace, ArrowsPointFromTheRankThatWasWaitedFor) {
  // The record of a short call ends when it begins, also where a busy machine made it wait: then there is no arrow.
  // There is none either before the clocks are known, which takes dlaunch a look at the calls.
  size_t late = 0;
  for (int attempt = 0; attempt < 4 && late < 10; ++attempt) {
    CheckArrows(&late);
    if (HasFatalFailure()) return;
  }
  EXPECT_GE(late, 10u) << "of 25";
}

TEST_F(Trace, AKilledRankLeavesAWholeTrace) {
  DlaunchProcess job(Command({"--trace", path_}, {"die", "400"}));
  EXPECT_EQ(job.Wait(), 137);
  const ReadTrace trace = ReadTrace::Of(path_);
  EXPECT_THAT(trace.problems, IsEmpty());
  EXPECT_GE(trace.CountOf("rank 1"), 200u);
  EXPECT_GE(trace.CountOf("rank 0"), 200u);
  EXPECT_TRUE(trace.HasEvent("the job fails"));
}

TEST_F(Trace, AKilledDlaunchLeavesAWholeTrace) {
  DlaunchProcess job(Command({"--trace", path_}, {"100000", "500"}));
  ASSERT_TRUE(job.WaitUntil([&] {
    std::error_code error;
    return std::filesystem::file_size(path_, error) > 4000 && !error;
  })) << job.err();
  ::kill(job.pid(), SIGKILL);
  job.Wait();
  EXPECT_EQ(job.WaitUntilGone(seconds(30)), "");
  const ReadTrace trace = ReadTrace::Of(path_);
  EXPECT_THAT(trace.problems, IsEmpty());
  EXPECT_GT(trace.slices.size(), 0u);
}

TEST_F(Trace, APathThatCannotBeWrittenIsRefusedBeforeTheJob) {
  DlaunchProcess job({"--trace", folder_.path() + "/none/x", "true"});
  EXPECT_EQ(job.Wait(), 125);
  EXPECT_THAT(job.err(), HasSubstr("no trace can be written to " + folder_.path() + "/none/x: No such file"));
}

TEST_F(Trace, AFullDiskEndsTheTraceAndNotTheJob) {
  const string disk = folder_.path() + "/disk";
  std::filesystem::create_directory(disk);
  const auto with_small_disk = [&disk] {
    return ::unshare(CLONE_NEWNS) == 0 && ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
           ::mount("none", disk.c_str(), "tmpfs", 0, "size=8k") == 0;
  };
  DlaunchProcess job(Command({"--trace", disk + "/x"}, {"400", "5000"}), {.enter = with_small_disk});
  const int status = job.Wait();
  if (status == 97) GTEST_SKIP() << "no file system can be mounted here";
  EXPECT_EQ(status, 0) << job.err();
  EXPECT_EQ(CallsOf(job.out()).size(), 4u);
  // Calls that no agent sends after that are not counted: that the trace ends is said.
  EXPECT_THAT(job.err(), HasSubstr("the trace " + disk + "/x ends here: No space left on device"));
}

TEST_F(Trace, ARunningJobIsTracedForAWhile) {
  DlaunchProcess job(Command({}, {"100000", "500"}));
  for (int rank = 0; rank < 4; ++rank) ASSERT_TRUE(job.WaitForOutput("[" + std::to_string(rank) + "] up"));
  const string environment = ReadProcessEnvironment(job.RankProcess(0));
  const size_t at = environment.find(string(1, '\0') + "COHORT_JOB_ID=") + 1;
  const string id(environment.c_str() + at + string("COHORT_JOB_ID=").size());
  for (const string round : {"one", "two"}) {
    const string path = folder_.path() + "/" + round;
    size_t fewest = 0;
    EXPECT_TRUE(job.WaitUntil([&] {  // on a busy machine ranks may make few calls in such a time
      DlaunchProcess trace({"trace", "--for", "300ms", "--output", path, id});
      EXPECT_EQ(trace.Wait(), 0) << trace.err();
      EXPECT_THAT(trace.out(), HasSubstr("trace " + path + ": "));
      const ReadTrace read = ReadTrace::Of(path);
      EXPECT_THAT(read.problems, IsEmpty());
      fewest = read.CountOf("rank 0");
      for (int rank = 1; rank < 4; ++rank) fewest = std::min(fewest, read.CountOf("rank " + std::to_string(rank)));
      return fewest > 20;
    })) << fewest;
  }
  DlaunchProcess first({"trace", "--for", "1m", "--output", path_, id});
  ASSERT_TRUE(first.WaitUntil([&] { return std::filesystem::exists(path_); }));
  DlaunchProcess second({"trace", "--output", path_ + "2", id});
  EXPECT_EQ(second.Wait(), 1);
  EXPECT_THAT(second.err(), HasSubstr("a trace is being taken already, to " + path_));
  ::kill(job.pid(), SIGTERM);
  EXPECT_EQ(job.Wait(), 143);
  EXPECT_EQ(first.Wait(), 0) << first.err();
  EXPECT_THAT(ReadTrace::Of(path_).problems, IsEmpty());
}

TEST_F(Trace, CallsThatAreTooManyAreCounted) {
  DlaunchProcess job({"-n", "2", "--trace", path_, "--", COHORT_TRACE_RANKS, "50000", "0"});
  ASSERT_EQ(job.Wait(), 0) << job.err();
  const ReadTrace trace = ReadTrace::Of(path_);
  EXPECT_THAT(trace.problems, IsEmpty());
  uint64_t all = 0;
  for (const auto& [rank, count] : CallsOf(job.out())) all += count;
  const size_t missing = job.err().find(" calls, ");
  const uint64_t missed = missing == string::npos ? 0 : std::strtoull(job.err().c_str() + missing + 8, nullptr, 10);
  EXPECT_EQ(trace.slices.size() + missed, all) << job.err();
}

TEST_F(Trace, ATraceWithoutCallsSaysWhereToLook) {
  DlaunchProcess job({"-n", "1", "sh", "-c", "echo up; exec sleep 600"});
  ASSERT_TRUE(job.WaitForOutput("up"));
  const size_t at = job.err().find("job-");
  ASSERT_NE(at, string::npos) << job.err();
  const string id = job.err().substr(at, job.err().find('\n', at) - at);
  DlaunchProcess trace({"trace", "--for", "100ms", "--output", path_, id});
  EXPECT_EQ(trace.Wait(), 0) << trace.err();
  EXPECT_THAT(trace.out(), HasSubstr(": 0 calls"));
  EXPECT_THAT(trace.err(),
              HasSubstr("the ranks of " + id + " have made no call of Cohort or NCCL meanwhile; dlaunch top"));
}

TEST_F(Trace, TheCommandRefusesWhatItCannotDo) {
  struct Case {
    std::vector<string> arguments;
    int status;
    string says;
  };
  for (const Case& c :
       {Case{{"trace", "--for", "soon"}, 2, "--for"}, Case{{"trace", "--for", "0"}, 2, "a trace takes time"},
        Case{{"trace", "job-zz"}, 1, "no job 'job-zz' runs on this machine"}}) {
    DlaunchProcess trace(c.arguments);
    EXPECT_EQ(trace.Wait(), c.status);
    EXPECT_THAT(trace.err(), HasSubstr(c.says));
  }
}

}  // namespace
}  // namespace cohort::launcher
