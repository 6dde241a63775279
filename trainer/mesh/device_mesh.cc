#include "cohort/trainer/mesh/device_mesh.h"

#include <algorithm>
#include <set>
#include <utility>

#include "cohort/runtime/base/status_macros.h"

namespace cohort::trainer {
namespace {

std::string Join(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : ", ") + word;
  return text;
}

std::string Describe(const std::vector<int>& shape) {
  std::string text = "(";
  for (size_t i = 0; i < shape.size(); ++i) text += (i == 0 ? "" : ", ") + std::to_string(shape[i]);
  return text + ")";
}

absl::Status Validate(int world_size, const std::vector<int>& shape, const std::vector<std::string>& dim_names) {
  if (shape.empty()) return absl::InvalidArgumentError("a mesh needs at least one dimension");
  if (shape.size() != dim_names.size()) {
    return absl::InvalidArgumentError("mesh shape " + Describe(shape) + " has " + std::to_string(shape.size()) +
                                      " dimensions, but " + std::to_string(dim_names.size()) + " names were given");
  }
  int64_t product = 1;
  for (int extent : shape) {
    if (extent < 1) return absl::InvalidArgumentError("mesh shape " + Describe(shape) + " has an extent below 1");
    product *= extent;
    if (product > world_size) break;
  }
  if (product != world_size) {
    return absl::InvalidArgumentError("mesh shape " + Describe(shape) + " does not cover the world of " +
                                      std::to_string(world_size) + " ranks: the product of its extents must be equal");
  }
  std::set<std::string> seen;
  for (const std::string& name : dim_names) {
    if (name.empty()) return absl::InvalidArgumentError("a mesh dimension has an empty name");
    if (!seen.insert(name).second) return absl::InvalidArgumentError("mesh dimension '" + name + "' is named twice");
  }
  return absl::OkStatus();
}

}  // namespace

std::vector<int> MeshCoordinate(int rank, const std::vector<int>& shape) {
  std::vector<int> coordinate(shape.size());
  for (size_t dim = shape.size(); dim-- > 0;) {
    coordinate[dim] = rank % shape[dim];
    rank /= shape[dim];
  }
  return coordinate;
}

DeviceMesh::DeviceMesh(comm::Communicator& world, std::vector<int> shape, std::vector<std::string> dim_names)
    : world_(world),
      shape_(std::move(shape)),
      dim_names_(std::move(dim_names)),
      coordinate_(MeshCoordinate(world.rank(), shape_)) {}

absl::StatusOr<std::unique_ptr<DeviceMesh>> DeviceMesh::Create(comm::Communicator& world, std::vector<int> shape,
                                                               std::vector<std::string> dim_names) {
  COHORT_RETURN_IF_ERROR(Validate(world.size(), shape, dim_names));
  std::unique_ptr<DeviceMesh> mesh(new DeviceMesh(world, std::move(shape), std::move(dim_names)));
  for (int dim = 0; dim < mesh->ndim(); ++dim) {
    COHORT_ASSIGN_OR_RETURN(auto group, world.Subgroup(mesh->RanksAlong(dim)));
    mesh->groups_.push_back(std::move(group));
  }
  return mesh;
}

absl::StatusOr<int> DeviceMesh::IndexOf(const std::string& dim) const {
  const auto found = std::find(dim_names_.begin(), dim_names_.end(), dim);
  if (found == dim_names_.end()) {
    return absl::InvalidArgumentError("the mesh has no dimension '" + dim + "'; it has: " + Join(dim_names_));
  }
  return static_cast<int>(found - dim_names_.begin());
}

std::vector<int> DeviceMesh::RanksAlong(int dim) const {
  int stride = 1;
  for (int inner = ndim() - 1; inner > dim; --inner) stride *= shape_[inner];
  const int first = world_.rank() - coordinate_[dim] * stride;
  std::vector<int> ranks(shape_[dim]);
  for (int i = 0; i < shape_[dim]; ++i) ranks[i] = first + i * stride;
  return ranks;
}

absl::StatusOr<int> DeviceMesh::size(const std::string& dim) const {
  COHORT_ASSIGN_OR_RETURN(const int index, IndexOf(dim));
  return shape_[index];
}

absl::StatusOr<int> DeviceMesh::get_local_rank(const std::string& dim) const {
  COHORT_ASSIGN_OR_RETURN(const int index, IndexOf(dim));
  return coordinate_[index];
}

absl::StatusOr<comm::Communicator*> DeviceMesh::get_group(const std::string& dim) {
  COHORT_ASSIGN_OR_RETURN(const int index, IndexOf(dim));
  return groups_[index].get();
}

absl::StatusOr<std::vector<int>> DeviceMesh::ranks(const std::string& dim) const {
  COHORT_ASSIGN_OR_RETURN(const int index, IndexOf(dim));
  return RanksAlong(index);
}

}  // namespace cohort::trainer
