#include "tests/support/fake_nccl/fake_math.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "cohort/comm/reduce/reduce.h"

namespace fake {
namespace {

using cohort::comm::DataType;
using cohort::comm::ReduceOp;

DataType TypeOf(ncclDataType_t dtype) {
  switch (dtype) {
    case ncclInt8:
      return DataType::kInt8;
    case ncclUint8:
      return DataType::kUint8;
    case ncclInt32:
      return DataType::kInt32;
    case ncclUint32:
      return DataType::kUint32;
    case ncclInt64:
      return DataType::kInt64;
    case ncclUint64:
      return DataType::kUint64;
    case ncclFloat16:
      return DataType::kFloat16;
    case ncclBfloat16:
      return DataType::kBFloat16;
    case ncclFloat64:
      return DataType::kFloat64;
    case ncclFloat8e4m3:
      return DataType::kFloat8E4M3;
    case ncclFloat8e5m2:
      return DataType::kFloat8E5M2;
    default:
      return DataType::kFloat32;
  }
}

ReduceOp OpOf(ncclRedOp_t op) {
  switch (op) {
    case ncclProd:
      return ReduceOp::kProduct;
    case ncclMin:
      return ReduceOp::kMin;
    case ncclMax:
      return ReduceOp::kMax;
    case ncclAvg:
      return ReduceOp::kAvg;
    default:
      return ReduceOp::kSum;
  }
}

// A part's input times its factor, rounded to the type.
std::vector<std::byte> Scaled(const Part& part, DataType dtype, size_t elements) {
  const DataType wide = cohort::comm::AccumulatorOf(dtype);
  const auto* in = static_cast<const std::byte*>(part.in);
  std::vector<std::byte> result(in, in + elements * cohort::comm::SizeOf(dtype));
  if (part.factor == 1) return result;
  std::vector<std::byte> product(elements * cohort::comm::SizeOf(wide));
  cohort::comm::Prepare(dtype, product.data(), part.in, elements, part.factor);
  if (wide == dtype) return product;
  cohort::comm::Finish(dtype, result.data(), product.data(), elements, 1);
  return result;
}

std::vector<std::byte> Reduced(const Collective& collective, size_t elements) {
  const DataType dtype = TypeOf(collective.shape.dtype);
  const ReduceOp op = OpOf(collective.shape.op);
  std::vector<std::byte> result(elements * BytesOf(collective.shape.dtype));
  if (elements == 0) return result;
  const std::vector<Part>& parts = collective.parts;
  const std::vector<std::byte> first = Scaled(parts[0], dtype, elements);
  std::memcpy(result.data(), first.data(), result.size());
  const auto kernel = cohort::comm::FindReduceKernel(dtype, op);
  for (size_t rank = 1; rank < parts.size(); ++rank) {
    kernel(result.data(), result.data(), Scaled(parts[rank], dtype, elements).data(), elements);
  }
  if (op == ReduceOp::kAvg) {
    cohort::comm::DivideBy(dtype, result.data(), elements, static_cast<int>(collective.parts.size()));
  }
  return result;
}

void Write(void* out, const std::byte* data, size_t bytes) {
  if (bytes > 0) std::memmove(out, data, bytes);
}

}  // namespace

double ValueOf(const void* scalar, ncclDataType_t dtype) {
  const DataType type = TypeOf(dtype);
  const auto read = [scalar](auto value) {
    std::memcpy(&value, scalar, sizeof value);
    return static_cast<double>(value);
  };
  switch (type) {
    case DataType::kFloat64:
      return read(double());
    case DataType::kInt8:
      return read(int8_t());
    case DataType::kUint8:
      return read(uint8_t());
    case DataType::kInt32:
      return read(int32_t());
    case DataType::kUint32:
      return read(uint32_t());
    case DataType::kInt64:
      return read(int64_t());
    case DataType::kUint64:
      return read(uint64_t());
    default: {
      float value = 0;
      cohort::comm::Prepare(type, &value, scalar, 1, 1);
      return value;
    }
  }
}

size_t BytesOf(ncclDataType_t dtype) { return cohort::comm::SizeOf(TypeOf(dtype)); }

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
