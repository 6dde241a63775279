#include "cohort/trainer/state/training_state.h"

#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <utility>

#include "cohort/trainer/base/error.h"
#include "cohort/trainer/base/name_list.h"
#include "cohort/trainer/base/wrapped_name.h"
#include "cohort/trainer/placement/placement_table.h"
#include "cohort/trainer/state/checkpoint/checkpoint_values.h"
#include "cohort/trainer/state/kept_optimizer.h"
#include "cohort/trainer/state/master_weights.h"
#include "cohort/trainer/state/optimizer_state.h"
#include "cohort/trainer/state/param_groups.h"
#include "torch/torch.h"

namespace cohort::trainer {
namespace {

constexpr const char* kModel = "model.";
constexpr const char* kOptimizer = "optimizer.";
constexpr const char* kGroups = "optimizer.param_groups";  // a value
constexpr const char* kStep = "step";                      // the only state without the parameter's shape

CheckpointTensor Named(CheckpointTensor tensor, const std::string& prefix) {
  tensor.name = prefix + tensor.name;
  return tensor;
}

std::vector<CheckpointTensor> ModelTensors(const TrainingState& state) {
  std::vector<CheckpointTensor> tensors;
  for (const CheckpointTensor& parameter : state.parameters) tensors.push_back(Named(parameter, kModel));
  for (const CheckpointTensor& buffer : state.buffers) tensors.push_back(Named(buffer, kModel));
  return tensors;
}

// The tensors that this rank writes. Ranks may have different buffers, such as statistics of their own inputs. The
// first of them writes all of its own, so that the checkpoint does not mix them.
std::vector<CheckpointTensor> OwnModelTensors(const TrainingState& state) {
  std::vector<CheckpointTensor> tensors;
  for (const CheckpointTensor& parameter : state.parameters) tensors.push_back(Named(parameter, kModel));
  for (const CheckpointTensor& buffer : state.buffers) {
    if (buffer.replica > 0) continue;
    tensors.push_back(Named(buffer, kModel));
    tensors.back().replicas = 1;
  }
  return tensors;
}

// One tensor of a parameter's optimizer state.
CheckpointTensor StateTensor(const CheckpointTensor& parameter, const StateReplica& place, const std::string& key,
                             const at::Tensor& data) {
  CheckpointTensor tensor = parameter;
  tensor.name = kOptimizer + parameter.name + "." + key;
  tensor.data = data;
  tensor.replica = place.replica;
  tensor.replicas = place.replicas;
  if (key == kStep) {
    tensor.sizes = {};
    tensor.boxes = WholeBox({});
    tensor.replica = 0;  // others leave it out, see WritesStep
    tensor.replicas = 1;
  }
  return tensor;
}

// Whether this rank writes the number of a parameter's steps, which all that step a part of it have: the first of those
// that have its first element does. Other ranks of the world may have another model, such as a stage.
bool WritesStep(const TrainingState& state, size_t index) {
  const CheckpointTensor& parameter = state.parameters[index];
  if (!state.states[index].has_value() || state.states[index]->replica > 0) return false;
  const bool empty = std::find(parameter.sizes.begin(), parameter.sizes.end(), 0) != parameter.sizes.end();
  if (empty) return state.shards == nullptr || state.shards->place() == 0;
  if (parameter.boxes.empty()) return false;
  const std::vector<int64_t>& first = parameter.boxes.front().offset;
  return std::all_of(first.begin(), first.end(), [](int64_t offset) { return offset == 0; });
}

// The states that the checkpoint has of a parameter, with fresh memory.
std::map<std::string, at::Tensor> FreshState(const CheckpointIndex& index, const CheckpointTensor& parameter) {
  std::map<std::string, at::Tensor> fresh;
  const std::string prefix = kOptimizer + parameter.name + ".";
  for (auto entry = index.tensors().lower_bound(prefix);
       entry != index.tensors().end() && entry->first.compare(0, prefix.size(), prefix) == 0; ++entry) {
    const std::string key = entry->first.substr(prefix.size());
    if (key.find('.') != std::string::npos) continue;  // of a parameter whose name begins with this one's
    const auto options = parameter.data.options().requires_grad(false).dtype(entry->second.dtype);
    fresh[key] = key == kStep ? at::zeros({}, at::kLong) : at::zeros(parameter.data.sizes(), options);
  }
  return fresh;
}

bool HasMasters(const TrainingState& state) {
  return state.optimizer != nullptr && MasterWeightsOf(*state.optimizer) != nullptr;
}

// The names of the checkpoint's tensors, without the prefix, each with the one that it is kept under: itself, but for
// the other names of what modules shared when it was saved.
std::map<std::string, std::string> NamesIn(const CheckpointIndex& index) {
  const std::string prefix = kModel;
  std::map<std::string, std::string> names;
  const auto add = [&](const std::string& name, const std::string& kept) {
    if (name.starts_with(prefix) && kept.starts_with(prefix) && index.tensors().count(kept) > 0) {
      names.emplace(name.substr(prefix.size()), kept.substr(prefix.size()));
    }
  };
  for (const auto& [name, tensor] : index.tensors()) add(name, name);
  for (const auto& [alias, name] : AliasesIn(index.values())) add(alias, name);
  return names;
}

// Whether saved groups are those of a part of the model, such as the first stage: the checkpoint has the optimizer's
// state of more parameters than they have. Optimizers without state, such as plain SGD, leave no count; this rank's
// `own` groups tell then.
bool OfAPart(const CheckpointIndex& index, const std::string& groups, torch::optim::Optimizer& own) {
  const std::string prefix = kOptimizer;
  std::set<std::string> names;
  for (const auto& [name, tensor] : index.tensors()) {
    if (name.starts_with(prefix)) names.insert(name.substr(0, name.rfind('.')));
  }
  const auto parameters = names.empty() ? ParametersIn(ParamGroupsText(own)) : static_cast<int64_t>(names.size());
  return parameters > ParametersIn(groups);
}

// All names that this rank's model has, each on a line.
std::string NamesHere(const TrainingState& state) {
  std::string names;
  for (const auto* tensors : {&state.parameters, &state.buffers}) {
    for (const CheckpointTensor& tensor : *tensors) names += tensor.name + "\n";
  }
  for (const auto& [alias, first] : state.aliases) names += alias + "\n";
  return names;
}

// The names of the models of all ranks, which are parts of one where ranks are stages; none where each rank has all of
// the checkpoint's. Collective; blocks.
std::set<std::string> NamesOnAllRanks(comm::Communicator& world, const CheckpointIndex& index,
                                      const TrainingState& state, const std::string& what,
                                      std::chrono::nanoseconds timeout) {
  const auto lines = [](const std::string& text, std::set<std::string>& into) {
    for (size_t begin = 0; begin < text.size();) {
      const size_t end = text.find('\n', begin);
      into.insert(text.substr(begin, end - begin));
      begin = end + 1;
    }
  };
  std::set<std::string> here, all;
  const std::string names = NamesHere(state);
  lines(names, here);
  const std::map<std::string, std::string> there = NamesIn(index);
  const bool has_all =
      std::all_of(there.begin(), there.end(), [&](const auto& name) { return here.contains(name.first); });
  const std::vector<std::string> lacks = GatherTexts(world, has_all ? "" : "some", what, timeout);
  if (std::all_of(lacks.begin(), lacks.end(), [](const std::string& each) { return each.empty(); })) return all;
  for (const std::string& text : GatherTexts(world, names, what, timeout)) lines(text, all);
  return all;
}

// `state` with the names that the checkpoint keeps its tensors under. A tensor that modules share is found by any of
// its names on either side: the first one depends on the order of the modules. Throws c10::Error where parameters or
// buffers are of another model, as PyTorch's strict load_state_dict. That is found before anything is compared that
// would only hint at it, such as the numbers of parameters in groups. Tensors of `elsewhere` are those of other ranks.
TrainingState NamedAsIn(const std::string& directory, const CheckpointIndex& index, const TrainingState& state,
                        const std::set<std::string>& elsewhere) {
  const std::map<std::string, std::string> there = NamesIn(index);
  std::multimap<std::string, std::string> others;  // here, by the first name
  std::set<std::string> here;
  for (const auto& [alias, first] : state.aliases) {
    others.emplace(first, alias);
    here.insert(alias);
  }
  std::vector<std::string> missing, unknown;
  const auto rename = [&](CheckpointTensor& tensor) {
    here.insert(tensor.name);
    auto found = there.find(tensor.name);
    const auto [begin, end] = others.equal_range(tensor.name);
    for (auto other = begin; found == there.end() && other != end; ++other) found = there.find(other->second);
    if (found != there.end()) {
      tensor.name = found->second;
    } else {
      missing.push_back(tensor.name);
    }
  };
  TrainingState named = state;
  for (CheckpointTensor& parameter : named.parameters) rename(parameter);
  for (CheckpointTensor& buffer : named.buffers) rename(buffer);
  for (const auto& [name, first] : there) {
    if (!here.contains(name) && !elsewhere.contains(name)) unknown.push_back(name);
  }
  const std::string difference = NameDifference(missing, unknown, "this model");
  TORCH_CHECK(difference.empty(), "checkpoint ", directory, " is of another model: ", difference);
  return named;
}

// The tensors that the model is read from and into. For another type in the checkpoint it is memory of that type, whose
// values SetConverted takes, or MasterWeights' copy of the parameter, which has the wanted type. If values would be
// lost it is the tensor as it is, which LoadTensors refuses.
std::vector<CheckpointTensor> ReadableTensors(const CheckpointIndex& index, const TrainingState& state) {
  const bool has_masters = HasMasters(state);
  std::vector<CheckpointTensor> tensors = ModelTensors(state);
  for (size_t i = 0; i < tensors.size(); ++i) {
    CheckpointTensor& tensor = tensors[i];
    const auto there = index.tensors().find(tensor.name);
    const at::ScalarType here = tensor.data.scalar_type();
    if (there == index.tensors().end() || there->second.dtype == here) continue;
    const at::ScalarType type = there->second.dtype;
    const bool parameter = i < state.parameters.size();
    if (parameter) {
      const std::string copy = kOptimizer + state.parameters[i].name + "." + kMasterWeight;
      const auto master = index.tensors().find(copy);
      if (master != index.tensors().end() && master->second.dtype == here) {
        tensor.name = copy;
        continue;
      }
    }
    const bool rounds = type == at::kFloat && tensor.data.element_size() < 4 && has_masters;
    if (!at::isFloatingType(type) || !at::isFloatingType(here) || (parameter && !rounds)) continue;
    tensor.data = at::empty(tensor.data.sizes(), tensor.data.options().requires_grad(false).dtype(type));
  }
  return tensors;
}

// After they have been read.
void SetConverted(const std::vector<CheckpointTensor>& read, const TrainingState& state,
                  std::vector<std::map<std::string, at::Tensor>>& states) {
  const at::NoGradGuard no_grad;
  const std::vector<CheckpointTensor> model = ModelTensors(state);
  for (size_t i = 0; i < model.size(); ++i) {
    if (read[i].data.is_same(model[i].data)) continue;
    at::Tensor(model[i].data).copy_(read[i].data);
    if (i < states.size() && state.states[i].has_value()) states[i][kMasterWeight] = read[i].data;
  }
}

// Every name but the first of tensors that modules share, with the first one.
std::map<std::string, std::string> AliasesOf(const torch::nn::Module& module) {
  std::map<std::string, std::string> aliases;
  std::map<const void*, std::string> first;
  const auto add = [&](const std::string& key, const at::Tensor& tensor) {
    const std::string name = UnwrappedName(key);
    const auto [entry, added] = first.try_emplace(tensor.unsafeGetTensorImpl(), name);
    if (!added) aliases[name] = entry->second;
  };
  for (const auto& item : module.named_parameters()) add(item.key(), item.value());
  for (const auto& item : module.named_buffers()) add(item.key(), item.value());
  return aliases;
}

// The boxes that this rank has of a parameter, by its placement. It is one of `replicas` that have them, and each of
// these has as many copies as the placement says.
CheckpointTensor PlacedTensor(const std::string& name, const at::Tensor& parameter, int replica, int replicas) {
  const auto placement = Placements().OrWhole(parameter);
  return {.name = NameInWhole(parameter, name),
          .sizes = placement->sizes(),
          .boxes = placement->boxes(),
          .data = parameter,
          .replica = placement->copy() * replicas + replica,
          .replicas = placement->copies() * replicas};
}

// Which of the ranks of a mesh, and of their copies, that have the same boxes this one is; ranks along `owners`, if
// any, do not.
StateReplica ReplicaOn(const Placement& placement, const DeviceMesh& mesh, const std::string& owners = "") {
  StateReplica place{.replica = placement.copy(), .replicas = placement.copies()};
  for (const Axis& axis : mesh.base_axes()) {
    const AxisUse use = placement.use(axis.name);
    if (use == AxisUse::kSplit || use == AxisUse::kOwned || axis.name == owners) continue;
    place.replica = place.replica * axis.size + axis.rank;
    place.replicas *= axis.size;
  }
  return place;
}

// `owners` is the axis along which one rank has a parameter's optimizer state; "": all have it.
TrainingState OverMesh(TrainingState state, const DeviceMesh& mesh, const std::string& owners = "") {
  const auto set = [](CheckpointTensor& tensor, const StateReplica& place) {
    tensor.replica = place.replica;
    tensor.replicas = place.replicas;
  };
  for (size_t i = 0; i < state.parameters.size(); ++i) {
    const auto placement = Placements().OrWhole(state.parameters[i].data);
    set(state.parameters[i], ReplicaOn(*placement, mesh));
    if (state.states[i].has_value()) state.states[i] = ReplicaOn(*placement, mesh, owners);
  }
  const bool stage =
      std::all_of(state.parameters.begin(), state.parameters.end(), [](const CheckpointTensor& parameter) {
        return Placements().OrWhole(parameter.data)->use(kPipelineAxis) == AxisUse::kOwned;
      });
  const char* const stages = stage ? kPipelineAxis : "";  // each has buffers of its own
  for (CheckpointTensor& buffer : state.buffers) set(buffer, ReplicaOn(Placement(buffer.sizes), mesh, stages));
  return state;
}

// Every rank has the state of what it has of the parameters.
void HasAllStates(TrainingState& state) {
  for (const CheckpointTensor& parameter : state.parameters) {
    state.states.push_back(StateReplica{.replica = parameter.replica, .replicas = parameter.replicas});
  }
}

// Refuses an optimizer that can't be kept, and one of another model, whose state would be missing or under wrong names.
void CheckOptimizer(const TrainingState& state) {
  CheckKept(*state.groups, /*of_shards=*/state.shards != nullptr);
  std::set<const void*> own;
  for (const CheckpointTensor& parameter : state.parameters) own.insert(parameter.data.unsafeGetTensorImpl());
  for (const auto& group : state.groups->param_groups()) {
    for (const at::Tensor& parameter : group.params()) {
      TORCH_CHECK(own.contains(parameter.unsafeGetTensorImpl()), "StateOf: the optimizer steps a parameter of sizes ",
                  parameter.sizes(),
                  " that the module has not; give it the optimizer that was made of this module's parameters");
    }
  }
}

TrainingState ReplicatedModel(const torch::nn::Module& module, const comm::Communicator& group) {
  RefuseShards(module, "StateOf",
               "give StateOf what shards the outermost module and its optimizer: StateOf(*model, optimizer)");
  TrainingState state;
  state.aliases = AliasesOf(module);
  std::set<const void*> seen;
  for (const auto& item : module.named_parameters()) {
    if (!seen.insert(item.value().unsafeGetTensorImpl()).second) continue;
    state.parameters.push_back(PlacedTensor(item.key(), item.value(), group.rank(), group.size()));
  }
  for (const auto& item : module.named_buffers()) {
    if (seen.insert(item.value().unsafeGetTensorImpl()).second) {
      state.buffers.push_back(ReplicatedTensor(UnwrappedName(item.key()), item.value(), group));
    }
  }
  return state;
}

}  // namespace

TrainingState StateOf(const torch::nn::Module& module, torch::optim::Optimizer& optimizer,
                      const comm::Communicator& group) {
  TrainingState state = ReplicatedModel(module, group);
  state.optimizer = state.groups = &optimizer;
  CheckOptimizer(state);
  HasAllStates(state);
  return state;
}

TrainingState StateOf(const torch::nn::Module& module, PartitionedOptimizer& optimizer,
                      const comm::Communicator& group) {
  TrainingState state = ReplicatedModel(module, group);
  state.optimizer = &optimizer.local_optimizer();
  state.groups = &optimizer;
  CheckOptimizer(state);
  for (const CheckpointTensor& parameter : state.parameters) {
    const bool owns = optimizer.OwnerOf(parameter.data) == group.rank();
    const auto placement = Placements().OrWhole(parameter.data);
    const StateReplica place{.replica = placement->copy(), .replicas = placement->copies()};
    state.states.push_back(owns ? std::optional(place) : std::nullopt);
  }
  return state;
}

TrainingState StateOf(ShardedModule& module, torch::optim::Optimizer& optimizer) {
  TrainingState state;
  state.shards = &module;
  state.aliases = AliasesOf(module.sharded_module());
  const comm::Communicator* replicas = module.replicas();
  for (const ShardedParameter& parameter : module.sharded_parameters()) {
    state.parameters.push_back(PlacedTensor(parameter.name, parameter.tensor,
                                            replicas == nullptr ? 0 : replicas->rank(),
                                            replicas == nullptr ? 1 : replicas->size()));
  }
  std::set<const void*> seen;  // by one name each, as ReplicatedModel
  for (const auto& [name, buffer] : module.unwrapped_buffers()) {
    if (!seen.insert(buffer.unsafeGetTensorImpl()).second) continue;
    state.buffers.push_back({.name = name,
                             .sizes = buffer.sizes().vec(),
                             .boxes = WholeBox(buffer.sizes().vec()),
                             .data = buffer,
                             .replica = module.place(),
                             .replicas = module.places()});
  }
  state.optimizer = state.groups = &optimizer;
  CheckOptimizer(state);
  HasAllStates(state);
  return state;
}

TrainingState StateOf(const torch::nn::Module& module, torch::optim::Optimizer& optimizer, const DeviceMesh& mesh) {
  return OverMesh(StateOf(module, optimizer, mesh.world()), mesh);
}

TrainingState StateOf(ShardedModule& module, torch::optim::Optimizer& optimizer, const DeviceMesh& mesh) {
  return OverMesh(StateOf(module, optimizer), mesh);
}

TrainingState StateOf(const torch::nn::Module& module, PartitionedOptimizer& optimizer, const DeviceMesh& mesh) {
  const auto replicas = mesh.Slice({kReplicateAxis});
  ThrowUnlessOk(replicas.status(), "StateOf: taking the ranks that share the optimizer's state from a mesh");
  return OverMesh(StateOf(module, optimizer, (*replicas)->world()), mesh, kReplicateAxis);
}

std::vector<CheckpointTensor> CheckpointTensorsOf(const TrainingState& state) {
  if (state.shards != nullptr) state.shards->Reshard();
  std::vector<CheckpointTensor> tensors = OwnModelTensors(state);
  for (size_t i = 0; i < state.parameters.size() && state.optimizer != nullptr; ++i) {
    if (!state.states[i].has_value()) continue;
    for (const auto& [key, data] : OptimizerStateOf(*state.optimizer, state.parameters[i].data)) {
      if (key == kStep && !WritesStep(state, i)) continue;
      tensors.push_back(StateTensor(state.parameters[i], *state.states[i], key, data));
    }
  }
  return tensors;
}

CheckpointValues CheckpointValuesOf(const TrainingState& state, CheckpointValues values) {
  for (const char* own : {kGroups, kCheckpointAliases}) {
    TORCH_CHECK(values.count(own) == 0, "a checkpoint's value ", own, " is the training state's own; take another key");
  }
  if (state.groups != nullptr) values[kGroups] = ParamGroupsText(*state.groups);
  std::map<std::string, std::string> aliases;
  for (const auto& [name, first] : state.aliases) aliases[kModel + name] = kModel + first;
  if (!aliases.empty()) values[kCheckpointAliases] = AliasesText(aliases);
  return values;
}

void SaveTrainingState(comm::Communicator& world, const std::string& directory, const TrainingState& state,
                       const CheckpointValues& values, std::chrono::nanoseconds timeout) {
  std::vector<CheckpointTensor> tensors;
  CheckpointValues all;
  const auto list = [&] {
    tensors = CheckpointTensorsOf(state);
    all = CheckpointValuesOf(state, values);
  };
  TogetherOrNot(world, "saving checkpoint " + directory, list, timeout);  // or the others would wait for who can't
  SaveCheckpoint(world, directory, tensors, all, timeout);
}

CheckpointValues LoadTrainingState(comm::Communicator& world, const std::string& directory, const TrainingState& state,
                                   std::chrono::nanoseconds timeout) {
  const CheckpointIndex index = CheckpointIndex::ReadTogether(world, directory, timeout);
  CheckpointValues values = index.values();
  const auto groups = values.extract(kGroups);
  values.erase(kCheckpointAliases);
  std::vector<std::unique_ptr<torch::optim::OptimizerOptions>> options;  // none where the saved state had no groups
  const std::set<std::string> elsewhere =
      NamesOnAllRanks(world, index, state, "loading checkpoint " + directory, timeout);
  const auto load = [&] {
    if (state.shards != nullptr) state.shards->Reshard();
    const TrainingState named = NamedAsIn(directory, index, state, elsewhere);
    const std::vector<CheckpointTensor> model = ReadableTensors(index, named);
    std::vector<CheckpointTensor> wanted = model;
    std::vector<std::map<std::string, at::Tensor>> states(state.parameters.size());
    for (size_t i = 0; i < states.size(); ++i) {
      if (!state.states[i].has_value()) continue;
      states[i] = FreshState(index, named.parameters[i]);
      if (!HasMasters(state)) states[i].erase(kMasterWeight);
      for (const auto& [key, data] : states[i]) {
        wanted.push_back(StateTensor(named.parameters[i], *state.states[i], key, data));
      }
    }
    if (state.groups != nullptr && !groups.empty()) {
      options = ParamGroupOptions(
          *state.groups, groups.mapped(),
          /*of_same_parameters=*/elsewhere.empty() && !OfAPart(index, groups.mapped(), *state.groups));
    }
    LoadTensors(directory, index, wanted);
    SetConverted(model, state, states);
    for (size_t i = 0; i < states.size(); ++i) {
      if (state.states[i].has_value()) SetOptimizerState(*state.optimizer, state.parameters[i].data, states[i]);
    }
  };
  TogetherOrNot(world, "loading checkpoint " + directory, load, timeout);
  // When all ranks have it: else one could keep the learning rate of a checkpoint that another could not read.
  for (size_t g = 0; g < options.size(); ++g) state.groups->param_groups()[g].set_options(std::move(options[g]));
  return values;
}

std::optional<LoadedState> LoadLatestTrainingState(comm::Communicator& world, const std::string& root,
                                                   const TrainingState& state,
                                                   const std::function<void(const std::string&)>& refused,
                                                   std::chrono::nanoseconds timeout) {
  std::string reasons;
  for (const std::string& directory : CheckpointsTogether(world, root, timeout)) {
    try {
      return LoadedState{directory, LoadTrainingState(world, directory, state, timeout)};
    } catch (const DistributedError& error) {
      if (error.code() != absl::StatusCode::kDataLoss && error.code() != absl::StatusCode::kNotFound) throw;
      reasons += std::string("\n  ") + error.what_without_backtrace();
      if (refused != nullptr) refused(error.what_without_backtrace());
    }
  }
  if (reasons.empty()) return std::nullopt;
  throw DistributedError(absl::StatusCode::kDataLoss,
                         "none of the checkpoints in " + root + " can be read:" + reasons +
                             "\nRestore one of them, or move them away to begin from the start");
}

}  // namespace cohort::trainer
