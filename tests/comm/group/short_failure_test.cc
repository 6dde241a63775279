// Failures amid calls that take the short way: mismatches, deaths, deadlines, aborts and destroyed communicators end in
// the same errors, with the same words, as the general way.
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <regex>
#include <string>
#include <utility>
#include <vector>

#include "cohort/comm/window.h"
#include "tests/support/process_cluster.h"
#include "tests/support/short_calls.h"

namespace cohort::testing {
namespace {

using comm::Buffer;
using comm::CallOptions;
using comm::CollectiveKind;
using comm::Communicator;
using comm::ConstBuffer;
using comm::ReduceOp;
using runtime::Work;

constexpr auto kBound = std::chrono::seconds(10);
constexpr int64_t kCount = 2;
constexpr size_t kRoom = 64;  // elements of each buffer

// A rank of a test, with its group and its memory.
struct Rank {
  ProcessRank& self;
  std::unique_ptr<Communicator> group;
  comm::Window window;
  std::vector<int32_t> memory = std::vector<int32_t>(2 * kRoom, 1);
  int32_t* data = memory.data();
};

// In these kinds every rank waits for every other. One call site a kind.
Work Call(Rank& rank, CollectiveKind kind, const CallOptions& options) {
  Communicator& group = *rank.group;
  int32_t* out = rank.data + kRoom;
  const int64_t all = kCount * group.size();
  switch (kind) {
    case CollectiveKind::kAllReduce:
      return group.AllReduce(ConstBuffer(rank.data, kCount), Buffer(out, kCount), ReduceOp::kSum, options);
    case CollectiveKind::kReduceScatter:
      return group.ReduceScatter(ConstBuffer(rank.data, all), Buffer(out, kCount), ReduceOp::kSum, options);
    case CollectiveKind::kAllGather:
      return group.AllGather(ConstBuffer(rank.data, kCount), Buffer(out, all), options);
    case CollectiveKind::kAllToAll:
      return group.AllToAll(ConstBuffer(rank.data, all), Buffer(out, all), options);
    default:
      return group.Barrier(options);
  }
}

constexpr CollectiveKind kKinds[] = {CollectiveKind::kAllReduce, CollectiveKind::kReduceScatter,
                                     CollectiveKind::kAllGather, CollectiveKind::kAllToAll, CollectiveKind::kBarrier};

CallOptions Within(std::chrono::nanoseconds timeout) {
  CallOptions options;
  options.timeout = timeout;
  return options;
}

// A rank whose part was over gets the error at a later call.
absl::Status UntilError(Rank& rank, Work work) {
  absl::Status status = work.Wait(kBound);
  const auto deadline = std::chrono::steady_clock::now() + kBound;
  while (status.ok() && std::chrono::steady_clock::now() < deadline) {
    status = rank.group->Barrier(Within(kBound)).Wait(kBound);
  }
  return status;
}

// Another call than the others': of another op, from another place; or, where there is no op, of another tag.
Work Another(Rank& rank, CollectiveKind kind, CallOptions options) {
  const Buffer out(rank.data + kRoom, kCount);
  if (kind == CollectiveKind::kAllReduce) {
    return rank.group->AllReduce(ConstBuffer(rank.data, kCount), out, ReduceOp::kMax, options);
  }
  if (kind == CollectiveKind::kReduceScatter) {
    return rank.group->ReduceScatter(ConstBuffer(rank.data, kCount * rank.self.size), out, ReduceOp::kMax, options);
  }
  options.tag = 7;
  return Call(rank, kind, options);
}

Work AnotherKind(Rank& rank, CollectiveKind kind, const CallOptions& options) {
  const bool barrier = kind == CollectiveKind::kBarrier;
  return Call(rank, barrier ? CollectiveKind::kAllReduce : CollectiveKind::kBarrier, options);
}

Work Nothing(Rank&, CollectiveKind, const CallOptions&) { return Work(); }

// The last rank's part, while the others make a call of `kind`.
struct Failure {
  const char* name;
  absl::StatusCode code;           // the others' errors have it
  std::vector<std::string> words;  // and hold these; "%" stands for the last rank
  std::function<Work(Rank&, CollectiveKind kind, const CallOptions&)> act;
  bool acts_first = false;  // before the others call; else when they have called
  bool known = false;       // its other call has been made before, so that it takes the short way, too
  bool lives = true;        // the rank stays
  bool keeps_group = true;  // and its communicator
  bool comes_late = false;  // it makes the others' call when that has failed there
  int timeout_ms = 60'000;  // of all calls
  int most_ranks = 3;       // 2: of more, the words name those that have called by then
};

std::vector<Failure> Failures() {
  const auto mismatch = absl::StatusCode::kFailedPrecondition;
  const std::vector<std::string> site = {"rank %", "short_failure_test.cc:"};
  std::vector<Failure> failures;
  failures.push_back({.name = "CallsAnother", .code = mismatch, .words = site, .act = Another});
  failures.push_back({.name = "CallsAnotherKnown", .code = mismatch, .words = site, .act = Another, .known = true});
  failures.push_back({.name = "CallsAnotherFirst",
                      .code = mismatch,
                      .words = site,
                      .act = Another,
                      .acts_first = true,
                      .known = true,
                      .most_ranks = 2});
  failures.push_back({.name = "CallsAnotherKind", .code = mismatch, .words = site, .act = AnotherKind});
  failures.push_back({.name = "NeverComes",
                      .code = absl::StatusCode::kDeadlineExceeded,
                      .words = {"rank % has not made the call"},
                      .act = Nothing,
                      .comes_late = true,
                      .timeout_ms = 1000});
  failures.push_back({.name = "Dies",
                      .code = absl::StatusCode::kUnavailable,
                      .words = {"rank %", "SIGKILL"},
                      .act =
                          [](Rank&, CollectiveKind, const CallOptions&) {
                            kill(getpid(), SIGKILL);
                            return Work();
                          },
                      .lives = false});
  failures.push_back({.name = "Aborts",
                      .code = absl::StatusCode::kAborted,
                      .words = {"rank % aborted the group: the loss is no number"},
                      .act = [](Rank& rank, CollectiveKind, const CallOptions&) {
                        rank.group->Abort("the loss is no number");
                        return Work::Finished(rank.group->status());
                      }});
  failures.push_back({.name = "Destroys",
                      .code = absl::StatusCode::kAborted,
                      .words = {"rank % destroyed the communicator while it was in"},
                      .act =
                          [](Rank& rank, CollectiveKind kind, const CallOptions& options) {
                            Work work = Call(rank, kind, options);
                            rank.group.reset();
                            return work;
                          },
                      .acts_first = true,
                      .keeps_group = false});
  return failures;
}

// Makes the group, and calls that repeat each other until they take the short way. "" or what is wrong.
std::string WarmUp(Rank& rank, const Failure& failure, CollectiveKind kind, const CallOptions& options,
                   bool short_calls) {
  UseShortCalls(*rank.self.world, short_calls);
  auto made = rank.self.world->Duplicate();
  if (!made.ok()) return made.status().ToString();
  rank.group = *std::move(made);
  if (kind == CollectiveKind::kAllReduce || kind == CollectiveKind::kAllGather) {  // the others in private memory
    auto window = rank.group->AllocateWindow(2 * kRoom * sizeof(int32_t));
    if (!window.ok()) return window.status().ToString();
    rank.window = *std::move(window);
    rank.data = static_cast<int32_t*>(rank.window.data());
  }
  constexpr uint64_t kCalls = 20;
  for (uint64_t i = 0; i < kCalls; ++i) {
    if (absl::Status status = Call(rank, kind, options).Wait(kBound); !status.ok()) return status.ToString();
    if (!failure.known) continue;
    if (absl::Status status = Another(rank, kind, options).Wait(kBound); !status.ok()) return status.ToString();
  }
  const uint64_t short_ones = ShortCallsOf(*rank.group).all();
  const bool right = short_calls ? short_ones >= kCalls - 1 : short_ones == 0;
  return right ? "" : std::to_string(short_ones) + " calls took the short way";
}

// Returns the rank's error as text.
std::string ErrorOf(ProcessRank& self, const Failure& failure, CollectiveKind kind, bool short_calls) {
  Rank rank{.self = self, .group = nullptr, .window = {}};
  const CallOptions options = Within(std::chrono::milliseconds(failure.timeout_ms));
  if (std::string wrong = WarmUp(rank, failure, kind, options, short_calls); !wrong.empty()) return wrong;
  // A rank that still is in a call before may get the failure there.
  if (!self.meet("warm", self.size)) return "the others are not ready";
  const bool odd = self.rank == self.size - 1;
  const bool first = odd == failure.acts_first;
  Work work;
  if (!first && !self.meet("first", self.size)) return "the others have not called";
  work = odd ? failure.act(rank, kind, options) : Call(rank, kind, options);
  if (first && !self.meet("first", self.size)) return "the last rank has not come";
  const int others = failure.lives ? self.size : self.size - 1;
  if (odd && failure.comes_late) {
    self.meet("over", others);
    return UntilError(rank, Call(rank, kind, options)).ToString();
  }
  const absl::Status status = odd && !failure.keeps_group ? work.Wait(kBound) : UntilError(rank, work);
  self.meet("over", others);  // a rank that ends must not be the reason of another's error
  return status.ToString();
}

struct Setting {
  Failure failure;
  int ranks;
};

class ShortFailureTest : public ::testing::TestWithParam<Setting> {};

TEST_P(ShortFailureTest, FailuresOfShortCallsHaveTheWordsOfTheGeneralWay) {
  const auto& [failure, ranks] = GetParam();
  for (const CollectiveKind kind : kKinds) {
    SCOPED_TRACE(std::string(comm::Name(kind)));
    std::vector<std::string> texts[2];
    for (const bool short_calls : {false, true}) {
      const std::vector<RankResult> results =
          RunProcesses({.ranks = ranks}, [&](ProcessRank& self) { return ErrorOf(self, failure, kind, short_calls); });
      for (const RankResult& result : results) {
        texts[short_calls].push_back(std::regex_replace(result.text, std::regex("pid [0-9]+|[0-9]+ ms ago"), "N"));
      }
      EXPECT_EQ(results.back().signal, failure.lives ? 0 : SIGKILL);
    }
    EXPECT_EQ(texts[1], texts[0]);
    const std::string code = absl::StatusCodeToString(failure.code);
    for (int rank = 0; rank < ranks - 1; ++rank) {
      const std::string& text = texts[0][static_cast<size_t>(rank)];
      EXPECT_EQ(text.find(code), 0) << text;
      for (const std::string& word : failure.words) {
        const std::string found = std::regex_replace(word, std::regex("%"), std::to_string(ranks - 1));
        EXPECT_NE(text.find(found), std::string::npos) << '"' << found << "\" is missing in: " << text;
      }
    }
  }
}

std::vector<Setting> Settings() {
  std::vector<Setting> settings;
  for (const Failure& failure : Failures()) {
    for (int ranks = 2; ranks <= failure.most_ranks; ++ranks) settings.push_back({failure, ranks});
  }
  return settings;
}

std::string NameOf(const ::testing::TestParamInfo<Setting>& info) {
  return std::string(info.param.failure.name) + "_ranks" + std::to_string(info.param.ranks);
}

INSTANTIATE_TEST_SUITE_P(Failures, ShortFailureTest, ::testing::ValuesIn(Settings()), NameOf);

}  // namespace
}  // namespace cohort::testing
