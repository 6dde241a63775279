#include "cohort/trainer/parallel/fsdp/fully_sharded_data_parallel.h"

#include <algorithm>
#include <array>
#include <map>
#include <set>

#include "ATen/autocast_mode.h"
#include "cohort/trainer/base/caught_error.h"
#include "cohort/trainer/base/error.h"
#include "cohort/trainer/base/tensor_values.h"
#include "cohort/trainer/base/wrapped_name.h"
#include "cohort/trainer/parallel/fsdp/flat_parameters.h"
#include "cohort/trainer/placement/placement_table.h"
#include "cohort/trainer/state/deferred_init.h"
#include "cohort/trainer/state/grad_norm.h"
#include "cohort/trainer/transfer/broadcast.h"
#include "cohort/trainer/transfer/collectives.h"
#include "cohort/trainer/transfer/same_on_all_ranks.h"
#include "torch/torch.h"

namespace cohort::trainer {
namespace {

// Buffers with their names.
using Buffers = std::vector<std::pair<std::string, at::Tensor>>;
// The modules whose parameters a unit has.
using Modules = std::vector<std::weak_ptr<const torch::nn::Module>>;

// Refuses modules whose parameters are shards, which would be taken for whole ones and sharded again.
void CheckOutsideOfUnits(const torch::nn::Module& module) {
  TORCH_CHECK(!IsInUnit(module), "FullyShardedDataParallel: the parameters of module ", module.name(),
              " are sharded already, by itself or with those of a module around it: shard from the inside out, "
              "each module before those that hold it");
}

// Finds the parameters and buffers of `module` outside wrapped modules, each once, and the modules that have them.
void Collect(const torch::nn::Module& module, const std::string& prefix, std::set<const void*>& seen,
             std::vector<FsdpParameter>& parameters, Buffers& buffers, Modules& modules) {
  modules.push_back(module.weak_from_this());
  for (const auto& item : module.named_parameters(/*recurse=*/false)) {
    if (!seen.insert(item.value().unsafeGetTensorImpl()).second) continue;
    parameters.push_back({.name = prefix + item.key(), .tensor = item.value()});
  }
  for (const auto& item : module.named_buffers(/*recurse=*/false)) {
    TORCH_CHECK(HasData(item.value()), "FullyShardedDataParallel: buffer ", prefix, item.key(),
                " was made under DeferredInit and has no values; make it smaller, or outside the guard");
    buffers.push_back({prefix + item.key(), item.value()});
  }
  for (const auto& child : module.named_children()) {
    if (ShardsOf(*child.value()) != nullptr) continue;
    Collect(*child.value(), prefix + child.key() + ".", seen, parameters, buffers, modules);
  }
}

// The number of clip_grad_norm_ for Join. Smaller numbers are FsdpRoot's.
constexpr int kClipCall = Joinable::kMostCalls - 1;

// The module's own unit and those within, each once, from the outermost one on.
std::vector<FullyShardedModule*> Within(FullyShardedModule& outermost) {
  std::vector<FullyShardedModule*> found = {&outermost};
  for (const auto& module : outermost.sharded_module().modules(/*include_self=*/false)) {
    FullyShardedModule* shards = ShardsOf(*module);
    if (shards != nullptr && std::find(found.begin(), found.end(), shards) == found.end()) found.push_back(shards);
  }
  return found;
}

bool IsHybrid(ShardingStrategy strategy) {
  return strategy == ShardingStrategy::kHybridShard || strategy == ShardingStrategy::kHybridShardZero2;
}

std::string MeshText(const comm::Communicator& shard, const comm::Communicator* replicate) {
  return (replicate == nullptr ? "" : "replicate=" + std::to_string(replicate->size()) + ", ") +
         "shard=" + std::to_string(shard.size());
}

// The options that ranks must have in common.
std::string TextOf(const FullyShardedDataParallelOptions& options) {
  const auto type = [](const std::optional<c10::ScalarType>& dtype) {
    return dtype.has_value() ? std::string(c10::toString(*dtype)) : "own";
  };
  const auto& reshard = options.reshard_after_forward;
  return c10::str("sharding_strategy ", static_cast<int>(options.sharding_strategy), ", reshard_after_forward ",
                  reshard.has_value() ? std::to_string(reshard->ranks()) : "by strategy", ", param_dtype ",
                  type(options.mixed_precision.param_dtype), ", reduce_dtype ",
                  type(options.mixed_precision.reduce_dtype), ", reduce_over_world ", options.reduce_over_world);
}

// The names of the first few parameters.
std::string NamesOf(const FsdpUnit& unit) {
  std::string names;
  for (const FsdpParameter& parameter : unit.parameters()) {
    if (names.size() > 100) return names + ", ...";
    names += (names.empty() ? "" : ", ") + parameter.name;
  }
  return names.empty() ? "its parameters" : names;
}

// Refuses a group in which two ranks share the shards: they have different elements, whose average is nonsense.
void RefuseOverlap(const comm::Communicator& shard, const comm::Communicator& group, const FsdpUnit& unit) {
  const int self = shard.members()[shard.rank()];
  for (const int member : shard.members()) {
    const auto found = std::find(group.members().begin(), group.members().end(), member);
    TORCH_CHECK(member == self || found == group.members().end(), "DistributedDataParallel: ranks ", self, " and ",
                member, " have different shards of ", NamesOf(unit),
                ", which can't be averaged, and both are in its group; give it a group that has one rank of each set "
                "of shards, or shard over a DeviceMesh of (replicas, shards)");
  }
}

// Compares the shards of the group's ranks. All ranks throw, or none.
void CheckSameShards(const std::array<int64_t, 3>& mine, comm::Communicator& group) {
  const auto count = static_cast<int64_t>(mine.size());
  std::vector<int64_t> all(count * group.size());
  runtime::Work work = AllGather(group, comm::ConstBuffer(mine.data(), count),
                                 comm::Buffer(all.data(), static_cast<int64_t>(all.size())));
  ThrowUnlessOk(work.Wait(), "comparing the shards of the replicas");
  for (int rank = 1; rank < group.size(); ++rank) {
    const int64_t* theirs = all.data() + count * rank;
    if (std::equal(theirs, theirs + count, all.data())) continue;
    const auto text = [](const int64_t* of) {
      return "shard " + std::to_string(of[0]) + " of " + std::to_string(of[1]) + " with " + std::to_string(of[2]) +
             " elements";
    };
    throw DistributedError(absl::StatusCode::kFailedPrecondition,
                           "DistributedDataParallel: its ranks must have equal shards, but rank 0 has " +
                               text(all.data()) + " and rank " + std::to_string(rank) + " has " + text(theirs));
  }
}

}  // namespace

FsdpRanks FsdpRanksOf(DeviceMesh& mesh) {
  const std::string about = "FullyShardedDataParallel: the mesh (" + mesh.Describe() + ") has ";
  TORCH_CHECK(mesh.has(kShardAxis), about,
              "no axis \"shard\", whose ranks would share the parameters; name the axes of the mesh so, as in "
              "init_device_mesh(world, {2, 4}, {\"replicate\", \"shard\"})");
  std::vector<std::string> own;
  for (const std::string& name : mesh.dim_names()) {
    TORCH_CHECK(
        name == kShardAxis || name == kReplicateAxis, about, "an axis \"", name,
        "\", over which nothing is sharded or replicated; give it the part of the mesh that is for it: mesh.Slice({",
        mesh.has(kReplicateAxis) ? "\"replicate\", " : "", "\"shard\"})");
    own.push_back(name);
  }
  const auto get = [&mesh](const char* axis) {
    auto group = mesh.get_group(axis);
    ThrowUnlessOk(group.status(), std::string("taking axis ") + axis + " of a mesh");
    return *group;
  };
  const auto slice = mesh.Slice(own);  // replica by replica, in whatever order the mesh has them
  ThrowUnlessOk(slice.status(), "taking the ranks of a mesh");
  return {(*slice)->world(), get(kShardAxis), mesh.has(kReplicateAxis) ? get(kReplicateAxis) : nullptr};
}

FullyShardedModule::FullyShardedModule(torch::nn::Module& module, const FsdpRanks& ranks,
                                       const FullyShardedDataParallelOptions& options)
    : sharded_(module), world_(ranks.world), shard_(ranks.shard), replicate_(ranks.replicate), options_(options) {
  TORCH_CHECK(!IsHybrid(options.sharding_strategy) || replicate_ != nullptr,
              "FullyShardedDataParallel: HYBRID_SHARD needs a DeviceMesh of two dimensions, (replicas, shards)");
  if (options.sharding_strategy == ShardingStrategy::kNoShard) {
    const int self[] = {world_.rank()};
    auto alone = world_.Subgroup(self);
    ThrowUnlessOk(alone.status(), "making a group of one rank");
    alone_ = *std::move(alone);
    shard_ = alone_.get();
    replicate_ = &world_;
  }
  CheckOutsideOfUnits(module);
  std::set<const void*> seen;
  std::vector<FsdpParameter> parameters;
  Buffers buffers;
  Modules modules;
  Collect(module, "", seen, parameters, buffers, modules);
  for (const FsdpParameter& each : parameters) {
    RefuseForm("FullyShardedDataParallel", each.name, each.tensor);
    RefuseOtherParts("FullyShardedDataParallel", world_, each.name, each.tensor);
  }
  if (options.device_id.has_value()) {
    for (auto& [name, buffer] : buffers) buffer.set_data(buffer.to(*options.device_id));
  }
  if (options.sync_module_states) {
    std::vector<std::string> lines;
    std::vector<at::Tensor> state;
    for (const FsdpParameter& each : parameters) lines.push_back(Describe(each, each.tensor.sizes().vec()));
    for (const auto& [name, buffer] : buffers) {
      lines.push_back(DescribeTensor("buffer " + name, buffer.scalar_type(), buffer.sizes().vec()));
      state.push_back(buffer);
    }
    CheckSameSetup(world_, "FullyShardedDataParallel",
                   {{"mesh", MeshText(*shard_, replicate_)}, ModelFact(lines), {"options", TextOf(options)}});
    for (const FsdpParameter& parameter : parameters) {
      if (HasData(parameter.tensor)) state.push_back(parameter.tensor);  // the others get their values later
    }
    BroadcastTensors(world_, state, 0, "broadcasting rank 0's parameters and buffers");
  }
  std::vector<std::vector<int64_t>> sizes;
  for (const FsdpParameter& parameter : parameters) sizes.push_back(parameter.tensor.sizes().vec());
  unit_ = std::make_shared<FsdpUnit>(std::move(parameters), shard_->size(), shard_->rank(), options);
  RegisterPlacements(sizes);
  RegisterUnit(*this, std::move(modules));
}

// Parameters stay with the module, as shards; their placements are again what they were.
FullyShardedModule::~FullyShardedModule() {
  ForgetUnit(*this);
  for (size_t i = 0; i < placed_before_.size(); ++i) {
    const at::Tensor& parameter = unit_->parameters()[i].tensor;
    if (placed_before_[i] == nullptr) {
      Placements().Remove(parameter);
    } else {
      Placements().Add(parameter, *placed_before_[i]);
    }
  }
}

// Cuts what is left of each parameter. `sizes` are those that this module has found.
void FullyShardedModule::RegisterPlacements(const std::vector<std::vector<int64_t>>& sizes) {
  const Axis shard = {.name = kShardAxis, .size = shard_->size(), .rank = shard_->rank(), .group = shard_};
  for (size_t i = 0; i < sizes.size(); ++i) {
    const FsdpParameter& parameter = unit_->parameters()[i];
    auto before = Placements().Of(parameter.tensor);
    Placement placement = before == nullptr ? Placement(sizes[i]) : *before;
    TORCH_CHECK(placement.local_sizes() == sizes[i], "FullyShardedDataParallel: parameter ", parameter.name,
                " has sizes ", at::IntArrayRef(sizes[i]), ", but its placement says ",
                at::IntArrayRef(placement.local_sizes()), " here: ", placement.Describe());
    ThrowUnlessOk(placement.Split(shard, {.dim = 0}), "sharding " + parameter.name);
    if (replicate_ != nullptr) {
      const Axis copies = {
          .name = kReplicateAxis, .size = replicate_->size(), .rank = replicate_->rank(), .group = replicate_};
      ThrowUnlessOk(placement.Replicated(copies), "replicating " + parameter.name);
    }
    Placements().Add(parameter.tensor, std::move(placement));
    placed_before_.push_back(std::move(before));
  }
}

// Whether `inner` is replicated as this outermost module is. Gradients are averaged over the outermost module's
// replicas, which must have begun with the same values.
bool FullyShardedModule::HasReplicasOf(const FullyShardedModule& inner) const {
  const auto more_than_one = [](const comm::Communicator* group) { return group != nullptr && group->size() > 1; };
  if (!more_than_one(inner.replicate_)) return !more_than_one(replicate_) || replicates_within_;
  return replicate_ != nullptr && inner.replicate_->members() == replicate_->members();
}

FsdpRoot& FullyShardedModule::root() {
  if (root_ != nullptr) return *root_;
  std::vector<std::shared_ptr<FsdpUnit>> units;
  const std::vector<FullyShardedModule*> within = Within(*this);
  std::set<const void*> seen;
  for (FullyShardedModule* each : within) {
    TORCH_CHECK(each->root_ == nullptr,
                "FullyShardedDataParallel: a module was used before it was wrapped by an outer "
                "one; wrap all modules first");
    TORCH_CHECK(each->shard_->members() == shard_->members(),
                "FullyShardedDataParallel: modules within each other are sharded over different ranks");
    TORCH_CHECK(HasReplicasOf(*each),
                "FullyShardedDataParallel: modules within each other are replicated over different ranks; give all of "
                "them the same DeviceMesh");
    for (const FsdpParameter& parameter : each->unit_->parameters()) {
      TORCH_CHECK(seen.insert(parameter.tensor.unsafeGetTensorImpl()).second, "FullyShardedDataParallel: parameter ",
                  parameter.name, " belongs to two wrapped modules; wrap one module around both");
    }
    units.push_back(each->unit_);
  }
  auto root = std::make_shared<FsdpRoot>(std::move(units), world_, *shard_, replicate_);
  for (FullyShardedModule* each : within) each->root_ = root;
  return *root_;
}

void FullyShardedModule::ReplicateOver(comm::Communicator& group) {
  TORCH_CHECK(root_ == nullptr, "DistributedDataParallel: the shards were used before they were wrapped; wrap first");
  TORCH_CHECK(replicate_ == nullptr && !options_.reduce_over_world,
              "DistributedDataParallel: the shards are replicated by their DeviceMesh or sharding strategy already");
  std::vector<at::Tensor> state;
  int64_t elements = 0;
  for (FullyShardedModule* each : Within(*this)) {
    for (const FsdpParameter& parameter : each->unit_->parameters()) state.push_back(parameter.tensor);
    elements += each->unit_->weights().shard_numel();
  }
  RefuseOverlap(*shard_, group, *unit_);
  for (FullyShardedModule* each : Within(*this)) {
    for (const FsdpParameter& parameter : each->unit_->parameters()) {
      RefuseOtherParts("DistributedDataParallel", group, parameter.name, parameter.tensor);
    }
  }
  CheckSameShards({shard_->rank(), shard_->size(), elements}, group);
  for (const auto& [name, buffer] : unwrapped_buffers()) state.push_back(buffer);
  BroadcastTensors(group, state, 0, "broadcasting the first replica's parameters and buffers");
  replicate_ = &group;
  replicates_within_ = true;
  const Axis copies = {.name = kReplicateAxis, .size = group.size(), .rank = group.rank(), .group = &group};
  for (FullyShardedModule* each : Within(*this)) {
    for (const FsdpParameter& parameter : each->unit_->parameters()) {
      Placement placement = *Placements().Of(parameter.tensor);
      if (!placement.mentions(kReplicateAxis)) {
        ThrowUnlessOk(placement.Replicated(copies), "replicating " + parameter.name);
        Placements().Add(parameter.tensor, std::move(placement));
      }
    }
  }
}

void FullyShardedModule::PreForward() { root().PreForward(*unit_, sharded_.is_training()); }

void FullyShardedModule::PostForward(const std::vector<at::Tensor>& outputs) {
  root_->PostForward(*unit_, outputs);
  // Autocast keeps its casts of weights until its guard goes. For all units they would be a copy of the model, and an
  // old one once an optimizer has stepped the shards.
  at::autocast::clear_cache();
}

void FullyShardedModule::AbandonForward() {
  at::autocast::clear_cache();  // as PostForward would have
  try {
    if (root_ != nullptr) root_->AbandonForward(*unit_);
  } catch (...) {  // another exception is on its way
  }
}

ForwardGuard::~ForwardGuard() {
  if (module_ != nullptr) module_->AbandonForward();
}

void FullyShardedModule::RefuseShards(const char* call) const {
  const bool whole = unit_->shards() == 1 || unit_->parameters().empty() || (root_ != nullptr && root_->summoned());
  TORCH_CHECK(whole, "FullyShardedDataParallel: ", call, " of a module whose parameters are shards, from ",
              unit_->parameters().front().name,
              " on; use SaveTrainingState and LoadTrainingState, or do it under SummonFullParams");
}

void FullyShardedModule::save(torch::serialize::OutputArchive& archive) const {
  RefuseShards("torch::save");
  Module::save(archive);
}

void FullyShardedModule::load(torch::serialize::InputArchive& archive) {
  RefuseShards("torch::load");
  Module::load(archive);
}

at::Tensor FullyShardedModule::CastInput(const at::Tensor& input) const {
  const MixedPrecision& precision = options_.mixed_precision;
  if (!precision.cast_forward_inputs || !precision.param_dtype.has_value()) return input;
  return input.defined() && at::isFloatingType(input.scalar_type()) ? input.to(*precision.param_dtype) : input;
}

at::Tensor FullyShardedModule::CastOutput(const at::Tensor& output) const {
  const auto type = options_.mixed_precision.output_dtype;
  const bool outermost = root_ != nullptr && root_->units().front() == unit_;
  if (!outermost || !type.has_value() || !output.defined() || !at::isFloatingType(output.scalar_type())) return output;
  return output.to(*type);
}

at::Tensor FullyShardedModule::clip_grad_norm_(double max_norm, double norm_type) {
  if (join() != nullptr) join()->Tell(*this, kClipCall, std::array{max_norm, norm_type});
  std::vector<at::Tensor> parameters, gradients;
  for (const auto& unit : root().units()) {
    for (const FsdpParameter& parameter : unit->parameters()) {
      parameters.push_back(parameter.tensor);
      if (parameter.tensor.grad().defined()) gradients.push_back(parameter.tensor.grad());
    }
  }
  std::vector<Axis> axes = ModelAxes(parameters);
  for (Axis& axis : axes) {
    if (axis.name == kShardAxis) axis.group = &root().norm_group();  // which Abort fails
  }
  const at::Tensor norm = ShardedNorm(CountedGradients(parameters, CoordinateOn(axes)), norm_type,
                                      GroupsOf(axes, "FullyShardedDataParallel"));
  ClipByNorm(gradients, norm, max_norm);
  return norm;
}

std::vector<ShardedParameter> FullyShardedModule::sharded_parameters() {
  std::map<const void*, const FsdpParameter*> parts;
  for (const auto& unit : root().units()) {
    for (const FsdpParameter& parameter : unit->parameters()) {
      parts[parameter.tensor.unsafeGetTensorImpl()] = &parameter;
    }
  }
  std::vector<ShardedParameter> found;
  for (const auto& item : sharded_.named_parameters()) {
    const auto part = parts.find(item.value().unsafeGetTensorImpl());
    if (part == parts.end()) continue;  // listed before, under another name
    found.push_back({.name = UnwrappedName(item.key()),
                     .tensor = item.value(),
                     .sizes = part->second->sizes,
                     .begin = part->second->own.begin,
                     .end = part->second->own.end});
    parts.erase(part);
  }
  return found;
}

std::vector<std::pair<std::string, at::Tensor>> FullyShardedModule::unwrapped_buffers() const {
  std::vector<std::pair<std::string, at::Tensor>> found;
  for (const auto& item : sharded_.named_buffers()) found.emplace_back(UnwrappedName(item.key()), item.value());
  return found;
}

int FullyShardedModule::place() const {
  return replicate_ == nullptr ? shard_->rank() : replicate_->rank() * shard_->size() + shard_->rank();
}

int FullyShardedModule::places() const { return shard_->size() * (replicate_ == nullptr ? 1 : replicate_->size()); }

comm::Communicator& FullyShardedModule::join_group() {
  TORCH_CHECK(world_.size() == places(),
              "FullyShardedDataParallel: shards that DistributedDataParallel replicates have no group of all ranks, "
              "which Join needs; shard over a DeviceMesh of (replicas, shards) instead");
  return world_;
}

SummonFullParams::~SummonFullParams() noexcept(false) {
  constexpr const char* kWhat = "FullyShardedDataParallel: writing back what was changed under SummonFullParams";
  try {
    root_.ReshardAll(writeback_);
  } catch (...) {
    root_.Abort(std::string(kWhat) + ": " + TextOfCaught());  // changes are lost, and only here
    if (std::uncaught_exceptions() == exceptions_) ThrowCaught(kWhat);
  }
}

void FullyShardedModule::OnJoin() {
  if (join() != nullptr || root_ != nullptr) root().set_join(join(), this);
}

void FullyShardedModule::Shadow(int call, const JoinIteration& iteration) {
  if (call != kClipCall) return root().Shadow(call, iteration.active_count());
  std::array<double, 2> given;
  join()->Share(given);
  clip_grad_norm_(given[0], given[1]);
}

// Forgets the order of the last forward pass, by which units are gathered ahead: ranks that only answered don't know
// it.
void FullyShardedModule::AfterJoin(const JoinIteration& last) {
  if (last.active_count() < last.size()) root().ForgetOrder();
}

std::string FullyShardedModule::NameOf(int call) const {
  if (call == kClipCall) return "FullyShardedDataParallel's clip_grad_norm_";
  return root_ != nullptr ? root_->NameOf(call) : "FullyShardedDataParallel's";
}

}  // namespace cohort::trainer
