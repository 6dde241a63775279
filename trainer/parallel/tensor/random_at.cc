#include "cohort/trainer/parallel/tensor/random_at.h"

#include <array>
#include <utility>

#include "torch/torch.h"

namespace cohort::trainer {
namespace {

constexpr int64_t kLow = 0xFFFFFFFF;

// libtorch has no unsigned 32-bit numbers: int64 holds them. A product wraps to the same 64 bits, of which the shift
// copies the sign into bits that the mask takes away.
std::pair<at::Tensor, at::Tensor> HighAndLow(const at::Tensor& number, int64_t factor) {
  at::Tensor product = number * factor;
  at::Tensor high = product.bitwise_right_shift(32).bitwise_and_(kLow);
  return {std::move(high), product.bitwise_and_(kLow)};
}

}  // namespace

at::Tensor RandomAt(const at::Tensor& elements, uint64_t layer, uint64_t key) {
  const at::NoGradGuard no_grad;
  const at::Tensor block = elements.bitwise_right_shift(2), lane = elements.bitwise_and(3);
  std::array<at::Tensor, 4> counter = {block.bitwise_and(kLow), block.bitwise_right_shift(32),
                                       at::full_like(block, static_cast<int64_t>(layer) & kLow),
                                       at::full_like(block, static_cast<int64_t>(layer >> 32))};
  auto first = static_cast<uint32_t>(key), second = static_cast<uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    auto [high_a, low_a] = HighAndLow(counter[0], 0xD2511F53);
    auto [high_b, low_b] = HighAndLow(counter[2], 0xCD9E8D57);
    counter = {high_b.bitwise_xor_(counter[1]).bitwise_xor_(static_cast<int64_t>(first)), low_b,
               high_a.bitwise_xor_(counter[3]).bitwise_xor_(static_cast<int64_t>(second)), low_a};
    first += 0x9E3779B9;
    second += 0xBB67AE85;
  }
  return at::where(lane.lt(2), at::where(lane.eq(0), counter[0], counter[1]),
                   at::where(lane.eq(2), counter[2], counter[3]));
}

}  // namespace cohort::trainer
