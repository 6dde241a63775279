#include "cohort/trainer/parallel/tensor/vocab_parallel_cross_entropy.h"

#include <limits>
#include <utility>
#include <vector>

#include "cohort/trainer/transfer/tensor_call.h"
#include "torch/csrc/autograd/custom_function.h"
#include "torch/torch.h"

namespace cohort::trainer {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// This rank's classes, and what the loss asks of them. Rows are examples.
struct Classes {
  const TensorAxis& axis;
  int64_t first = 0, count = 0, all = 0;
  at::Tensor weight;  // of all classes, or undefined
  double smoothing = 0;

  at::Tensor own_weight() const { return weight.narrow(0, first, count); }
};

// Turns loss i = own[i] * (log of the sum of exponentials - target's logit)
//              + spread[i] * (total weight * log of the sum - weighted sum of logits)
// into its gradient. Everything has one element a row but `exponentials`.
struct Kept : torch::CustomClassHolder {
  at::Tensor exponentials;  // [rows, own classes]; taken by backward
  at::Tensor sum;           // of the exponentials over all classes
  at::Tensor place;         // of the target among the own classes, 0 where it is elsewhere
  at::Tensor elsewhere;     // whether it is
  at::Tensor own, spread;
  at::Tensor own_weight;  // undefined: 1 for each class
  double total_weight = 0;
  at::ScalarType logits_type = at::kFloat;
};

at::Tensor Summed(const at::Tensor& x, const TensorAxis& axis, comm::ReduceOp op) {
  return axis.size() == 1 ? x : StartAllReduce(x, axis.group(), op).Wait();
}

// The sum over the own classes of weight * (logit - largest), without a buffer of the logits' size.
at::Tensor WeightedLogits(const at::Tensor& logits, const at::Tensor& largest, const Classes& classes) {
  if (!classes.weight.defined()) {
    return logits.sum(-1, /*keepdim=*/false, largest.scalar_type()) - largest * static_cast<double>(classes.count);
  }
  const at::Tensor weight = classes.own_weight();
  return logits.matmul(weight.to(logits.scalar_type())).to(largest.scalar_type()) - largest * weight.sum();
}

// [rows, own classes] -> exponentials of (logit - largest) in the logits' type, and their sums in float. Small types
// are converted some rows at a time.
std::pair<at::Tensor, at::Tensor> Exponentials(const at::Tensor& logits, const at::Tensor& largest) {
  if (logits.scalar_type() == largest.scalar_type()) {
    at::Tensor exponentials = logits.sub(largest.unsqueeze(-1)).exp_();
    at::Tensor sum = exponentials.sum(-1);
    return {std::move(exponentials), std::move(sum)};
  }
  constexpr int64_t kElements = int64_t{1} << 20;
  const int64_t rows = std::max<int64_t>(1, kElements / std::max<int64_t>(1, logits.size(1)));
  at::Tensor exponentials = at::empty_like(logits), sum = at::empty_like(largest);
  for (int64_t begin = 0; begin < logits.size(0); begin += rows) {
    const int64_t count = std::min(rows, logits.size(0) - begin);
    const at::Tensor piece = logits.narrow(0, begin, count)
                                 .to(largest.scalar_type())
                                 .sub_(largest.narrow(0, begin, count).unsqueeze(-1))
                                 .exp_();
    sum.narrow(0, begin, count).copy_(piece.sum(-1));
    exponentials.narrow(0, begin, count).copy_(piece);
  }
  return {std::move(exponentials), std::move(sum)};
}

at::Tensor Largest(const at::Tensor& logits, at::ScalarType type) {
  if (logits.size(1) > 0) return logits.amax(-1).to(type);
  return at::full({logits.size(0)}, -std::numeric_limits<double>::infinity(), logits.options().dtype(type));
}

class CrossEntropyFunction : public torch::autograd::Function<CrossEntropyFunction> {
 public:
  // The loss of each row. `own` and `spread` say how much of both terms it has.
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& logits, const at::Tensor& target,
                            const at::Tensor& own, const at::Tensor& spread, const Classes* classes) {
    const TensorAxis& axis = classes->axis;
    auto kept = c10::make_intrusive<Kept>();
    const at::Tensor largest = Summed(Largest(logits, own.scalar_type()), axis, comm::ReduceOp::kMax);
    const at::Tensor place = target - classes->first;
    kept->elsewhere = place.lt(0).logical_or(place.ge(classes->count));
    kept->place = place.masked_fill(kept->elsewhere, 0).unsqueeze(-1);
    // Target's logit, sum of exponentials, and with smoothing the sum of logits: one all-reduce.
    std::vector<at::Tensor> sums;
    if (classes->count > 0) {
      const at::Tensor picked = logits.gather(-1, kept->place).squeeze(-1).to(own.scalar_type()) - largest;
      sums.push_back(picked.masked_fill(kept->elsewhere, 0));
    } else {
      sums.push_back(at::zeros_like(largest));
    }
    if (classes->smoothing > 0) sums.push_back(WeightedLogits(logits, largest, *classes));
    at::Tensor local_sum;
    std::tie(kept->exponentials, local_sum) = Exponentials(logits, largest);
    sums.push_back(local_sum);
    const at::Tensor total = Summed(at::stack(sums), axis, comm::ReduceOp::kSum);
    kept->sum = total.select(0, total.size(0) - 1);
    kept->own = own;
    kept->logits_type = logits.scalar_type();
    const at::Tensor log = kept->sum.log();
    at::Tensor loss = own * (log - total.select(0, 0));
    if (classes->smoothing > 0) {
      kept->spread = spread;
      if (classes->weight.defined()) kept->own_weight = classes->own_weight();
      kept->total_weight =
          classes->weight.defined() ? classes->weight.sum().item<double>() : static_cast<double>(classes->all);
      loss = loss + spread * (log * kept->total_weight - total.select(0, 1));
    }
    ctx->saved_data["kept"] = c10::IValue::make_capsule(kept);
    return loss;
  }

  static variable_list backward(AutogradContext* ctx, variable_list gradients) {
    const auto kept = c10::static_intrusive_pointer_cast<Kept>(ctx->saved_data["kept"].toCapsule());
    TORCH_CHECK(!at::GradMode::is_enabled(), "vocab_parallel_cross_entropy has no gradients of gradients");
    TORCH_CHECK(
        kept->exponentials.defined(),
        "vocab_parallel_cross_entropy: backward works once, because the gradient takes the place of what forward "
        "kept; compute the loss again");
    at::Tensor gradient = std::move(kept->exponentials);
    kept->exponentials = at::Tensor();
    const at::ScalarType type = kept->logits_type;
    const at::Tensor own = kept->own * gradients.front();
    at::Tensor scale = own;
    if (kept->spread.defined()) {
      const at::Tensor spread = kept->spread * gradients.front();
      scale = own + spread * kept->total_weight;
      gradient.mul_((scale / kept->sum).unsqueeze(-1).to(type));
      if (kept->own_weight.defined()) {
        gradient.addr_(spread.to(type), kept->own_weight.to(type), /*beta=*/1, /*alpha=*/-1);
      } else {
        gradient.sub_(spread.unsqueeze(-1).to(type));
      }
    } else {
      gradient.mul_((scale / kept->sum).unsqueeze(-1).to(type));
    }
    if (gradient.size(1) > 0) {
      const at::Tensor at_target = own.neg().masked_fill(kept->elsewhere, 0).unsqueeze(-1);
      gradient.scatter_add_(-1, kept->place, at_target.to(type));
    }
    return {gradient, at::Tensor(), at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

void CheckTargets(const at::Tensor& target, const at::Tensor& ignored, int64_t classes) {
  if (!target.is_cpu()) return;
  const at::Tensor outside = target.lt(0).logical_or(target.ge(classes)).logical_and(ignored.logical_not());
  if (!outside.any().item<bool>()) return;
  TORCH_CHECK(false, "vocab_parallel_cross_entropy: target ", target.masked_select(outside)[0].item<int64_t>(),
              " is outside of ", classes, " classes");
}

Classes OwnClasses(const at::Tensor& logits, const TensorAxis& axis, const VocabParallelCrossEntropyOptions& options) {
  Classes classes = {.axis = axis, .weight = options.weight(), .smoothing = options.label_smoothing()};
  classes.all = options.num_classes() == 0 ? logits.size(-1) * axis.size() : options.num_classes();
  const std::vector<int64_t> sizes = ChunkSizes(classes.all, axis.size());
  for (int rank = 0; rank < axis.rank(); ++rank) classes.first += sizes[rank];
  classes.count = sizes[axis.rank()];
  TORCH_CHECK(classes.count == logits.size(-1), "vocab_parallel_cross_entropy: rank ", axis.rank(), " of ", axis.size(),
              " has ", logits.size(-1), " classes, and its part of ", classes.all, " is ", classes.count,
              "; num_classes says how many there are in all");
  TORCH_CHECK(!classes.weight.defined() || (classes.weight.dim() == 1 && classes.weight.size(0) == classes.all),
              "vocab_parallel_cross_entropy: the weights have sizes ",
              classes.weight.defined() ? classes.weight.sizes() : at::IntArrayRef(), ", and there are ", classes.all,
              " classes");
  TORCH_CHECK(classes.smoothing >= 0 && classes.smoothing <= 1,
              "vocab_parallel_cross_entropy: label_smoothing must be from 0 to 1, got ", classes.smoothing);
  return classes;
}

}  // namespace

at::Tensor vocab_parallel_cross_entropy(const at::Tensor& logits, const at::Tensor& target, const TensorAxis& axis,
                                        const VocabParallelCrossEntropyOptions& options) {
  TORCH_CHECK(logits.dim() >= 1 && logits.sizes().slice(0, logits.dim() - 1) == target.sizes(),
              "vocab_parallel_cross_entropy: logits of sizes ", logits.sizes(), " and targets of sizes ",
              target.sizes());
  const Classes classes = OwnClasses(logits, axis, options);
  const at::Tensor flat = target.reshape({-1}), ignored = flat.eq(options.ignore_index());
  CheckTargets(flat, ignored, classes.all);
  const at::ScalarType type = logits.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const at::TensorOptions floats = logits.options().dtype(type).requires_grad(false);
  const at::Tensor outside = flat.lt(0).logical_or(flat.ge(classes.all));
  at::Tensor weight = at::ones(flat.sizes(), floats);  // of each row's target
  if (classes.weight.defined()) {
    weight = classes.weight.to(floats).index_select(0, flat.masked_fill(outside, 0));
  }
  weight = weight.masked_fill(outside, std::numeric_limits<double>::quiet_NaN()).masked_fill(ignored, 0);
  const at::Tensor own = weight * (1 - classes.smoothing);
  const at::Tensor spread =
      at::full(flat.sizes(), classes.smoothing / static_cast<double>(classes.all), floats).masked_fill(ignored, 0);
  const at::Tensor rows = logits.reshape({flat.numel(), logits.size(-1)});
  const at::Tensor losses = CrossEntropyFunction::apply(rows, flat, own, spread, &classes);
  switch (options.reduction()) {
    case at::Reduction::None:
      return losses.view(target.sizes());
    case at::Reduction::Sum:
      return losses.sum();
    default:
      // As torch: both terms are divided by the weights of the targets.
      return losses.sum() / weight.sum();
  }
}

}  // namespace cohort::trainer
