#include "cohort/trainer/parallel/tensor/linear_functions.h"

#include <utility>
#include <vector>

#include "cohort/trainer/base/torch_compat.h"
#include "cohort/trainer/parallel/tensor/overlapped_product.h"
#include "torch/csrc/autograd/custom_function.h"
#include "torch/torch.h"

namespace cohort::trainer {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Everything that a call keeps for its backward pass.
struct Plan : torch::CustomClassHolder {
  Plan(comm::Communicator& group, const TensorAxis& axis, std::vector<int64_t> rows, std::source_location site)
      : product({group, axis.options().chunks, std::move(rows), site}), sequence(axis.sequence_parallel()) {}
  ProductPlan product;
  bool sequence;
};

c10::intrusive_ptr<Plan> PlanOf(const AutogradContext* ctx) {
  return c10::static_intrusive_pointer_cast<Plan>(ctx->saved_data.at("plan").toCapsule());
}

void RefuseSecondGradient() {
  TORCH_CHECK(!at::GradMode::is_enabled(),
              "parallel linear layers have no gradients of gradients; call backward() without create_graph");
}

at::Tensor AsMatrix(const at::Tensor& x) { return x.flatten(0, -2); }  // reshape(-1, 0) would be ambiguous
// The gradient of a weight whose layer has made `x` into something with gradient `gradient`.
at::Tensor WeightGradient(const at::Tensor& gradient, const at::Tensor& x) {
  return AsMatrix(gradient).t().mm(AsMatrix(x));
}

enum Inputs { kX, kWeight };

class ColumnFunction : public torch::autograd::Function<ColumnFunction> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& weight,
                            c10::intrusive_ptr<Plan> plan) {
    ctx->saved_data["plan"] = c10::IValue::make_capsule(plan);
    ctx->save_for_backward({x, weight});
    const Product product = [&](const at::Tensor& rows) { return rows.matmul(weight.t()); };
    return plan->sequence ? MultiplyGathered(x, product, plan->product).product : product(x);
  }

  static variable_list backward(AutogradContext* ctx, variable_list gradients) {
    RefuseSecondGradient();
    const auto plan = PlanOf(ctx);
    const variable_list saved = ctx->get_saved_variables();
    const at::Tensor &gradient = gradients.front(), &x = saved[0], &weight = saved[1];
    const Product product = [&](const at::Tensor& rows) { return rows.matmul(weight); };
    variable_list result(3);
    // Collectives first, products beside them.
    TensorCall gathering;
    if (plan->sequence && ctx->needs_input_grad(kWeight)) {
      gathering = StartAllGather(x, plan->product.group, plan->product.rows, plan->product.site);
    }
    std::vector<SumUnderWay> input_gradient;  // one or none
    if (ctx->needs_input_grad(kX)) {
      input_gradient.push_back(plan->sequence ? StartReduceScattered(gradient, product, plan->product)
                                              : StartAllReduced(gradient, product, plan->product));
    }
    if (ctx->needs_input_grad(kWeight)) {
      result[kWeight] = WeightGradient(gradient, plan->sequence ? gathering.Wait() : x);
    }
    for (SumUnderWay& sum : input_gradient) result[kX] = sum.Wait();
    return result;
  }
};

class RowFunction : public torch::autograd::Function<RowFunction> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& weight,
                            c10::intrusive_ptr<Plan> plan) {
    ctx->saved_data["plan"] = c10::IValue::make_capsule(plan);
    ctx->save_for_backward({x, weight});
    const Product product = [&](const at::Tensor& rows) { return rows.matmul(weight.t()); };
    return (plan->sequence ? StartReduceScattered(x, product, plan->product)
                           : StartAllReduced(x, product, plan->product))
        .Wait();
  }

  static variable_list backward(AutogradContext* ctx, variable_list gradients) {
    RefuseSecondGradient();
    const auto plan = PlanOf(ctx);
    const variable_list saved = ctx->get_saved_variables();
    const at::Tensor &x = saved[0], &weight = saved[1];
    const Product product = [&](const at::Tensor& rows) { return rows.matmul(weight); };
    at::Tensor whole = gradients.front(), input_gradient;
    if (plan->sequence) {
      std::tie(whole, input_gradient) = [&] {
        GatheredProduct both = MultiplyGathered(gradients.front(), product, plan->product);
        return std::pair(both.gathered, both.product);
      }();
    } else if (ctx->needs_input_grad(kX)) {
      input_gradient = product(whole);
    }
    at::Tensor weight_gradient;
    if (ctx->needs_input_grad(kWeight)) weight_gradient = WeightGradient(whole, x);
    return {input_gradient, weight_gradient, at::Tensor()};
  }
};

// The tensor as autocasting would cast it for a product, which it does inside of no function of our own.
at::Tensor Cast(const at::Tensor& x) {
  if (!x.defined() || !compat::AutocastEnabled(x.device().type())) return x;
  return at::autocast::cached_cast(compat::AutocastType(x.device().type()), x, x.device().type());
}

// `x` with its sequence in front, where it is split.
at::Tensor ToFront(const at::Tensor& x, const TensorAxis& axis) {
  if (!axis.sequence_parallel() || axis.options().sequence_dim == 0) return x;
  return x.movedim(axis.options().sequence_dim, 0);
}
at::Tensor FromFront(const at::Tensor& x, const TensorAxis& axis) {
  if (!axis.sequence_parallel() || axis.options().sequence_dim == 0) return x;
  return x.movedim(0, axis.options().sequence_dim);
}

void CheckInput(const char* name, const at::Tensor& x, const at::Tensor& weight, const TensorAxis& axis) {
  TORCH_CHECK(x.dim() >= 1 && x.size(-1) == weight.size(1), name, ": an input of sizes ", x.sizes(),
              " does not fit a weight of sizes ", weight.sizes(), " on rank ", axis.rank(), " of ", axis.size());
  TORCH_CHECK(!axis.sequence_parallel() || axis.options().sequence_dim < x.dim() - 1, name, ": dimension ",
              axis.options().sequence_dim, " of an input of sizes ", x.sizes(), " is no sequence");
}

}  // namespace

at::Tensor column_parallel_linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                                  const TensorAxis& axis, std::source_location site) {
  if (x.dim() == 1) return column_parallel_linear(x.unsqueeze(0), weight, bias, axis, site).squeeze(0);
  CheckInput("column_parallel_linear", x, weight, axis);
  if (axis.size() == 1) return torch::nn::functional::linear(x, weight, bias);
  const at::Tensor rows = ToFront(x, axis);
  std::vector<int64_t> sizes;
  if (axis.sequence_parallel()) sizes = ChunkSizes(axis.sequence_length(rows.size(0)), axis.size());
  auto plan = c10::make_intrusive<Plan>(axis.group(), axis, std::move(sizes), site);
  const at::Tensor y = FromFront(ColumnFunction::apply(Cast(rows), Cast(weight), std::move(plan)), axis);
  return bias.defined() ? y + Cast(bias) : y;
}

at::Tensor row_parallel_linear(const at::Tensor& x, const at::Tensor& weight, const TensorAxis& axis,
                               std::source_location site) {
  if (x.dim() == 1) return row_parallel_linear(x.unsqueeze(0), weight, axis, site).squeeze(0);
  CheckInput("row_parallel_linear", x, weight, axis);
  if (axis.size() == 1) return x.matmul(weight.t());
  const at::Tensor rows = ToFront(x, axis);
  std::vector<int64_t> sizes;
  if (axis.sequence_parallel()) sizes = ChunkSizes(rows.size(0), axis.size());
  auto plan = c10::make_intrusive<Plan>(axis.group(), axis, std::move(sizes), site);
  return FromFront(RowFunction::apply(Cast(rows), Cast(weight), std::move(plan)), axis);
}

}  // namespace cohort::trainer
