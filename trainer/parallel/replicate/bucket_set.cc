#include "cohort/trainer/parallel/replicate/bucket_set.h"

#include <algorithm>
#include <utility>

#include "cohort/comm/check/named_input.h"
#include "cohort/trainer/base/error.h"
#include "cohort/trainer/base/tensor_buffer.h"
#include "cohort/trainer/base/tensor_values.h"
#include "cohort/trainer/transfer/collectives.h"
#include "cohort/trainer/transfer/window_tensor.h"
#include "torch/torch.h"

namespace cohort::trainer {

class BucketSet::NamedGradients final : public comm::NamedInput {
 public:
  NamedGradients(const BucketSet& set, const Bucket& bucket)
      : NamedInput(bucket.buffer.data_ptr()), set_(set), bucket_(bucket) {}
  std::string NameOf(size_t element) const override {
    const int64_t place = static_cast<int64_t>(element) / RealsPerElement(bucket_.buffer.scalar_type());
    for (const int member : bucket_.members) {
      const ReducedParameter& parameter = set_.parameters_[member];
      const int64_t begin = set_.places_[member].offset;
      if (place >= begin && place < begin + parameter.tensor.numel()) return "the gradient of " + parameter.name;
    }
    return "";
  }

 private:
  const BucketSet& set_;
  const Bucket& bucket_;
};

BucketSet::BucketSet(const std::vector<ReducedParameter>& parameters, std::vector<comm::Communicator*> groups,
                     bool grad_is_view)
    : parameters_(parameters), groups_(std::move(groups)), grad_is_view_(grad_is_view) {}

BucketSet::~BucketSet() {
  // Operations under way read and write the buckets: they must end before the memory does. They are bounded by their
  // own timeout, and fail at once when a peer is gone.
  for (auto& bucket : buckets_) {
    const absl::Status ignored = bucket->work.Wait();
    (void)ignored;
  }
  for (const comm::Communicator* group : groups_) NoteGroupEnd(*group);  // a failed hook's, whose groups go next
  for (const auto& bucket : buckets_) LeaveWindow(bucket->buffer);
}

void BucketSet::Build(const std::vector<int>& order, const BucketLimits& limits) {
  std::vector<ParameterSize> sizes;
  for (const ReducedParameter& parameter : parameters_) {
    sizes.push_back({static_cast<int64_t>(parameter.tensor.nbytes()), static_cast<int>(parameter.tensor.scalar_type()),
                     parameter.device, parameter.sparse});
  }
  assignment_ = AssignBuckets(sizes, order, limits);
  // Window memory may not outlive the job, but gradients that are views of it may, and what users hold of them.
  for (const auto& bucket : buckets_) LeaveWindow(bucket->buffer);
  buckets_.clear();
  std::vector<Place> places(parameters_.size());
  for (size_t i = 0; i < places_.size(); ++i) places[i].kept = std::move(places_[i].kept);
  places_ = std::move(places);
  for (int b = 0; b < static_cast<int>(assignment_.size()); ++b) BuildBucket(b);
}

void BucketSet::BuildBucket(int index) {
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
    places_[member].bucket = bucket.get();
  }
  LayOut(*bucket);
  bucket->sparse = first.sparse;
  if (!to_owners() && !bucket->sparse) {
    bucket->buffer = ZerosInWindow(*bucket->group, bucket->elements, bucket->options,
                                   "DistributedDataParallel: making gradient bucket " + std::to_string(index));
    bucket->streams.Enter(bucket->buffer);
    for (int member : bucket->members) {
      places_[member].slot = SlotIn(bucket->buffer, places_[member].offset, parameters_[member].tensor.numel());
    }
  }
  bucket->context = "averaging gradient bucket " + std::to_string(index) + " (" + std::to_string(bucket->elements) +
                    " elements, from " + first.name + ")";
  buckets_.push_back(std::move(bucket));
}

void BucketSet::LayOut(Bucket& bucket) {
  bucket.counts.assign(bucket.group->size(), 0);
  for (int member : bucket.members) {
    places_[member].offset = bucket.elements;
    bucket.elements += parameters_[member].tensor.numel();
    if (to_owners()) bucket.counts.at(parameters_[member].owner) += parameters_[member].tensor.numel();
  }
  for (int rank = 0; rank < bucket.group->rank(); ++rank) bucket.first += bucket.counts[rank];
}

at::Tensor BucketSet::ViewOf(int parameter) const {
  const at::Tensor& tensor = parameters_[parameter].tensor;
  const Place& place = places_[parameter];
  return place.bucket->buffer.narrow(0, place.offset, tensor.numel()).view(tensor.sizes());
}

void BucketSet::Begin(int divisor) {
  share_ = 1.0 / divisor;
  next_ = 0;
  for (auto& bucket : buckets_) bucket->pending = bucket->members.size();
}

bool BucketSet::Add(int parameter, const at::Tensor& grad, bool used) {
  Bucket& bucket = *places_[parameter].bucket;
  if (bucket.sparse) {
    bucket.gradient = grad;
    if (grad.defined()) bucket.streams.Enter(ValuesOf(grad));
    bucket.pending = 0;
    LaunchReady();
    return launched_all();
  }
  // Without owners buckets keep their memory.
  if (!bucket.buffer.defined()) bucket.buffer = at::empty({bucket.elements}, bucket.options);
  bucket.streams.Enter(bucket.buffer);
  CopyIn(parameter, grad, used);
  if (to_owners()) {  // the gradient's memory is free now; what nobody used comes back
    at::Tensor& own = parameters_[parameter].tensor.mutable_grad();
    if (!used) places_[parameter].kept = own;
    own = at::Tensor();
  }
  if (--bucket.pending > 0) return false;
  LaunchReady();
  return launched_all();
}

void BucketSet::CopyIn(int parameter, const at::Tensor& gradient, bool used) {
  Place& place = places_[parameter];
  const double share = has_hook() ? 1 : share_;  // a hook divides by itself
  if (used && gradient.defined() && FillSlot(place.slot, gradient, share)) return;
  const at::NoGradGuard no_grad;
  at::Tensor view = AsReals(ViewOf(parameter));
  if (!gradient.defined()) {  // unused, or a function of the graph gave none
    view.zero_();
    return;
  }
  const at::Tensor grad = AsReals(gradient.layout() == at::kStrided ? gradient : gradient.to_dense());
  const bool in_place = grad_is_view_ && grad.is_alias_of(view);
  if (in_place && !used) place.kept = gradient.detach().clone();
  if (has_hook()) {
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

void BucketSet::LaunchReady() {
  for (; next_ < buckets_.size() && buckets_[next_]->pending == 0; ++next_) {
    Launch(*buckets_[next_], static_cast<int>(next_));
  }
}

void BucketSet::Launch(Bucket& bucket, int index) {
  bucket.shown.emplace("bucket", runtime::RangeLane::kBuckets, static_cast<uint64_t>(index),
                       static_cast<uint16_t>(index));
  if (bucket.sparse) {  // without a hook, which takes buckets of memory
    if (bucket.gradient.defined()) bucket.streams.Enter(ValuesOf(bucket.gradient));
    bucket.average = std::make_unique<SparseAverage>(*bucket.group, parameters_[bucket.members.front()].tensor,
                                                     std::exchange(bucket.gradient, at::Tensor()), share_);
    return;
  }
  bucket.streams.Enter(bucket.buffer);
  if (to_owners()) return LaunchToOwners(bucket, index);
  if (!has_hook()) {
    const comm::Buffer buffer = AsBuffer(bucket.buffer);
    const NamedGradients names(*this, bucket);
    bucket.work = AllReduce(*bucket.group, buffer, buffer, comm::ReduceOp::kSum, CallTag(iteration_, index));
    return;
  }
  GradBucket shown{.index = index,
                   .is_last = static_cast<size_t>(index) + 1 == buckets_.size(),
                   .tag = CallTag(iteration_, index),
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
void BucketSet::LaunchToOwners(Bucket& bucket, int index) {
  constexpr int kUnderWay = 2;
  if (index >= kUnderWay) {
    Bucket& done = *buckets_[index - kUnderWay];
    ThrowUnlessAllCame(KeepOwned(done), done.context);
  }
  at::Tensor mine = bucket.buffer.narrow(0, bucket.first, bucket.counts[bucket.group->rank()]);
  const std::vector<int64_t> counts = BufferCounts(bucket.counts, bucket.buffer.scalar_type());
  const NamedGradients names(*this, bucket);
  bucket.work = ReduceScatterV(*bucket.group, AsBuffer(bucket.buffer), {.counts = counts, .displacements = {}},
                               AsBuffer(mine), comm::ReduceOp::kSum, CallTag(iteration_, index));
}

absl::Status BucketSet::Wait(std::string& context) {
  absl::Status first;
  for (auto& bucket : buckets_) {
    const absl::Status status = KeepOwned(*bucket);
    if (status.ok() || !first.ok()) continue;
    first = status;
    context = bucket->context;
  }
  for (auto& bucket : buckets_) {
    if (bucket->average != nullptr && first.ok()) bucket->gradient = bucket->average->Wait();
    if (std::exchange(bucket->average, nullptr) != nullptr) bucket->shown.reset();
    if (bucket->reduction == nullptr) continue;
    bucket->reduction->Wait();  // one that throws is kept until the group is aborted: its destructor may wait
    bucket->reduction.reset();
    bucket->shown.reset();
  }
  return first;
}

// Waits for the bucket. With owners, frees it but for this rank's part.
absl::Status BucketSet::KeepOwned(Bucket& bucket) {
  const absl::Status status = bucket.work.Wait();
  bucket.work = runtime::Work();
  if (bucket.average == nullptr && bucket.reduction == nullptr) bucket.shown.reset();
  if (!to_owners() || !bucket.buffer.defined()) return status;
  bucket.owned = bucket.buffer.narrow(0, bucket.first, bucket.counts[bucket.group->rank()]).clone();
  bucket.buffer = at::Tensor();
  return status;
}

void BucketSet::CopyOut(const std::vector<bool>& unused) {
  const at::NoGradGuard no_grad;
  for (auto& bucket : buckets_) {
    if (to_owners()) {
      CopyOutOwned(*bucket, unused);
    } else if (bucket->sparse) {
      CopyOutSparse(*bucket, unused);
    } else {
      CopyOutShared(*bucket, unused);
    }
  }
}

void BucketSet::CopyOutOwned(Bucket& bucket, const std::vector<bool>& unused) {
  const int rank = bucket.group->rank();
  for (int member : bucket.members) {
    const at::Tensor& tensor = parameters_[member].tensor;
    const at::Tensor kept = std::exchange(places_[member].kept, at::Tensor());
    if (unused[member]) {
      tensor.mutable_grad() = kept;
    } else if (parameters_[member].owner == rank) {
      tensor.mutable_grad() = bucket.owned.narrow(0, places_[member].offset - bucket.first, tensor.numel())
                                  .view(tensor.sizes())
                                  .variable_data();
    }
  }
  bucket.owned = at::Tensor();
}

void BucketSet::CopyOutSparse(Bucket& bucket, const std::vector<bool>& unused) {
  const int member = bucket.members.front();
  const at::Tensor average = std::exchange(bucket.gradient, at::Tensor());
  if (!unused[member]) parameters_[member].tensor.mutable_grad() = average;
}

void BucketSet::CopyOutShared(Bucket& bucket, const std::vector<bool>& unused) {
  for (int member : bucket.members) {
    at::Tensor& grad = parameters_[member].tensor.mutable_grad();
    const GradientSlot& slot = places_[member].slot;
    const at::Tensor kept = std::exchange(places_[member].kept, at::Tensor());
    if (!unused[member] && grad.defined() && (grad_is_view_ ? IsSlot(slot, grad) : CopySlotTo(slot, grad))) {
      continue;
    }
    const at::Tensor average = ViewOf(member);
    const bool dense = grad.defined() && grad.layout() == at::kStrided;
    if (unused[member]) {
      if (kept.defined()) grad.copy_(kept);
    } else if (grad_is_view_) {
      // No view to autograd, or Optimizer::zero_grad could not detach it.
      if (!dense || !grad.is_alias_of(average)) grad = average.variable_data();
    } else if (dense) {
      grad.copy_(average);
    } else {
      grad = average.clone();
    }
  }
}

}  // namespace cohort::trainer
