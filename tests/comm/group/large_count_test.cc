// Counts and displacements beyond 2^31 and 2^32 elements. Memory that nobody touches costs nothing, so far-away blocks
// are tried always, and whole buffers of that length nightly.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cstdint>
#include <cstdio>
#include <functional>
#include <string>
#include <vector>

#include "cohort/comm/communicator.h"
#include "tests/support/nightly.h"
#include "tests/support/process_cluster.h"

namespace cohort::testing {
namespace {

using comm::Buffer;
using comm::ConstBuffer;
using comm::ReduceOp;

// Zeros; pages come when they are touched.
class SparseMemory {
 public:
  explicit SparseMemory(int64_t bytes) : bytes_(static_cast<size_t>(bytes)) {
    void* memory = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    data_ = memory == MAP_FAILED ? nullptr : static_cast<int8_t*>(memory);
  }
  ~SparseMemory() {
    if (data_ != nullptr) munmap(data_, bytes_);
  }
  SparseMemory(const SparseMemory&) = delete;
  SparseMemory& operator=(const SparseMemory&) = delete;
  int8_t* data() const { return data_; }

 private:
  const size_t bytes_;
  int8_t* data_;
};

std::string RunTwo(const std::function<std::string(ProcessRank&)>& program) {
  ProcessClusterOptions options;
  std::string wrong;
  for (const RankResult& result : RunProcesses(options, program)) wrong += result.text;
  return wrong;
}

TEST(LargeCountTest, BlocksMayLieBeyond32Bits) {
  constexpr int64_t kFar = (int64_t{1} << 32) + 12345;
  EXPECT_EQ(RunTwo([](ProcessRank& rank) -> std::string {
              const SparseMemory out(kFar + 4096);
              if (out.data() == nullptr) return "no address space";
              const std::vector<int64_t> counts = {3, 1000};
              const std::vector<int64_t> places = {kFar + 2000, kFar};
              const std::vector<int8_t> in(1000, static_cast<int8_t>(rank.rank + 1));
              const absl::Status status =
                  rank.world
                      ->AllGatherV(ConstBuffer(in.data(), counts[static_cast<size_t>(rank.rank)]),
                                   Buffer(out.data(), kFar + 4096), {counts, places})
                      .Wait();
              if (!status.ok()) return status.ToString();
              const int8_t* far = out.data() + kFar;
              if (far[0] != 2 || far[999] != 2 || far[1000] != 0) return "rank 1's block is wrong";
              if (far[1999] != 0 || far[2000] != 1 || far[2002] != 1 || far[2003] != 0)
                return "rank 0's block is wrong";
              return "";
            }),
            "");
}

int64_t AvailableGiB() {
  std::FILE* file = std::fopen("/proc/meminfo", "re");
  if (file == nullptr) return 0;
  char line[128];
  long long kib = 0;
  while (std::fgets(line, sizeof line, file) != nullptr) {
    if (std::sscanf(line, "MemAvailable: %lld kB", &kib) == 1) break;
  }
  std::fclose(file);
  return kib >> 20;
}

TEST(LargeCountTest, ABufferMayHaveMoreThan31BitsOfElements) {
  if (!Nightly()) GTEST_SKIP() << "runs with --nightly";
  if (AvailableGiB() < 7) GTEST_SKIP() << "needs 7 GiB of memory, and there are " << AvailableGiB();
  constexpr int64_t kCount = (int64_t{1} << 31) + 7;
  EXPECT_EQ(RunTwo([](ProcessRank& rank) -> std::string {
              const SparseMemory memory(kCount);
              if (memory.data() == nullptr) return "no address space";
              int8_t* data = memory.data();
              for (const int64_t at : {int64_t{0}, kCount / 2, kCount - 1})
                data[at] = static_cast<int8_t>(rank.rank + 5);
              const Buffer buffer(data, kCount);
              const absl::Status status = rank.world->AllReduce(buffer, buffer, ReduceOp::kSum).Wait();
              if (!status.ok()) return status.ToString();
              for (const int64_t at : {int64_t{0}, kCount / 2, kCount - 1}) {
                if (data[at] != 11) return "element " + std::to_string(at) + " is wrong";
              }
              return data[1] == 0 && data[kCount - 2] == 0 ? "" : "an element beside them is wrong";
            }),
            "");
}

}  // namespace
}  // namespace cohort::testing
