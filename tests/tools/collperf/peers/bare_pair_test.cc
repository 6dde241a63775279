#include "tools/collperf/peers/bare_pair.h"

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace cohort::collperf {
namespace {

// Short messages, odd halves, tails of parts, and one that goes round each ring.
constexpr size_t kSizes[] = {1, 14, 15, 256, 257, 1025, 4097, 65'537, 1'048'579};

std::string NewFolder() {
  std::string folder = ::testing::TempDir() + "bare-XXXXXX";
  EXPECT_NE(mkdtemp(folder.data()), nullptr);
  return folder;
}

using Join = absl::StatusOr<std::unique_ptr<BarePair>> (*)(const std::string&, int);

// Both ranks of a pair, each on a thread of its own; reading another process' memory works on the own one, too.
class Ranks {
 public:
  explicit Ranks(Join join) : folder_(NewFolder()) {
    Both([&](int rank) {
      auto pair = join(folder_, rank);
      ASSERT_TRUE(pair.ok()) << pair.status();
      pairs_[rank] = *std::move(pair);
    });
  }
  ~Ranks() {
    std::error_code ignored;
    std::filesystem::remove(folder_ + "/bare", ignored);
    std::filesystem::remove(folder_, ignored);
  }
  Ranks(const Ranks&) = delete;
  Ranks& operator=(const Ranks&) = delete;

  template <typename Work>
  static void Both(Work work) {
    std::thread other([&] { work(1); });
    work(0);
    other.join();
  }
  BarePair& operator[](int rank) { return *pairs_[rank]; }

 private:
  std::string folder_;
  std::unique_ptr<BarePair> pairs_[2];
};

struct Buffers {
  float* in;
  float* out;
};

float InputOf(int rank, size_t i) { return static_cast<float>((i + 1) % 1000 + 1000 * static_cast<size_t>(rank)); }

void Fill(int rank, size_t count, const Buffers& buffers) {
  for (size_t i = 0; i < count; ++i) {
    buffers.in[i] = InputOf(rank, i);
    buffers.out[i] = -1;
  }
}

// Sends the inputs one way or both, copied or added, in every way; each element of the outputs is compared.
void TryEveryStep(Ranks& ranks, bool window, size_t count) {
  std::vector<float> memory[4];
  Buffers buffers[2];
  const size_t bytes = count * sizeof(float);
  for (int rank = 0; rank < 2; ++rank) {
    for (int i = 0; i < 2; ++i) memory[2 * rank + i].resize(count);
    const auto place = [&](int i) {
      return window ? reinterpret_cast<float*>(ranks[rank].Window(i, bytes)) : memory[2 * rank + i].data();
    };
    buffers[rank] = {place(0), place(1)};
  }
  for (int way = 0; way < ranks[0].ways(window); ++way) {
    for (const char* kind : {"exchange", "sum", "from 0", "from 1", "sum at 0", "all at 1"}) {
      SCOPED_TRACE(std::string(kind) + ", way " + std::to_string(way) + (window ? " in windows, " : ", ") +
                   std::to_string(count) + " elements");
      const bool sums = std::strstr(kind, "sum") != nullptr;
      const bool to_0 = std::strcmp(kind, "from 0") != 0 && std::strcmp(kind, "all at 1") != 0;
      const bool to_1 = std::strcmp(kind, "from 1") != 0 && std::strcmp(kind, "sum at 0") != 0;
      for (int rank = 0; rank < 2; ++rank) Fill(rank, count, buffers[rank]);
      Ranks::Both([&](int rank) {
        const bool sends = rank == 0 ? to_1 : to_0;
        const bool receives = rank == 0 ? to_0 : to_1;
        auto* in = reinterpret_cast<std::byte*>(buffers[rank].in);
        BareStep step;
        if (sends) step.send = in, step.send_bytes = bytes;
        if (receives) step.receive = reinterpret_cast<std::byte*>(buffers[rank].out), step.receive_bytes = bytes;
        if (receives && sums) step.addend = in;
        step.one_way_sum = sums && to_0 != to_1;
        if (std::strcmp(kind, "all at 1") == 0) step.taken = 0;
        ranks[rank].UseWay(window, way);
        (void)ranks[rank].Swap(0);
        ranks[rank].Run(step);
        (void)ranks[rank].Swap(0);
      });
      for (int rank = 0; rank < 2; ++rank) {
        const bool receives = rank == 0 ? to_0 : to_1;
        size_t wrong = 0;
        for (size_t i = 0; i < count; ++i) {
          const float got = InputOf(1 - rank, i) + (sums ? InputOf(rank, i) : 0);
          wrong += buffers[rank].out[i] == (receives ? got : -1) ? 0 : 1;
        }
        EXPECT_EQ(wrong, 0u) << "of rank " << rank;
      }
    }
  }
  if (!window) return;
  for (int rank = 0; rank < 2; ++rank) ranks[rank].ReleaseWindows();
}

TEST(BarePair, EveryWayMovesEveryElementBetweenPrivateMemory) {
  Ranks ranks(JoinBareMemory);
  for (const size_t count : kSizes) TryEveryStep(ranks, false, count);
}

TEST(BarePair, EveryWayMovesEveryElementBetweenWindows) {
  Ranks ranks(JoinBareMemory);
  for (const size_t count : kSizes) TryEveryStep(ranks, true, count);
  EXPECT_EQ(ranks[0].Window(0, size_t{2} << 30), nullptr);
}

TEST(BarePair, SocketsMoveEveryElement) {
  Ranks ranks(JoinBareSockets);
  for (const size_t count : kSizes) TryEveryStep(ranks, false, count);
  EXPECT_EQ(ranks[0].Window(0, 8), nullptr);
}

// The sum of a half goes to both outputs, and the rank's own block to its place meanwhile.
TEST(BarePair, SumsOfWindowsGoToBothOutputs) {
  Ranks ranks(JoinBareMemory);
  constexpr size_t kCount = 20'001;
  constexpr size_t kHalf = kCount / 2;
  float* in[2];
  float* out[2];
  std::vector<float> copied[2];
  for (int rank = 0; rank < 2; ++rank) {
    in[rank] = reinterpret_cast<float*>(ranks[rank].Window(0, kCount * sizeof(float)));
    out[rank] = reinterpret_cast<float*>(ranks[rank].Window(1, kCount * sizeof(float)));
    Fill(rank, kCount, {in[rank], out[rank]});
    copied[rank].resize(kCount);
  }
  Ranks::Both([&](int rank) {
    const size_t own = rank == 0 ? 0 : kHalf;
    const size_t others = kHalf - own;
    const size_t own_count = rank == 0 ? kHalf : kCount - kHalf;
    ranks[rank].UseWay(true, ranks[rank].ways(true) - 1);
    ASSERT_TRUE(ranks[rank].TwinSums());
    ranks[rank].Run({.send = reinterpret_cast<std::byte*>(in[rank] + others),
                     .send_bytes = (kCount - own_count) * sizeof(float),
                     .receive = reinterpret_cast<std::byte*>(out[rank] + own),
                     .receive_bytes = own_count * sizeof(float),
                     .addend = reinterpret_cast<std::byte*>(in[rank] + own),
                     .twin = reinterpret_cast<std::byte*>(out[rank]),
                     .own_from = reinterpret_cast<std::byte*>(in[rank]),
                     .own_to = reinterpret_cast<std::byte*>(copied[rank].data()),
                     .own_bytes = kCount * sizeof(float)});
  });
  for (int rank = 0; rank < 2; ++rank) {
    size_t wrong = 0;
    for (size_t i = 0; i < kCount; ++i) {
      wrong += out[rank][i] == InputOf(0, i) + InputOf(1, i) && copied[rank][i] == InputOf(rank, i) ? 0 : 1;
    }
    EXPECT_EQ(wrong, 0u) << "of rank " << rank;
  }
}

}  // namespace
}  // namespace cohort::collperf
