// GradientSlot: the place of one parameter's gradient in a bucket, where it is copied without torch.
//
// A view of the bucket and a multiplication through torch take some microseconds whatever the size, more than the work
// itself for all but large gradients: a network of a thousand small parameters would pay milliseconds a step. Small
// dense gradients in host memory are multiplied and copied by a plain loop instead, to the same bits; others (large
// ones, for which torch uses several threads, other devices and layouts) are left to the caller.
#pragma once

#include <cstdint>

#include "ATen/core/Tensor.h"

namespace cohort::trainer {

struct GradientSlot {
  void* data = nullptr;  // null: the caller copies
  int64_t numel = 0;
  at::ScalarType type = at::kFloat;
  int64_t block = 0;   // elements that lie in a row, the last ones maybe fewer; 0: all
  int64_t stride = 0;  // from where one block begins to where the next does
};

// Elements [offset, offset + numel) of the contiguous `bucket`, which must outlive the slot; with `block`, the first
// block of the slot begins at `offset`. Without data for buckets that are not in host memory, types other than
// floating-point ones, and more elements than one thread should copy.
GradientSlot SlotIn(const at::Tensor& bucket, int64_t offset, int64_t numel, int64_t block = 0, int64_t stride = 0);

// slot = gradient * factor, computed in float32 for smaller types, rounded once. The gradient may be the slot itself.
// False, and nothing is done, where the caller has to.
bool FillSlot(const GradientSlot& slot, const at::Tensor& gradient, double factor);

// gradient = slot. False as above, and for blocks.
bool CopySlotTo(const GradientSlot& slot, const at::Tensor& gradient);

// Whether the gradient is the slot itself; blocks are none.
bool IsSlot(const GradientSlot& slot, const at::Tensor& gradient);

}  // namespace cohort::trainer
