#include "tests/support/fake_nccl/fake_math.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

namespace fake {
namespace {

template <typename T>
void ReduceAll(const Collective& collective, size_t elements, std::vector<std::byte>& result) {
  const auto ranks = static_cast<int>(collective.parts.size());
  T* out = reinterpret_cast<T*>(result.data());
  for (size_t i = 0; i < elements; ++i) {
    T value = static_cast<const T*>(collective.parts[0].in)[i];
    for (int rank = 1; rank < ranks; ++rank) {
      const T other = static_cast<const T*>(collective.parts[rank].in)[i];
      switch (collective.shape.op) {
        case ncclProd:
          value = static_cast<T>(value * other);
          break;
        case ncclMin:
          value = std::min(value, other);
          break;
        case ncclMax:
          value = std::max(value, other);
          break;
        default:
          value = static_cast<T>(value + other);
      }
    }
    out[i] = collective.shape.op == ncclAvg ? static_cast<T>(value / static_cast<T>(ranks)) : value;
  }
}

std::vector<std::byte> Reduced(const Collective& collective, size_t elements) {
  std::vector<std::byte> result(elements * BytesOf(collective.shape.dtype));
  switch (collective.shape.dtype) {
    case ncclInt8:
      ReduceAll<int8_t>(collective, elements, result);
      break;
    case ncclUint8:
      ReduceAll<uint8_t>(collective, elements, result);
      break;
    case ncclInt32:
      ReduceAll<int32_t>(collective, elements, result);
      break;
    case ncclUint32:
      ReduceAll<uint32_t>(collective, elements, result);
      break;
    case ncclInt64:
      ReduceAll<int64_t>(collective, elements, result);
      break;
    case ncclUint64:
      ReduceAll<uint64_t>(collective, elements, result);
      break;
    case ncclFloat32:
      ReduceAll<float>(collective, elements, result);
      break;
    case ncclFloat64:
      ReduceAll<double>(collective, elements, result);
      break;
    default:
      break;
  }
  return result;
}

void Write(void* out, const std::byte* data, size_t bytes) {
  if (bytes > 0) std::memmove(out, data, bytes);
}

}  // namespace

size_t BytesOf(ncclDataType_t dtype) {
  switch (dtype) {
    case ncclInt8:
    case ncclUint8:
      return 1;
    case ncclFloat16:
    case ncclBfloat16:
      return 2;
    case ncclInt64:
    case ncclUint64:
    case ncclFloat64:
      return 8;
    default:
      return 4;
  }
}

void Compute(Collective& collective) {
  const CollectiveShape& shape = collective.shape;
  std::vector<Part>& parts = collective.parts;
  std::sort(parts.begin(), parts.end(), [](const Part& a, const Part& b) { return a.rank < b.rank; });
  const size_t ranks = parts.size();
  const size_t bytes = shape.count * BytesOf(shape.dtype);
  std::vector<std::byte> result;
  if (shape.kind == kAllGather) {
    result.resize(ranks * bytes);
    for (size_t rank = 0; rank < ranks; ++rank)
      Write(result.data() + rank * bytes, static_cast<const std::byte*>(parts[rank].in), bytes);
  } else if (shape.kind == kBroadcast) {
    const auto* in = static_cast<const std::byte*>(parts[static_cast<size_t>(shape.root)].in);
    result.assign(in, in + bytes);
  } else {
    result = Reduced(collective, shape.kind == kReduceScatter ? ranks * shape.count : shape.count);
  }
  for (size_t rank = 0; rank < ranks; ++rank) {
    if (shape.kind == kReduce && static_cast<int>(rank) != shape.root) continue;
    const size_t offset = shape.kind == kReduceScatter ? rank * bytes : 0;
    Write(parts[rank].out, result.data() + offset, shape.kind == kReduceScatter ? bytes : result.size());
  }
}

}  // namespace fake
