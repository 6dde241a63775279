#include "cohort/trainer/mesh/device_mesh.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <utility>

#include "cohort/comm/fail_with.h"
#include "cohort/runtime/base/status_macros.h"

namespace cohort::trainer {
namespace {

constexpr int kMostRows = 64;

using Dims = std::vector<int>;  // of the whole mesh, by their places in it

std::string JoinWords(const std::vector<std::string>& words, const char* separator) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : separator) + word;
  return text;
}

std::string Padded(std::string text, size_t width) {
  text.resize(std::max(width, text.size()), ' ');
  return text;
}

}  // namespace

struct DeviceMesh::Whole {
  comm::Communicator& world;
  MeshShape shape;
  std::vector<int> coordinate;                                      // this rank's
  std::map<std::string, Dims> joined = {};                          // by name
  std::map<Dims, std::unique_ptr<comm::Communicator>> groups = {};  // those made so far

  absl::StatusOr<Dims> Find(const std::string& dim) const;
  absl::StatusOr<Dims> FindAll(const std::vector<std::string>& dims) const;
  int SizeOf(const Dims& dims) const;
  int PlaceOn(const Dims& dims) const;
  std::vector<int> RanksAlong(const Dims& dims) const;
  absl::StatusOr<comm::Communicator*> GroupOf(const Dims& dims);
};

absl::StatusOr<Dims> DeviceMesh::Whole::Find(const std::string& dim) const {
  const auto found = std::find(shape.names.begin(), shape.names.end(), dim);
  if (found != shape.names.end()) return Dims{static_cast<int>(found - shape.names.begin())};
  const auto together = joined.find(dim);
  if (together != joined.end()) return together->second;
  std::vector<std::string> names = shape.names;
  for (const auto& [name, dims] : joined) names.push_back(name);
  return absl::InvalidArgumentError("the mesh has no dimension '" + dim + "'; it has: " + JoinWords(names, ", "));
}

// The dimensions of all names, in canonical order.
absl::StatusOr<Dims> DeviceMesh::Whole::FindAll(const std::vector<std::string>& dims) const {
  if (dims.empty()) return absl::InvalidArgumentError("no dimension of the mesh is named");
  Dims all;
  for (const std::string& name : dims) {
    COHORT_ASSIGN_OR_RETURN(const Dims found, Find(name));
    for (const int dim : found) {
      if (std::find(all.begin(), all.end(), dim) != all.end()) {
        return absl::InvalidArgumentError("mesh dimension '" + shape.names[dim] + "' is named twice in " +
                                          JoinWords(dims, ", "));
      }
      all.push_back(dim);
    }
  }
  std::sort(all.begin(), all.end(), [this](int a, int b) {
    return std::pair(CanonicalOrder(shape.names[a]), a) < std::pair(CanonicalOrder(shape.names[b]), b);
  });
  return all;
}

int DeviceMesh::Whole::SizeOf(const Dims& dims) const {
  return std::accumulate(dims.begin(), dims.end(), 1, [this](int size, int dim) { return size * shape.sizes[dim]; });
}

int DeviceMesh::Whole::PlaceOn(const Dims& dims) const {
  return std::accumulate(dims.begin(), dims.end(), 0,
                         [this](int place, int dim) { return place * shape.sizes[dim] + coordinate[dim]; });
}

std::vector<int> DeviceMesh::Whole::RanksAlong(const Dims& dims) const {
  std::vector<int> extents, strides(shape.sizes.size(), 1), ranks;
  for (size_t dim = shape.sizes.size() - 1; dim > 0; --dim) strides[dim - 1] = strides[dim] * shape.sizes[dim];
  for (const int dim : dims) extents.push_back(shape.sizes[dim]);
  for (int place = 0; place < SizeOf(dims); ++place) {
    const std::vector<int> at = MeshCoordinate(place, extents);
    int rank = world.rank();
    for (size_t i = 0; i < dims.size(); ++i) rank += (at[i] - coordinate[dims[i]]) * strides[dims[i]];
    ranks.push_back(rank);
  }
  return ranks;
}

absl::StatusOr<comm::Communicator*> DeviceMesh::Whole::GroupOf(const Dims& dims) {
  const auto found = groups.find(dims);
  if (found != groups.end()) return found->second.get();
  const std::vector<int> ranks = RanksAlong(dims);
  bool in_order = static_cast<int>(ranks.size()) == world.size();
  for (size_t i = 0; i < ranks.size(); ++i) in_order = in_order && ranks[i] == static_cast<int>(i);
  if (in_order && dims.size() > 1) return &world;
  COHORT_ASSIGN_OR_RETURN(auto group, world.Subgroup(ranks));
  comm::FailWith(*group, world);  // all axes end together
  return (groups[dims] = std::move(group)).get();
}

DeviceMesh::DeviceMesh(std::shared_ptr<Whole> whole, MeshShape shape, comm::Communicator* group)
    : whole_(std::move(whole)), shape_(std::move(shape)), group_(group) {}

absl::StatusOr<std::unique_ptr<DeviceMesh>> DeviceMesh::Create(comm::Communicator& world, std::vector<int> shape,
                                                               std::vector<std::string> dim_names) {
  const MeshShape whole = {.names = std::move(dim_names), .sizes = std::move(shape)};
  COHORT_RETURN_IF_ERROR(CheckShape(whole, world.size()));
  auto shared = std::make_shared<Whole>(
      Whole{.world = world, .shape = whole, .coordinate = MeshCoordinate(world.rank(), whole.sizes)});
  return std::unique_ptr<DeviceMesh>(new DeviceMesh(std::move(shared), whole, &world));
}

absl::StatusOr<std::unique_ptr<DeviceMesh>> DeviceMesh::Slice(const std::vector<std::string>& dims) const {
  COHORT_ASSIGN_OR_RETURN(const Dims all, whole_->FindAll(dims));
  for (const std::string& dim : dims) {
    if (!has(dim)) return absl::InvalidArgumentError("this slice of the mesh has no dimension '" + dim + "'");
  }
  std::vector<std::string> names = dims;
  std::sort(names.begin(), names.end(), [this](const std::string& a, const std::string& b) {
    return whole_->Find(a)->front() < whole_->Find(b)->front();
  });
  MeshShape shape = {.names = names, .sizes = {}};
  for (const std::string& name : names) shape.sizes.push_back(whole_->SizeOf(*whole_->Find(name)));
  COHORT_ASSIGN_OR_RETURN(comm::Communicator * group, whole_->GroupOf(all));
  return std::unique_ptr<DeviceMesh>(new DeviceMesh(whole_, std::move(shape), group));
}

absl::Status DeviceMesh::Join(const std::string& name, const std::vector<std::string>& dims) {
  COHORT_ASSIGN_OR_RETURN(const Dims all, whole_->FindAll(dims));
  const absl::StatusOr<Dims> taken = whole_->Find(name);
  if (name.empty() || (taken.ok() && *taken != all)) {
    return absl::InvalidArgumentError("'" + name + "' can't be the name of " + JoinWords(dims, " x ") +
                                      ": it is empty, or that of other dimensions");
  }
  if (!taken.ok()) whole_->joined[name] = all;
  return absl::OkStatus();
}

bool DeviceMesh::has(const std::string& dim) const {
  const absl::StatusOr<Dims> wanted = whole_->Find(dim);
  if (!wanted.ok()) return false;
  const Dims own = *whole_->FindAll(shape_.names);
  return std::all_of(wanted->begin(), wanted->end(),
                     [&](int base) { return std::find(own.begin(), own.end(), base) != own.end(); });
}

comm::Communicator& DeviceMesh::whole_world() const { return whole_->world; }

absl::StatusOr<int> DeviceMesh::size(const std::string& dim) const {
  COHORT_ASSIGN_OR_RETURN(const Dims dims, whole_->Find(dim));
  return whole_->SizeOf(dims);
}

absl::StatusOr<int> DeviceMesh::get_local_rank(const std::string& dim) const {
  COHORT_ASSIGN_OR_RETURN(const Dims dims, whole_->Find(dim));
  return whole_->PlaceOn(dims);
}

absl::StatusOr<std::vector<int>> DeviceMesh::ranks(const std::string& dim) const {
  COHORT_ASSIGN_OR_RETURN(const Dims dims, whole_->Find(dim));
  return whole_->RanksAlong(dims);
}

absl::StatusOr<comm::Communicator*> DeviceMesh::get_group(const std::string& dim) {
  COHORT_ASSIGN_OR_RETURN(const Dims dims, whole_->Find(dim));
  return whole_->GroupOf(dims);
}

absl::StatusOr<Axis> DeviceMesh::axis(const std::string& dim) {
  COHORT_ASSIGN_OR_RETURN(const Dims dims, whole_->Find(dim));
  COHORT_ASSIGN_OR_RETURN(comm::Communicator * group, whole_->GroupOf(dims));
  return Axis{.name = dim, .size = whole_->SizeOf(dims), .rank = whole_->PlaceOn(dims), .group = group};
}

std::vector<int> DeviceMesh::get_coordinate() const {
  std::vector<int> coordinate;
  for (const std::string& name : shape_.names) coordinate.push_back(whole_->PlaceOn(*whole_->Find(name)));
  return coordinate;
}

Coordinate DeviceMesh::coordinate() const {
  Coordinate coordinate;
  for (const std::string& name : shape_.names) coordinate[name] = whole_->PlaceOn(*whole_->Find(name));
  return coordinate;
}

std::vector<Axis> DeviceMesh::base_axes() const {
  const Dims own = *whole_->FindAll(shape_.names);
  std::vector<Axis> axes;
  for (const int dim : own) {
    axes.push_back(
        {.name = whole_->shape.names[dim], .size = whole_->shape.sizes[dim], .rank = whole_->coordinate[dim]});
  }
  return axes;
}

std::string DeviceMesh::Show() const {
  const std::vector<int> outer(shape_.sizes.begin(), shape_.sizes.end() - 1);
  const int columns = shape_.sizes.back(), rows = shape_.ranks() / columns;
  Dims dims;  // of the slice, in its own order
  for (const std::string& name : shape_.names) {
    const Dims found = *whole_->Find(name);
    dims.insert(dims.end(), found.begin(), found.end());
  }
  const std::vector<int> members = whole_->RanksAlong(dims);
  std::vector<std::string> labels;
  size_t width = 0;
  for (int row = 0; row < std::min(rows, kMostRows); ++row) {
    const std::vector<int> at = MeshCoordinate(row, outer);
    std::vector<std::string> words;
    for (size_t dim = 0; dim < outer.size(); ++dim) words.push_back(shape_.names[dim] + " " + std::to_string(at[dim]));
    labels.push_back(JoinWords(words, ", "));
    width = std::max(width, labels.back().size());
  }
  const size_t cell = shape_.names.back().size() + 1 + std::to_string(columns - 1).size();
  std::string head = Padded("", width);
  for (int column = 0; column < columns; ++column) {
    head += "  " + Padded(shape_.names.back() + " " + std::to_string(column), std::max<size_t>(cell, 9));
  }
  std::string text = Describe() + "\n" + head + "\n";
  for (size_t row = 0; row < labels.size(); ++row) {
    text += Padded(labels[row], width);
    for (int column = 0; column < columns; ++column) {
      const int rank = members[row * static_cast<size_t>(columns) + static_cast<size_t>(column)];
      text += "  " + Padded("rank " + std::to_string(rank), std::max<size_t>(cell, 9));
    }
    text += "\n";
  }
  if (rows > kMostRows) text += "and " + std::to_string(rows - kMostRows) + " rows more\n";
  for (const auto& [name, base] : whole_->joined) {
    std::vector<std::string> words;
    for (const int dim : base) words.push_back(whole_->shape.names[dim]);
    text += name + " = " + JoinWords(words, " x ") + "\n";
  }
  return text;
}

}  // namespace cohort::trainer
