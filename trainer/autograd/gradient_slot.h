// GradientSlot: the place of one parameter's gradient in a bucket. Small gradients are copied there without torch.
//
// A view of the bucket and a multiplication through torch take some microseconds whatever the size. For all but large
// gradients that exceeds the work itself: a thousand small parameters would cost milliseconds a step. A plain loop
// therefore multiplies and copies small dense gradients in host memory, to the same bits. The caller handles all
// others: large ones, for which torch uses several threads, and other devices and layouts.
#pragma once

#include <cstdint>

#include "ATen/core/Tensor.h"

namespace cohort::trainer {

struct GradientSlot {
  void* data = nullptr;  // null: the caller copies
  int64_t numel = 0;
  at::ScalarType type = at::kFloat;
  int64_t block = 0;   // contiguous elements of one block; the last may have fewer; 0: all
  int64_t stride = 0;  // elements from the beginning of one block to that of the next
};

// Returns the slot of elements [offset, offset + numel) of the contiguous `bucket`, which must outlive it. With
// `block`, the first block begins at `offset`. The slot has no data if the bucket is not in host memory, or its type is
// not floating-point. It also has none for more elements than one thread should copy.
GradientSlot SlotIn(const at::Tensor& bucket, int64_t offset, int64_t numel, int64_t block = 0, int64_t stride = 0);

// Does slot = gradient * factor; smaller types compute in float32 and round once. The gradient may be the slot itself.
// Returns false and does nothing if the caller has to copy.
bool FillSlot(const GradientSlot& slot, const at::Tensor& gradient, double factor);

// Does gradient = slot. Returns false under the same conditions, and for blocks.
bool CopySlotTo(const GradientSlot& slot, const at::Tensor& gradient);

// Returns whether the gradient is the slot itself. It is false for slots with blocks.
bool IsSlot(const GradientSlot& slot, const at::Tensor& gradient);

}  // namespace cohort::trainer
