#include "cohort/trainer/parallel/fsdp/fsdp_unit.h"

#include <algorithm>
#include <utility>

#include "cohort/trainer/parallel/fsdp/flat_parameters.h"
#include "cohort/trainer/parallel/fsdp/fsdp_root.h"
#include "cohort/trainer/parallel/fsdp/unit_gradients.h"
#include "cohort/trainer/parallel/fsdp/unit_order.h"
#include "cohort/trainer/transfer/same_on_all_ranks.h"
#include "cohort/trainer/transfer/window_pool.h"
#include "torch/csrc/autograd/function_hook.h"
#include "torch/csrc/autograd/utils/lambda_post_hook.h"
#include "torch/torch.h"

namespace cohort::trainer {
namespace {

bool ReshardsAfterForward(ShardingStrategy strategy) {
  return strategy == ShardingStrategy::kFullShard || strategy == ShardingStrategy::kHybridShard;
}

at::ScalarType ReduceType(const FlatParameters& weights, const MixedPrecision& precision) {
  if (precision.reduce_dtype.has_value()) return *precision.reduce_dtype;
  return weights.whole().defined() ? weights.whole().scalar_type() : at::kFloat;
}

}  // namespace

std::string Describe(const FsdpParameter& parameter, const std::vector<int64_t>& sizes) {
  return DescribeTensor(parameter.name, parameter.tensor.scalar_type(), sizes) +
         (parameter.tensor.requires_grad() ? "" : " (frozen)");
}

at::Tensor LocalView(const at::Tensor& shard, const FsdpParameter& parameter) {
  const auto& [sizes, begin, end] = parameter.own;
  auto part = shard.unsafeGetTensorImpl()->shallow_copy_and_detach(c10::VariableVersion(0),
                                                                   /*allow_tensor_metadata_change=*/true);
  part->set_autograd_meta(nullptr);
  // An empty part may lie outside of the shard, where an offset would be refused.
  if (end > begin) part->set_storage_offset(shard.storage_offset() + parameter.offset);
  part->set_sizes_contiguous(sizes);
  return at::Tensor(std::move(part));
}

FsdpUnit::FsdpUnit(std::vector<FsdpParameter> parameters, int shards, int shard,
                   const FullyShardedDataParallelOptions& options)
    : parameters_(std::move(parameters)),
      shards_(shards),
      options_(options),
      reshard_after_forward_(ReshardsAfterForward(options.sharding_strategy)),
      accumulators_(parameters_.size()),
      runs_(std::make_unique<UnitRuns>()) {
  if (options.reshard_after_forward.has_value()) {
    const int ranks = options.reshard_after_forward->ranks();
    TORCH_CHECK(ranks >= 0 && shards % std::max(ranks, 1) == 0, "FullyShardedDataParallel: reshard_after_forward is ",
                ranks, ", which does not divide the ", shards, " ranks that share the parameters");
    reshard_after_forward_ = ranks != 1;
    if (ranks > 1 && ranks < shards) backward_ranks_ = ranks;
  }
  const at::NoGradGuard no_grad;
  for (FsdpParameter& parameter : parameters_) {
    const at::Tensor& first = parameters_.front().tensor;
    const bool one_device = options_.device_id.has_value() || parameter.tensor.device() == first.device();
    TORCH_CHECK(parameter.tensor.scalar_type() == first.scalar_type() && one_device,
                "FullyShardedDataParallel: parameters ", parameters_.front().name, " (", first.scalar_type(), " on ",
                first.device(), ") and ", parameter.name, " (", parameter.tensor.scalar_type(), " on ",
                parameter.tensor.device(), ") can't share a vector; wrap their modules one by one");
    const MixedPrecision& precision = options_.mixed_precision;
    TORCH_CHECK(!first.is_complex() || (!precision.param_dtype.has_value() && !precision.reduce_dtype.has_value()),
                "FullyShardedDataParallel: parameter ", parameter.name, " is ", first.scalar_type(),
                ", and mixed_precision would drop its imaginary part: wrap its module without param_dtype and "
                "reduce_dtype");
    parameter.sizes = parameter.tensor.sizes().vec();
    parameter.numel = parameter.tensor.numel();
    parameter.chunk = RowChunkNumel(parameter.sizes, shards_);
    parameter.own = RowChunkOf(parameter.sizes, shards_, shard);
  }
  weights_ = std::make_unique<FlatParameters>(parameters_, shards_, shard, backward_ranks_, options_);
  gradients_ =
      std::make_unique<UnitGradients>(parameters_, *weights_, shards_, ReduceType(*weights_, options_.mixed_precision));
}

FsdpUnit::~FsdpUnit() = default;

bool FsdpUnit::sharded() const { return weights_->state() == FlatParameters::State::kSharded; }
bool FsdpUnit::gathering() const { return weights_->state() == FlatParameters::State::kGathering; }
bool FsdpUnit::unsharded() const { return weights_->state() == FlatParameters::State::kUnsharded; }
int64_t FsdpUnit::padded_numel() const { return weights_->padded_numel(); }
int64_t FsdpUnit::kept_numel() const { return weights_->kept_numel(); }

void FsdpUnit::EnterWindows(comm::Communicator& group, std::shared_ptr<WindowPool> pool) {
  gradients_->flat().set_pool(std::move(pool));
  weights_->EnterWindow(group);
}

void FsdpUnit::LeaveWindows() {
  weights_->LeaveWindow();
  gradients_->flat().Drop();
  gradients_->flat().set_pool(nullptr);
}

void FsdpUnit::Reshard(StoragePool& pool) {
  const bool was_sharded = sharded();
  const absl::Status status = weights_->Reshard(pool);
  if (!was_sharded && !parameters_.empty() && !weights_->same_kind()) {
    for (auto& held : accumulators_) held.clear();  // graphs hold theirs; the next forward pass makes new ones
  }
  weights_->ThrowUnlessGathered(status);
}

void FsdpUnit::ReshardAfterForward(StoragePool& pool) {
  at::Tensor kept = weights_->CopyForNeighbours();
  Reshard(pool);
  weights_->KeepForNeighbours(std::move(kept));
}

void FsdpUnit::AddGradientHooks(const std::shared_ptr<FsdpRoot>& root) {
  for (int i = 0; i < static_cast<int>(parameters_.size()); ++i) {
    if (parameters_[i].tensor.requires_grad()) AddHook(root, i);
  }
}

void FsdpUnit::AddHook(const std::shared_ptr<FsdpRoot>& root, int parameter) {
  // A change of type gives the parameter a new accumulator; the graph before it holds on to the old one.
  auto accumulator = torch::autograd::impl::grad_accumulator(parameters_[parameter].tensor);
  if (!accumulators_[parameter].empty() && accumulators_[parameter].back() == accumulator) return;
  accumulator->add_post_hook(std::make_unique<torch::autograd::utils::LambdaPostHook>(
      [weak_root = std::weak_ptr<FsdpRoot>(root), weak = weak_from_this(), parameter](
          const torch::autograd::variable_list& outputs, const torch::autograd::variable_list&) {
        const auto live_root = weak_root.lock();
        const auto unit = weak.lock();
        if (live_root != nullptr && unit != nullptr) live_root->OnGradient(*unit, parameter);
        return outputs;
      }));
  accumulators_[parameter].push_back(std::move(accumulator));
}

bool FsdpUnit::has_all_gradients() const { return gradients_->complete() && !runs_->repeated(); }

}  // namespace cohort::trainer
