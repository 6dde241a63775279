// Tensors as the buffers of collective calls.
#pragma once

#include <cstdint>
#include <vector>

#include "ATen/core/Tensor.h"
#include "cohort/comm/types.h"

namespace cohort::trainer {

// Whether collectives carry and reduce a scalar type; not bool, float8 and quantised ones. Complex numbers are carried
// as two real ones each, which may be moved, added up and averaged, and not compared or multiplied.
bool CanCarry(at::ScalarType type);

// The memory of a dense, contiguous tensor on the CPU or a CUDA device, which must stay alive until the operation is
// done. Its count is in real numbers. Throws c10::Error otherwise, naming what is wrong.
comm::Buffer AsBuffer(const at::Tensor& tensor);

// Numbers of elements, such as those of blocks, as AsBuffer counts them for a tensor of this type.
std::vector<int64_t> BufferCounts(std::vector<int64_t> elements, at::ScalarType type);

}  // namespace cohort::trainer
