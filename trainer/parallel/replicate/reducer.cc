#include "cohort/trainer/parallel/replicate/reducer.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "cohort/runtime/base/mutex.h"
#include "cohort/trainer/autograd/autograd_graph.h"
#include "cohort/trainer/base/caught_error.h"
#include "cohort/trainer/base/error.h"
#include "cohort/trainer/base/tensor_buffer.h"
#include "cohort/trainer/parallel/replicate/reducer_state.h"
#include "cohort/trainer/transfer/collectives.h"
#include "cohort/trainer/transfer/window_tensor.h"
#include "torch/csrc/autograd/engine.h"
#include "torch/csrc/autograd/function_hook.h"
#include "torch/csrc/autograd/utils/lambda_post_hook.h"
#include "torch/csrc/autograd/variable.h"
#include "torch/torch.h"

namespace cohort::trainer {
namespace {

constexpr const char* kEndedByException =
    "DistributedDataParallel: an exception has ended the last backward pass within what was to be averaged: "
    "gradients no longer fit those of other ranks; wrap the module anew";

}  // namespace

Reducer::Reducer(std::vector<ReducedParameter> parameters, std::vector<comm::Communicator*> groups,
                 ReducerOptions options)
    : parameters_(std::move(parameters)),
      groups_(std::move(groups)),
      options_(options),
      shared_(std::make_shared<Shared>()) {
  TORCH_CHECK(!parameters_.empty(), "DistributedDataParallel: the module has no parameter that requires a gradient");
  TORCH_CHECK(!options_.static_graph || !options_.find_unused_parameters,
              "DistributedDataParallel: static_graph finds unused parameters by itself; leave find_unused_parameters "
              "off");
  std::vector<int> order(parameters_.size());
  std::iota(order.rbegin(), order.rend(), 0);  // the last layers' gradients come first
  BuildBuckets(order);
  unused_.clear();
  calls_.assign(parameters_.size(), 0);
  accumulated_.assign(parameters_.size(), false);
  kept_.resize(parameters_.size());
  globally_unused_.assign(parameters_.size(), false);
  usage_ = at::zeros({static_cast<int64_t>(parameters_.size())}, at::kInt);
  for (int i = 0; i < static_cast<int>(parameters_.size()); ++i) AddHook(i);
  // Last: the destructor of an object whose constructor has thrown does not run, and hooks must not find it.
  runtime::MutexLock lock(shared_->mutex);
  shared_->owner = this;
}

Reducer::~Reducer() {
  {
    runtime::MutexLock lock(shared_->mutex);
    shared_->owner = nullptr;
  }
  // Buckets are being read and written by operations under way; those must end before the memory does. They are
  // bounded by their own timeout, and fail at once when a peer is gone.
  for (auto& bucket : buckets_) {
    const absl::Status ignored = bucket->work.Wait();
    (void)ignored;
  }
  const absl::Status ignored = usage_work_.Wait();
  (void)ignored;
  for (const comm::Communicator* group : groups_) NoteGroupEnd(*group);  // a failed hook's, whose groups go next
  for (const auto& bucket : buckets_) LeaveWindow(bucket->buffer);
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

void Reducer::BuildBuckets(const std::vector<int>& order) {
  std::vector<ParameterSize> sizes;
  for (const ReducedParameter& parameter : parameters_) {
    sizes.push_back({static_cast<int64_t>(parameter.tensor.nbytes()), static_cast<int>(parameter.tensor.scalar_type()),
                     parameter.device});
  }
  assignment_ = AssignBuckets(sizes, order, options_.limits);
  // Window memory may not outlive the job, which gradients may that are views of it, and what users hold of them.
  for (const auto& bucket : buckets_) LeaveWindow(bucket->buffer);
  buckets_.clear();
  bucket_of_.assign(parameters_.size(), -1);
  offset_of_.assign(parameters_.size(), 0);
  slots_.assign(parameters_.size(), {});
  for (int b = 0; b < static_cast<int>(assignment_.size()); ++b) BuildBucket(b);
}

void Reducer::BuildBucket(int index) {
  auto bucket = std::make_unique<Bucket>();
  bucket->members = assignment_[index];
  std::stable_sort(bucket->members.begin(), bucket->members.end(),
                   [this](int a, int b) { return parameters_[a].owner < parameters_[b].owner; });
  const ReducedParameter& first = parameters_[bucket->members.front()];
  bucket->group = groups_.at(first.device);
  bucket->options = first.tensor.options().requires_grad(false);
  for (int member : bucket->members) {
    TORCH_CHECK(parameters_[member].tensor.device() == first.tensor.device(), "DistributedDataParallel: parameters ",
                first.name, " on ", first.tensor.device(), " and ", parameters_[member].name, " on ",
                parameters_[member].tensor.device(), " both belong to device index ", first.device,
                "; say which modules sit where in DistributedDataParallelOptions::parts");
    bucket_of_[member] = index;
  }
  LayOut(*bucket);
  if (!to_owners()) {
    bucket->buffer = ZerosInWindow(*bucket->group, bucket->elements, bucket->options);
    bucket->streams.Enter(bucket->buffer);
    for (int member : bucket->members) {
      slots_[member] = SlotIn(bucket->buffer, offset_of_[member], parameters_[member].tensor.numel());
    }
  }
  bucket->context = "averaging gradient bucket " + std::to_string(index) + " (" + std::to_string(bucket->elements) +
                    " elements, from " + first.name + ")";
  buckets_.push_back(std::move(bucket));
}

void Reducer::LayOut(Bucket& bucket) {
  bucket.counts.assign(bucket.group->size(), 0);
  for (int member : bucket.members) {
    offset_of_[member] = bucket.elements;
    bucket.elements += parameters_[member].tensor.numel();
    if (to_owners()) bucket.counts.at(parameters_[member].owner) += parameters_[member].tensor.numel();
  }
  for (int rank = 0; rank < bucket.group->rank(); ++rank) bucket.first += bucket.counts[rank];
}

// Without owners buckets keep their memory.
void Reducer::EnsureBuffer(Bucket& bucket) {
  if (!bucket.buffer.defined()) bucket.buffer = at::empty({bucket.elements}, bucket.options);
}

at::Tensor Reducer::ViewOf(int parameter) const {
  const at::Tensor& tensor = parameters_[parameter].tensor;
  return buckets_[bucket_of_[parameter]]->buffer.narrow(0, offset_of_[parameter], tensor.numel()).view(tensor.sizes());
}

void Reducer::RegisterCommHook(std::shared_ptr<CommHook> hook) {
  runtime::MutexLock lock(shared_->mutex);
  TORCH_CHECK(hook != nullptr, "DistributedDataParallel: register_comm_hook needs a hook");
  TORCH_CHECK(!to_owners(), "ShardedDataParallel: communication hooks average for all ranks, which it does not");
  TORCH_CHECK(hook_ == nullptr, "DistributedDataParallel: a communication hook is registered already");
  hook_ = std::move(hook);
}

void Reducer::PrepareForward(bool averages) {
  runtime::MutexLock lock(shared_->mutex);
  if (state_ == State::kCollecting) {
    if (callback_queued_ && !pass_.goes_on_here()) {
      Fail(kEndedByException);
      throw DistributedError(absl::StatusCode::kFailedPrecondition, kEndedByException);
    }
    // All buckets may have left without a backward pass that reached this rank's parameters: they end here.
    if (next_bucket_ == buckets_.size()) {
      FinishGuarded();
    } else if (next_bucket_ > 0 || callback_queued_) {
      ThrowForMissing();
    }
  }
  // An evaluation or a forward pass under no_sync leaves the backward pass that is to come as it is.
  if (!averages && next_bucket_ == 0 && !callback_queued_) return;
  state_ = State::kIdle;
}

bool Reducer::NeedsRebuild() const {
  runtime::MutexLock lock(shared_->mutex);
  const bool observed = others_observed_ || observed_order_.size() == parameters_.size();
  return !rebuilt_ && !options_.find_unused_parameters && observed;
}

void Reducer::Rebuild(int root) {
  runtime::MutexLock lock(shared_->mutex);
  at::Tensor order = at::zeros({static_cast<int64_t>(parameters_.size())}, at::kLong);
  std::copy(observed_order_.begin(), observed_order_.end(), order.data_ptr<int64_t>());
  ThrowUnlessAllCame(Broadcast(*groups_.front(), AsBuffer(order), root).Wait(),
                     "agreeing on the order of gradient buckets");
  const int64_t* data = order.data_ptr<int64_t>();
  BuildBuckets(std::vector<int>(data, data + order.numel()));
  observed_order_.clear();
  rebuilt_ = true;
}

void Reducer::BeginCollecting() {
  state_ = State::kCollecting;
  ready_.assign(parameters_.size(), false);
  next_bucket_ = 0;
  callback_queued_ = false;
  shadow_ = false;
  unused_may_come_ = false;
  together_ = false;
  unused_.clear();  // of a forward pass that no backward pass followed
  if (!rebuilt_) observed_order_.clear();
  calls_.assign(parameters_.size(), 0);
  for (auto& bucket : buckets_) bucket->pending = bucket->members.size();
}

void Reducer::PrepareBackward(const std::vector<at::Tensor>& outputs, int divisor) {
  runtime::MutexLock lock(shared_->mutex);
  BeginCollecting();
  others_observed_ = false;
  divisor_ = divisor;
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
  TORCH_CHECK(
      searched || state_ != State::kCollecting,
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

// Nothing need be done where no average is to come, nor in one that has begun: of both losses together.
void Reducer::BeginAccumulating() {
  if (state_ != State::kCollecting || callback_queued_ || accumulating_.goes_on() || !GivesGradients()) return;
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

void Reducer::BeginBackward() {
  if (!GivesGradients()) return;
  together_ = accumulating_.goes_on() || together_;  // the loss is of this forward pass, too
  accumulating_.End();
  if (state_ == State::kIdle) return BeginUnaveraged();
  try {
    QueueFinish();
  } catch (...) {
    Fail(TextOfCaught());
    ThrowCaught("DistributedDataParallel");
  }
}

// Whether the pass that runs now puts a gradient into a parameter's .grad. autograd::grad does not (a penalty on
// gradients of the inputs asks for it between forward and backward), nor need backward() with inputs of its own.
bool Reducer::GivesGradients() const {
  const auto* nodes = torch::autograd::get_current_graph_task_exec_info();
  if (nodes == nullptr || nodes->empty()) return true;  // backward() to all leaves
  return std::any_of(accumulators_.begin(), accumulators_.end(), [&](const std::shared_ptr<void>& accumulator) {
    const auto found = nodes->find(static_cast<torch::autograd::Node*>(accumulator.get()));
    return found != nodes->end() && found->second.needed_;
  });
}

// The graph had its backward pass, or another forward pass came first. Gradients that follow would make the ranks
// differ.
void Reducer::BeginUnaveraged() {
  again_.Begin([shared = shared_] {
    runtime::MutexLock lock(shared->mutex);
    if (shared->owner != nullptr) shared->owner->again_.End();
  });
}

void Reducer::ShadowBackward(int divisor) {
  runtime::MutexLock lock(shared_->mutex);
  BeginCollecting();
  shadow_ = true;
  divisor_ = divisor;
  try {
    for (const auto& members : assignment_) {
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
  others_observed_ = true;
}

// Once a backward pass, and within it. Unused parameters are ready then, as in PyTorch: what their .grad is is the
// user's affair until backward begins.
void Reducer::QueueFinish() {
  if (state_ != State::kCollecting) return;
  if (callback_queued_) {
    TORCH_CHECK(pass_.goes_on(), kEndedByException);
    return;
  }
  callback_queued_ = true;
  pass_.Begin([shared = shared_] {
    runtime::MutexLock lock(shared->mutex);
    if (shared->owner != nullptr) shared->owner->FinishGuarded();
  });
  if (!unused_may_come_) MarkUnused();
}

void Reducer::OnGradient(int parameter) {
  if (options_.find_unused_parameters || options_.static_graph) usage_.data_ptr<int32_t>()[parameter] = 1;
  if (accumulating_.goes_on() || (state_ != State::kCollecting && !again_.goes_on())) {
    accumulated_[parameter] = true;
    return;
  }
  try {
    TORCH_CHECK(state_ == State::kCollecting, "DistributedDataParallel: parameter ", parameters_[parameter].name,
                " got a gradient of a forward pass that had its backward pass, or was followed by another forward pass "
                "before it: it would not be averaged. Call backward() once after each forward(), of the sum of the "
                "losses, or accumulate under no_sync");
    QueueFinish();
    const int calls = ++calls_[parameter];
    if (!rebuilt_ && calls == 1) observed_order_.push_back(parameter);
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
  EnsureBuffer(*buckets_[bucket_of_[parameter]]);
  buckets_[bucket_of_[parameter]]->streams.Enter(buckets_[bucket_of_[parameter]]->buffer);
  CopyIntoBucket(parameter);
  if (to_owners()) {  // whose memory is free now; what nobody used comes back
    at::Tensor& grad = parameters_[parameter].tensor.mutable_grad();
    if (calls_[parameter] == 0) kept_[parameter] = grad;
    grad = at::Tensor();
  }
  if (--buckets_[bucket_of_[parameter]]->pending == 0) LaunchReadyBuckets();
}

void Reducer::CopyIntoBucket(int parameter) {
  at::Tensor grad = parameters_[parameter].tensor.grad();
  if (shadow_ && calls_[parameter] == 0) grad = at::Tensor();  // of an average that all have had
  const double share = hook_ != nullptr ? 1 : 1.0 / divisor_;  // a hook divides by itself
  if (calls_[parameter] > 0 && grad.defined() && FillSlot(slots_[parameter], grad, share)) return;
  const at::NoGradGuard no_grad;
  at::Tensor view = ViewOf(parameter);
  if (!grad.defined()) {  // unused, or a function of the graph gave none
    view.zero_();
    return;
  }
  TORCH_CHECK(grad.layout() == at::kStrided, "DistributedDataParallel: the gradient of ", parameters_[parameter].name,
              " is sparse; only dense gradients are averaged");
  const bool in_place = options_.gradient_as_bucket_view && grad.is_alias_of(view);
  if (in_place && calls_[parameter] == 0) kept_[parameter] = grad.detach().clone();
  if (hook_ != nullptr) {
    if (!in_place) view.copy_(grad);
    return;
  }
  if (grad.scalar_type() == at::kHalf || grad.scalar_type() == at::kBFloat16) {
    view.copy_(grad.to(at::kFloat).mul_(share));  // 1/3 as a bfloat16 would be wrong by 0.2 %
  } else if (in_place) {
    view.mul_(share);
  } else {
    at::mul_out(view, grad, at::scalar_tensor(share, at::TensorOptions(grad.scalar_type())));  // no kernel
  }
}

void Reducer::LaunchReadyBuckets() {
  for (; next_bucket_ < buckets_.size() && buckets_[next_bucket_]->pending == 0; ++next_bucket_) {
    Launch(*buckets_[next_bucket_], static_cast<int>(next_bucket_));
  }
  if (next_bucket_ == buckets_.size() && counts_usage()) {
    const comm::Buffer usage = AsBuffer(usage_);
    usage_work_ = AllReduce(*groups_.front(), usage, usage, comm::ReduceOp::kSum);
  }
}

void Reducer::Launch(Bucket& bucket, int index) {
  bucket.streams.Enter(bucket.buffer);
  if (to_owners()) return LaunchToOwners(bucket, index);
  if (hook_ == nullptr) {
    const comm::Buffer buffer = AsBuffer(bucket.buffer);
    bucket.work = AllReduce(*bucket.group, buffer, buffer, comm::ReduceOp::kSum);
    return;
  }
  GradBucket shown{.index = index,
                   .is_last = static_cast<size_t>(index) + 1 == buckets_.size(),
                   .buffer = bucket.buffer,
                   .gradients = {},
                   .parameters = {}};
  for (int member : bucket.members) {
    shown.gradients.push_back(ViewOf(member));
    shown.parameters.push_back(parameters_[member].tensor);
  }
  bucket.reduction = hook_->Start(*bucket.group, shown);
}

// Two buckets travel at a time, so that gradients of the whole module need memory for a few buckets only.
void Reducer::LaunchToOwners(Bucket& bucket, int index) {
  constexpr int kUnderWay = 2;
  if (index >= kUnderWay) {
    Bucket& done = *buckets_[index - kUnderWay];
    ThrowUnlessAllCame(KeepOwned(done), done.context);
  }
  at::Tensor mine = bucket.buffer.narrow(0, bucket.first, bucket.counts[bucket.group->rank()]);
  bucket.work = ReduceScatterV(*bucket.group, AsBuffer(bucket.buffer), {.counts = bucket.counts, .displacements = {}},
                               AsBuffer(mine), comm::ReduceOp::kSum);
}

}  // namespace cohort::trainer
