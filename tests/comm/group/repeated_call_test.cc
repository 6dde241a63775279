// Small calls that repeat earlier ones, which take the short way when their messages are there in time, and become
// operations otherwise: results, order, records and every kind of failure are those of all calls.
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <source_location>
#include <string>
#include <thread>
#include <vector>

#include "cohort/comm/window.h"
#include "cohort/runtime/base/sanitizer.h"
#include "cohort/runtime/segment/black_box.h"
#include "tests/support/all_well.h"
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

// Rank `rank` puts this at `i` of its input in call `call`.
int32_t ValueAt(int rank, int64_t i, int call) { return static_cast<int32_t>(rank * 10'007 + i * 31 + call * 7); }

// Blocks of `count` int32. One call site a kind, so that all calls but the first repeat one.
Work Start(Communicator& world, CollectiveKind kind, int64_t count, int32_t* in, int32_t* out, uint64_t tag) {
  const int64_t all = count * world.size();
  CallOptions options;
  options.tag = tag;
  switch (kind) {
    case CollectiveKind::kBroadcast:
      return world.Broadcast(Buffer(out, count), 0, options);
    case CollectiveKind::kReduce:
      return world.Reduce(ConstBuffer(in, count), Buffer(out, count), ReduceOp::kSum, 0, options);
    case CollectiveKind::kAllReduce:
      return world.AllReduce(ConstBuffer(in, count), Buffer(out, count), ReduceOp::kSum, options);
    case CollectiveKind::kGather:
      return world.Gather(ConstBuffer(in, count), Buffer(out, all), 0, options);
    case CollectiveKind::kScatter:
      return world.Scatter(ConstBuffer(in, all), Buffer(out, count), 0, options);
    case CollectiveKind::kAllGather:
      return world.AllGather(ConstBuffer(in, count), Buffer(out, all), options);
    case CollectiveKind::kReduceScatter:
      return world.ReduceScatter(ConstBuffer(in, all), Buffer(out, count), ReduceOp::kSum, options);
    case CollectiveKind::kAllToAll:
      return world.AllToAll(ConstBuffer(in, all), Buffer(out, all), options);
    default:
      return world.Barrier(options);
  }
}

// The value of `out` at `i` after the call; nothing where the call leaves it alone.
std::optional<int32_t> ExpectedAt(CollectiveKind kind, int rank, int size, int64_t count, int64_t i, int call) {
  const auto sum = [&](int64_t at) {
    int32_t total = 0;
    for (int other = 0; other < size; ++other) total += ValueAt(other, at, call);
    return total;
  };
  const auto block = static_cast<int>(count == 0 ? 0 : i / count);
  const int64_t within = count == 0 ? 0 : i % count;
  switch (kind) {
    case CollectiveKind::kBroadcast:
      return i < count ? std::optional(ValueAt(0, i, call)) : std::nullopt;
    case CollectiveKind::kReduce:
      return rank == 0 && i < count ? std::optional(sum(i)) : std::nullopt;
    case CollectiveKind::kAllReduce:
      return i < count ? std::optional(sum(i)) : std::nullopt;
    case CollectiveKind::kGather:
      return rank == 0 ? std::optional(ValueAt(block, within, call)) : std::nullopt;
    case CollectiveKind::kScatter:
      return i < count ? std::optional(ValueAt(0, rank * count + i, call)) : std::nullopt;
    case CollectiveKind::kAllGather:
      return ValueAt(block, within, call);
    case CollectiveKind::kReduceScatter:
      return i < count ? std::optional(sum(rank * count + i)) : std::nullopt;
    case CollectiveKind::kAllToAll:
      return ValueAt(block, rank * count + within, call);
    default:
      return std::nullopt;
  }
}

// Sometimes a rank is late by less than a message needs, sometimes by more than a short call waits.
void BeLate(std::mt19937_64& random) {
  const uint64_t choice = random() % 16;
  if (choice == 0) {
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 200));
  } else if (choice < 6) {
    const auto until = std::chrono::steady_clock::now() + std::chrono::nanoseconds(random() % 3000);
    while (std::chrono::steady_clock::now() < until) {
    }
  }
}

std::string RunAll(ProcessRank& self, bool window, std::mt19937_64& random) {
  constexpr int kCalls = 40;
  constexpr int64_t kMostCount = 2048;
  const size_t room = static_cast<size_t>(kMostCount * self.size);
  std::vector<int32_t> memory(2 * room);
  comm::Window made;
  int32_t* in = memory.data();
  if (window) {
    auto allocated = self.world->AllocateWindow(2 * room * sizeof(int32_t));
    if (!allocated.ok()) return allocated.status().ToString();
    made = *std::move(allocated);
    in = static_cast<int32_t*>(made.data());
  }
  int32_t* out = in + room;
  for (int kind = 1; kind <= static_cast<int>(CollectiveKind::kBarrier); ++kind) {
    for (const int64_t count : {0, 1, 2, 12, 13, 60, 256, 257, 1023, 2048}) {  // 0 to 8192 bytes
      for (int call = 0; call < kCalls; ++call) {
        const auto the_kind = static_cast<CollectiveKind>(kind);
        const auto used = static_cast<size_t>(count * self.size);
        for (size_t i = 0; i < used; ++i) in[i] = ValueAt(self.rank, static_cast<int64_t>(i), call);
        std::fill(out, out + used, -1);
        if (the_kind == CollectiveKind::kBroadcast && self.rank == 0) std::copy(in, in + count, out);
        BeLate(random);
        Work work = Start(*self.world, the_kind, count, in, out, static_cast<uint64_t>(call / 3));
        if (call % 4 == 0) BeLate(random);
        if (const absl::Status status = work.Wait(kBound); !status.ok()) return status.ToString();
        const int64_t elements = kind == static_cast<int>(CollectiveKind::kBarrier) ? 0 : count * self.size;
        for (int64_t i = 0; i < elements; ++i) {
          const std::optional<int32_t> expected = ExpectedAt(the_kind, self.rank, self.size, count, i, call);
          if (out[i] == expected.value_or(-1)) continue;
          return "kind " + std::to_string(kind) + " of " + std::to_string(count) + ", call " + std::to_string(call) +
                 ", element " + std::to_string(i) + ": " + std::to_string(out[i]) + " instead of " +
                 std::to_string(expected.value_or(-1));
        }
      }
    }
  }
  return "";
}

class RepeatedCallTest : public ::testing::TestWithParam<int> {};

TEST_P(RepeatedCallTest, RepeatedCallsGiveTheRightResultHoweverLateTheOthersAre) {
  const uint64_t seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  ExpectAllWell(RunProcesses({.ranks = GetParam()}, [seed](ProcessRank& self) -> std::string {
    std::mt19937_64 random(seed + static_cast<uint64_t>(self.rank));
    std::string wrong = RunAll(self, /*window=*/false, random);
    if (wrong.empty()) wrong = RunAll(self, /*window=*/true, random);
    if (!wrong.empty()) self.world->Abort(wrong);
    return wrong;
  }));
}

INSTANTIATE_TEST_SUITE_P(Ranks, RepeatedCallTest, ::testing::Values(2, 3, 4));

Work SmallSum(Communicator& world, int32_t* data, ReduceOp op = ReduceOp::kSum,
              std::chrono::nanoseconds timeout = std::chrono::minutes(1)) {
  CallOptions options;
  options.timeout = timeout;
  return world.AllReduce(ConstBuffer(data, 2), Buffer(data + 2, 2), op, options);
}

TEST(RepeatedCallTest, ManyCallsUnderWayKeepTheirOrder) {
  ExpectAllWell(RunProcesses({.ranks = 2}, [](ProcessRank& self) -> std::string {
    constexpr size_t kMany = 100;
    std::vector<int32_t> data(4 * kMany);
    for (int round = 0; round < 50; ++round) {
      std::vector<Work> works;
      if (round % 2 == self.rank) std::this_thread::sleep_for(std::chrono::microseconds(300));  // late, in turn
      for (size_t i = 0; i < kMany; ++i) {
        data[4 * i] = data[4 * i + 1] = static_cast<int32_t>(i) + round + self.rank;
        works.push_back(SmallSum(*self.world, &data[4 * i]));
      }
      for (size_t i = 0; i < kMany; ++i) {
        if (const absl::Status status = works[i].Wait(kBound); !status.ok()) return status.ToString();
        if (data[4 * i + 2] != 2 * (static_cast<int32_t>(i) + round) + 1) return "wrong sum of " + std::to_string(i);
      }
    }
    return "";
  }));
}

// A root that sends a message of several KiB: copied from private memory it is done at once. From a window it begins in
// the caller's thread, and the operation ends it when the reader has taken it.
TEST(RepeatedCallTest, LongerMessagesAreDoneAtOnceFromPrivateMemoryOnly) {
  ExpectAllWell(RunProcesses({.ranks = 2}, [](ProcessRank& self) -> std::string {
    constexpr int64_t kCount = 1024;
    constexpr uint64_t kCalls = 300;
    std::vector<int32_t> memory(kCount);
    auto window = self.world->AllocateWindow(kCount * sizeof(int32_t));
    if (!window.ok()) return window.status().ToString();
    for (const bool in_window : {false, true}) {
      int32_t* data = in_window ? static_cast<int32_t*>(window->data()) : memory.data();
      comm::InlineCounts before = ShortCallsOf(*self.world);
      uint64_t tried = 0, done = 0;
      for (uint64_t call = 0; call < kCalls; ++call) {
        std::fill(data, data + kCount, static_cast<int32_t>(self.rank == 0 ? call : 0));
        absl::Status status = self.world->Broadcast(Buffer(data, kCount), 0).Wait(kBound);
        const comm::InlineCounts after = ShortCallsOf(*self.world);
        tried += after.all() - before.all();
        done += after.done - before.done;
        if (status.ok()) status = self.world->Barrier().Wait(kBound);
        if (!status.ok()) return status.ToString();
        if (data[kCount - 1] != static_cast<int32_t>(call)) return "wrong data in call " + std::to_string(call);
        before = ShortCallsOf(*self.world);
      }
      const std::string counts = std::to_string(done) + " done of " + std::to_string(tried) + " tried";
      if (self.rank == 0 && !in_window && done < kCalls - 2) return "private memory: " + counts;
      if (self.rank == 0 && in_window && (done > 0 || tried < kCalls - 2)) return "a window: " + counts;
    }
    return "";
  }));
}

// Averages are divided, minima are not; calls may be in place.
TEST(RepeatedCallTest, DividesAveragesOnce) {
  ExpectAllWell(RunProcesses({.ranks = 2}, [](ProcessRank& self) -> std::string {
    for (int call = 0; call < 200; ++call) {
      float data[2] = {static_cast<float>(call), static_cast<float>(4 * self.rank)};
      const absl::Status status =
          self.world->AllReduce(ConstBuffer(data, 2), Buffer(data, 2), ReduceOp::kAvg).Wait(kBound);
      if (!status.ok()) return status.ToString();
      if (data[0] != static_cast<float>(call) || data[1] != 2.0f)
        return "wrong average in call " + std::to_string(call);
    }
    return "";
  }));
}

// A wrapper makes all calls of a program from one site: those that differ in kind, op or type alone are all remembered.
TEST(RepeatedCallTest, EveryCallIsInTheBlackBox) {
  ExpectAllWell(RunProcesses({.ranks = 2}, [](ProcessRank& self) -> std::string {
    int32_t data[4] = {1, 2, 0, 0};
    const auto box = self.runtime->segment().black_box_of(self.rank);
    const uint64_t before = box.latest();
    uint64_t sequence = 0;
    for (int call = 0; call < 100; ++call) {
      if (const absl::Status status = SmallSum(*self.world, data).Wait(kBound); !status.ok()) return status.ToString();
      const auto record = box.Latest();
      if (!record.has_value() || record->state != runtime::CallState::kDone) return "the latest record is not done";
      if (record->bytes != 8 || record->end_ns < record->start_ns) return "the record is not the call's";
      if (std::string(record->site).find("repeated_call_test.cc:") != 0) return "the record names another place";
      if (call > 0 && record->signature.sequence != sequence + 1) return "the record has another number";
      sequence = record->signature.sequence;
    }
    return box.latest() == before + 100 ? "" : "there are more or fewer records than calls";
  }));
}

TEST(RepeatedCallTest, AnotherCallAmongRepeatedOnesIsAMismatch) {
  for (const int odd : {0, 1}) {
    ExpectAllWell(RunProcesses({.ranks = 2}, [odd](ProcessRank& self) -> std::string {
      int32_t data[4] = {1, 2, 0, 0};
      absl::Status status;
      for (int call = 0; call < 150 && status.ok(); ++call) {
        status = SmallSum(*self.world, data, ReduceOp::kMax).Wait(kBound);
        if (call < 30 && !status.ok()) return "too early: " + status.ToString();
        if (call == 100) {
          status = SmallSum(*self.world, data, self.rank == odd ? ReduceOp::kMin : ReduceOp::kMax).Wait(kBound);
        }
      }
      const std::string text(status.message());
      self.meet("end", 2);
      if (status.code() != absl::StatusCode::kFailedPrecondition) return "another error: " + status.ToString();
      if (text.find("min") == std::string::npos || text.find("max") == std::string::npos) return "no ops in: " + text;
      if (text.find("repeated_call_test.cc:") == std::string::npos) return "no place in: " + text;
      return "";
    }));
  }
}

// A repetition whose tag is new has the signature of a first call, and no other.
TEST(RepeatedCallTest, AnotherTagAmongRepeatedCallsIsAMismatch) {
  ExpectAllWell(RunProcesses({.ranks = 2}, [](ProcessRank& self) -> std::string {
    int32_t data[4] = {1, 2, 0, 0};
    const auto site = std::source_location::current();
    const auto other_site = std::source_location::current();
    absl::Status status;
    for (int call = 0; call < 100 && status.ok(); ++call) {
      CallOptions options;
      options.tag = call == 90 && self.rank == 1 ? 77 : static_cast<uint64_t>(call / 3);
      const bool new_there = call == 50 && self.rank == 1;
      status = self.world
                   ->AllReduce(ConstBuffer(data, 2), Buffer(data + 2, 2), ReduceOp::kMax, options,
                               new_there ? other_site : site)
                   .Wait(kBound);
      if (call < 90 && !status.ok()) return "call " + std::to_string(call) + ": " + status.ToString();
    }
    self.meet("end", 2);
    if (status.code() != absl::StatusCode::kFailedPrecondition) return "another error: " + status.ToString();
    const std::string text(status.message());
    return text.find("tag 0/77") != std::string::npos && text.find("tag 0/30") != std::string::npos
               ? ""
               : "no tags in: " + text;
  }));
}

TEST(RepeatedCallTest, ADeathDuringRepeatedCallsIsNamed) {
  for (int turn = 0; turn < 4; ++turn) {
    const std::vector<RankResult> results = RunProcesses({.ranks = 3}, [turn](ProcessRank& self) -> std::string {
      int32_t data[4] = {1, 2, 0, 0};
      absl::Status status;
      for (int call = 0; status.ok(); ++call) {
        if (self.rank == 1 && call == 200 + 37 * turn) kill(getpid(), SIGKILL);
        status = SmallSum(*self.world, data).Wait(kBound);
      }
      if (!absl::IsUnavailable(status)) return "not kUnavailable: " + status.ToString();
      return status.message().find("rank 1") != std::string::npos ? "" : "rank 1 is not named: " + status.ToString();
    });
    EXPECT_EQ(results[1].signal, SIGKILL);
    EXPECT_EQ(results[0].text, "");
    EXPECT_EQ(results[2].text, "");
  }
}

TEST(RepeatedCallTest, TheDeadlineOfARepeatedCallNamesTheMissingRank) {
  ExpectAllWell(RunProcesses({.ranks = 2}, [](ProcessRank& self) -> std::string {
    int32_t data[4] = {1, 2, 0, 0};
    const auto call = [&] { return SmallSum(*self.world, data, ReduceOp::kSum, std::chrono::milliseconds(300)); };
    for (int i = 0; i < 100; ++i) {
      if (const absl::Status status = call().Wait(kBound); !status.ok()) return status.ToString();
    }
    absl::Status status;
    if (self.rank == 0) status = call().Wait(kBound);
    self.meet("expired", 2);
    if (self.rank == 1) {
      while (status.ok()) status = call().Wait(kBound);
    }
    if (!absl::IsDeadlineExceeded(status)) return "not kDeadlineExceeded: " + status.ToString();
    return status.message().find("rank 1") != std::string::npos ? "" : "rank 1 is not named: " + status.ToString();
  }));
}

// Sums and products that round, at every level of determinism: the bits are those of a group without the short way.
template <typename T>
std::string RoundBothWays(Communicator& general, Communicator& quick, comm::Determinism level, ReduceOp op) {
  constexpr int64_t kCount = 13;
  std::mt19937_64 random(static_cast<uint64_t>(general.rank()) * 100 + static_cast<uint64_t>(op));
  CallOptions options;
  options.determinism = level;
  const int64_t all = kCount * general.size();
  std::vector<T> in(static_cast<size_t>(all));
  for (int call = 0; call < 3 * 20; ++call) {
    for (T& value : in) value = static_cast<T>(std::ldexp(static_cast<double>(random()), -64 - call % 7)) - T{0.01};
    std::vector<T> out[2] = {std::vector<T>(kCount), std::vector<T>(kCount)};
    for (Communicator* group : {&general, &quick}) {
      const Buffer result(out[group == &quick].data(), kCount);
      const ConstBuffer block(in.data(), kCount);
      const absl::Status status =
          (call % 3 == 0   ? group->AllReduce(block, result, op, options)
           : call % 3 == 1 ? group->Reduce(block, result, op, 0, options)
                           : group->ReduceScatter(ConstBuffer(in.data(), all), result, op, options))
              .Wait(kBound);
      if (!status.ok()) return status.ToString();
    }
    if (std::memcmp(out[0].data(), out[1].data(), kCount * sizeof(T)) == 0) continue;
    return std::string(Name(level)) + ' ' + std::string(Name(op)) + ": other bits in call " + std::to_string(call);
  }
  return "";
}

TEST(RepeatedCallTest, RoundsAsTheGeneralWayDoes) {
  for (const int ranks : {2, 3, 5}) {
    ExpectAllWell(RunProcesses({.ranks = ranks}, [](ProcessRank& self) -> std::string {
      auto general = self.world->Duplicate();
      if (!general.ok()) return general.status().ToString();
      UseShortCalls(**general, false);
      uint64_t calls = 0;
      for (int level = 1; level < comm::kDeterminismLevels; ++level) {
        for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kAvg, ReduceOp::kProduct}) {
          const auto the_level = static_cast<comm::Determinism>(level);
          std::string wrong = RoundBothWays<float>(**general, *self.world, the_level, op);
          if (wrong.empty()) wrong = RoundBothWays<double>(**general, *self.world, the_level, op);
          if (!wrong.empty()) self.world->Abort(wrong);
          if (!wrong.empty()) return wrong;
          calls += 2 * 3 * 20;
        }
      }
      if (ShortCallsOf(**general).all() > 0) return "the general way was the short one";
      const uint64_t short_ones = ShortCallsOf(*self.world).all();
      return 10 * short_ones >= 9 * calls ? "" : "only " + std::to_string(short_ones) + " calls were short";
    }));
  }
}

// The survivors' group takes the short way again, and none of its calls meets a message of the group that failed.
TEST(RepeatedCallTest, SurvivorsGoOnWithShortCalls) {
  for (int turn = 0; turn < 4; ++turn) {
    const std::vector<RankResult> results = RunProcesses({.ranks = 4}, [turn](ProcessRank& self) -> std::string {
      int32_t data[4] = {self.rank, 1, 0, 0};
      absl::Status status;
      for (int call = 0; status.ok(); ++call) {
        if (self.rank == turn && call == 100 + 37 * turn) kill(getpid(), SIGKILL);
        status = SmallSum(*self.world, data).Wait(kBound);
      }
      if (!absl::IsUnavailable(status)) return "not kUnavailable: " + status.ToString();
      auto shrunk = self.world->Shrink();
      if (!shrunk.ok()) return shrunk.status().ToString();
      constexpr int kCalls = 300;
      for (int call = 0; call < kCalls; ++call) {
        data[0] = self.rank + call;
        if (status = SmallSum(**shrunk, data).Wait(kBound); !status.ok()) return status.ToString();
        if (data[2] != 6 - turn + 3 * call || data[3] != 3) return "wrong sum in call " + std::to_string(call);
      }
      if (SmallSum(*self.world, data).Wait(kBound).ok()) return "the old group works again";
      if (ShortCallsOf(**shrunk).all() < kCalls - 1) return "they did not take the short way";
      return "";
    });
    for (int rank = 0; rank < 4; ++rank) {
      if (rank == turn) continue;
      EXPECT_EQ(results[static_cast<size_t>(rank)].text, "") << "rank " << rank;
    }
  }
}

// Repeats small calls in a communicator of the thread's own.
std::string RepeatInThread(Communicator& group, int thread) {
  constexpr int kCalls = 500;
  int32_t data[4] = {};
  for (int call = 0; call < kCalls; ++call) {
    data[0] = call * (group.rank() + 1);
    data[1] = thread;
    if (const absl::Status status = SmallSum(group, data).Wait(kBound); !status.ok()) return status.ToString();
    if (data[2] != 3 * call || data[3] != 2 * thread) return "wrong sum in call " + std::to_string(call);
  }
  const uint64_t short_ones = ShortCallsOf(group).all();
  return short_ones >= kCalls - 1 ? "" : "only " + std::to_string(short_ones) + " calls were short";
}

TEST(RepeatedCallTest, ThreadsDoNotDisturbEachOther) {
  for (const bool progress_thread : {false, true}) {
    const ProcessClusterOptions options{.ranks = 2, .progress_thread = progress_thread};
    ExpectAllWell(RunProcesses(options, [](ProcessRank& self) -> std::string {
      constexpr size_t kThreads = 4;
      std::vector<std::unique_ptr<Communicator>> groups;
      for (size_t i = 0; i < kThreads; ++i) {
        auto made = self.world->Duplicate();
        if (!made.ok()) return made.status().ToString();
        groups.push_back(*std::move(made));
      }
      std::vector<std::string> wrong(kThreads);
      std::vector<std::thread> threads;
      for (size_t i = 0; i < kThreads; ++i) {
        threads.emplace_back([&, i] { wrong[i] = RepeatInThread(*groups[i], static_cast<int>(i)); });
      }
      for (std::thread& thread : threads) thread.join();
      for (const std::string& text : wrong) {
        if (!text.empty()) return text;
      }
      return "";
    }));
  }
}

// Two groups' calls in opposite order, after both have been repeated often: the ranks wait for each other.
TEST(RepeatedCallTest, RanksThatWaitForEachOtherAreTold) {
  if (COHORT_THREAD_SANITIZER) GTEST_SKIP() << "the sanitizer's thread counts as one that may yet make the call";
  ExpectAllWell(RunProcesses({.ranks = 2}, [](ProcessRank& self) -> std::string {
    auto other = self.world->Duplicate();
    if (!other.ok()) return other.status().ToString();
    int32_t data[4] = {1, 2, 0, 0};
    const auto call = [&](Communicator& group) { return SmallSum(group, data).Wait(); };
    for (int i = 0; i < 100; ++i) {
      if (absl::Status status = call(*self.world); !status.ok()) return status.ToString();
      if (absl::Status status = call(**other); !status.ok()) return status.ToString();
    }
    const auto start = std::chrono::steady_clock::now();
    absl::Status status = call(self.rank == 0 ? *self.world : **other);
    const bool late = std::chrono::steady_clock::now() - start > kBound;
    self.meet("end", 2);
    if (status.code() != absl::StatusCode::kFailedPrecondition) return "another error: " + status.ToString();
    return late ? "it came late" : "";
  }));
}

}  // namespace
}  // namespace cohort::testing
