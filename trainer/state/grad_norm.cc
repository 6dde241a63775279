#include "cohort/trainer/state/grad_norm.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <set>

#include "cohort/trainer/base/error.h"
#include "cohort/trainer/base/tensor_values.h"
#include "cohort/trainer/placement/placement_table.h"
#include "cohort/trainer/transfer/collectives.h"
#include "torch/torch.h"

namespace cohort::trainer {
namespace {

// Norms of the parts, in their order on each device: one wait for a device, whatever their number.
std::vector<double> NormsOf(const std::vector<at::Tensor>& parts, double norm_type) {
  std::map<std::pair<c10::DeviceType, c10::DeviceIndex>, std::vector<at::Tensor>> by_device;
  for (const at::Tensor& part : parts) {
    if (part.numel() == 0) continue;
    const at::Tensor own = ValuesOf(part.is_sparse() ? part.coalesce() : part);
    if (own.numel() == 0) continue;
    const at::Tensor values = own.scalar_type() == at::kDouble ? own : own.to(at::kFloat);
    by_device[{part.device().type(), part.device().index()}].push_back(values.norm(norm_type).to(at::kDouble));
  }
  std::vector<double> norms;
  for (const auto& [device, on_device] : by_device) {
    const at::Tensor together = at::stack(on_device).to(at::kCPU);
    norms.insert(norms.end(), together.data_ptr<double>(), together.data_ptr<double>() + together.numel());
  }
  return norms;
}

// Whether the gradient of the rank at `at` counts: along each of these axes the rank has a part of its own, or is the
// one that counts for all with equal gradients. Other axes, such as that of replicas, are not summed over.
bool Counts(const Coordinate& at, const Placement& placement) {
  if (placement.copy() > 0) return false;
  return std::all_of(at.begin(), at.end(), [&](const auto& place) {
    const AxisUse use = placement.use(place.first);
    if (use == AxisUse::kReduced) return place.second == placement.owner(place.first);
    return place.second == 0 || use == AxisUse::kSplit || use == AxisUse::kOwned;
  });
}

// Whether gradients over the axis of replicas are not equal: each is at its owner.
bool ReducesOver(const std::vector<at::Tensor>& parameters, const std::string& axis) {
  return std::any_of(parameters.begin(), parameters.end(), [&](const at::Tensor& parameter) {
    const auto placement = Placements().Of(parameter);
    return placement != nullptr && placement->use(axis) == AxisUse::kReduced;
  });
}

}  // namespace

at::Tensor ShardedNorm(const std::vector<at::Tensor>& parts, double norm_type,
                       const std::vector<comm::Communicator*>& groups, double* found) {
  TORCH_CHECK(norm_type > 0, "clip_grad_norm_: norm_type must be positive, got ", norm_type);
  const at::NoGradGuard no_grad;
  const bool infinite = std::isinf(norm_type);
  std::array<double, 3> summed = {0, 0, found == nullptr ? 0 : *found};  // the second: how many parts are float64
  double& total = summed[0];
  for (const at::Tensor& part : parts) summed[1] += c10::toRealValueType(part.scalar_type()) == at::kDouble ? 1 : 0;
  for (const double norm : NormsOf(parts, norm_type)) {
    if (std::isnan(norm)) {
      total = norm;
    } else {
      total = infinite ? std::max(total, norm) : total + std::pow(norm, norm_type);
    }
  }
  for (comm::Communicator* group : groups) {
    const comm::Buffer buffer(summed.data(), summed.size());
    ThrowUnlessOk(AllReduce(*group, buffer, buffer, infinite ? comm::ReduceOp::kMax : comm::ReduceOp::kSum).Wait(),
                  "adding up the norm of gradients");
  }
  if (found != nullptr) *found = summed[2];
  return at::scalar_tensor(infinite ? total : std::pow(total, 1.0 / norm_type),
                           summed[1] > 0 ? at::kDouble : at::kFloat);
}

std::vector<at::Tensor> CountedGradients(const std::vector<at::Tensor>& parameters, const Coordinate& at) {
  std::vector<at::Tensor> counted;
  std::set<const void*> seen;
  for (const at::Tensor& parameter : parameters) {
    if (!seen.insert(parameter.unsafeGetTensorImpl()).second || !parameter.grad().defined()) continue;
    if (Counts(at, *Placements().OrWhole(parameter))) counted.push_back(parameter.grad());
  }
  return counted;
}

std::vector<comm::Communicator*> GroupsOf(const std::vector<Axis>& axes, const char* who) {
  std::vector<comm::Communicator*> groups;
  for (const Axis& axis : axes) {
    TORCH_CHECK(axis.group != nullptr || axis.size == 1, who, ": parameters are cut over axis '", axis.name,
                "', and their placements name no group for it");
    if (axis.size > 1) groups.push_back(axis.group);
  }
  return groups;
}

ModelRanks RanksOfModel(const std::vector<at::Tensor>& parameters, DeviceMesh* mesh, const char* who) {
  const std::vector<Axis> axes = ModelAxes(parameters);
  if (mesh == nullptr) return {GroupsOf(axes, who), CoordinateOn(axes)};
  ModelRanks ranks;
  std::vector<std::string> names;
  // Replicas with equal gradients have nothing to add. But a stage without parameters cannot tell whether the gradients
  // of other stages are at their owners.
  const std::vector<Axis> all = mesh->base_axes();
  const bool has_stages =
      std::any_of(all.begin(), all.end(), [](const Axis& axis) { return axis.size > 1 && axis.name == kPipelineAxis; });
  for (const Axis& axis : all) {
    if (axis.name == kReplicateAxis && !has_stages && !ReducesOver(parameters, axis.name)) continue;
    names.push_back(axis.name);
    ranks.at[axis.name] = axis.rank;
  }
  for (const Axis& axis : axes) {
    TORCH_CHECK(axis.size == 1 || ranks.at.contains(axis.name), who, ": parameters are cut or owned over axis '",
                axis.name, "', which the mesh (", mesh->Describe(), ") lacks; give it the mesh that the axis is of");
  }
  if (names.empty()) return ranks;
  const auto model = mesh->Slice(names);
  ThrowUnlessOk(model.status(), "taking the axes of the model from a mesh");
  ranks.groups.push_back(&(*model)->world());
  return ranks;
}

at::Tensor clip_grad_norm_(const std::vector<at::Tensor>& parameters, double max_norm, double norm_type,
                           DeviceMesh* mesh) {
  const ModelRanks ranks = RanksOfModel(parameters, mesh, "clip_grad_norm_");
  const at::Tensor norm = ShardedNorm(CountedGradients(parameters, ranks.at), norm_type, ranks.groups);
  std::vector<at::Tensor> all;
  std::set<const void*> seen;
  for (const at::Tensor& parameter : parameters) {
    const bool first = seen.insert(parameter.unsafeGetTensorImpl()).second;
    if (first && parameter.grad().defined()) all.push_back(parameter.grad());
  }
  ClipByNorm(all, norm, max_norm);
  return norm;
}

void ClipByNorm(const std::vector<at::Tensor>& gradients, const at::Tensor& norm, double max_norm) {
  const at::NoGradGuard no_grad;
  const double factor = max_norm / (norm.item<double>() + 1e-6);
  if (factor >= 1) return;
  for (at::Tensor gradient : gradients) gradient.mul_(factor);
}

}  // namespace cohort::trainer
