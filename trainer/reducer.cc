#include "trainer/reducer.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "runtime/base/mutex.h"
#include "torch/csrc/autograd/engine.h"
#include "torch/csrc/autograd/function_hook.h"
#include "torch/csrc/autograd/utils/lambda_post_hook.h"
#include "torch/csrc/autograd/variable.h"
#include "torch/torch.h"
#include "trainer/error.h"
#include "trainer/tensor_buffer.h"

namespace cohort::trainer {
namespace {

void AbortAll(const std::vector<comm::Communicator*>& groups, const std::string& why) {
  for (comm::Communicator* group : groups) group->Abort(why);
}

}  // namespace

struct Reducer::Bucket {
  std::vector<int> members;
  at::Tensor buffer;  // [sum of the members' elements]
  size_t pending = 0;
  comm::Communicator* group = nullptr;
  runtime::Work work;
  std::string context;  // for errors
};

// Hooks may outlive the reducer (the graph keeps them); they find a null owner then. On CUDA they run on the engine's
// threads, one per device, hence the lock.
struct Reducer::Shared {
  runtime::Mutex mutex;
  Reducer* owner COHORT_GUARDED_BY(mutex) = nullptr;
};

Reducer::Reducer(std::vector<ReducedParameter> parameters, std::vector<comm::Communicator*> groups, BucketLimits limits)
    : parameters_(std::move(parameters)),
      groups_(std::move(groups)),
      limits_(limits),
      shared_(std::make_shared<Shared>()) {
  TORCH_CHECK(!parameters_.empty(), "DistributedDataParallel: the module has no parameter that requires a gradient");
  std::vector<int> order(parameters_.size());
  std::iota(order.rbegin(), order.rend(), 0);  // the last layers' gradients come first
  BuildBuckets(order);
  for (int i = 0; i < static_cast<int>(parameters_.size()); ++i) {
    auto accumulator = torch::autograd::impl::grad_accumulator(parameters_[i].tensor);
    TORCH_CHECK(accumulator != nullptr, "DistributedDataParallel: parameter ", parameters_[i].name,
                " is no leaf that requires a gradient");
    accumulator->add_post_hook(std::make_unique<torch::autograd::utils::LambdaPostHook>(
        [shared = shared_, i](const torch::autograd::variable_list& outputs, const torch::autograd::variable_list&) {
          runtime::MutexLock lock(shared->mutex);
          if (shared->owner != nullptr) shared->owner->OnGradient(i);
          return outputs;
        }));
    accumulators_.push_back(std::move(accumulator));
  }
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
}

void Reducer::BuildBuckets(const std::vector<int>& order) {
  std::vector<ParameterSize> sizes;
  for (const ReducedParameter& parameter : parameters_) {
    sizes.push_back({static_cast<int64_t>(parameter.tensor.nbytes()), static_cast<int>(parameter.tensor.scalar_type()),
                     parameter.device});
  }
  assignment_ = AssignBuckets(sizes, order, limits_);
  buckets_.clear();
  bucket_of_.assign(parameters_.size(), -1);
  offset_of_.assign(parameters_.size(), 0);
  for (int b = 0; b < static_cast<int>(assignment_.size()); ++b) {
    auto bucket = std::make_unique<Bucket>();
    bucket->members = assignment_[b];
    int64_t elements = 0;
    const ReducedParameter& first = parameters_[bucket->members.front()];
    for (int member : bucket->members) {
      TORCH_CHECK(parameters_[member].tensor.device() == first.tensor.device(), "DistributedDataParallel: parameters ",
                  first.name, " on ", first.tensor.device(), " and ", parameters_[member].name, " on ",
                  parameters_[member].tensor.device(), " both belong to device index ", first.device,
                  "; say which modules sit where in DistributedDataParallelOptions::parts");
      bucket_of_[member] = b;
      offset_of_[member] = elements;
      elements += parameters_[member].tensor.numel();
    }
    bucket->buffer = at::zeros({elements}, first.tensor.options().requires_grad(false));
    bucket->group = groups_.at(first.device);
    bucket->context = "averaging gradient bucket " + std::to_string(b) + " (" + std::to_string(elements) +
                      " elements, from " + first.name + ")";
    buckets_.push_back(std::move(bucket));
  }
}

void Reducer::PrepareForward() {
  runtime::MutexLock lock(shared_->mutex);
  if (state_ == State::kCollecting && std::find(ready_.begin(), ready_.end(), true) != ready_.end()) ThrowForMissing();
  state_ = State::kIdle;
  // Not while evaluating, which a rank may do alone.
  if (at::GradMode::is_enabled() && !rebuilt_ && observed_order_.size() == parameters_.size()) {
    RebuildFromObservedOrder();
  }
}

void Reducer::PrepareBackward() {
  runtime::MutexLock lock(shared_->mutex);
  state_ = State::kCollecting;
  ready_.assign(parameters_.size(), false);
  next_bucket_ = 0;
  callback_queued_ = false;
  if (!rebuilt_) observed_order_.clear();
  for (auto& bucket : buckets_) bucket->pending = bucket->members.size();
}

void Reducer::OnGradient(int parameter) {
  if (state_ != State::kCollecting) return;
  try {
    TORCH_CHECK(!ready_[parameter], "DistributedDataParallel: the gradient of parameter ", parameters_[parameter].name,
                " became ready twice in one backward pass; call forward() once before each backward()");
    ready_[parameter] = true;
    if (!rebuilt_) observed_order_.push_back(parameter);
    if (!callback_queued_) {
      callback_queued_ = true;
      torch::autograd::Engine::get_default_engine().queue_callback([shared = shared_] {
        runtime::MutexLock lock(shared->mutex);
        if (shared->owner != nullptr) shared->owner->Finish();
      });
    }
    CopyIntoBucket(parameter);
    if (--buckets_[bucket_of_[parameter]]->pending == 0) LaunchReadyBuckets();
  } catch (const c10::Error& error) {
    state_ = State::kIdle;
    AbortAll(groups_, error.what_without_backtrace());
    throw;
  }
}

void Reducer::CopyIntoBucket(int parameter) {
  const at::NoGradGuard no_grad;
  Bucket& bucket = *buckets_[bucket_of_[parameter]];
  const at::Tensor& tensor = parameters_[parameter].tensor;
  const at::Tensor& grad = tensor.grad();
  at::Tensor view = bucket.buffer.narrow(0, offset_of_[parameter], tensor.numel()).view(tensor.sizes());
  if (!grad.defined()) {  // a function of the graph gave none
    view.zero_();
    return;
  }
  TORCH_CHECK(grad.layout() == at::kStrided, "DistributedDataParallel: the gradient of ", parameters_[parameter].name,
              " is sparse; only dense gradients are averaged");
  const double share = 1.0 / bucket.group->size();
  if (grad.scalar_type() == at::kHalf || grad.scalar_type() == at::kBFloat16) {
    view.copy_(grad.to(at::kFloat).mul_(share));  // 1/3 as a bfloat16 would be wrong by 0.2 %
  } else {
    at::mul_out(view, grad, at::scalar_tensor(share, grad.options().requires_grad(false)));
  }
}

void Reducer::LaunchReadyBuckets() {
  for (; next_bucket_ < buckets_.size() && buckets_[next_bucket_]->pending == 0; ++next_bucket_) {
    Bucket& bucket = *buckets_[next_bucket_];
    const comm::Buffer buffer = AsBuffer(bucket.buffer);
    bucket.work = bucket.group->AllReduce(buffer, buffer, comm::ReduceOp::kSum);
  }
}

void Reducer::Finish() {
  if (state_ != State::kCollecting) return;  // a hook has failed
  state_ = State::kIdle;
  if (next_bucket_ < buckets_.size()) ThrowForMissing();
  // All of them, also when one has failed: none may go on in memory that its owner takes for its own again.
  absl::Status first;
  const Bucket* failed = nullptr;
  for (auto& bucket : buckets_) {
    const absl::Status status = bucket->work.Wait();
    bucket->work = runtime::Work();
    if (status.ok() && failed == nullptr) CopyOut(*bucket);
    if (status.ok() || failed != nullptr) continue;
    first = status;
    failed = bucket.get();
  }
  if (failed != nullptr) ThrowUnlessOk(first, failed->context);
}

void Reducer::CopyOut(Bucket& bucket) {
  const at::NoGradGuard no_grad;
  for (int member : bucket.members) {
    at::Tensor& tensor = parameters_[member].tensor;
    const at::Tensor average = bucket.buffer.narrow(0, offset_of_[member], tensor.numel()).view(tensor.sizes());
    if (tensor.grad().defined()) {
      tensor.grad().copy_(average);
    } else {
      tensor.mutable_grad() = average.clone();
    }
  }
}

void Reducer::ThrowForMissing() {
  std::string names;
  int missing = 0;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    if (ready_[i]) continue;
    if (++missing <= 8) names += (names.empty() ? "" : ", ") + parameters_[i].name;
  }
  if (missing > 8) names += ", ...";
  const std::string message =
      "DistributedDataParallel: the backward pass gave no gradient for " + std::to_string(missing) + " of " +
      std::to_string(parameters_.size()) + " parameters (" + names +
      "), so their buckets can't be averaged. Use every parameter in the loss, or freeze the unused ones "
      "(requires_grad_(false)) before wrapping the module";
  state_ = State::kIdle;
  // The other ranks wait for these buckets: tell them now instead of letting them run into their timeout.
  AbortAll(groups_, message);
  throw DistributedError(absl::StatusCode::kFailedPrecondition, message);
}

void Reducer::RebuildFromObservedOrder() {
  at::Tensor order = at::empty({static_cast<int64_t>(observed_order_.size())}, at::kLong);
  std::copy(observed_order_.begin(), observed_order_.end(), order.data_ptr<int64_t>());
  ThrowUnlessOk(groups_.front()->Broadcast(AsBuffer(order), 0).Wait(), "agreeing on the order of gradient buckets");
  const int64_t* data = order.data_ptr<int64_t>();
  BuildBuckets(std::vector<int>(data, data + order.numel()));
  observed_order_.clear();
  rebuilt_ = true;
}

}  // namespace cohort::trainer
