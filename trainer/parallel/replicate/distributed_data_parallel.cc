#include "cohort/trainer/parallel/replicate/distributed_data_parallel.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <utility>

#include "cohort/trainer/base/error.h"
#include "cohort/trainer/base/tensor_values.h"
#include "cohort/trainer/placement/placement_table.h"
#include "cohort/trainer/placement/sharded_module.h"
#include "cohort/trainer/transfer/broadcast.h"
#include "cohort/trainer/transfer/collectives.h"
#include "cohort/trainer/transfer/same_on_all_ranks.h"
#include "torch/torch.h"

namespace cohort::trainer {
namespace {

// Flags that describe a forward pass to Join.
enum JoinFlags { kRebuilds = 1, kBroadcastsBuffers = 2, kAverages = 4, kTrains = 8 };

std::string Describe(const std::string& name, const at::Tensor& tensor) {
  return DescribeTensor(name, tensor.scalar_type(), tensor.sizes().vec());
}

// The weights of embeddings that were told to have sparse gradients, by tensor implementation.
std::set<const void*> SparseWeights(const torch::nn::Module& module) {
  std::set<const void*> weights;
  const auto look = [&](const torch::nn::Module& each) {
    const auto* embedding = dynamic_cast<const torch::nn::EmbeddingImpl*>(&each);
    const auto* bag = dynamic_cast<const torch::nn::EmbeddingBagImpl*>(&each);
    if (embedding != nullptr && embedding->options.sparse()) weights.insert(embedding->weight.unsafeGetTensorImpl());
    if (bag != nullptr && bag->options.sparse()) weights.insert(bag->weight.unsafeGetTensorImpl());
  };
  look(module);  // which need not be in a shared_ptr
  for (const auto& each : module.modules(/*include_self=*/false)) look(*each);
  return weights;
}

std::vector<int> Everyone(const comm::Communicator& group) {
  std::vector<int> ranks(group.size());
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

}  // namespace

DataParallelState::DataParallelState(torch::nn::Module& module, comm::Communicator& group,
                                     DistributedDataParallelOptions options)
    : group_(group), options_(std::move(options)), module_(module), replica_check_(options_.check_replicas_every) {
  TORCH_CHECK(options_.check_replicas_every >= 0, "DistributedDataParallel: check_replicas_every is ",
              options_.check_replicas_every, "; give a number of steps, or 0 for never");
  RefuseParts();
  CheckSameParameters();
  buffers_ = module_.buffers();
  BroadcastTensors(group_, State(), 0, "broadcasting rank 0's parameters and buffers");

  std::map<const void*, int> device_of;  // by tensor implementation
  std::set<int> used = {0};
  int devices = 1;
  for (const ModulePart& part : options_.parts) {
    TORCH_CHECK(part.module != nullptr, "DistributedDataParallel: a part names no module");
    TORCH_CHECK(part.device.index >= 0, "DistributedDataParallel: a part has device index ", part.device.index);
    devices = std::max(devices, part.device.index + 1);
    used.insert(part.device.index);
    for (const at::Tensor& parameter : part.module->parameters()) {
      device_of[parameter.unsafeGetTensorImpl()] = part.device.index;
    }
  }
  std::vector<comm::Communicator*> groups;
  const bool owns_devices = group_.DeviceGroup(0).ok();
  TORCH_CHECK(owns_devices || static_cast<int>(used.size()) == devices,
              "DistributedDataParallel: a part has device index ", devices - 1, ", but parts name ", used.size(),
              " devices and this rank owns none; number the devices from 0 on");
  for (int device = 0; device < devices; ++device) {
    auto subgroup = owns_devices ? group_.DeviceGroup(device) : group_.Subgroup(Everyone(group_));
    ThrowUnlessOk(subgroup.status(), "DistributedDataParallel: making the communicator of device " +
                                         std::to_string(device) + ", which a part names");
    device_groups_.push_back(*std::move(subgroup));
    groups.push_back(device_groups_.back().get());
  }
  std::vector<ReducedParameter> all;  // the reducer leaves out frozen ones, and watches them
  const std::set<const void*> sparse = SparseWeights(module_);
  std::set<const void*> seen;  // a parameter that modules share is listed once for each
  for (const auto& item : module_.named_parameters()) {
    const void* const impl = item.value().unsafeGetTensorImpl();
    if (IsIgnored(item.value()) || !seen.insert(impl).second) continue;
    const auto found = device_of.find(impl);
    all.push_back({item.key(), item.value(), found == device_of.end() ? 0 : found->second});
    all.back().sparse = options_.owners.empty() && sparse.contains(impl);
    if (!options_.owners.empty() && item.value().requires_grad()) all.back().owner = options_.owners.at(impl);
  }
  reducer_ = std::make_unique<Reducer>(std::move(all), std::move(groups),
                                       ReducerOptions{.limits = options_.buckets,
                                                      .gradient_as_bucket_view = options_.gradient_as_bucket_view,
                                                      .find_unused_parameters = options_.find_unused_parameters,
                                                      .static_graph = options_.static_graph});
}

// Refuses shards and parts of cut layers: averaging different rows over the ranks would make nonsense of them. Refuses
// forms of parameters that can't be averaged, too.
void DataParallelState::RefuseParts() const {
  trainer::RefuseShards(module_, "DistributedDataParallel",
                        "shard it over a DeviceMesh of (replicas, shards) instead of wrapping it");
  for (const auto& item : module_.named_parameters()) {
    if (IsIgnored(item.value())) continue;
    RefuseForm("DistributedDataParallel", item.key(), item.value());
    RefuseOtherParts("DistributedDataParallel", group_, item.key(), item.value());
  }
}

bool DataParallelState::IsIgnored(const at::Tensor& parameter) const {
  return std::any_of(options_.ignored_parameters.begin(), options_.ignored_parameters.end(),
                     [&](const at::Tensor& each) { return each.is_same(parameter); });
}

std::vector<at::Tensor> DataParallelState::State() const {
  std::vector<at::Tensor> state;
  for (const at::Tensor& parameter : module_.parameters()) {
    if (!IsIgnored(parameter)) state.push_back(parameter);
  }
  state.insert(state.end(), buffers_.begin(), buffers_.end());
  return state;
}

void DataParallelState::CheckSameParameters() {
  std::vector<std::string> lines;
  const std::set<const void*> sparse = SparseWeights(module_);
  for (const auto& item : module_.named_parameters()) {
    if (IsIgnored(item.value())) continue;
    const bool is_sparse = sparse.contains(item.value().unsafeGetTensorImpl());
    lines.push_back(Describe(item.key(), item.value()) + (item.value().requires_grad() ? "" : " (frozen)") +
                    (is_sparse ? " (sparse gradient)" : ""));
  }
  for (const auto& item : module_.named_buffers()) lines.push_back(Describe(item.key(), item.value()) + " (buffer)");
  const BucketLimits& limits = options_.buckets;
  CheckSameSetup(group_, "DistributedDataParallel",
                 {ModelFact(lines),
                  {"bucket bytes", std::to_string(limits.first_bytes) + ", then " + std::to_string(limits.cap_bytes)},
                  {"options", c10::str("find_unused_parameters ", options_.find_unused_parameters, ", static_graph ",
                                       options_.static_graph, ", broadcast_buffers ", options_.broadcast_buffers,
                                       ", check_replicas_every ", options_.check_replicas_every)}});
}

void DataParallelState::BeginStep(bool everyone) {
  if (!replica_check_.BeginStep() || !everyone) return;
  std::vector<NamedTensor> replicated;
  for (const auto& item : module_.named_parameters()) {
    if (!IsIgnored(item.value())) replicated.push_back({item.key(), item.value()});
  }
  // Otherwise each rank has buffers of its own, such as the statistics of a batch norm.
  if (options_.broadcast_buffers) {
    for (const auto& item : module_.named_buffers()) replicated.push_back({item.key(), item.value()});
  }
  replica_check_.Compare(own_group(), replicated);
}

void DataParallelState::set_micro_batches_under_way(bool under_way) {
  TORCH_CHECK(join() == nullptr, "DistributedDataParallel: micro-batches can't be under way under Join");
  reducer_->PrepareForward(/*averages=*/sync_);
  if (under_way && sync_ && options_.broadcast_buffers && !buffers_.empty() && module_.is_training()) {
    BroadcastTensors(own_group(), buffers_, 0, "broadcasting buffers");
  }
  if (under_way && sync_ && module_.is_training()) BeginStep(/*everyone=*/true);
  under_way_ = under_way;
}

void DataParallelState::Reduce() {
  if (sync_) reducer_->ReduceAccumulated(group_.size());
}

void DataParallelState::BeforeForward(bool training) {
  if (under_way_) return;
  // Evaluation averages nothing, because a rank may evaluate alone. Neither does no_sync, under which nothing is sent.
  const bool averages = sync_ && at::GradMode::is_enabled();
  const bool trains = averages && training;  // on all ranks alike: a rank may evaluate alone with grad enabled
  reducer_->PrepareForward(trains);
  const bool rebuild = averages && reducer_->NeedsRebuild();
  const bool buffers = sync_ && training && options_.broadcast_buffers && !buffers_.empty();
  bool everyone = true;
  int root = 0;
  divisor_ = group_.size();
  // Ranks without inputs are told of the forward passes that they have to answer, and of no others.
  if (join() != nullptr && (averages || buffers)) {
    int flags = rebuild ? kRebuilds : 0;
    if (buffers) flags |= kBroadcastsBuffers;
    if (averages) flags |= kAverages;
    if (trains) flags |= kTrains;
    const JoinIteration iteration = join()->Begin(*this, flags, averages);
    root = iteration.lowest_active();
    everyone = iteration.active_count() == group_.size();
    if (!join()->options().divide_by_initial_world_size) divisor_ = iteration.active_count();
  }
  if (rebuild) reducer_->Rebuild(root);
  if (buffers) BroadcastTensors(own_group(), buffers_, root, "broadcasting buffers");
  if (trains) BeginStep(everyone);
}

void DataParallelState::AfterForward(const std::vector<at::Tensor>& outputs, bool searched) {
  if (!at::GradMode::is_enabled() || under_way_) return;
  if (!sync_) return reducer_->PrepareAccumulation(outputs, searched);
  TORCH_CHECK(searched || !options_.find_unused_parameters,
              "DistributedDataParallel: forward() returned a type whose tensors can't be found, so neither can "
              "unused parameters; give it an overload of AppendTensors (trainer/base/tensors_of.h), or leave "
              "find_unused_parameters off");
  reducer_->PrepareBackward(outputs, divisor_);
}

void DataParallelState::Shadow(int flags, const JoinIteration& iteration) {
  const int root = iteration.lowest_active();
  if ((flags & kTrains) != 0) reducer_->PrepareForward(/*averages=*/true);
  if ((flags & kRebuilds) != 0) reducer_->Rebuild(root);
  if ((flags & kBroadcastsBuffers) != 0) BroadcastTensors(own_group(), buffers_, root, "broadcasting buffers");
  if ((flags & kAverages) != 0) {
    const bool initial = join()->options().divide_by_initial_world_size;
    reducer_->ShadowBackward(initial ? group_.size() : iteration.active_count());
  }
  if ((flags & kTrains) != 0) BeginStep(/*everyone=*/false);
}

std::string DataParallelState::NameOf(int flags) const {
  std::string name = "DistributedDataParallel's forward pass";
  if ((flags & kRebuilds) != 0) name += ", which rebuilds the buckets";
  if ((flags & kBroadcastsBuffers) != 0) name += ", which broadcasts buffers";
  return name + ((flags & kAverages) != 0 ? ", with averaged gradients" : ", without averaged gradients");
}

// Sends the final model from a rank that had the most inputs, because it has seen every update.
void DataParallelState::AfterJoin(const JoinIteration& last) {
  if (last.active_count() == group_.size()) return;
  // A rank that has only answered has no order of its own, so it could not be the root of a rebuild later on.
  if (reducer_->NeedsRebuild()) reducer_->Rebuild(last.lowest_active());
  BroadcastTensors(own_group(), State(), last.lowest_active(),
                   "sending the final model to ranks that had fewer inputs");
}

}  // namespace cohort::trainer
