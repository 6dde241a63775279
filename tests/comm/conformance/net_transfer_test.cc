// Transports between hosts: bytes arrive, in order and unchanged, at every size around the protocol's edges; reductions
// reduce.
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <deque>
#include <map>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/transport_world.h"

namespace cohort::comm {
namespace {

class NetTransfer : public testing::TestWithParam<NetKind> {
 protected:
  void SetUp() override {
    static std::map<std::string, std::string> reasons;
    const auto [found, fresh] = reasons.emplace(GetParam().name, "");
    if (fresh) found->second = WhyNot(GetParam());
    if (!found->second.empty()) GTEST_SKIP() << found->second;
    SetTransport(GetParam().make);
  }
};
INSTANTIATE_TEST_SUITE_P(Kinds, NetTransfer, testing::ValuesIn(NetKinds()),
                         [](const auto& info) { return info.param.name; });

std::vector<uint8_t> Pattern(size_t bytes, uint64_t seed) {
  std::vector<uint8_t> data(bytes);
  uint64_t state = seed * 0x9e3779b97f4a7c15u + 1;
  for (uint8_t& byte : data) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    byte = static_cast<uint8_t>(state >> 56);
  }
  return data;
}

std::vector<size_t> EdgeSizes(const NetKind& kind) {
  std::vector<size_t> sizes = {0, 1, 8, 48, 1024, 8191, 8192, 8193, 16384, 16385, 7 * kind.piece_bytes + 13};
  for (const uint64_t edge : {uint64_t{256} << 10, kind.piece_bytes, 4 * kind.piece_bytes, kind.window}) {
    for (const uint64_t bytes : {edge - 257, edge - 1, edge, edge + 1}) sizes.push_back(bytes);
  }
  sizes.push_back(size_t{33} << 20);
  return sizes;
}

TEST_P(NetTransfer, MessagesOfEverySizeArrive) {
  const std::vector<int> codes = RunRanks(2, [kind = GetParam()](TransportRank& self) -> std::string {
    const int peer = 1 - self.identity.rank;
    auto link = self.Connect(peer);
    for (const size_t bytes : EdgeSizes(kind)) {
      const std::vector<uint8_t> mine = Pattern(bytes, self.identity.rank);
      std::vector<uint8_t> got(bytes);
      for (int turn = 0; turn < 2; ++turn) {
        const absl::Status status = turn == self.identity.rank ? self.Send(*link, mine.data(), bytes, bytes + 1)
                                                               : self.Recv(*link, got.data(), bytes, bytes + 1);
        if (!status.ok()) return std::to_string(bytes) + " bytes: " + status.ToString();
      }
      if (got != Pattern(bytes, peer)) return "wrong bytes at size " + std::to_string(bytes);
    }
    return "";
  });
  EXPECT_EQ(codes, std::vector<int>({0, 0}));
}

// Messages of random sizes under way in both directions on one link.
struct Stream {
  std::unique_ptr<Link> link;
  std::deque<std::vector<uint8_t>> out, in;
  std::deque<SendOperation> sends;
  std::deque<RecvOperation> receives;
  std::vector<bool> sent, received;
  uint64_t in_seed = 0;
};
constexpr int kMessages = 60;

std::vector<size_t> RandomSizes(uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<size_t> sizes;
  for (int i = 0; i < kMessages; ++i) {
    const int scale = static_cast<int>(random() % 22);
    sizes.push_back(random() % ((size_t{1} << scale) + 1));
  }
  return sizes;
}

void FillStream(Stream& stream, uint64_t out_seed, uint64_t in_seed) {
  stream.in_seed = in_seed;
  int i = 0;
  for (const size_t bytes : RandomSizes(out_seed)) {
    stream.out.push_back(Pattern(bytes, out_seed + i++));
    SendOperation& send = stream.sends.emplace_back();
    send.data = reinterpret_cast<const std::byte*>(stream.out.back().data());
    send.bytes = bytes;
    send.signature = bytes + 3;
  }
  for (const size_t bytes : RandomSizes(in_seed)) {
    stream.in.emplace_back(bytes);
    RecvOperation& receive = stream.receives.emplace_back();
    receive.data = reinterpret_cast<std::byte*>(stream.in.back().data());
    receive.bytes = bytes;
    receive.signature = bytes + 3;
  }
  stream.sent.resize(kMessages);
  stream.received.resize(kMessages);
}

// Tries everything once; true when all is done.
bool Advance(Stream& stream, std::string& problem) {
  bool all = true;
  for (int i = 0; i < kMessages; ++i) {
    if (!stream.sent[i]) {
      const Progress progress = stream.link->TrySend(stream.sends[i]);
      if (progress == Progress::kFailed) problem = stream.sends[i].error.ToString();
      stream.sent[i] = progress == Progress::kDone;
    }
    if (!stream.received[i]) {
      const Progress progress = stream.link->TryRecv(stream.receives[i]);
      if (progress == Progress::kFailed) problem = stream.receives[i].error.ToString();
      stream.received[i] = progress == Progress::kDone;
    }
    all = all && stream.sent[i] && stream.received[i];
  }
  return all;
}

// Many messages of random sizes outstanding in both directions on several lanes at once.
TEST_P(NetTransfer, InterleavedMessagesKeepTheirOrder) {
  const uint64_t seed = std::random_device()();
  const std::vector<int> codes = RunRanks(3, [seed](TransportRank& self) -> std::string {
    std::deque<Stream> streams;
    const auto seed_of = [seed](int from, int to, int lane) { return seed + from * 10007 + to * 101 + lane; };
    for (int peer = 0; peer < 3; ++peer) {
      if (peer == self.identity.rank) continue;
      for (int lane = 0; lane < 3; ++lane) {
        Stream& stream = streams.emplace_back();
        stream.link = self.Connect(peer, static_cast<uint16_t>(lane));
        FillStream(stream, seed_of(self.identity.rank, peer, lane), seed_of(peer, self.identity.rank, lane));
      }
    }
    std::string problem;
    const bool in_time = self.Drive([&] {
      bool all = true;
      for (Stream& stream : streams) all = Advance(stream, problem) && all;
      return all || !problem.empty();
    });
    if (!problem.empty()) return problem;
    if (!in_time) return "not finished in time";
    for (Stream& stream : streams) {
      for (int i = 0; i < kMessages; ++i) {
        if (stream.in[i] == Pattern(stream.in[i].size(), stream.in_seed + i)) continue;
        return "wrong bytes, seed " + std::to_string(seed);
      }
    }
    return "";
  });
  EXPECT_EQ(codes, std::vector<int>({0, 0, 0})) << "seed " << seed;
}

void Subtract(void* dst, const void* a, const void* b, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    static_cast<int32_t*>(dst)[i] = static_cast<const int32_t*>(a)[i] - static_cast<const int32_t*>(b)[i];
  }
}

TEST_P(NetTransfer, ReduceOnReceiveKeepsTheOrderOfOperands) {
  const std::vector<int> codes = RunRanks(2, [kind = GetParam()](TransportRank& self) -> std::string {
    auto link = self.Connect(1 - self.identity.rank);
    for (const size_t count :
         {size_t{1}, size_t{1000}, size_t{4096}, size_t{40'000}, kind.piece_bytes / 4 + 5, size_t{3'000'000}}) {
      for (const bool incoming_first : {false, true}) {
        std::vector<int32_t> mine(count), other(count), result(count);
        for (size_t i = 0; i < count; ++i) {
          mine[i] = static_cast<int32_t>(i * 7);
          other[i] = static_cast<int32_t>(i * 3 + 1);
        }
        if (self.identity.rank == 0) {
          const absl::Status status = self.Send(*link, other.data(), count * 4);
          if (!status.ok()) return status.ToString();
          continue;
        }
        RecvOperation receive;
        receive.data = reinterpret_cast<std::byte*>(result.data());
        receive.operand = reinterpret_cast<const std::byte*>(mine.data());
        receive.reduce = &Subtract;
        receive.element_bytes = 4;
        receive.incoming_first = incoming_first;
        receive.bytes = count * 4;
        receive.signature = 7;
        Progress progress = Progress::kBlocked;
        self.Drive(
            [&] { return (progress = link->TryRecv(receive)) == Progress::kDone || progress == Progress::kFailed; });
        if (progress != Progress::kDone) return "receive: " + receive.error.ToString();
        for (size_t i = 0; i < count; ++i) {
          const int32_t expected = incoming_first ? other[i] - mine[i] : mine[i] - other[i];
          if (result[i] != expected) return "wrong element " + std::to_string(i) + " of " + std::to_string(count);
        }
      }
    }
    return "";
  });
  EXPECT_EQ(codes, std::vector<int>({0, 0}));
}

// The last message must arrive although its sender ends at once.
TEST_P(NetTransfer, LastMessageSurvivesTheSendersEnd) {
  for (int round = 0; round < 4; ++round) {
    const std::vector<int> codes = RunRanks(2, [round](TransportRank& self) -> std::string {
      auto link = self.Connect(1 - self.identity.rank);
      std::vector<uint8_t> data(round % 2 == 0 ? 64 : size_t{256} << 10);
      for (int i = 0; i < 40; ++i) {
        const absl::Status status = (i % 4 == 3) == (self.identity.rank == 0)
                                        ? self.Recv(*link, data.data(), data.size())
                                        : self.Send(*link, data.data(), data.size());
        if (!status.ok()) return "message " + std::to_string(i) + ": " + status.ToString();
      }
      if (self.identity.rank == 0) {
        (void)self.store->Put("pid", std::to_string(getpid()));
        const absl::Status status = self.Send(*link, data.data(), data.size());
        return status.ok() ? "" : "last: " + status.ToString();
      }
      const absl::StatusOr<std::string> pid =
          self.store->Get("pid", runtime::Deadline::After(std::chrono::seconds(20)));
      if (!pid.ok()) return pid.status().ToString();
      const runtime::Deadline deadline = runtime::Deadline::After(std::chrono::seconds(20));
      while (kill(std::stoi(*pid), 0) == 0 && !deadline.passed()) std::this_thread::yield();
      const absl::Status status = self.Recv(*link, data.data(), data.size());
      return status.ok() ? "" : "last: " + status.ToString();
    });
    EXPECT_EQ(codes, std::vector<int>({0, 0})) << "round " << round;
  }
}

}  // namespace
}  // namespace cohort::comm
