#include "cohort/trainer/autograd/gradient_slot.h"

#include <algorithm>
#include <cstring>

#include "ATen/ATen.h"

namespace cohort::trainer {
namespace {

constexpr int64_t kLargest = 32768;  // elements; from more on torch uses several threads

// Whether the gradient's elements lie in a row, and are what the slot holds.
bool Matches(const GradientSlot& slot, const at::Tensor& gradient) {
  return slot.data != nullptr && gradient.layout() == at::kStrided && gradient.device().is_cpu() &&
         gradient.scalar_type() == slot.type && gradient.numel() == slot.numel && gradient.is_contiguous() &&
         !gradient.is_neg() && gradient.data_ptr() != nullptr;
}

// `Wide` is what products are computed in. Blocks of known length, by way of memory that nothing else may share, become
// vector instructions; `from` may be `to`.
template <typename Element, typename Wide>
void Multiply(const void* from, void* to, int64_t count, double factor) {
  constexpr int64_t kBlock = 32;
  const auto* in = static_cast<const Element*>(from);
  auto* out = static_cast<Element*>(to);
  const Wide share = static_cast<Wide>(factor);
  int64_t done = 0;
  for (; done + kBlock <= count; done += kBlock) {
    Element products[kBlock];
    for (int64_t i = 0; i < kBlock; ++i) products[i] = static_cast<Element>(static_cast<Wide>(in[done + i]) * share);
    std::memcpy(out + done, products, sizeof products);
  }
  for (; done < count; ++done) out[done] = static_cast<Element>(static_cast<Wide>(in[done]) * share);
}

// Block by block.
template <typename Element, typename Wide>
void Fill(const GradientSlot& slot, const void* from, double factor) {
  const int64_t block = slot.block > 0 ? slot.block : slot.numel;
  const auto* in = static_cast<const Element*>(from);
  auto* out = static_cast<Element*>(slot.data);
  for (int64_t done = 0; done < slot.numel; done += block, out += slot.stride) {
    Multiply<Element, Wide>(in + done, out, std::min(block, slot.numel - done), factor);
  }
}

}  // namespace

GradientSlot SlotIn(const at::Tensor& bucket, int64_t offset, int64_t numel, int64_t block, int64_t stride) {
  const at::ScalarType type = bucket.scalar_type();
  const bool known = type == at::kFloat || type == at::kDouble || type == at::kHalf || type == at::kBFloat16;
  if (!bucket.device().is_cpu() || !known || numel == 0 || numel > kLargest) return {};
  auto* first = static_cast<char*>(bucket.data_ptr());
  return {.data = first + offset * static_cast<int64_t>(bucket.element_size()),
          .numel = numel,
          .type = type,
          .block = block,
          .stride = stride};
}

bool FillSlot(const GradientSlot& slot, const at::Tensor& gradient, double factor) {
  if (!Matches(slot, gradient)) return false;
  const void* from = gradient.data_ptr();
  switch (slot.type) {
    case at::kFloat:
      Fill<float, float>(slot, from, factor);
      return true;
    case at::kDouble:
      Fill<double, double>(slot, from, factor);
      return true;
    case at::kHalf:
      Fill<at::Half, float>(slot, from, factor);
      return true;
    case at::kBFloat16:
      Fill<at::BFloat16, float>(slot, from, factor);
      return true;
    default:
      return false;
  }
}

bool CopySlotTo(const GradientSlot& slot, const at::Tensor& gradient) {
  if (slot.block > 0 || !Matches(slot, gradient)) return false;
  std::memcpy(gradient.data_ptr(), slot.data, static_cast<size_t>(slot.numel) * gradient.element_size());
  gradient.unsafeGetTensorImpl()->bump_version();
  return true;
}

bool IsSlot(const GradientSlot& slot, const at::Tensor& gradient) {
  return slot.block == 0 && Matches(slot, gradient) && gradient.data_ptr() == slot.data;
}

}  // namespace cohort::trainer
