#include "cohort/trainer/parallel/zero/zero_redundancy_optimizer.h"

#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <numeric>
#include <optional>
#include <string>

#include "cohort/runtime/ranges.h"
#include "cohort/trainer/base/distinct_parameters.h"
#include "cohort/trainer/base/error.h"
#include "cohort/trainer/base/tensor_buffer.h"
#include "cohort/trainer/base/tensor_values.h"
#include "cohort/trainer/placement/placement_table.h"
#include "cohort/trainer/state/grad_norm.h"
#include "cohort/trainer/state/kept_optimizer.h"
#include "cohort/trainer/transfer/collectives.h"
#include "cohort/trainer/transfer/same_on_all_ranks.h"
#include "cohort/trainer/transfer/window_tensor.h"
#include "torch/torch.h"

namespace cohort::trainer {
namespace {

// Collectives as Join knows them.
enum JoinCalls { kStep, kClip };

// Nothing for options of a user's own that have none: torch's base class throws there.
std::optional<double> LearningRateOf(const torch::optim::OptimizerOptions& options) {
  try {
    return options.get_lr();
  } catch (const c10::Error&) {
    return std::nullopt;
  }
}

// Whether parameters of a type can ever require one.
bool HasGradients(at::ScalarType type) {
  return CanCarry(type) && (at::isFloatingType(type) || at::isComplexType(type));
}

}  // namespace

using torch::optim::OptimizerParamGroup;

// Without views, gathered in buckets: the next `piece` elements of every owner.
//
//   parameters   | owner 0: a a a a b | owner 1: c c c d |
//   bucket 0     a a | c c     bucket 1     a a | c d     bucket 2     b
//
// Two buckets lie in `buffer`, since one is copied while the next one travels.
struct ZeroRedundancyOptimizerBase::Flat {
  std::vector<int> members;      // parameter indices, owner by owner
  std::vector<int64_t> offsets;  // of each member
  std::vector<int64_t> counts;   // elements, by owner
  std::vector<int64_t> firsts;   // where each owner's begin
  int64_t elements = 0;
  int64_t piece = 0;
  int64_t buckets = 0;
  at::Tensor buffer;  // all elements, or two buckets

  // The elements of a bucket, by owner.
  std::vector<int64_t> CountsOf(int64_t bucket) const {
    std::vector<int64_t> of;
    for (const int64_t count : counts) of.push_back(std::clamp(count - bucket * piece, int64_t{0}, piece));
    return of;
  }
  at::Tensor Bucket(int64_t bucket) const {
    const std::vector<int64_t> of = CountsOf(bucket), largest = CountsOf(0);
    return buffer.narrow(0, bucket % 2 * std::accumulate(largest.begin(), largest.end(), int64_t{0}),
                         std::accumulate(of.begin(), of.end(), int64_t{0}));
  }
};

ZeroRedundancyOptimizerBase::ZeroRedundancyOptimizerBase(std::vector<OptimizerParamGroup> groups,
                                                         std::unique_ptr<torch::optim::OptimizerOptions> defaults,
                                                         const LocalFactory& factory, comm::Communicator& group,
                                                         ZeroRedundancyOptimizerOptions options)
    : PartitionedOptimizer(DistinctParameters(std::move(groups)), std::move(defaults)),
      group_(group),
      options_(options) {
  for (const OptimizerParamGroup& param_group : param_groups()) {
    for (const at::Tensor& parameter : param_group.params()) all_.push_back(parameter);
  }
  for (size_t i = 0; i < all_.size(); ++i) {
    RefuseForm("ZeroRedundancyOptimizer", "number " + std::to_string(i), all_[i]);
    RefuseOtherParts("ZeroRedundancyOptimizer", group_, "number " + std::to_string(i), all_[i]);
  }
  CheckSetup();
  auto own = group_.Duplicate();
  ThrowUnlessOk(own.status(), "making the communicator of ZeroRedundancyOptimizer");
  own_group_ = *std::move(own);
  Partition();
  MakeLocal(factory);
  MakeFlats();
}

ZeroRedundancyOptimizerBase::~ZeroRedundancyOptimizerBase() {
  if (!options_.parameters_as_bucket_view) return;
  const at::NoGradGuard no_grad;
  for (at::Tensor& parameter : all_) parameter.set_data(parameter.detach().clone());  // windows end with the job
  for (const auto& flat : flats_) LeaveWindow(flat->buffer);                          // what others hold of them too
}

// Ranks that cut the parameters otherwise would gather others' parameters into their own.
void ZeroRedundancyOptimizerBase::CheckSetup() const {
  std::vector<std::string> lines;
  for (size_t i = 0; i < all_.size(); ++i) {
    lines.push_back(DescribeTensor("parameter " + std::to_string(i), all_[i].scalar_type(), all_[i].sizes().vec()) +
                    (all_[i].requires_grad() ? "" : " (frozen)"));
  }
  CheckSameSetup(group_, "ZeroRedundancyOptimizer",
                 {ModelFact(lines),
                  {"options", c10::str("partition ", static_cast<int>(options_.partition),
                                       ", parameters_as_bucket_view ", options_.parameters_as_bucket_view,
                                       ", allgather_bucket_bytes ", options_.allgather_bucket_bytes)}});
}

void ZeroRedundancyOptimizerBase::Partition() {
  std::vector<PartitionedParameter> sizes;
  for (const at::Tensor& parameter : all_) sizes.push_back({parameter.numel(), parameter.requires_grad()});
  owners_ = PartitionParameters(sizes, group_.size(), options_.partition);
}

void ZeroRedundancyOptimizerBase::MakeLocal(const LocalFactory& factory) {
  std::vector<OptimizerParamGroup> mine;
  size_t index = 0;
  for (const OptimizerParamGroup& param_group : param_groups()) {
    std::vector<at::Tensor> parameters;
    for (const at::Tensor& parameter : param_group.params()) {
      if (owners_[index++] == group_.rank()) parameters.push_back(parameter);
    }
    mine.emplace_back(std::move(parameters), param_group.options().clone());
  }
  local_ = factory(std::move(mine));
  RefuseLbfgs(*local_, "ZeroRedundancyOptimizer",
              "which are split among the ranks: use LBFGS under "
              "DistributedDataParallel alone, with a closure that returns the mean of the ranks' losses");
}

void ZeroRedundancyOptimizerBase::MakeFlats() {
  // In an order that all ranks have, which names of devices don't: "cuda:10" is before "cuda:9".
  std::map<std::pair<int, int>, std::unique_ptr<Flat>> kinds;
  for (int owner = 0; owner < group_.size(); ++owner) {
    for (int i = 0; i < static_cast<int>(all_.size()); ++i) {
      // No step changes what has no gradient.
      if (owners_[i] != owner || !HasGradients(all_[i].scalar_type())) continue;
      const int device = all_[i].is_cuda() ? all_[i].get_device() : -1;
      auto& flat = kinds[{static_cast<int>(all_[i].scalar_type()), device}];
      if (flat == nullptr) {
        flat = std::make_unique<Flat>();
        flat->counts.assign(group_.size(), 0);
      }
      flat->members.push_back(i);
      flat->offsets.push_back(flat->elements);
      flat->elements += all_[i].numel();
      flat->counts[owner] += all_[i].numel();
    }
  }
  const at::NoGradGuard no_grad;
  for (auto& [kind, flat] : kinds) {
    flat->firsts.assign(group_.size(), 0);
    std::partial_sum(flat->counts.begin(), flat->counts.end() - 1, flat->firsts.begin() + 1);
    if (options_.parameters_as_bucket_view) {
      MakeViews(*flat);
    } else {
      MakeBuckets(*flat);
    }
    flats_.push_back(std::move(flat));
  }
}

void ZeroRedundancyOptimizerBase::MakeViews(Flat& flat) {
  flat.buffer = ZerosInWindow(*own_group_, flat.elements, all_[flat.members.front()].options(),
                              "ZeroRedundancyOptimizer: making the memory for parameters");
  for (size_t k = 0; k < flat.members.size(); ++k) {
    at::Tensor& parameter = all_[flat.members[k]];
    const at::Tensor view = flat.buffer.narrow(0, flat.offsets[k], parameter.numel()).view(parameter.sizes());
    view.copy_(parameter);
    parameter.set_data(view);
  }
}

void ZeroRedundancyOptimizerBase::MakeBuckets(Flat& flat) {
  const at::Tensor& any = all_[flat.members.front()];
  const auto bytes = static_cast<int64_t>(any.element_size()) * group_.size();
  flat.piece = std::max(options_.allgather_bucket_bytes / bytes, int64_t{1});
  const int64_t most = *std::max_element(flat.counts.begin(), flat.counts.end());
  flat.buckets = (most + flat.piece - 1) / flat.piece;
  const std::vector<int64_t> largest = flat.CountsOf(0);
  const int64_t elements = std::accumulate(largest.begin(), largest.end(), int64_t{0});
  flat.buffer = ZerosInWindow(*own_group_, std::min(flat.buckets, int64_t{2}) * elements, any.options(),
                              "ZeroRedundancyOptimizer: making the memory for parameters");
}

int64_t ZeroRedundancyOptimizerBase::buffer_bytes() const {
  int64_t bytes = 0;
  for (const auto& flat : flats_) bytes += static_cast<int64_t>(flat->buffer.nbytes());
  return options_.parameters_as_bucket_view ? 0 : bytes;
}

at::Tensor ZeroRedundancyOptimizerBase::step(LossClosure closure) {
  const runtime::Range shown("optimizer", runtime::RangeLane::kPasses);
  at::Tensor loss;
  if (closure != nullptr) {
    const at::AutoGradMode grad(true);
    loss = closure();
  }
  TORCH_CHECK(
      param_groups().size() == local_->param_groups().size(),
      "ZeroRedundancyOptimizer: a group was added to it by add_param_group; give it all groups when it is made, "
      "since they decide who owns which parameter");
  for (size_t g = 0; g < param_groups().size(); ++g) {
    local_->param_groups()[g].set_options(param_groups()[g].options().clone());
  }
  if (join() != nullptr && !join()->all_have_inputs()) join()->Tell(*this, kStep, LearningRates());
  local_->step();
  GatherParameters();
  return loss;
}

std::vector<double> ZeroRedundancyOptimizerBase::LearningRates() const {
  std::vector<double> rates;
  for (const OptimizerParamGroup& group : param_groups()) rates.push_back(LearningRateOf(group.options()).value_or(0));
  return rates;
}

void ZeroRedundancyOptimizerBase::save(torch::serialize::OutputArchive& /*archive*/) const {
  TORCH_CHECK(false,
              "ZeroRedundancyOptimizer: torch::save would keep nothing of its state; use SaveTrainingState "
              "(trainer/state/training_state.h)");
}

void ZeroRedundancyOptimizerBase::load(torch::serialize::InputArchive& /*archive*/) {
  TORCH_CHECK(false,
              "ZeroRedundancyOptimizer: torch::load has nothing of its state; use LoadTrainingState "
              "(trainer/state/training_state.h)");
}

void ZeroRedundancyOptimizerBase::GatherParameters() {
  const at::NoGradGuard no_grad;
  std::vector<runtime::Work> works;
  absl::Status first;
  for (const auto& flat : flats_) {
    if (options_.parameters_as_bucket_view) {
      const int rank = group_.rank();
      const comm::ConstBuffer mine = AsBuffer(flat->buffer.narrow(0, flat->firsts[rank], flat->counts[rank]));
      const std::vector<int64_t> counts = BufferCounts(flat->counts, flat->buffer.scalar_type());
      works.push_back(AllGatherV(*own_group_, mine, AsBuffer(flat->buffer), {.counts = counts, .displacements = {}}));
    } else if (first.ok()) {
      first = GatherByBuckets(*flat);
    }
  }
  for (runtime::Work& work : works) {  // all of them: none may go on in memory that others use again
    const absl::Status status = work.Wait();
    if (first.ok()) first = status;
  }
  ThrowUnlessOk(first, "ZeroRedundancyOptimizer: gathering parameters");
}

absl::Status ZeroRedundancyOptimizerBase::GatherByBuckets(const Flat& flat) {
  absl::Status first;
  runtime::Work before;  // of the last bucket
  for (int64_t bucket = 0; bucket <= flat.buckets; ++bucket) {
    runtime::Work now;
    if (bucket < flat.buckets && first.ok()) {
      CopyBucket(flat, bucket, Way::kIntoBuffer);
      const std::vector<int64_t> counts = flat.CountsOf(bucket);
      const at::Tensor whole = flat.Bucket(bucket);
      const int64_t begin = std::accumulate(counts.begin(), counts.begin() + group_.rank(), int64_t{0});
      const std::vector<int64_t> sent = BufferCounts(counts, whole.scalar_type());
      now = AllGatherV(*own_group_, AsBuffer(whole.narrow(0, begin, counts[group_.rank()])), AsBuffer(whole),
                       {.counts = sent, .displacements = {}});
    }
    if (bucket > 0) {
      const absl::Status status = before.Wait();
      if (first.ok()) first = status;
      if (first.ok()) CopyBucket(flat, bucket - 1, Way::kOutOfBuffer);
    }
    before = std::move(now);
  }
  return first;
}

// This rank's part into the bucket, or the others' out of it.
void ZeroRedundancyOptimizerBase::CopyBucket(const Flat& flat, int64_t bucket, Way way) {
  const std::vector<int64_t> counts = flat.CountsOf(bucket);
  const at::Tensor whole = flat.Bucket(bucket);
  int64_t begin = 0;
  for (int owner = 0; owner < group_.size(); begin += counts[owner++]) {
    if ((owner == group_.rank()) != (way == Way::kIntoBuffer)) continue;
    CopyRange(flat, flat.firsts[owner] + bucket * flat.piece, whole.narrow(0, begin, counts[owner]), way);
  }
}

// Between `slice` and the elements of the parameters from `begin` on.
void ZeroRedundancyOptimizerBase::CopyRange(const Flat& flat, int64_t begin, const at::Tensor& slice, Way way) {
  const auto after = std::upper_bound(flat.offsets.begin(), flat.offsets.end(), begin);
  auto k = static_cast<size_t>(after - flat.offsets.begin()) - 1;
  for (int64_t done = 0; done < slice.numel(); ++k) {
    at::Tensor& parameter = all_[flat.members[k]];
    const int64_t from = begin + done - flat.offsets[k];
    const int64_t count = std::min(parameter.numel() - from, slice.numel() - done);
    const at::Tensor part = slice.narrow(0, done, count);
    at::Tensor row = parameter.reshape({-1});  // a copy where it is not contiguous
    if (way == Way::kIntoBuffer) {
      part.copy_(row.narrow(0, from, count));
    } else {
      row.narrow(0, from, count).copy_(part);
      if (!parameter.is_contiguous()) parameter.copy_(row.view(parameter.sizes()));
    }
    done += count;
  }
}

at::Tensor ZeroRedundancyOptimizerBase::clip_grad_norm_(double max_norm, double norm_type) {
  if (join() != nullptr) join()->Tell(*this, kClip, std::array{max_norm, norm_type});
  std::vector<at::Tensor> mine, every;
  for (size_t i = 0; i < all_.size(); ++i) {
    if (!all_[i].grad().defined()) continue;
    every.push_back(all_[i].grad());
    if (owners_[i] == group_.rank()) mine.push_back(all_[i]);
  }
  std::vector<Axis> axes = ModelAxes(all_);  // over which layers are cut; this group has the other one
  std::erase_if(axes, [](const Axis& axis) { return axis.name == kReplicateAxis; });
  std::vector<comm::Communicator*> groups = GroupsOf(axes, "ZeroRedundancyOptimizer");
  groups.insert(groups.begin(), own_group_.get());
  const at::Tensor norm = ShardedNorm(CountedGradients(mine, CoordinateOn(axes)), norm_type, groups);
  ClipByNorm(every, norm, max_norm);
  return norm;
}

void ZeroRedundancyOptimizerBase::Shadow(int call, const JoinIteration& /*iteration*/) {
  if (call == kStep) {
    // A schedule runs in the user's loop, which is over here.
    std::vector<double> rates(param_groups().size());
    join()->Share(rates);
    for (size_t g = 0; g < rates.size(); ++g) {
      torch::optim::OptimizerOptions& options = param_groups()[g].options();
      if (LearningRateOf(options).has_value()) options.set_lr(rates[g]);
    }
    step();
    return;
  }
  std::array<double, 2> given;
  join()->Share(given);
  clip_grad_norm_(given[0], given[1]);
}

std::string ZeroRedundancyOptimizerBase::NameOf(int call) const {
  return call == kStep ? "ZeroRedundancyOptimizer's step" : "ZeroRedundancyOptimizer's clip_grad_norm_";
}

int ZeroRedundancyOptimizerBase::OwnerOf(const at::Tensor& parameter) const {
  for (size_t i = 0; i < all_.size(); ++i) {
    if (all_[i].is_same(parameter)) return owners_[i];
  }
  TORCH_CHECK(false, "ZeroRedundancyOptimizer: asked for the owner of a parameter that it was not given");
}

}  // namespace cohort::trainer
