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
  at::Tensor exponentials;  // [rows, own classes]; taken by backward. Undefined for small types: their logits are kept
  at::Tensor sum;           // of the exponentials over all classes
  at::Tensor largest;       // logit over all classes, for small types
  at::Tensor place;         // of the target among the own classes, 0 where it is elsewhere
  at::Tensor elsewhere;     // whether it is
  at::Tensor own, spread;
  at::Tensor own_weight;  // undefined: 1 for each class
  double total_weight = 0;
};

at::Tensor Summed(const at::Tensor& x, const TensorAxis& axis, comm::ReduceOp op) {
  return axis.size() == 1 ? x : StartAllReduce(x, axis.group(), op).Wait();
}

// The sum over the own classes of weight * (logit - largest), without a buffer of the logits' size.
at::Tensor WeightedLogits(const at::Tensor& logits, const at::Tensor& largest, const Classes& classes) {
  if (!classes.weight.defined()) return logits.sum(-1) - largest * static_cast<double>(classes.count);
  const at::Tensor weight = classes.own_weight().to(logits.scalar_type());
  return logits.matmul(weight) - largest * weight.sum();
}

// Whether logits are of a smaller type than what is computed with them.
bool IsSmall(const at::Tensor& logits, at::ScalarType type) { return logits.scalar_type() != type; }

// Calls visit(begin, count, piece) for some rows at a time, which `piece` has in `type`.
template <typename Visit>
void ForPieces(const at::Tensor& logits, at::ScalarType type, const Visit& visit) {
  constexpr int64_t kElements = int64_t{1} << 20;
  const int64_t rows = std::max<int64_t>(1, kElements / std::max<int64_t>(1, logits.size(1)));
  for (int64_t begin = 0; begin < logits.size(0); begin += rows) {
    const int64_t count = std::min(rows, logits.size(0) - begin);
    visit(begin, count, logits.narrow(0, begin, count).to(type));
  }
}

// Terms of each row that are summed over the ranks.
struct OwnTerms {
  at::Tensor exponentials;  // [rows, own classes] of (logit - largest); undefined for small types
  at::Tensor sum;           // of the exponentials
  at::Tensor weighted;      // WeightedLogits; undefined without smoothing
};
OwnTerms TermsOf(const at::Tensor& logits, const at::Tensor& largest, const Classes& classes) {
  OwnTerms terms;
  const bool smooths = classes.smoothing > 0;
  if (!IsSmall(logits, largest.scalar_type())) {
    if (smooths) terms.weighted = WeightedLogits(logits, largest, classes);
    terms.exponentials = logits.sub(largest.unsqueeze(-1)).exp_();
    terms.sum = terms.exponentials.sum(-1);
    return terms;
  }
  terms.sum = at::empty_like(largest);
  if (smooths) terms.weighted = at::empty_like(largest);
  ForPieces(logits, largest.scalar_type(), [&](int64_t begin, int64_t count, at::Tensor piece) {
    const at::Tensor most = largest.narrow(0, begin, count);
    if (smooths) terms.weighted.narrow(0, begin, count).copy_(WeightedLogits(piece, most, classes));
    terms.sum.narrow(0, begin, count).copy_(piece.sub_(most.unsqueeze(-1)).exp_().sum(-1));
  });
  return terms;
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
    OwnTerms terms = TermsOf(logits, largest, *classes);
    if (terms.weighted.defined()) sums.push_back(terms.weighted);
    sums.push_back(terms.sum);
    const at::Tensor total = Summed(at::stack(sums), axis, comm::ReduceOp::kSum);
    kept->sum = total.select(0, total.size(0) - 1);
    kept->own = own;
    kept->exponentials = std::move(terms.exponentials);
    const at::Tensor log = kept->sum.log();
    if (!kept->exponentials.defined()) {
      kept->largest = largest;
      ctx->save_for_backward({logits});
    }
    at::Tensor loss = own * (log - total.select(0, 0));
    if (classes->smoothing > 0) {
      kept->spread = spread;
      if (classes->weight.defined()) kept->own_weight = classes->own_weight().to(own.scalar_type());
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
    const at::Tensor own = kept->own * gradients.front();
    const at::Tensor spread = kept->spread.defined() ? kept->spread * gradients.front() : at::Tensor();
    const at::Tensor factor = (spread.defined() ? own + spread * kept->total_weight : own) / kept->sum;
    // Takes the targets and what is spread from `piece`, the scaled probabilities of `count` rows.
    const auto subtract = [&](int64_t begin, int64_t count, at::Tensor& piece) {
      const auto rows = [&](const at::Tensor& x) { return x.narrow(0, begin, count); };
      if (spread.defined() && kept->own_weight.defined()) {
        piece.addr_(rows(spread), kept->own_weight, /*beta=*/1, /*alpha=*/-1);
      } else if (spread.defined()) {
        piece.sub_(rows(spread).unsqueeze(-1));
      }
      if (piece.size(1) == 0) return;
      const at::Tensor at_target = rows(own).neg().masked_fill(rows(kept->elsewhere), 0).unsqueeze(-1);
      piece.scatter_add_(-1, rows(kept->place), at_target);
    };
    at::Tensor gradient;
    if (kept->largest.defined()) {
      const at::Tensor logits = ctx->get_saved_variables().front();
      gradient = at::empty_like(logits);
      ForPieces(logits, own.scalar_type(), [&](int64_t begin, int64_t count, at::Tensor piece) {
        piece.sub_(kept->largest.narrow(0, begin, count).unsqueeze(-1)).exp_();
        piece.mul_(factor.narrow(0, begin, count).unsqueeze(-1));
        subtract(begin, count, piece);
        gradient.narrow(0, begin, count).copy_(piece);
      });
    } else {
      TORCH_CHECK(
          kept->exponentials.defined(),
          "vocab_parallel_cross_entropy: backward works once, because the gradient takes the place of what forward "
          "kept; compute the loss again");
      gradient = std::exchange(kept->exponentials, at::Tensor());
      gradient.mul_(factor.unsqueeze(-1));
      subtract(0, gradient.size(0), gradient);
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
