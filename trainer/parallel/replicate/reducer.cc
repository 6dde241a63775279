#include "cohort/trainer/parallel/replicate/reducer.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <utility>

#include "cohort/runtime/base/mutex.h"
#include "cohort/runtime/ranges.h"
#include "cohort/trainer/autograd/autograd_graph.h"
#include "cohort/trainer/base/caught_error.h"
#include "cohort/trainer/base/error.h"
#include "cohort/trainer/parallel/replicate/bucket_set.h"
#include "cohort/trainer/parallel/replicate/gradient_order.h"
#include "cohort/trainer/parallel/replicate/parameter_usage.h"
#include "torch/csrc/autograd/engine.h"
#include "torch/csrc/autograd/function_hook.h"
#include "torch/csrc/autograd/utils/lambda_post_hook.h"
#include "torch/csrc/autograd/variable.h"
#include "torch/torch.h"

namespace cohort::trainer {
namespace {

constexpr const char* kEndedByException =
    "DistributedDataParallel: an exception has ended the last backward pass within what was to be averaged: "
    "gradients no longer fit those of other ranks; wrap the module again";

ParameterUsage::State UsageOf(const ReducerOptions& options) {
  if (options.find_unused_parameters) return ParameterUsage::State::kAlways;
  return options.static_graph ? ParameterUsage::State::kOnce : ParameterUsage::State::kNever;
}

// The parameters that require a gradient, or the others.
std::vector<ReducedParameter> WithGradients(const std::vector<ReducedParameter>& parameters, bool require) {
  std::vector<ReducedParameter> found;
  for (const ReducedParameter& each : parameters) {
    if (each.tensor.requires_grad() == require) found.push_back(each);
  }
  return found;
}

// Whether the pass that runs now puts a gradient into the .grad of one of these. autograd::grad does not (a penalty on
// gradients of the inputs asks for it between forward and backward), nor need backward() with inputs of its own.
bool GivesGradients(const std::vector<std::shared_ptr<void>>& accumulators) {
  const auto* nodes = torch::autograd::get_current_graph_task_exec_info();
  if (nodes == nullptr || nodes->empty()) return true;  // backward() to all leaves
  return std::any_of(accumulators.begin(), accumulators.end(), [&](const std::shared_ptr<void>& accumulator) {
    const auto found = nodes->find(static_cast<torch::autograd::Node*>(accumulator.get()));
    return found != nodes->end() && found->second.needed_;
  });
}

}  // namespace

// Hooks may outlive the reducer (the graph keeps them); they find a null owner then. On CUDA they run on the engine's
// threads, one per device, hence the lock.
struct Reducer::Shared {
  runtime::Mutex mutex;
  Reducer* owner COHORT_GUARDED_BY(mutex) = nullptr;
  std::vector<ReducedParameter> frozen = {};          // when the reducer was made
  std::optional<runtime::Range> pass = std::nullopt;  // under way, for traces; with the lock

  void BeginPass(const char* name) {
    DropPass();
    pass.emplace(name, runtime::RangeLane::kPasses);
  }
  // It did not come to its end.
  void DropPass() {
    if (pass.has_value()) pass->Drop();
    pass.reset();
  }
};

Reducer::Reducer(std::vector<ReducedParameter> parameters, std::vector<comm::Communicator*> groups,
                 ReducerOptions options)
    : parameters_(WithGradients(parameters, true)),
      options_(options),
      shared_(std::make_shared<Shared>()),
      buckets_(std::make_unique<BucketSet>(parameters_, std::move(groups), options.gradient_as_bucket_view)),
      order_(std::make_unique<GradientOrder>(parameters_.size())),
      usage_(std::make_unique<ParameterUsage>(parameters_.size(), UsageOf(options))),
      calls_(parameters_.size(), 0),
      accumulated_(parameters_.size(), false) {
  shared_->frozen = WithGradients(parameters, false);
  TORCH_CHECK(!options_.static_graph || !options_.find_unused_parameters,
              "DistributedDataParallel: static_graph finds unused parameters by itself; leave find_unused_parameters "
              "off");
  std::vector<int> order(parameters_.size());
  std::iota(order.rbegin(), order.rend(), 0);  // the last layers' gradients come first
  buckets_->Build(order, options_.limits);
  for (int i = 0; i < static_cast<int>(parameters_.size()); ++i) AddHook(i);
  // Last: the destructor of an object whose constructor has thrown does not run, and hooks must not find it.
  runtime::MutexLock lock(shared_->mutex);
  shared_->owner = this;
}

Reducer::~Reducer() {
  runtime::MutexLock lock(shared_->mutex);
  shared_->owner = nullptr;
}

void Reducer::Become(Stage next) {
  const bool open = stage_ == Stage::kIdle || stage_ == Stage::kExpecting;
  const bool legal = next == Stage::kIdle || (next == Stage::kBackward ? stage_ == Stage::kExpecting : open);
  TORCH_INTERNAL_ASSERT(legal, "the reducer goes from stage ", static_cast<int>(stage_), " to ",
                        static_cast<int>(next));
  stage_ = next;
}

void Reducer::AddHook(int parameter) {
  auto accumulator = torch::autograd::impl::grad_accumulator(parameters_[parameter].tensor);
  TORCH_CHECK(accumulator != nullptr, "DistributedDataParallel: parameter ", parameters_[parameter].name,
              " is no leaf that requires a gradient");
  accumulator->add_post_hook(std::make_unique<torch::autograd::utils::LambdaPostHook>(
      [shared = shared_, parameter](const torch::autograd::variable_list& outputs,
                                    const torch::autograd::variable_list&) {
        runtime::MutexLock lock(shared->mutex);
        if (shared->owner != nullptr) shared->owner->OnGradient(parameter);
        return outputs;
      }));
  accumulators_.push_back(std::move(accumulator));
}

const std::vector<std::vector<int>>& Reducer::buckets() const { return buckets_->assignment(); }

bool Reducer::rebuilt() const { return order_->agreed(); }

void Reducer::RegisterCommHook(std::shared_ptr<CommHook> hook) {
  runtime::MutexLock lock(shared_->mutex);
  TORCH_CHECK(hook != nullptr, "DistributedDataParallel: register_comm_hook needs a hook");
  TORCH_CHECK(!buckets_->to_owners(),
              "ShardedDataParallel: communication hooks average for all ranks, which it does not");
  TORCH_CHECK(!buckets_->has_hook(), "DistributedDataParallel: a communication hook is registered already");
  buckets_->set_hook(std::move(hook));
}

void Reducer::PrepareForward(bool averages) {
  runtime::MutexLock lock(shared_->mutex);
  for (const ReducedParameter& each : shared_->frozen) {
    if (!averages || !each.tensor.requires_grad()) continue;
    const std::string message =
        "DistributedDataParallel: parameter " + each.name +
        " requires a gradient, and did not when the module was wrapped: its gradient would not be averaged. Wrap the "
        "module before parameters are frozen, with find_unused_parameters, or wrap it again when they are thawed";
    Fail(message);
    throw DistributedError(absl::StatusCode::kFailedPrecondition, message);
  }
  if (averages) buckets_->BeginIteration();
  if (stage_ == Stage::kBackward && !pass_.goes_on_here()) {
    Fail(kEndedByException);
    throw DistributedError(absl::StatusCode::kFailedPrecondition, kEndedByException);
  }
  if (stage_ != Stage::kBackward) shared_->DropPass();  // a forward pass that had no end
  // All buckets may have left without a backward pass that reached this rank's parameters: they end here.
  if (stage_ != Stage::kIdle && buckets_->launched_all()) {
    FinishGuarded();
  } else if (stage_ == Stage::kBackward || (stage_ == Stage::kExpecting && buckets_->launched_some())) {
    ThrowForMissing();
  } else if (averages) {
    Become(Stage::kIdle);
  }
  // Otherwise this is an evaluation or a forward pass under no_sync: the backward pass that is to come stays as it is.
  shared_->BeginPass("forward");
}

bool Reducer::NeedsRebuild() const {
  runtime::MutexLock lock(shared_->mutex);
  return !options_.find_unused_parameters && order_->known();
}

void Reducer::Rebuild(int root) {
  runtime::MutexLock lock(shared_->mutex);
  buckets_->Build(order_->Agree(*buckets_->groups().front(), root), options_.limits);
}

void Reducer::BeginCollecting(Stage stage, int divisor) {
  Become(stage);
  ready_.assign(parameters_.size(), false);
  calls_.assign(parameters_.size(), 0);
  unused_.clear();  // of a forward pass that no backward pass followed
  unused_may_come_ = false;
  together_ = false;
  buckets_->Begin(divisor);
}

void Reducer::PrepareBackward(const std::vector<at::Tensor>& outputs, int divisor) {
  runtime::MutexLock lock(shared_->mutex);
  shared_->pass.reset();
  BeginCollecting(Stage::kExpecting, divisor);
  order_->BeginOwn();
  // The outputs' hooks run in the outermost backward pass: the end of one within (a checkpoint's) is none for us.
  bool backward_comes = false;
  for (const at::Tensor& output : outputs) {
    if (!output.defined() || !output.requires_grad()) continue;
    backward_comes = true;
    output.register_hook([shared = shared_](const at::Tensor&) {
      runtime::MutexLock hook_lock(shared->mutex);
      if (shared->owner != nullptr) shared->owner->BeginBackward();
    });
  }
  try {
    FindUnused(outputs);
    if (!backward_comes) MarkUnused();
  } catch (...) {
    Fail(TextOfCaught());
    ThrowCaught("DistributedDataParallel");
  }
}

void Reducer::PrepareAccumulation(const std::vector<at::Tensor>& outputs, bool searched) {
  runtime::MutexLock lock(shared_->mutex);
  shared_->pass.reset();
  TORCH_CHECK(
      searched || stage_ == Stage::kIdle,
      "DistributedDataParallel: under no_sync forward() returned a type whose tensors can't be found, after a "
      "forward pass whose gradients are yet to be averaged: nobody could tell their backward passes apart; give "
      "the type an overload of AppendTensors (trainer/base/tensors_of.h)");
  for (const at::Tensor& output : outputs) {
    if (!output.defined() || !output.requires_grad()) continue;
    output.register_hook([shared = shared_](const at::Tensor&) {
      runtime::MutexLock hook_lock(shared->mutex);
      if (shared->owner != nullptr) shared->owner->BeginAccumulating();
    });
  }
}

// Nothing need be done where no average is to come. A pass that averages has begun in kBackward: it averages the
// gradients of both losses together.
void Reducer::BeginAccumulating() {
  if (stage_ != Stage::kExpecting || accumulating_.goes_on() || !GivesGradients(accumulators_)) return;
  accumulating_.Begin([shared = shared_] {
    runtime::MutexLock lock(shared->mutex);
    if (shared->owner != nullptr) shared->owner->accumulating_.End();
  });
}

void Reducer::FindUnused(const std::vector<at::Tensor>& outputs) {
  std::vector<bool> reached;
  if (options_.find_unused_parameters) {
    std::vector<at::Tensor> leaves;
    for (const ReducedParameter& parameter : parameters_) leaves.push_back(parameter.tensor);
    BackwardReach reach = ReachOf(outputs, leaves);
    reached = std::move(reach.leaves);
    unused_may_come_ = reach.checkpoints;
  } else if (!expected_calls_.empty()) {
    for (int calls : expected_calls_) reached.push_back(calls > 0);
  }
  for (int i = 0; i < static_cast<int>(reached.size()); ++i) {
    if (!reached[i]) unused_.push_back(i);
  }
}

void Reducer::MarkUnused() {
  for (const int parameter : std::exchange(unused_, {})) {
    if (!ready_[parameter]) MarkReady(parameter);
  }
}

// Called by the hooks of the outputs.
void Reducer::BeginBackward() {
  if (!GivesGradients(accumulators_)) return;
  together_ = accumulating_.goes_on() || together_;  // the loss is of this forward pass, too
  accumulating_.End();
  if (stage_ == Stage::kIdle) {
    // The graph had its backward pass, or another forward pass came first. Gradients that follow would make the ranks
    // differ.
    again_.Begin([shared = shared_] {
      runtime::MutexLock lock(shared->mutex);
      if (shared->owner != nullptr) shared->owner->again_.End();
    });
    return;
  }
  try {
    EnterBackward();
  } catch (...) {
    Fail(TextOfCaught());
    ThrowCaught("DistributedDataParallel");
  }
}

// Called by each hook of a pass that averages; the first one queues its end. Unused parameters are ready then, as in
// PyTorch: until backward begins their .grad is the user's.
void Reducer::EnterBackward() {
  if (stage_ == Stage::kBackward) {
    TORCH_CHECK(pass_.goes_on(), kEndedByException);
    return;
  }
  Become(Stage::kBackward);
  shared_->BeginPass("backward");
  pass_.Begin([shared = shared_] {
    runtime::MutexLock lock(shared->mutex);
    if (shared->owner != nullptr) shared->owner->FinishGuarded();
  });
  if (!unused_may_come_) MarkUnused();
}

void Reducer::ReduceAccumulated(int divisor) {
  runtime::MutexLock lock(shared_->mutex);
  // A parameter that nobody used would get zeros for a gradient, by which optimizers with momentum or weight decay
  // step.
  const bool all = std::find(accumulated_.begin(), accumulated_.end(), false) == accumulated_.end();
  if (!all && UsageOf(options_) == ParameterUsage::State::kNever) {
    ready_ = accumulated_;
    ThrowForMissing();
  }
  SendAccumulated(divisor);
}

void Reducer::ShadowBackward(int divisor) {
  runtime::MutexLock lock(shared_->mutex);
  order_->BeginShadow();
  SendAccumulated(divisor);
  order_->EndShadow();
}

void Reducer::SendAccumulated(int divisor) {
  BeginCollecting(Stage::kShadowing, divisor);
  try {
    for (const auto& members : buckets_->assignment()) {
      for (const int parameter : members) {
        calls_[parameter] = accumulated_[parameter] ? 1 : 0;
        MarkReady(parameter);
      }
    }
  } catch (...) {
    Fail(TextOfCaught());
    ThrowCaught("DistributedDataParallel");
  }
  FinishGuarded();
}

void Reducer::OnGradient(int parameter) {
  usage_->Mark(parameter);
  if (accumulating_.goes_on() || (stage_ == Stage::kIdle && !again_.goes_on())) {
    accumulated_[parameter] = true;
    return;
  }
  try {
    TORCH_CHECK(stage_ != Stage::kIdle, "DistributedDataParallel: parameter ", parameters_[parameter].name,
                " got a gradient of a forward pass that had its backward pass, or was followed by another forward pass "
                "before it: it would not be averaged. Call backward() once after each forward(), of the sum of the "
                "losses, or accumulate under no_sync");
    EnterBackward();
    const int calls = ++calls_[parameter];
    if (calls == 1) order_->Saw(parameter);
    if (first_static_iteration()) return;  // all of them at the end
    if (options_.static_graph) {
      TORCH_CHECK(calls <= expected_calls_[parameter], "DistributedDataParallel: static_graph is on, but parameter ",
                  parameters_[parameter].name, " got ", calls, " gradients in this backward pass and ",
                  expected_calls_[parameter], " in the first one");
      if (calls < expected_calls_[parameter]) return;
    }
    MarkReady(parameter);
  } catch (...) {
    Fail(TextOfCaught());
    ThrowCaught("DistributedDataParallel");
  }
}

void Reducer::MarkReady(int parameter) {
  TORCH_CHECK(!ready_[parameter], "DistributedDataParallel: the gradient of parameter ", parameters_[parameter].name,
              " became ready twice in one backward pass; call forward() once before each backward(), or set "
              "static_graph where a checkpointed function uses it repeatedly");
  ready_[parameter] = true;
  const bool used = calls_[parameter] > 0;
  // The .grad of a rank that shadows is an average that all have had, unless it has accumulated since.
  const bool averaged = stage_ == Stage::kShadowing && !used;
  const at::Tensor grad = averaged ? at::Tensor() : parameters_[parameter].tensor.grad();
  if (buckets_->Add(parameter, grad, used)) usage_->Start(*buckets_->groups().front());
}

// Parameters that only the forward pass under no_sync has used: their gradients came before the pass was known to
// average.
void Reducer::MarkAccumulated() {
  for (int i = 0; i < static_cast<int>(parameters_.size()); ++i) {
    if (ready_[i] || !accumulated_[i]) continue;
    calls_[i] = 1;
    order_->Saw(i);
    MarkReady(i);
  }
}

// The end of a backward pass.
void Reducer::FinishGuarded() {
  if (stage_ == Stage::kIdle) return;  // a hook has failed
  try {
    Finish();
  } catch (...) {
    if (stage_ != Stage::kIdle) Fail(TextOfCaught());
    ThrowCaught("DistributedDataParallel");
  }
  shared_->pass.reset();
  Become(Stage::kIdle);
}

void Reducer::Finish() {
  const bool learns_calls = first_static_iteration() && stage_ != Stage::kShadowing;
  for (int i = 0; learns_calls && i < static_cast<int>(parameters_.size()); ++i) MarkReady(i);
  MarkUnused();
  if (together_) MarkAccumulated();
  if (!buckets_->launched_all()) ThrowForMissing();
  AwaitBuckets();
  if (!learns_calls) return;
  expected_calls_ = calls_;
  // Parameters that no rank uses give no order: their place is at the end.
  for (int i = 0; i < static_cast<int>(parameters_.size()); ++i) {
    if (calls_[i] == 0) order_->Saw(i);
  }
}

void Reducer::AwaitBuckets() {
  std::string context;
  const absl::Status status = buckets_->Wait(context);
  if (!status.ok()) {
    Become(Stage::kIdle);  // the communicator has failed already: nobody need be told
    ThrowUnlessAllCame(status, context);
  }
  usage_->Finish();
  buckets_->CopyOut(usage_->unused());
  accumulated_.assign(parameters_.size(), false);
}

void Reducer::Abort(const std::string& why) {
  runtime::MutexLock lock(shared_->mutex);
  Fail(why);
}

void Reducer::Fail(const std::string& why) {
  shared_->DropPass();
  Become(Stage::kIdle);
  for (comm::Communicator* group : buckets_->groups()) group->Abort(why);
}

void Reducer::ThrowForMissing() {
  std::string names;
  int missing = 0;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    if (ready_[i]) continue;
    if (++missing <= 8) names += (names.empty() ? "" : ", ") + parameters_[i].name;
  }
  if (missing > 8) names += ", ...";
  const char* remedy = options_.find_unused_parameters ? "Use every output of forward() in the loss"
                       : options_.static_graph
                           ? "static_graph is on, and the first backward pass had them: leave it off"
                           : "Use every parameter in the loss, set find_unused_parameters, or freeze the unused ones "
                             "(requires_grad_(false)) before wrapping the module";
  const std::string message = "DistributedDataParallel: the backward pass gave no gradient for " +
                              std::to_string(missing) + " of " + std::to_string(parameters_.size()) + " parameters (" +
                              names + "), so their buckets can't be averaged. " + remedy;
  // The other ranks wait for these buckets: they are told now, and do not run into their timeout.
  Fail(message);
  throw DistributedError(absl::StatusCode::kFailedPrecondition, message);
}

}  // namespace cohort::trainer
