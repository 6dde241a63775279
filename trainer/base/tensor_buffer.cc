#include "cohort/trainer/base/tensor_buffer.h"

#include "ATen/ATen.h"

namespace cohort::trainer {

comm::DataType ToDataType(at::ScalarType type) {
  switch (type) {
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
      TORCH_CHECK(false, "tensors of type ", at::toString(type), " can't be communicated");
  }
}

comm::Buffer AsBuffer(const at::Tensor& tensor) {
  TORCH_CHECK(tensor.defined(), "an undefined tensor can't be communicated");
  TORCH_CHECK(tensor.layout() == at::kStrided, "only dense tensors can be communicated, got layout ", tensor.layout());
  TORCH_CHECK(tensor.is_contiguous(), "only contiguous tensors can be communicated, got strides ", tensor.strides());
  TORCH_CHECK(tensor.is_cpu() || tensor.is_cuda(), "tensors on ", tensor.device(), " can't be communicated");
  const bool cuda = tensor.is_cuda();
  return comm::Buffer(tensor.data_ptr(), tensor.numel(), ToDataType(tensor.scalar_type()),
                      cuda ? comm::MemoryKind::kCuda : comm::MemoryKind::kHost, cuda ? tensor.get_device() : 0);
}

}  // namespace cohort::trainer
