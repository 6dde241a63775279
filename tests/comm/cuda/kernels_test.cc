// The device's reductions against the CPU's: equal bits, but for the payload of NaNs, for every type and op, number of
// operands, count and alignment. The kernels run on the fake device, which has them compiled for the host, or on a real
// one: COHORT_CUDA_UNDER_TEST is the library, or empty.
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "cohort/comm/cuda/device.h"
#include "cohort/comm/cuda/reduction_kernels.h"
#include "cohort/comm/reduce/non_finite.h"
#include "cohort/comm/reduce/reduce.h"
#include "tests/comm/reduce/typed_values.h"

namespace cohort::comm {
namespace {

using cuda::ConvertArguments;
using cuda::CudaApi;
using cuda::FoldArguments;
using cuda::ReductionKernels;

// The kernels of the device under test; loaded once.
struct Device {
  const CudaApi* api = nullptr;
  std::unique_ptr<ReductionKernels> kernels;
  std::string why;  // there is none
};
Device& TheDevice() {
  static Device device = [] {
    Device made;
    const absl::StatusOr<int> count = cuda::DeviceCount(COHORT_CUDA_UNDER_TEST);
    made.why = std::string(count.status().message());
    if (!count.ok()) return made;
    made.api = *cuda::LoadCuda(COHORT_CUDA_UNDER_TEST);
    void* memory = nullptr;  // makes the context current
    (void)made.api->cudaMalloc(&memory, 1);
    (void)made.api->cudaFree(memory);
    absl::StatusOr<std::unique_ptr<ReductionKernels>> kernels = ReductionKernels::Load(made.api);
    EXPECT_TRUE(kernels.ok()) << kernels.status();
    if (kernels.ok()) made.kernels = *std::move(kernels);
    return made;
  }();
  return device;
}

// Device memory with a copy of some bytes, which begin `offset` bytes after what cudaMalloc gives.
class Memory {
 public:
  Memory(size_t bytes, size_t offset) : api_(*TheDevice().api), bytes_(bytes) {
    EXPECT_EQ(api_.cudaMalloc(&base_, bytes + offset + 1), cudaSuccess);
    data_ = static_cast<char*>(base_) + offset;
  }
  ~Memory() { (void)api_.cudaFree(base_); }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  void* data() const { return data_; }
  void Write(const void* from) { Copy(data_, from, cudaMemcpyHostToDevice); }
  void Read(void* to) { Copy(to, data_, cudaMemcpyDeviceToHost); }

 private:
  void Copy(void* to, const void* from, cudaMemcpyKind kind) {
    EXPECT_EQ(api_.cudaMemcpyAsync(to, from, bytes_, kind, nullptr), cudaSuccess);
    EXPECT_EQ(api_.cudaStreamSynchronize(nullptr), cudaSuccess);
  }
  const CudaApi& api_;
  const size_t bytes_;
  void* base_ = nullptr;
  char* data_ = nullptr;
};

template <typename T>
class KernelsTest : public testing::Test {
 protected:
  void SetUp() override {
    if (TheDevice().kernels == nullptr) GTEST_SKIP() << TheDevice().why;
  }

  struct Shape {
    size_t count;
    int operands;
    int own;            // which of them lies apart
    size_t own_offset;  // bytes
    size_t out_offset;
    size_t gap;  // bytes between the blocks
  };

  // operands * count values; both sides reduce them.
  static void Check(ReduceOp op, const Shape& shape, const std::vector<T>& values) {
    const size_t block = shape.count * sizeof(T), stride = block + shape.gap;
    const auto n = static_cast<size_t>(shape.operands);
    Memory blocks(n * stride, 0), own(block, shape.own_offset), out(block, shape.out_offset);
    std::vector<char> spaced(n * stride, 0x5a);
    std::vector<const void*> ins;
    for (size_t k = 0; k < n; ++k) {
      if (static_cast<int>(k) != shape.own && block > 0) {
        std::memcpy(&spaced[k * stride], &values[k * shape.count], block);
      }
      ins.push_back(&values[k * shape.count]);
    }
    blocks.Write(spaced.data());
    own.Write(&values[static_cast<size_t>(shape.own) * shape.count]);
    const DataType dtype = Type<T>::kDataType;
    std::vector<T> expected(shape.count), got(shape.count);
    void* const outs[] = {expected.data()};
    const FoldKernel fold = op == ReduceOp::kAvg ? FindAverageFoldKernel(dtype) : FindFoldKernel(dtype, op);
    fold(outs, 1, ins.data(), n, shape.count, false);
    const FoldArguments arguments{out.data(),  blocks.data(),  own.data(), stride,
                                  shape.count, shape.operands, shape.own};
    const absl::Status status = TheDevice().kernels->Fold(dtype, op, arguments, nullptr);
    ASSERT_TRUE(status.ok()) << status;
    out.Read(got.data());
    for (size_t i = 0; i < shape.count; ++i) {
      ASSERT_TRUE(SameValue(expected[i], got[i])) << Name(op) << ": element " << i << " of " << shape.count << " is "
                                                  << Show(got[i]) << ", the CPU has " << Show(expected[i]);
    }
  }
};

TYPED_TEST_SUITE(KernelsTest, AllTypes);

TYPED_TEST(KernelsTest, FoldsEqualTheCpusBitForBit) {
  using T = TypeParam;
  const uint64_t seed = std::random_device()();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  for (const ReduceOp op : OpsOf(Type<T>::kDataType)) {
    for (int round = 0; round < 12; ++round) {
      typename TestFixture::Shape shape{};
      shape.count = round < 9 ? random() % 70 : 1000 + random() % 5000;
      shape.operands = 2 + static_cast<int>(random() % 4);
      shape.own = static_cast<int>(random() % static_cast<uint64_t>(shape.operands));
      // Alike, apart by elements, and not aligned to elements.
      const size_t unit = round % 3 == 0 ? 16 : round % 3 == 1 ? sizeof(T) : 1;
      shape.own_offset = random() % 5 * unit;
      shape.out_offset = random() % 5 * unit;
      shape.gap = round % 3 == 0 ? (16 - shape.count * sizeof(T) % 16) % 16 : random() % 5 * unit;
      std::vector<T> values(shape.count * static_cast<size_t>(shape.operands) + 1);
      for (T& value : values) value = RandomValue<T>(random);
      this->Check(op, shape, values);
      if (this->HasFatalFailure()) return;
    }
  }
}

// All buffers begin at the same place of a 16-byte piece that is not its start.
TYPED_TEST(KernelsTest, PiecesMayBeginInTheMiddle) {
  using T = TypeParam;
  std::mt19937_64 random(7);
  for (size_t count = 0; count < 50; ++count) {
    std::vector<T> values(2 * count + 1);
    for (T& value : values) value = RandomValue<T>(random);
    // The blocks are aligned, so own and out must be, too, for pieces; and out of step for elements.
    for (const size_t offset : {size_t{0}, sizeof(T), size_t{16}}) {
      const size_t gap = (16 - count * sizeof(T) % 16) % 16;
      this->Check(ReduceOp::kSum, {count, 2, 1, offset, offset, gap}, values);
      if (this->HasFatalFailure()) return;
    }
  }
}

TYPED_TEST(KernelsTest, FactorsAndRoundingEqualTheCpus) {
  using T = TypeParam;
  const DataType dtype = Type<T>::kDataType, wide = AccumulatorOf(dtype);
  std::mt19937_64 random(11);
  for (const double factor : {1.0, 3.0, IsFloat(dtype) ? 0.3 : 7.0}) {
    const size_t count = 1 + random() % 3000;
    std::vector<T> values(count), back(count), expected_back(count);
    for (T& value : values) value = RandomValue<T>(random);
    const size_t wide_bytes = count * SizeOf(wide);
    Memory in(count * sizeof(T), 0), prepared(wide_bytes, 0), out(count * sizeof(T), 0);
    in.Write(values.data());
    std::vector<char> expected(wide_bytes), got(wide_bytes);
    Prepare(dtype, expected.data(), values.data(), count, factor);
    ASSERT_TRUE(TheDevice().kernels->Prepare(dtype, {prepared.data(), in.data(), count, factor}, nullptr).ok());
    prepared.Read(got.data());
    for (size_t i = 0; i < count; ++i) {
      if constexpr (std::is_integral_v<T> || std::is_same_v<T, double>) {
        T a, b;
        std::memcpy(&a, &expected[i * sizeof(T)], sizeof a);
        std::memcpy(&b, &got[i * sizeof(T)], sizeof b);
        ASSERT_TRUE(SameValue(a, b)) << factor << " times " << Show(values[i]) << " is " << Show(b);
      } else {
        float a, b;
        std::memcpy(&a, &expected[i * sizeof(float)], sizeof a);
        std::memcpy(&b, &got[i * sizeof(float)], sizeof b);
        ASSERT_TRUE(SameValue(a, b)) << factor << " times " << Show(values[i]) << " is " << Show(b);
      }
    }
    if (wide == dtype) {
      EXPECT_FALSE(TheDevice().kernels->Finish(dtype, {out.data(), prepared.data(), count, 1}, nullptr).ok());
      continue;
    }
    ASSERT_TRUE(TheDevice().kernels->Finish(dtype, {out.data(), prepared.data(), count, 1}, nullptr).ok());
    out.Read(back.data());
    Finish(dtype, expected_back.data(), expected.data(), count, 1);
    for (size_t i = 0; i < count; ++i) ASSERT_TRUE(SameValue(back[i], expected_back[i])) << Show(back[i]);
  }
}

TYPED_TEST(KernelsTest, SearchesFindWhatTheCpuFinds) {
  using T = TypeParam;
  const DataType dtype = Type<T>::kDataType;
  if (!IsFloat(dtype)) return;  // integers are always finite
  std::mt19937_64 random(13);
  for (int round = 0; round < 60; ++round) {
    const size_t count = round < 40 ? random() % 70 : 1000 + random() % 50000;
    const size_t offset = random() % 3 == 0 ? random() % 5 : random() % 5 * sizeof(T);
    std::vector<T> values(count + 1);
    for (T& value : values) value = RandomValue<T>(random);
    // Half of the rounds have one or none.
    const size_t odd = count == 0 ? 0 : random() % count;
    for (size_t i = 0; round % 2 == 0 && i < count; ++i) {
      if (i != odd) values[i] = T{};
    }
    Memory in(count * sizeof(T), offset), found(sizeof(cuda::Found), 0);
    in.Write(values.data());
    cuda::Found got;
    found.Write(&got);
    const cuda::SearchArguments arguments = {in.data(), count, static_cast<cuda::Found*>(found.data())};
    ASSERT_TRUE(TheDevice().kernels->Search(dtype, arguments, nullptr).ok());
    found.Read(&got);
    const NonFinite expected = CountNonFinite(dtype, values.data(), count);
    ASSERT_EQ(got.nans, expected.nans) << "round " << round;
    ASSERT_EQ(got.infinities, expected.infinities) << "round " << round;
    if (got.nans + got.infinities == 0) continue;
    ASSERT_EQ(got.first, 2 * expected.first + (expected.first_is_nan ? 0 : 1)) << "round " << round;
  }
}

// All pairs of 8-bit numbers, all 16-bit ones with their neighbours.
TYPED_TEST(KernelsTest, FoldsOfAllSmallNumbersAreRight) {
  using T = TypeParam;
  if constexpr (sizeof(T) <= 2) {
    for (const ReduceOp op : OpsOf(Type<T>::kDataType)) {
      constexpr size_t kCount = 65536;
      std::vector<T> values(2 * kCount);
      for (uint32_t i = 0; i < kCount; ++i) {
        const uint32_t first = sizeof(T) == 1 ? i & 0xff : i;
        const uint32_t second = sizeof(T) == 1 ? i >> 8 : i * 40503u;
        std::memcpy(static_cast<void*>(&values[i]), &first, sizeof(T));
        std::memcpy(static_cast<void*>(&values[kCount + i]), &second, sizeof(T));
      }
      this->Check(op, {kCount, 2, 0, 0, 0, 0}, values);
      if (this->HasFatalFailure()) return;
    }
  }
}

TEST(KernelsTest, EveryTypeAndOpHasItsKernel) {
  if (TheDevice().kernels == nullptr) GTEST_SKIP() << TheDevice().why;
  for (int dtype = 1; dtype < kDataTypes; ++dtype) {
    for (int op = 1; op < kReduceOps; ++op) {
      const auto type = static_cast<DataType>(dtype);
      const auto operation = static_cast<ReduceOp>(op);
      const absl::Status status = TheDevice().kernels->Fold(type, operation, {.operands = 2}, nullptr);
      EXPECT_EQ(status.ok(), FindReduceKernel(type, operation) != nullptr)
          << Name(type) << " " << Name(operation) << ": " << status;
    }
  }
}

}  // namespace
}  // namespace cohort::comm
