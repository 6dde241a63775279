// Random numbers by the element's number, as tensor operations: for masks on a device, without a copy from the host and
// without waiting for it. The bits are those of Philox() in state/sharded_init.h.
#pragma once

#include <cstdint>

#include "ATen/core/Tensor.h"

namespace cohort::trainer {

// Returns, for each of `elements` (int64, none below 0), a number from 0 to 2^32 - 1 as int64: number e % 4 of block
// e / 4 of stream `layer` under `key`. Enqueues about 130 operations on the device of `elements` and takes memory of
// eight such tensors meanwhile.
at::Tensor RandomAt(const at::Tensor& elements, uint64_t layer, uint64_t key);

}  // namespace cohort::trainer
