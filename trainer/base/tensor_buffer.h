// Tensors as the buffers of collective calls.
#pragma once

#include "ATen/core/Tensor.h"
#include "cohort/comm/types.h"

namespace cohort::trainer {

// The comm type of a scalar type; throws c10::Error for types that no collective carries (bool, complex, quantised).
comm::DataType ToDataType(at::ScalarType type);

// The memory of a dense, contiguous tensor on the CPU or a CUDA device, which must stay alive until the operation is
// done. Throws c10::Error otherwise, naming what is wrong.
comm::Buffer AsBuffer(const at::Tensor& tensor);

}  // namespace cohort::trainer
