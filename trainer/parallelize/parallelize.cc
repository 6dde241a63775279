#include "cohort/trainer/parallelize/parallelize.h"

#include <algorithm>
#include <map>

#include "cohort/trainer/base/error.h"
#include "cohort/trainer/parallel/fsdp/fully_shard.h"
#include "cohort/trainer/parallelize/plan_text.h"
#include "cohort/trainer/parallelize/sequential_element.h"
#include "cohort/trainer/placement/placement_table.h"
#include "cohort/trainer/state/deferred_init.h"
#include "cohort/trainer/transfer/same_on_all_ranks.h"
#include "torch/torch.h"

namespace cohort::trainer {
namespace {

constexpr const char* kWho = "parallelize";

void CheckAxes(const DeviceMesh& mesh) {
  for (int dim = 0; dim < mesh.ndim(); ++dim) {
    const std::string& name = mesh.dim_names()[dim];
    const bool known = name == kReplicateAxis || name == kShardAxis || name == kTensorAxis;
    TORCH_CHECK(known || mesh.shape()[dim] == 1, kWho, ": the mesh (", mesh.Describe(), ") has axis \"", name,
                "\", over which it lays nothing out; give it a slice of replicate, shard and tensor");
  }
}

std::string TextOf(const ParallelizePlan& plan) {
  std::string text;
  for (const auto& [pattern, style] : plan.tensor) {
    if (const auto* columns = std::get_if<ColwiseParallel>(&style)) {
      text += c10::str(pattern, ": columns, gathered ", columns->gather_output(), ", unit ", columns->unit(),
                       ", blocks ", at::IntArrayRef(columns->blocks()), "\n");
    } else {
      const auto& rows = std::get<RowwiseParallel>(style);
      text += c10::str(pattern, ": rows, input parallel ", rows.input_is_parallel(), ", unit ", rows.unit(), "\n");
    }
  }
  for (const std::string& unit : plan.units) text += "unit " + unit + "\n";
  return text + c10::str("sequence_parallel ", plan.tensor_axis.sequence_parallel, " along ",
                         plan.tensor_axis.sequence_dim, ", chunks ", plan.tensor_axis.chunks);
}

// Ranks along the tensor axis keep parts of one model, and drop the same elements of what all of them have.
void CheckTensorRanks(const torch::nn::Module& model, comm::Communicator& group) {
  CheckSameSetup(group, kWho, {{"seed", std::to_string(at::detail::getDefaultCPUGenerator().current_seed())}});
  std::vector<at::Tensor> whole;
  for (const at::Tensor& parameter : model.parameters()) {
    if (HasData(parameter) && Placements().OrWhole(parameter)->whole()) whole.push_back(parameter);
  }
  CheckSameValues(group, kWho, whole, "set torch::manual_seed to one number before the model is made");
}

void CheckSetup(const torch::nn::Module& model, DeviceMesh& mesh, const ParallelizePlan& plan) {
  std::vector<std::string> lines;
  std::map<const void*, std::string> names;
  for (const auto& item : model.named_parameters()) {
    const auto [first, is_new] = names.emplace(item.value().unsafeGetTensorImpl(), item.key());
    const std::string shared = is_new ? "" : " (shared with " + first->second + ")";
    const auto placement = Placements().OrWhole(item.value());
    lines.push_back(DescribeTensor(item.key(), item.value().scalar_type(), placement->sizes()) +
                    (item.value().requires_grad() ? "" : " (frozen)") + shared);
  }
  const std::string options = ToText(plan.fsdp) + ToText(plan.ddp);
  CheckSameSetup(mesh.world(), kWho,
                 {{"mesh", mesh.Describe()}, ModelFact(lines), {"plan", TextOf(plan)}, {"options", options}});
}

// Shards the modules that the patterns name, from the inside out.
void ShardUnits(torch::nn::Module& model, DeviceMesh& data, const ParallelizePlan& plan) {
  const auto modules = model.named_modules(/*name_prefix=*/"", /*include_self=*/false);
  std::vector<std::string> names;
  for (const std::string& pattern : plan.units) {
    const size_t before = names.size();
    for (const auto& item : modules) {
      if (FitsPattern(pattern, item.key())) names.push_back(item.key());
    }
    TORCH_CHECK(names.size() > before, kWho, ": no module of the model has a name that fits unit \"", pattern, "\"");
  }
  const auto depth = [](const std::string& name) { return std::count(name.begin(), name.end(), '.'); };
  std::stable_sort(names.begin(), names.end(),
                   [&](const std::string& a, const std::string& b) { return depth(a) > depth(b); });
  for (const std::string& name : names) {
    const size_t dot = name.rfind('.');
    const auto* parent = dot == std::string::npos ? nullptr : modules.find(name.substr(0, dot));
    auto* sequential = parent == nullptr ? nullptr : dynamic_cast<torch::nn::SequentialImpl*>(parent->get());
    if (sequential != nullptr) {
      fully_shard(ElementOf(*sequential, name.substr(dot + 1)), data, plan.fsdp);
    } else {
      fully_shard(*modules[name], data, plan.fsdp);
    }
  }
}

}  // namespace

std::unique_ptr<DeviceMesh> PrepareOnMesh(torch::nn::Module& model, DeviceMesh& mesh, const ParallelizePlan& plan) {
  CheckAxes(mesh);
  CheckSetup(model, mesh, plan);
  TORCH_CHECK(plan.units.empty() || mesh.has(kShardAxis), kWho, ": the plan names units, and the mesh (",
              mesh.Describe(), ") has no axis \"shard\" to gather them over");
  Axis tensor = {.name = kTensorAxis};  // a mesh without the axis has one rank along it
  if (mesh.has(kTensorAxis)) {
    const auto axis = mesh.axis(kTensorAxis);
    ThrowUnlessOk(axis.status(), "taking the tensor axis of a mesh");
    if (axis->size > 1) CheckTensorRanks(model, *axis->group);
    tensor = *axis;
  }
  CutLayers(model, plan.tensor, TensorAxis(tensor, plan.tensor_axis));
  std::vector<std::string> data;
  for (const char* name : {kReplicateAxis, kShardAxis}) {
    if (mesh.has(name)) data.emplace_back(name);
  }
  if (data.empty()) return nullptr;
  auto of_data = mesh.Slice(data);
  ThrowUnlessOk(of_data.status(), "taking the data axes of a mesh");
  if (mesh.has(kShardAxis)) ShardUnits(model, **of_data, plan);
  return *std::move(of_data);
}

}  // namespace cohort::trainer
