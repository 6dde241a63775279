#include "cohort/comm/types.h"

#include <cmath>

namespace cohort::comm {

std::string_view Name(CollectiveKind kind) {
  switch (kind) {
    case CollectiveKind::kBroadcast:
      return "broadcast";
    case CollectiveKind::kReduce:
      return "reduce";
    case CollectiveKind::kAllReduce:
      return "all_reduce";
    case CollectiveKind::kGather:
      return "gather";
    case CollectiveKind::kScatter:
      return "scatter";
    case CollectiveKind::kAllGather:
      return "all_gather";
    case CollectiveKind::kReduceScatter:
      return "reduce_scatter";
    case CollectiveKind::kAllToAll:
      return "all_to_all";
    case CollectiveKind::kBarrier:
      return "barrier";
    case CollectiveKind::kSend:
      return "send";
    case CollectiveKind::kRecv:
      return "recv";
    case CollectiveKind::kGatherV:
      return "gather_v";
    case CollectiveKind::kScatterV:
      return "scatter_v";
    case CollectiveKind::kAllGatherV:
      return "all_gather_v";
    case CollectiveKind::kReduceScatterV:
      return "reduce_scatter_v";
    case CollectiveKind::kAllToAllV:
      return "all_to_all_v";
  }
  return "unknown_call";
}

std::string_view Name(DataType dtype) {
  switch (dtype) {
    case DataType::kInt8:
      return "int8";
    case DataType::kUint8:
      return "uint8";
    case DataType::kInt16:
      return "int16";
    case DataType::kUint16:
      return "uint16";
    case DataType::kInt32:
      return "int32";
    case DataType::kUint32:
      return "uint32";
    case DataType::kInt64:
      return "int64";
    case DataType::kUint64:
      return "uint64";
    case DataType::kFloat16:
      return "float16";
    case DataType::kBFloat16:
      return "bfloat16";
    case DataType::kFloat32:
      return "float32";
    case DataType::kFloat64:
      return "float64";
    case DataType::kFloat8E4M3:
      return "float8_e4m3";
    case DataType::kFloat8E5M2:
      return "float8_e5m2";
  }
  return "unknown_type";
}

std::string_view Name(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
      return "sum";
    case ReduceOp::kProduct:
      return "product";
    case ReduceOp::kMin:
      return "min";
    case ReduceOp::kMax:
      return "max";
    case ReduceOp::kAvg:
      return "avg";
    case ReduceOp::kBand:
      return "band";
    case ReduceOp::kBor:
      return "bor";
    case ReduceOp::kBxor:
      return "bxor";
    case ReduceOp::kPreMulSum:
      return "premulsum";
    case ReduceOp::kUser:
      return "user";
  }
  return "unknown_op";
}

std::string_view Name(Determinism level) {
  switch (level) {
    case Determinism::kDefault:
      return "default";
    case Determinism::kFast:
      return "fast";
    case Determinism::kReproducible:
      return "reproducible";
    case Determinism::kOrderInvariant:
      return "order_invariant";
  }
  return "unknown_level";
}

bool FactorFits(DataType dtype, double factor) {
  if (IsFloat(dtype)) return true;
  const int bits = 8 * static_cast<int>(SizeOf(dtype));
  const bool is_signed =
      dtype == DataType::kInt8 || dtype == DataType::kInt16 || dtype == DataType::kInt32 || dtype == DataType::kInt64;
  const double least = is_signed ? -std::ldexp(1.0, bits - 1) : 0;
  return factor >= least && factor < std::ldexp(1.0, is_signed ? bits - 1 : bits) && factor == std::trunc(factor);
}

}  // namespace cohort::comm
