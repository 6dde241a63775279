#include "cohort/trainer/placement/placement_table.h"

#include <algorithm>
#include <map>
#include <set>
#include <sstream>

#include "cohort/comm/communicator.h"
#include "cohort/runtime/base/mutex.h"
#include "cohort/trainer/base/wrapped_name.h"
#include "torch/torch.h"

namespace cohort::trainer {
namespace {

using Impl = c10::TensorImpl;
using WeakImpl = c10::weak_intrusive_ptr<Impl, at::UndefinedTensorImpl>;

std::vector<int64_t> SizesOf(const at::Tensor& tensor) { return tensor.sizes().vec(); }

std::string UseText(const Placement& placement) {
  const std::string text = placement.Describe();
  const size_t colon = text.find(": ");
  return colon == std::string::npos ? "whole" : text.substr(colon + 2);
}

// Lines of cells, with columns as wide as their longest cell.
std::string Columns(const std::vector<std::vector<std::string>>& lines) {
  std::vector<size_t> widths;
  for (const auto& cells : lines) {
    widths.resize(std::max(widths.size(), cells.size()), 0);
    for (size_t i = 0; i < cells.size(); ++i) widths[i] = std::max(widths[i], cells[i].size());
  }
  std::string text;
  for (const auto& cells : lines) {
    for (size_t i = 0; i < cells.size(); ++i) {
      text += cells[i];
      if (i + 1 < cells.size()) text += std::string(widths[i] - cells[i].size() + 2, ' ');
    }
    text += "\n";
  }
  return text;
}

std::string TextOf(const std::vector<int64_t>& sizes) {
  std::ostringstream text;
  text << at::IntArrayRef(sizes);
  return text.str();
}

}  // namespace

// A weak pointer keeps the address of an ended tensor from being used again until its entry goes.
struct PlacementTable::Entries {
  struct Entry {
    WeakImpl tensor;
    std::shared_ptr<const Placement> placement;
  };

  // Drops ended tensors now and then, so that the table is at most twice as long as needed.
  void Sweep() COHORT_REQUIRES(mutex) {
    if (by_tensor.size() < next_sweep) return;
    std::erase_if(by_tensor, [](const auto& item) { return item.second.tensor.expired(); });
    next_sweep = std::max<size_t>(64, by_tensor.size() * 2);
  }

  runtime::Mutex mutex;
  std::unordered_map<const Impl*, Entry> by_tensor COHORT_GUARDED_BY(mutex);
  size_t next_sweep COHORT_GUARDED_BY(mutex) = 64;
};

PlacementTable::PlacementTable() : entries_(std::make_unique<Entries>()) {}
PlacementTable::~PlacementTable() = default;

void PlacementTable::Add(const at::Tensor& parameter, Placement placement) {
  TORCH_CHECK(parameter.defined(), "placement: an undefined tensor has no place");
  auto shared = std::make_shared<const Placement>(std::move(placement));
  runtime::MutexLock lock(entries_->mutex);
  entries_->Sweep();
  entries_->by_tensor.insert_or_assign(
      parameter.unsafeGetTensorImpl(),
      Entries::Entry{.tensor = WeakImpl(parameter.getIntrusivePtr()), .placement = std::move(shared)});
}

void PlacementTable::Remove(const at::Tensor& parameter) {
  runtime::MutexLock lock(entries_->mutex);
  entries_->by_tensor.erase(parameter.unsafeGetTensorImpl());
}

std::shared_ptr<const Placement> PlacementTable::Of(const at::Tensor& parameter) const {
  runtime::MutexLock lock(entries_->mutex);
  const auto found = entries_->by_tensor.find(parameter.unsafeGetTensorImpl());
  return found == entries_->by_tensor.end() ? nullptr : found->second.placement;
}

std::shared_ptr<const Placement> PlacementTable::OrWhole(const at::Tensor& parameter) const {
  auto found = Of(parameter);
  return found != nullptr ? found : std::make_shared<const Placement>(SizesOf(parameter));
}

PlacementTable& Placements() {
  static auto* table = new PlacementTable;  // lives for ever: modules may be static
  return *table;
}

std::string NameInWhole(const at::Tensor& parameter, const std::string& name) {
  const auto placement = Placements().Of(parameter);
  return placement != nullptr && !placement->name().empty() ? placement->name() : UnwrappedName(name);
}

void RefuseOtherParts(const std::string& who, const comm::Communicator& group, const std::string& name,
                      const at::Tensor& parameter) {
  const auto placement = Placements().Of(parameter);
  if (placement == nullptr) return;
  const auto shared = group.members();
  for (const Axis& axis : placement->axes()) {
    const AxisUse use = placement->use(axis.name);
    if (axis.group == nullptr || (use != AxisUse::kSplit && use != AxisUse::kOwned)) continue;
    const int self = axis.group->members()[axis.group->rank()];
    for (const int member : axis.group->members()) {
      const bool both = std::find(shared.begin(), shared.end(), member) != shared.end();
      TORCH_CHECK(member == self || !both, who, ": ranks ", self, " and ", member,
                  " have different parts of parameter ", NameInWhole(parameter, name), " (", placement->Describe(),
                  "), and both are in its group of ", group.size(),
                  " ranks, which must have equal copies; give it ranks that differ along other axes than '", axis.name,
                  "', such as the mesh's axis \"replicate\"");
    }
  }
}

std::string ShowPlacements(const torch::nn::Module& module, const Coordinate& at) {
  std::vector<std::vector<std::string>> lines = {{"parameter", "whole", "here", "writes", "axes"}};
  std::set<const Impl*> seen;
  for (const auto& item : module.named_parameters()) {
    if (!seen.insert(item.value().unsafeGetTensorImpl()).second) continue;
    const auto placement = Placements().OrWhole(item.value());
    const std::vector<int64_t> here = placement->local_sizes(at);
    lines.push_back({NameInWhole(item.value(), item.key()), TextOf(placement->sizes()),
                     placement->boxes(at).empty() && placement->numel() > 0 ? "nothing" : TextOf(here),
                     placement->writes(at) ? "yes" : "no", UseText(*placement)});
  }
  return Columns(lines);
}

at::Tensor BoxOf(const at::Tensor& local, const Box& box) {
  if (local.dim() != static_cast<int64_t>(box.sizes.size())) return local.view(box.sizes);
  at::Tensor view = local;
  for (int64_t dim = 0; dim < local.dim(); ++dim) view = view.narrow(dim, box.local[dim], box.sizes[dim]);
  return view;
}

std::vector<Axis> ModelAxes(const std::vector<at::Tensor>& parameters) {
  std::map<std::pair<int, std::string>, Axis> axes;
  for (const at::Tensor& parameter : parameters) {
    const auto placement = Placements().Of(parameter);
    if (placement == nullptr) continue;
    for (const Axis& axis : placement->axes()) {
      const AxisUse use = placement->use(axis.name);
      if (use != AxisUse::kSplit && use != AxisUse::kOwned && use != AxisUse::kReduced) continue;
      const auto [entry, added] = axes.try_emplace({CanonicalOrder(axis.name), axis.name}, axis);
      Axis& known = entry->second;
      TORCH_CHECK(known.size == axis.size && known.rank == axis.rank, "placement: axis '", axis.name,
                  "' has two meanings among these parameters: rank ", known.rank, " of ", known.size, " and rank ",
                  axis.rank, " of ", axis.size);
      if (known.group == nullptr) known.group = axis.group;
    }
  }
  std::vector<Axis> ordered;
  for (auto& [key, axis] : axes) ordered.push_back(std::move(axis));
  return ordered;
}

Coordinate CoordinateOn(const std::vector<Axis>& axes) {
  Coordinate coordinate;
  for (const Axis& axis : axes) coordinate[axis.name] = axis.rank;
  return coordinate;
}

}  // namespace cohort::trainer
