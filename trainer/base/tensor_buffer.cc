#include "cohort/trainer/base/tensor_buffer.h"

#include <optional>

#include "ATen/ATen.h"
#include "cohort/trainer/base/tensor_values.h"

namespace cohort::trainer {
namespace {

// The type of the real numbers that carry a scalar type.
std::optional<comm::DataType> Carrier(at::ScalarType type) {
  switch (c10::toRealValueType(type)) {
    case at::kByte:
      return comm::DataType::kUint8;
    case at::kChar:
      return comm::DataType::kInt8;
    case at::kShort:
      return comm::DataType::kInt16;
    case at::kInt:
      return comm::DataType::kInt32;
    case at::kLong:
      return comm::DataType::kInt64;
    case at::kHalf:
      return comm::DataType::kFloat16;
    case at::kBFloat16:
      return comm::DataType::kBFloat16;
    case at::kFloat:
      return comm::DataType::kFloat32;
    case at::kDouble:
      return comm::DataType::kFloat64;
    default:
      return std::nullopt;
  }
}

}  // namespace

bool CanCarry(at::ScalarType type) { return Carrier(type).has_value(); }

comm::Buffer AsBuffer(const at::Tensor& tensor) {
  TORCH_CHECK(tensor.defined(), "an undefined tensor can't be communicated");
  TORCH_CHECK(tensor.layout() == at::kStrided, "only dense tensors can be communicated, got layout ", tensor.layout());
  TORCH_CHECK(tensor.is_contiguous(), "only contiguous tensors can be communicated, got strides ", tensor.strides());
  TORCH_CHECK(tensor.is_cpu() || tensor.is_cuda(), "tensors on ", tensor.device(), " can't be communicated");
  TORCH_CHECK(!tensor.is_conj() && !tensor.is_neg(), "a lazily conjugated or negated tensor can't be communicated");
  const at::ScalarType type = tensor.scalar_type();
  const auto carrier = Carrier(type);
  TORCH_CHECK(carrier.has_value(), "tensors of type ", at::toString(type), " can't be communicated");
  const bool cuda = tensor.is_cuda();
  return comm::Buffer(tensor.data_ptr(), tensor.numel() * RealsPerElement(type), *carrier,
                      cuda ? comm::MemoryKind::kCuda : comm::MemoryKind::kHost, cuda ? tensor.get_device() : 0);
}

std::vector<int64_t> BufferCounts(std::vector<int64_t> elements, at::ScalarType type) {
  for (int64_t& count : elements) count *= RealsPerElement(type);
  return elements;
}

}  // namespace cohort::trainer
