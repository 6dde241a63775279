// Small messages that repeat earlier ones, which take the short way when nothing of their peer and direction is before
// them, and become operations otherwise: order, contents, records, progress and failures are those of all messages.
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "cohort/comm/transport/shm/layout.h"
#include "cohort/runtime/base/sanitizer.h"
#include "cohort/runtime/segment/black_box.h"
#include "tests/support/all_well.h"
#include "tests/support/process_cluster.h"
#include "tests/support/short_calls.h"

namespace cohort::testing {
namespace {

using comm::Buffer;
using comm::Communicator;
using comm::ConstBuffer;
using comm::ReduceOp;
using runtime::Work;

constexpr auto kBound = std::chrono::seconds(10);
constexpr size_t kSlots = 16;  // messages that a stream holds

// One call site a direction, so that all messages but the first of a peer and count repeat one.
Work SendTo(Communicator& world, int peer, const int32_t* data, int64_t count) {
  return world.Send(ConstBuffer(data, count), peer);
}
Work ReceiveFrom(Communicator& world, int peer, int32_t* data, int64_t count) {
  return world.Recv(Buffer(data, count), peer);
}

// Element `i` of the message with this number.
int32_t ValueAt(int from, int to, int number, int64_t i) {
  return static_cast<int32_t>(from * 1'000'003 + to * 10'007 + number * 211 + i);
}

// Sometimes a rank is late by less than a message needs, sometimes by more than a short call looks.
void BeLate(std::mt19937_64& random) {
  const uint64_t choice = random() % 16;
  if (choice > 6) return;
  const auto until =
      std::chrono::steady_clock::now() + std::chrono::nanoseconds(random() % (choice == 0 ? 100'000 : 3000));
  while (std::chrono::steady_clock::now() < until) {
  }
}

// One rank's part in rounds of messages among all ranks, itself too, and all-reduces between them. The counts are drawn
// alike on all ranks; the order of the calls, of waits and of delays by each rank for itself.
class Streams {
 public:
  Streams(ProcessRank& self, uint64_t seed)
      : world_(*self.world),
        rank_(self.rank),
        size_(self.size),
        shared_(seed),
        own_(seed * 31 + static_cast<uint64_t>(self.rank)) {}

  // "" or what is wrong.
  std::string Round(int round) {
    calls_.clear();
    works_.clear();
    DrawCalls(round);
    for (Call& call : calls_) {
      BeLate(own_);
      works_.push_back(Start(call));
      if (own_() % 8 != 0) continue;
      // Any of them, whether it ends in time or not.
      const size_t any = own_() % works_.size();
      const absl::Status status = works_[any].Wait(std::chrono::microseconds(20));
      if (works_[any].Done() && !status.ok()) return status.ToString();
    }
    for (Work& work : works_) {
      if (const absl::Status status = work.Wait(kBound); !status.ok()) return status.ToString();
    }
    for (const Call& call : calls_) {
      if (std::string wrong = Check(call); !wrong.empty()) return "round " + std::to_string(round) + ", " + wrong;
    }
    return "";
  }

 private:
  static constexpr int64_t kCounts[] = {0, 1, 12, 13, 60, 256, 257, 280};  // 0 to 1120 bytes
  static constexpr int kMessages = 24;                                     // of each pair in a round
  static constexpr int kSums = 6;

  enum class Kind { kSend, kReceive, kSum };
  struct Call {
    Kind kind;
    int peer = -1;
    int number = 0;  // of the message, or of the sum
    std::vector<int32_t> data;
  };

  // Messages of one pair and direction, and the sums, stay in order.
  void DrawCalls(int round) {
    std::vector<std::vector<Call>> queues(1);
    for (int i = 0; i < kSums; ++i) queues[0].push_back({Kind::kSum, -1, i, {rank_ + round, i, -1, -1}});
    for (int from = 0; from < size_; ++from) {
      for (int to = 0; to < size_; ++to) {
        const int64_t counts[2] = {kCounts[shared_() % std::size(kCounts)], kCounts[shared_() % std::size(kCounts)]};
        std::vector<Call> sends;
        std::vector<Call> receives;
        for (int i = 0; i < kMessages; ++i) {
          const auto count = static_cast<size_t>(counts[shared_() % 8 == 0 ? 1 : 0]);
          const int number = round * kMessages + i;
          sends.push_back({Kind::kSend, to, number, std::vector<int32_t>(count)});
          for (size_t k = 0; k < count; ++k) sends.back().data[k] = ValueAt(from, to, number, static_cast<int64_t>(k));
          receives.push_back({Kind::kReceive, from, number, std::vector<int32_t>(count, -1)});
        }
        if (from == rank_) queues.push_back(std::move(sends));
        if (to == rank_) queues.push_back(std::move(receives));
      }
    }
    std::vector<size_t> turns;
    for (size_t i = 0; i < queues.size(); ++i) turns.insert(turns.end(), queues[i].size(), i);
    // Now and then one direction with a peer in one go, which fills its stream or finds nothing in it.
    if (own_() % 4 != 0) std::shuffle(turns.begin(), turns.end(), own_);
    std::vector<size_t> next(queues.size());
    for (const size_t turn : turns) calls_.push_back(std::move(queues[turn][next[turn]++]));
  }

  Work Start(Call& call) {
    const auto count = static_cast<int64_t>(call.data.size());
    if (call.kind == Kind::kSend) return SendTo(world_, call.peer, call.data.data(), count);
    if (call.kind == Kind::kReceive) return ReceiveFrom(world_, call.peer, call.data.data(), count);
    return world_.AllReduce(ConstBuffer(call.data.data(), 2), Buffer(call.data.data() + 2, 2), ReduceOp::kSum);
  }

  std::string Check(const Call& call) const {
    if (call.kind == Kind::kSum) {
      const int32_t sum = size_ * (call.data[0] - rank_) + size_ * (size_ - 1) / 2;
      return call.data[2] == sum && call.data[3] == size_ * call.number ? "" : "a sum is wrong";
    }
    for (size_t i = 0; call.kind == Kind::kReceive && i < call.data.size(); ++i) {
      if (call.data[i] == ValueAt(call.peer, rank_, call.number, static_cast<int64_t>(i))) continue;
      return "message " + std::to_string(call.number) + " from " + std::to_string(call.peer) + " is wrong";
    }
    return "";
  }

  Communicator& world_;
  const int rank_;
  const int size_;
  std::mt19937_64 shared_;
  std::mt19937_64 own_;
  std::vector<Call> calls_;
  std::vector<Work> works_;
};

void RunStreams(const ProcessClusterOptions& options) {
  const uint64_t seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  ExpectAllWell(RunProcesses(options, [seed](ProcessRank& self) -> std::string {
    Streams streams(self, seed);
    std::string wrong;
    for (int round = 0; round < 40 && wrong.empty(); ++round) wrong = streams.Round(round);
    if (!wrong.empty()) self.world->Abort(wrong);
    if (wrong.empty() && ShortCallsOf(*self.world).done == 0) wrong = "no call took the short way";
    return wrong;
  }));
}

class RepeatedMessageTest : public ::testing::TestWithParam<int> {};

TEST_P(RepeatedMessageTest, StreamsArriveInOrder) { RunStreams({.ranks = GetParam()}); }

TEST_P(RepeatedMessageTest, StreamsArriveInOrderBesideAProgressThread) {
  RunStreams({.ranks = GetParam(), .progress_thread = true});
}

// Tokens in a ring. Each message is passed on, and the next receive posted, by the callback of a receive.
class Ring {
 public:
  explicit Ring(ProcessRank& self) : world_(*self.world), rank_(self.rank), size_(self.size) {}

  // `posted`: receives under way on each rank. Each has its callback before a message comes to it.
  std::string Run(ProcessRank& self, int posted) {
    for (int i = 0; i < posted; ++i) Post();
    if (!self.meet("posted " + std::to_string(posted), size_)) return "nobody came";
    for (int i = 0; i < kTokens && rank_ == 0; ++i) Send(i, {i, 0});
    if (!self.meet("sent " + std::to_string(posted), size_)) return "nobody came";
    const bool ended = self.runtime->engine().DriveUntil([this] { return passed_ == kMessages || !wrong_.empty(); },
                                                         runtime::Deadline::After(kBound));
    return ended ? wrong_ : "message " + std::to_string(passed_) + " did not come";
  }

 private:
  static constexpr int kTokens = 5;
  static constexpr int kLaps = 60;
  static constexpr int kMessages = kTokens * kLaps;

  void Post() {
    if (posted_ == kMessages) return;
    const int number = posted_++;
    ReceiveFrom(world_, (rank_ + size_ - 1) % size_, received_[static_cast<size_t>(number)].data(), 2)
        .Then([this, number](const absl::Status& status) { OnReceived(number, status); });
  }

  void OnReceived(int number, const absl::Status& status) {
    const auto [token, lap] = received_[static_cast<size_t>(number)];
    if (!status.ok()) wrong_ = status.ToString();
    if (token != number % kTokens || lap != number / kTokens) wrong_ += "wrong: " + std::to_string(number);
    if (!wrong_.empty()) return;
    const int next_lap = rank_ == 0 ? lap + 1 : lap;
    if (next_lap < kLaps) Send(next_lap * kTokens + token, {token, next_lap});
    Post();
    ++passed_;
  }

  void Send(int number, std::array<int32_t, 2> message) {
    std::array<int32_t, 2>& data = sent_[static_cast<size_t>(number)];
    data = message;
    Work work = SendTo(world_, (rank_ + 1) % size_, data.data(), 2);
    if (work.Done() && !work.status().ok()) wrong_ = work.status().ToString();
  }

  Communicator& world_;
  const int rank_, size_;
  int posted_ = 0;
  int passed_ = 0;
  std::array<std::array<int32_t, 2>, kMessages> received_ = {};
  std::array<std::array<int32_t, 2>, kMessages> sent_ = {};
  std::string wrong_;
};

TEST_P(RepeatedMessageTest, CallbacksPassMessagesOn) {
  ExpectAllWell(RunProcesses({.ranks = GetParam()}, [](ProcessRank& self) -> std::string {
    for (const int posted : {1, 3}) {
      Ring ring(self);
      const std::string wrong = ring.Run(self, posted);
      if (!wrong.empty()) self.world->Abort(wrong);
      const absl::Status ended = self.world->Barrier().Wait(kBound);  // nobody goes while its messages are under way
      if (!ended.ok()) return wrong + ended.ToString();
    }
    return ShortCallsOf(*self.world).done > 100 ? "" : "they did not take the short way";
  }));
}

INSTANTIATE_TEST_SUITE_P(Ranks, RepeatedMessageTest, ::testing::Values(2, 3, 4));

// A message to and fro.
absl::Status Exchange(ProcessRank& self, int32_t* data, int64_t count) {
  const int peer = 1 - self.rank;
  for (int turn = 0; turn < 2; ++turn) {
    const bool sends = turn == self.rank;
    const absl::Status status =
        (sends ? SendTo(*self.world, peer, data, count) : ReceiveFrom(*self.world, peer, data, count)).Wait(kBound);
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

TEST(ShortMessageTest, AllMessagesButTheFirstTakeTheShortWay) {
  ExpectAllWell(RunProcesses({.ranks = 2}, [](ProcessRank& self) -> std::string {
    constexpr int64_t kMost = comm::shm::kPartBytes / sizeof(int32_t);  // from 6 KiB on the reader may copy instead
    int32_t data[kMost + 1] = {};
    constexpr uint64_t kExchanges = 50;
    uint64_t expected = 0;
    for (const int64_t count : std::array<int64_t, 8>{0, 1, 12, 13, 256, 257, kMost / 2, kMost + 1}) {
      const comm::InlineCounts before = ShortCallsOf(*self.world);
      for (uint64_t i = 0; i < kExchanges; ++i) {
        if (const absl::Status status = Exchange(self, data, count); !status.ok()) return status.ToString();
      }
      const comm::InlineCounts after = ShortCallsOf(*self.world);
      expected += count > kMost ? 0 : 2 * (kExchanges - 1);
      if (after.all() != expected) return std::to_string(after.all()) + " at count " + std::to_string(count);
      // A send never waits here; a receive may.
      if (count <= kMost && after.done - before.done < kExchanges - 1) return "sends were not done at once";
    }
    return "";
  }));
}

TEST(ShortMessageTest, ReceivesTakeMessagesThatAreThere) {
  ExpectAllWell(RunProcesses({.ranks = 2}, [](ProcessRank& self) -> std::string {
    constexpr int kMany = 10;
    int32_t value = 0;
    for (value = 100; value < 100 + kMany && self.rank == 0; ++value) {
      if (!SendTo(*self.world, 1, &value, 1).Done()) return "a send waits";
    }
    if (!self.meet("sent", 2)) return "nobody came";
    for (int i = 0; i < kMany && self.rank == 1; ++i) {
      if (!ReceiveFrom(*self.world, 0, &value, 1).Done()) return "a receive waits";
      if (value != 100 + i) return "another message";
    }
    return ShortCallsOf(*self.world).done == kMany - 1 ? "" : "not all took the short way";
  }));
}

TEST(ShortMessageTest, ShortMessagesGoToAnotherHostAndNoneToTheRankItself) {
  const int nodes = WhyHostsCannotTalk().empty() ? 2 : 1;
  ExpectAllWell(RunProcesses({.ranks = 2, .nodes = nodes}, [](ProcessRank& self) -> std::string {
    int32_t data[2] = {};
    for (int i = 0; i < 20; ++i) {
      data[0] = i;
      Work receive = ReceiveFrom(*self.world, self.rank, &data[1], 1);
      Work send = SendTo(*self.world, self.rank, &data[0], 1);
      if (!receive.Wait(kBound).ok() || !send.Wait(kBound).ok() || data[1] != i) return "to itself: wrong";
    }
    if (ShortCallsOf(*self.world).all() != 0) return "some took the short way";
    for (int i = 0; i < 100; ++i) {
      if (const absl::Status status = Exchange(self, data, 1); !status.ok()) return status.ToString();
    }
    return ShortCallsOf(*self.world).done >= 50 ? "" : "few took the short way";
  }));
}

TEST(ShortMessageTest, AFullStreamLosesNothing) {
  ExpectAllWell(RunProcesses({.ranks = 2}, [](ProcessRank& self) -> std::string {
    constexpr size_t kMany = 400;
    const int peer = 1 - self.rank;
    const auto count_of = [](size_t i) { return i % 7 == 6 ? int64_t{280} : i % 2 == 0 ? int64_t{2} : int64_t{256}; };
    std::vector<std::vector<int32_t>> data(kMany, std::vector<int32_t>(280));
    for (int round = 0; round < 5; ++round) {
      std::vector<Work> works;
      for (size_t i = 0; i < kMany; ++i) {
        std::fill(data[i].begin(), data[i].end(), static_cast<int32_t>(i) + 1000 * round + self.rank);
        works.push_back(SendTo(*self.world, peer, data[i].data(), count_of(i)));
      }
      if (!self.meet("sent " + std::to_string(round), 2)) return "nobody came";
      const auto waiting = std::count_if(works.begin(), works.end(), [](const Work& work) { return !work.Done(); });
      if (waiting < static_cast<int64_t>(kMany - kSlots)) return "the stream holds more than it can";
      for (size_t i = 0; i < kMany; ++i) {
        std::vector<int32_t> received(280, -1);
        const absl::Status status = ReceiveFrom(*self.world, peer, received.data(), count_of(i)).Wait(kBound);
        if (!status.ok()) return status.ToString();
        std::vector<int32_t> expected(280, -1);
        std::fill_n(expected.begin(), count_of(i), static_cast<int32_t>(i) + 1000 * round + peer);
        if (received != expected) return "message " + std::to_string(i) + " is wrong";
      }
      for (Work& work : works) {
        if (const absl::Status status = work.Wait(kBound); !status.ok()) return status.ToString();
      }
    }
    return ShortCallsOf(*self.world).continued > 0 ? "" : "no short call met the full stream";
  }));
}

auto Meetings(ProcessRank& self) {
  return [&self, met = 0]() mutable { return self.meet("meeting " + std::to_string(met++), 2); };
}

// A rank that makes calls of one direction, all of them done at once, and never waits still moves the other direction.
TEST(ShortMessageTest, CallsOfOneDirectionMoveTheOther) {
  ExpectAllWell(RunProcesses({.ranks = 2}, [](ProcessRank& self) -> std::string {
    auto meet = Meetings(self);
    const int peer = 1 - self.rank;
    int32_t value = 7;
    // `messages` messages of rank `from`, which never fill the stream. "" or what is wrong.
    const auto move = [&](size_t messages, int from) -> std::string {
      for (size_t i = 0; i < messages; ++i) {
        if (self.rank == from && !SendTo(*self.world, peer, &value, 1).Done()) return "a send waits";
        if (i % (kSlots / 2) != kSlots / 2 - 1) continue;
        if (!meet()) return "nobody came";
        for (size_t k = 0; k < kSlots / 2 && self.rank != from; ++k) {
          if (!ReceiveFrom(*self.world, peer, &value, 1).Done()) return "a receive waits";
        }
        if (!meet()) return "nobody came";
      }
      return "";
    };
    int32_t stop = 0;
    Work stopped = self.rank == 0 ? ReceiveFrom(*self.world, 1, &stop, 1) : Work();
    if (!meet()) return "nobody came";
    if (self.rank == 1 && !SendTo(*self.world, 0, &value, 1).Done()) return "a send waits";
    if (std::string wrong = move(2 * kSlots, /*from=*/0); !wrong.empty()) return wrong;
    if (!stopped.Done() || (self.rank == 0 && stop != 7)) return "the receive was not looked at";

    // Sends that wait for room move when there is some, while the rank only receives.
    std::vector<Work> sends;
    for (size_t i = 0; i < 2 * kSlots && self.rank == 0; ++i) sends.push_back(SendTo(*self.world, peer, &value, 1));
    if (self.rank == 0 && sends.back().Done()) return "the stream is too long";
    if (!meet()) return "nobody came";
    for (size_t i = 0; i < kSlots && self.rank == 1; ++i) {
      if (!ReceiveFrom(*self.world, peer, &value, 1).Done()) return "a receive waits";
    }
    if (std::string wrong = move(2 * kSlots, /*from=*/1); !wrong.empty()) return wrong;
    const bool all_done = std::all_of(sends.begin(), sends.end(), [](const Work& work) { return work.Done(); });
    return all_done ? "" : "the sends were not looked at";
  }));
}

// Messages that end in their call have no clock read for their end.
TEST(ShortMessageTest, EveryMessageIsInTheBlackBox) {
  ExpectAllWell(RunProcesses({.ranks = 2}, [](ProcessRank& self) -> std::string {
    const auto box = self.runtime->segment().black_box_of(self.rank);
    int32_t data[256] = {};
    auto meet = Meetings(self);
    for (const int64_t count : {2, 128, 256}) {
      for (int i = 0; i < 8; ++i) {
        if (self.rank == 1 && !meet()) return "nobody came";
        const uint64_t before = box.latest();
        const Work work =
            self.rank == 0 ? SendTo(*self.world, 1, data, count) : ReceiveFrom(*self.world, 0, data, count);
        const auto record = box.Latest();
        if (!work.Done() || !record.has_value() || box.latest() != before + 1) return "there is no record";
        if (record->state != runtime::CallState::kDone || record->end_ns != record->start_ns) return "not done at once";
        if (record->bytes != static_cast<uint64_t>(count) * 4 || record->peer != 1 - self.rank) return "another call's";
        if (std::string(record->site).find("repeated_message_test.cc:") != 0) return "the record names another place";
        if (self.rank == 0 && !meet()) return "nobody came";
      }
    }
    return "";
  }));
}

std::string WhyNotBothCalls(const std::string& text, const std::string& odd) {
  for (const std::string& word : {std::string("send("), std::string("recv("), std::string("int32, 2"), odd}) {
    if (text.find(word) == std::string::npos) return std::string("no '").append(word).append("' in: ") + text;
  }
  const std::string site = "repeated_message_test.cc:";
  return text.find(site) < text.rfind(site) ? "" : "not both places in: " + text;
}

// The odd message is a first call or repeats one, and comes before its receive or after it.
TEST(ShortMessageTest, AnotherCountOrTypeIsAMismatch) {
  for (int way = 0; way < 8; ++way) {
    const bool other_type = (way & 1) != 0;
    const bool known = (way & 2) != 0;
    const bool receive_first = (way & 4) != 0;
    ExpectAllWell(RunProcesses({.ranks = 3}, [=](ProcessRank& self) -> std::string {
      int32_t data[4] = {};
      const auto odd = [&] {
        return other_type ? self.world->Send(ConstBuffer(reinterpret_cast<const float*>(data), 2), 1)
                          : self.world->Send(ConstBuffer(data, 3), 1);
      };
      absl::Status status;
      for (int i = 0; i < 30 && status.ok() && self.rank < 2; ++i) status = Exchange(self, data, 2);
      for (int i = 0; i < 3 && status.ok() && known && self.rank < 2; ++i) {
        const auto receive = [&] {
          return other_type ? self.world->Recv(Buffer(reinterpret_cast<float*>(data), 2), 0)
                            : self.world->Recv(Buffer(data, 3), 0);
        };
        status = (self.rank == 0 ? odd() : receive()).Wait(kBound);
      }
      if (!status.ok()) return "too early: " + status.ToString();
      Work work;
      const auto act = [&](int rank) {
        if (self.rank == rank) work = rank == 0 ? odd() : ReceiveFrom(*self.world, 0, data, 2);
        return self.meet("rank " + std::to_string(rank), 3);
      };
      if (!act(receive_first ? 1 : 0) || !act(receive_first ? 0 : 1)) return "nobody came";
      status = work.Wait(kBound);
      if (status.ok()) status = self.world->Barrier().Wait(kBound);
      if (!self.meet("end", 3)) return "nobody came";
      if (status.code() != absl::StatusCode::kFailedPrecondition) return "another error: " + status.ToString();
      return WhyNotBothCalls(std::string(status.message()), other_type ? "float32, 2" : "int32, 3");
    }));
  }
}

TEST(ShortMessageTest, ADeathDuringRepeatedMessagesIsNamed) {
  for (int turn = 0; turn < 4; ++turn) {
    const std::vector<RankResult> results = RunProcesses({.ranks = 3}, [turn](ProcessRank& self) -> std::string {
      int32_t value = 0;
      absl::Status status;
      for (int i = 0; status.ok(); ++i) {  // 0 ─► 1 ─► 2
        if (self.rank == 1 && i == 200 + 37 * turn) kill(getpid(), SIGKILL);
        if (self.rank > 0) status = ReceiveFrom(*self.world, self.rank - 1, &value, 1).Wait(kBound);
        if (self.rank > 0 && status.ok() && value != i) return "another message";
        value = i;
        if (self.rank < 2 && status.ok()) status = SendTo(*self.world, self.rank + 1, &value, 1).Wait(kBound);
      }
      if (!absl::IsUnavailable(status)) return "not kUnavailable: " + status.ToString();
      return status.message().find("rank 1") != std::string::npos ? "" : "rank 1 is not named: " + status.ToString();
    });
    EXPECT_EQ(results[1].signal, SIGKILL);
    EXPECT_EQ(results[0].text, "");
    EXPECT_EQ(results[2].text, "");
  }
}

TEST(ShortMessageTest, RanksThatWaitForEachOtherAreTold) {
  if (COHORT_THREAD_SANITIZER) GTEST_SKIP() << "the sanitizer's thread counts as one that may yet make the call";
  ExpectAllWell(RunProcesses({.ranks = 2}, [](ProcessRank& self) -> std::string {
    int32_t data[2] = {};
    for (int i = 0; i < 100; ++i) {
      if (const absl::Status status = Exchange(self, data, 2); !status.ok()) return status.ToString();
    }
    const auto start = std::chrono::steady_clock::now();
    const absl::Status status = ReceiveFrom(*self.world, 1 - self.rank, data, 2).Wait();
    self.meet("end", 2);
    if (status.code() != absl::StatusCode::kFailedPrecondition) return "another error: " + status.ToString();
    return std::chrono::steady_clock::now() - start > kBound ? "it came late" : "";
  }));
}

}  // namespace
}  // namespace cohort::testing
