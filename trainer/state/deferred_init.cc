#include "cohort/trainer/state/deferred_init.h"

#include <algorithm>
#include <limits>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "ATen/EmptyTensor.h"
#include "ATen/core/dispatch/Dispatcher.h"
#include "torch/library.h"
#include "torch/torch.h"

namespace cohort::trainer {
namespace {

using c10::IValue;
using c10::OperatorHandle;
using torch::jit::Stack;

constexpr size_t kLeastBytes = 64 << 10;

at::Tensor WithoutMemory(const at::Tensor& shape) {
  const size_t bytes = at::detail::computeStorageNbytes(shape.sizes(), shape.strides(), shape.dtype().itemsize());
  c10::Storage storage(c10::Storage::use_byte_size_t(), bytes, c10::DataPtr(nullptr, c10::Device(c10::kCPU)),
                       c10::GetAllocator(c10::kCPU), /*resizable=*/true);
  at::Tensor made = at::detail::make_tensor<c10::TensorImpl>(std::move(storage),
                                                             c10::DispatchKeySet(c10::DispatchKey::CPU), shape.dtype());
  made.unsafeGetTensorImpl()->set_sizes_and_strides(shape.sizes(), shape.strides());
  return made;
}

// Every tensor in the value becomes what `change` makes of it.
template <typename Change>
void ChangeTensors(IValue& value, const Change& change) {
  if (value.isTensor()) {
    if (value.toTensor().defined()) value = change(value.toTensor());
  } else if (value.isTensorList()) {
    c10::List<at::Tensor> changed;
    for (const at::Tensor& tensor : value.toTensorVector()) changed.push_back(change(tensor));
    value = std::move(changed);
  }
}

bool AnyWithoutData(const std::vector<IValue>& values) {
  bool found = false;
  const auto look = [&found](const at::Tensor& tensor) {
    found = found || !HasData(tensor);
    return tensor;
  };
  for (IValue value : values) ChangeTensors(value, look);
  return found;
}

bool AnyTensor(const std::vector<IValue>& values) {
  return std::any_of(values.begin(), values.end(),
                     [](const IValue& value) { return value.isTensor() || value.isTensorList(); });
}

// The argument that is written to, or -1.
int Written(const c10::FunctionSchema& schema) {
  for (size_t i = 0; i < schema.arguments().size(); ++i) {
    const auto* alias = schema.arguments()[i].alias_info();
    if (alias != nullptr && alias->isWrite()) return static_cast<int>(i);
  }
  return -1;
}

// Changes sizes or what belongs to the tensor, not values.
bool ChangesOnlyMetadata(const std::string& name) {
  static const auto* names = new std::set<std::string>{
      "aten::requires_grad_", "aten::detach_",    "aten::rename_",   "aten::set_data",  "aten::retain_grad",
      "aten::resize_",        "aten::resize_as_", "aten::set_",      "aten::t_",        "aten::transpose_",
      "aten::squeeze_",       "aten::unsqueeze_", "aten::swapaxes_", "aten::swapdims_", "aten::as_strided_"};
  return names->count(name) > 0;
}

// Shares memory with an argument. (The first two may also copy.)
bool IsView(const c10::FunctionSchema& schema) {
  if (schema.name() == "aten::to" || schema.name() == "aten::contiguous") return false;
  return std::any_of(schema.arguments().begin(), schema.arguments().end(),
                     [](const c10::Argument& argument) { return argument.alias_info() != nullptr; });
}

void Push(Stack& stack, const std::vector<IValue>& values) { stack.insert(stack.end(), values.begin(), values.end()); }

// On the meta device. False if there is no kernel for that.
bool CallForShapes(const OperatorHandle& op, Stack& stack, const std::vector<IValue>& arguments) {
  const size_t before = stack.size();
  try {
    const at::NoGradGuard no_grad;
    Push(stack, arguments);
    op.callBoxed(&stack);
  } catch (const c10::Error&) {
    stack.resize(before);
    return false;
  }
  return true;
}

// A call that reads no tensor without memory: one that makes a large tensor makes it without memory.
void CallOrMake(const OperatorHandle& op, Stack& stack, std::vector<IValue> arguments) {
  const auto device = op.schema().argumentIndexWithName("device");
  const bool makes = device.has_value() && !AnyTensor(arguments) && op.schema().returns().size() == 1;
  if (makes && (arguments[*device].isNone() || arguments[*device].toDevice().is_cpu())) {
    std::vector<IValue> on_meta = arguments;
    on_meta[*device] = c10::Device(c10::kMeta);
    if (CallForShapes(op, stack, on_meta)) {
      IValue made = std::move(stack.back());
      stack.pop_back();
      if (made.isTensor() && made.toTensor().layout() == at::kStrided && made.toTensor().nbytes() >= kLeastBytes) {
        stack.emplace_back(WithoutMemory(made.toTensor()));
        return;
      }
    }
  }
  Push(stack, arguments);
  op.callBoxed(&stack);
}

// A call that reads some: results have shapes.
void CallWithoutValues(const OperatorHandle& op, Stack& stack, std::vector<IValue> arguments) {
  for (IValue& argument : arguments) {
    ChangeTensors(argument, [](const at::Tensor& tensor) {
      return at::empty_strided(tensor.sizes(), tensor.strides(),
                               tensor.options().device(c10::kMeta).requires_grad(false));
    });
  }
  TORCH_CHECK(CallForShapes(op, stack, arguments), "DeferredInit: ", op.schema().name(),
              " needs the values of a tensor that has none yet; compute it from smaller tensors, or after the guard");
  for (size_t i = stack.size() - op.schema().returns().size(); i < stack.size(); ++i) {
    ChangeTensors(stack[i], WithoutMemory);
  }
}

void Intercept(const OperatorHandle& op, Stack* stack) {
  const c10::impl::ExcludeDispatchKeyGuard below(c10::DispatchKey::DeferredInit);
  const c10::FunctionSchema& schema = op.schema();
  const auto begin = stack->end() - static_cast<std::ptrdiff_t>(schema.arguments().size());
  std::vector<IValue> arguments(begin, stack->end());
  stack->erase(begin, stack->end());
  if (!AnyWithoutData(arguments)) return CallOrMake(op, *stack, std::move(arguments));
  const int written = Written(schema);
  if (written >= 0 && !ChangesOnlyMetadata(schema.name()) && schema.returns().size() == 1) {
    TORCH_CHECK(!HasData(arguments[written].toTensor()), "DeferredInit: ", schema.name(),
                " writes values that do not exist yet into a tensor that has memory; do it after the guard");
    stack->push_back(arguments[written]);  // values come later
    return;
  }
  if (written >= 0 || IsView(schema)) {
    Push(*stack, arguments);
    return op.callBoxed(stack);
  }
  CallWithoutValues(op, *stack, std::move(arguments));
}

}  // namespace

DeferredInit::DeferredInit() : guard_(c10::DispatchKey::DeferredInit) {}

bool HasData(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.has_storage() || tensor.is_meta() || tensor.numel() == 0) return true;
  return tensor.storage().data() != nullptr;
}

at::Tensor WithoutValues(at::IntArrayRef sizes, const at::TensorOptions& options) {
  const auto type = c10::typeMetaToScalarType(options.dtype());
  if (!at::isFloatingType(type) && !at::isComplexType(type)) return at::zeros(sizes, options);
  return at::full(sizes, std::numeric_limits<double>::quiet_NaN(), options);
}

void materialize(torch::nn::Module& module) {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> tensors = module.parameters();
  const std::vector<at::Tensor> buffers = module.buffers();
  tensors.insert(tensors.end(), buffers.begin(), buffers.end());
  for (at::Tensor& tensor : tensors) {
    if (!HasData(tensor)) tensor.set_data(WithoutValues(tensor.sizes(), tensor.options().requires_grad(false)));
  }
}

TORCH_LIBRARY_IMPL(_, DeferredInit, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&Intercept>());
}

}  // namespace cohort::trainer
