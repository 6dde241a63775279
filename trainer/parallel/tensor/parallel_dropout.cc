#include "cohort/trainer/parallel/tensor/parallel_dropout.h"

#include <array>
#include <cmath>
#include <utility>

#include "cohort/trainer/parallel/tensor/random_at.h"
#include "cohort/trainer/state/sharded_init.h"
#include "torch/torch.h"

namespace cohort::trainer {
namespace {

uint32_t Low(uint64_t value) { return static_cast<uint32_t>(value); }
uint32_t High(uint64_t value) { return static_cast<uint32_t>(value >> 32); }

// SplitMix64's finaliser (Steele et al., 2014): neighbouring steps get unrelated keys.
uint64_t Mix(uint64_t x) {
  x += 0x9E3779B97F4A7C15;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EB;
  return x ^ (x >> 31);
}

uint64_t KeyOf(const RandomPlace& place) {
  return Mix(Mix(Mix(place.seed) ^ static_cast<uint64_t>(place.step)) ^ static_cast<uint64_t>(place.micro_batch));
}

// Random numbers of 32 bits by the element's number; neighbours share a block of four.
class Draws {
 public:
  Draws(uint64_t key, uint64_t layer) : layer_(layer), key_(key) {}
  uint32_t At(uint64_t element) {
    const uint64_t number = element / 4;
    if (!drawn_ || number != number_) {
      block_ = Philox({Low(number), High(number), Low(layer_), High(layer_)}, {Low(key_), High(key_)});
      number_ = number;
      drawn_ = true;
    }
    return block_[element % 4];
  }

 private:
  uint64_t layer_, key_, number_ = 0;
  bool drawn_ = false;
  std::array<uint32_t, 4> block_{};
};

// The whole's place of each index of a dimension, times the elements between two places.
struct Dimension {
  int64_t size = 1;
  int64_t first = 0, step = 1;
  uint64_t stride = 1;

  uint64_t At(int64_t index) const { return static_cast<uint64_t>(first + index * step) * stride; }
};

// Rows of the batch are outermost in the count, so that it does not depend on their number.
std::vector<Dimension> DimensionsOf(at::IntArrayRef sizes, const ActivationPart& part) {
  const RandomPlace place = random_place();
  TORCH_CHECK(place.known(),
              "dropout: this thread has no place in training, without which every step would drop the same elements; "
              "call trainer::set_random_place({.seed = ..., .step = ...}) before each forward pass "
              "(autograd/random_place.h)");
  std::vector<Dimension> dimensions;
  uint64_t stride = 1;
  for (auto dim = static_cast<int64_t>(sizes.size()); dim-- > 0;) {
    Dimension each = {.size = sizes[dim]};
    if (dim == part.batch_dim) {
      each.first = place.first_row;
      each.step = place.row_stride;
    } else {
      each.stride = stride;
      each.first = dim == part.cut_dim ? part.begin : 0;
      stride *= static_cast<uint64_t>(dim == part.cut_dim ? part.whole : sizes[dim]);
    }
    dimensions.insert(dimensions.begin(), each);
  }
  if (part.batch_dim >= 0 && part.batch_dim < static_cast<int64_t>(sizes.size())) {
    dimensions[part.batch_dim].stride = stride;
  }
  return dimensions;
}

// Numbers of 32 bits below it are dropped.
int64_t BoundOf(double p) {
  TORCH_CHECK(p >= 0 && p <= 1, "dropout probability has to be between 0 and 1, but got ", p);
  return static_cast<int64_t>(std::ceil(p * 4294967296.0));
}

float KeptFactor(double p) { return static_cast<float>(p < 1 ? 1 / (1 - p) : 0); }

// The number of each element in the whole, on `device`.
at::Tensor ElementNumbers(const std::vector<Dimension>& dimensions, at::Device device) {
  at::Tensor numbers = at::zeros({}, at::TensorOptions(at::kLong).device(device));
  for (const Dimension& each : dimensions) {
    const auto first = static_cast<int64_t>(each.At(0)), step = each.step * static_cast<int64_t>(each.stride);
    numbers = numbers.unsqueeze(-1) + at::arange(each.size, numbers.options()) * step + first;
  }
  return numbers;
}

}  // namespace

at::Tensor DropoutFactors(at::IntArrayRef sizes, double p, uint64_t layer, const ActivationPart& part,
                          const at::TensorOptions& options) {
  if (!options.device().is_cpu()) return DropoutFactorsByTensors(sizes, p, layer, part, options);
  const std::vector<Dimension> dimensions = DimensionsOf(sizes, part);
  at::Tensor factors = at::empty(sizes, options.dtype(at::kFloat).requires_grad(false));
  auto* out = factors.data_ptr<float>();
  const auto bound = static_cast<uint64_t>(BoundOf(p));
  const float kept = KeptFactor(p);
  Draws draws(KeyOf(random_place()), layer);
  std::vector<int64_t> index(sizes.size(), 0);
  for (int64_t i = 0; i < factors.numel(); ++i) {
    uint64_t element = 0;
    for (size_t dim = 0; dim < index.size(); ++dim) element += dimensions[dim].At(index[dim]);
    out[i] = draws.At(element) < bound ? 0 : kept;
    for (size_t dim = index.size(); dim-- > 0;) {
      if (++index[dim] < dimensions[dim].size) break;
      index[dim] = 0;
    }
  }
  return factors.to(options.requires_grad(false));
}

at::Tensor DropoutFactorsByTensors(at::IntArrayRef sizes, double p, uint64_t layer, const ActivationPart& part,
                                   const at::TensorOptions& options) {
  const at::NoGradGuard no_grad;
  const std::vector<Dimension> dimensions = DimensionsOf(sizes, part);
  const int64_t bound = BoundOf(p);
  const at::Tensor numbers = ElementNumbers(dimensions, options.device());
  const at::Tensor dropped = RandomAt(numbers, layer, KeyOf(random_place())).lt(bound);
  return at::full(sizes, KeptFactor(p), options.requires_grad(false)).masked_fill_(dropped, 0);
}

at::Tensor ParallelDropoutImpl::forward(const at::Tensor& x) {
  return forward_part(x, axis.SequencePart(x, options.batch_dim()));
}

at::Tensor ParallelDropoutImpl::forward_part(const at::Tensor& x, const ActivationPart& part) {
  if (!is_training() || options.p() == 0) return x;
  return x * DropoutFactors(x.sizes(), options.p(), options.layer(), part, x.options());
}

}  // namespace cohort::trainer
