// The values that collective calls are made of.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <ranges>
#include <string_view>
#include <type_traits>

namespace cohort::comm {

enum class CollectiveKind : uint8_t {
  kBroadcast = 1,
  kReduce,
  kAllReduce,
  kGather,
  kScatter,
  kAllGather,
  kReduceScatter,
  kAllToAll,
  kBarrier,
  kSend,
  kRecv,
  // The variable-count forms: like the kinds above, but every block has its own length.
  kGatherV,
  kScatterV,
  kAllGatherV,
  kReduceScatterV,
  kAllToAllV,
};
inline constexpr int kCollectiveKinds = 17;  // one past the last value
// True for the variable-count forms.
constexpr bool HasUnequalBlocks(CollectiveKind kind) { return kind >= CollectiveKind::kGatherV; }
// Returns the form with equal blocks of a variable-count form, and any other kind unchanged.
constexpr CollectiveKind EqualBlocksForm(CollectiveKind kind) {
  constexpr int kBetween = static_cast<int>(CollectiveKind::kGatherV) - static_cast<int>(CollectiveKind::kGather);
  return HasUnequalBlocks(kind) ? static_cast<CollectiveKind>(static_cast<int>(kind) - kBetween) : kind;
}
// "all_reduce", "send", ...
std::string_view Name(CollectiveKind kind);

enum class DataType : uint8_t {
  kInt8 = 1,
  kUint8,
  kInt16,
  kUint16,
  kInt32,
  kUint32,
  kInt64,
  kUint64,
  kFloat16,
  kBFloat16,
  kFloat32,
  kFloat64,
  kFloat8E4M3,  // OCP FP8 without infinity, as torch.float8_e4m3fn: values above 448 round to NaN
  kFloat8E5M2,  // OCP FP8 with infinity, as torch.float8_e5m2
};
inline constexpr int kDataTypes = 15;   // one past the last value
std::string_view Name(DataType dtype);  // "float32", ...
// Bytes of one element; 0 for a value that is no DataType.
constexpr size_t SizeOf(DataType dtype) {
  constexpr uint8_t kBytes[kDataTypes] = {0, 1, 1, 2, 2, 4, 4, 8, 8, 2, 2, 4, 8, 1, 1};
  const auto value = static_cast<size_t>(dtype);
  return value < kDataTypes ? kBytes[value] : 0;
}

enum class ReduceOp : uint8_t {
  kSum = 1,
  kProduct,
  kMin,
  kMax,
  kAvg,   // sum divided by the number of ranks; integers truncate towards zero
  kBand,  // bitwise and, or, exclusive or: integers only
  kBor,
  kBxor,
  kPreMulSum,  // sum of each rank's input times that rank's CallOptions::factor
  kUser,       // CallOptions::user_op; host memory only
};
inline constexpr int kReduceOps = 11;  // one past the last value
std::string_view Name(ReduceOp op);    // "sum", ...

constexpr bool IsFloat(DataType dtype) { return dtype >= DataType::kFloat16; }
// True for the floating-point types whose sums are computed in float32.
constexpr bool IsSmallFloat(DataType dtype) { return IsFloat(dtype) && SizeOf(dtype) <= 2; }
// True when elements can be multiplied by the factor (CallOptions::factor): for integers it must be a value of the
// type.
bool FactorFits(DataType dtype, double factor);
constexpr bool IsBitwise(ReduceOp op) { return op == ReduceOp::kBand || op == ReduceOp::kBor || op == ReduceOp::kBxor; }

// Says on what, besides the inputs, the bits of a reduction's result may depend. comm/REFERENCE.md has the costs.
enum class Determinism : uint8_t {
  kDefault = 0,  // CommunicatorOptions::determinism; there it means kFast
  kFast,         // the fastest algorithm; all ranks get the same bits from one call, but for signs and payloads of NaNs
  // The same ranks of the same group on the same machines get the same bits from the same inputs in every run. The
  // choice of the algorithm depends on no measurement.
  kReproducible,
  // The result is that of a loop over the group ranks, ((x0 op x1) op x2) op ..., over any transport and placement.
  // Smaller floating-point types are computed in float32 and rounded once. Algorithms that combine partial results
  // can't be used.
  kOrderInvariant,
};
inline constexpr int kDeterminismLevels = 4;  // one past the last value
std::string_view Name(Determinism level);     // "fast", "reproducible", "order_invariant"

enum class MemoryKind : uint8_t { kHost = 0, kCuda = 1 };

// kValue is the DataType of a C++ type: integers by size and sign (int64_t and long long are the same), float, double.
// A program adds a type that is laid out as one of these, such as a half-precision class, by a specialisation:
//
//   template <>
//   struct cohort::comm::DataTypeOf<my::Half> {
//     static constexpr DataType kValue = DataType::kFloat16;
//   };
//
// Other memory is passed as elements of a type that it consists of. 100 std::complex<float> are
// Buffer(data, 200, DataType::kFloat32); a struct that is only moved is sizeof(T) elements of kUint8.
template <typename T>
struct DataTypeOf {
  static_assert(std::is_integral_v<T> && !std::is_same_v<T, bool>,
                "Cohort has no DataType for elements of this type: write Buffer(data, count, DataType), or specialise "
                "cohort::comm::DataTypeOf for it; comm/types.h says how");
  static constexpr DataType kValue = [] {
    constexpr DataType kSigned[] = {DataType::kInt8, DataType::kInt16, DataType::kInt32, DataType::kInt64};
    constexpr DataType kUnsigned[] = {DataType::kUint8, DataType::kUint16, DataType::kUint32, DataType::kUint64};
    if constexpr (std::is_integral_v<T>) {
      constexpr size_t kPower = sizeof(T) == 1 ? 0 : sizeof(T) == 2 ? 1 : sizeof(T) == 4 ? 2 : 3;
      static_assert(sizeof(T) == size_t{1} << kPower, "Cohort has integers of 1, 2, 4 and 8 bytes");
      return std::is_signed_v<T> ? kSigned[kPower] : kUnsigned[kPower];
    } else {
      return DataType::kUint8;  // the assertion above has told
    }
  }();
};
template <>
struct DataTypeOf<float> {
  static constexpr DataType kValue = DataType::kFloat32;
};
template <>
struct DataTypeOf<double> {
  static constexpr DataType kValue = DataType::kFloat64;
};

// Arrays, vectors and spans. A temporary that owns its elements is refused, since they must outlive the call.
template <typename R>
concept ElementRange =
    std::ranges::contiguous_range<R> && std::ranges::sized_range<R> && std::ranges::borrowed_range<R>;

// Memory that a call reads: `count` elements. Not owned: it must stay valid and unchanged until the Work is done.
struct ConstBuffer {
  const void* data = nullptr;
  int64_t count = 0;
  DataType dtype = DataType::kFloat32;
  MemoryKind memory = MemoryKind::kHost;
  int device = 0;  // CUDA ordinal in this process; 0 for host memory

  ConstBuffer() = default;
  ConstBuffer(const void* data, int64_t count, DataType dtype, MemoryKind memory = MemoryKind::kHost, int device = 0)
      : data(data), count(count), dtype(dtype), memory(memory), device(device) {}
  template <typename T, std::integral Count>
  ConstBuffer(const T* data, Count count)
      : data(data), count(static_cast<int64_t>(count)), dtype(DataTypeOf<T>::kValue) {}
  // All elements of a vector, an array or a span.
  template <ElementRange R>
  ConstBuffer(R&& range) : ConstBuffer(std::ranges::data(range), std::ranges::size(range)) {}  // NOLINT: a view
};

// Memory that a call writes. Where in and out are the same memory, the call reads it too.
struct Buffer {
  void* data = nullptr;
  int64_t count = 0;
  DataType dtype = DataType::kFloat32;
  MemoryKind memory = MemoryKind::kHost;
  int device = 0;

  Buffer() = default;
  Buffer(void* data, int64_t count, DataType dtype, MemoryKind memory = MemoryKind::kHost, int device = 0)
      : data(data), count(count), dtype(dtype), memory(memory), device(device) {}
  template <typename T, std::integral Count>
  Buffer(T* data, Count count)
      : data(const_cast<std::remove_const_t<T>*>(data)),
        count(static_cast<int64_t>(count)),
        dtype(DataTypeOf<std::remove_const_t<T>>::kValue) {
    static_assert(!std::is_const_v<T>, "a call writes to this buffer, and its elements are const");
  }
  template <ElementRange R>
  Buffer(R&& range) : Buffer(std::ranges::data(range), std::ranges::size(range)) {}         // NOLINT: a view
  operator ConstBuffer() const { return ConstBuffer(data, count, dtype, memory, device); }  // NOLINT: a view
};

}  // namespace cohort::comm
