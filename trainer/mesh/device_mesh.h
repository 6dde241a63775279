// DeviceMesh: the ranks of a world as a named, row-major grid, after torch.distributed.device_mesh. It needs no torch.
//
//   init_device_mesh(world, {2, 2}, {"replicate", "shard"}) over 4 ranks:
//
//                 shard 0   shard 1
//   replicate 0   rank 0    rank 1        shard groups      {0,1} {2,3}
//   replicate 1   rank 2    rank 3        replicate groups  {0,2} {1,3}
//
// The last dimension varies fastest, so neighbours (ranks of one node) share its groups.
//
// Dimensions are known by name. A slice is the part of the mesh that holds this rank and varies along some of them
// only: mesh.Slice({"replicate", "shard"}) is what FSDP gets under tensor parallelism. Several dimensions can be joined
// under one name, whose group has the ranks of all of them: mesh.Join("data", {"replicate", "shard"}).
//
// When a rank of the world is lost, the groups of all dimensions fail and name it, those without it too. Otherwise a
// rank that waits for a neighbour, which waits for the lost one, would be told of the neighbour's end alone.
//
// One thread at a time uses a mesh and its slices.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cohort/comm/communicator.h"
#include "cohort/trainer/mesh/axis.h"
#include "cohort/trainer/mesh/mesh_shape.h"

namespace cohort::trainer {

class DeviceMesh {
 public:
  // Lays the ranks of `world` out as a grid of `shape`, whose product must be the world's size. `dim_names` has one
  // distinct, non-empty name a dimension. All ranks of `world` call it, but it sends nothing. `world` must outlive the
  // mesh and its slices. kInvalidArgument names the offending value.
  static absl::StatusOr<std::unique_ptr<DeviceMesh>> Create(comm::Communicator& world, std::vector<int> shape,
                                                            std::vector<std::string> dim_names);

  // Returns the mesh along `dims` only, in this mesh's order whatever order they are given in. It shares groups with
  // this mesh, which may end before it. All ranks call it alike, but it sends nothing. kInvalidArgument: a name that
  // does not exist or is given twice, or joined dimensions together with one of theirs.
  absl::StatusOr<std::unique_ptr<DeviceMesh>> Slice(const std::vector<std::string>& dims) const;
  // Gives several dimensions a common name, for this mesh and its slices (torch's _flatten). Ranks are in canonical
  // order of the dimensions (axis.h). Local. kInvalidArgument: `name` is taken by other dimensions, or as for Slice.
  absl::Status Join(const std::string& name, const std::vector<std::string>& dims);

  const std::vector<int>& shape() const { return shape_.sizes; }
  const std::vector<std::string>& dim_names() const { return shape_.names; }
  int ndim() const { return static_cast<int>(shape_.sizes.size()); }
  bool has(const std::string& dim) const;  // also as a joined name, or as a part of one
  // All ranks of the mesh or of the slice. Ranks of a slice are in canonical order of its dimensions.
  comm::Communicator& world() const { return *group_; }
  // The world that the whole mesh lies on.
  comm::Communicator& whole_world() const;

  // The next ones take a dimension of the mesh or a joined name. kInvalidArgument lists the names that exist.
  //
  // The number of ranks along it.
  absl::StatusOr<int> size(const std::string& dim) const;
  // This rank's place along it.
  absl::StatusOr<int> get_local_rank(const std::string& dim) const;
  // The world ranks that differ from this one along it only, in order.
  absl::StatusOr<std::vector<int>> ranks(const std::string& dim) const;
  // The communicator of those ranks. The mesh owns it, and makes it at the first call. All ranks call it alike, but it
  // sends nothing.
  absl::StatusOr<comm::Communicator*> get_group(const std::string& dim);
  // Name, size, place and group together.
  absl::StatusOr<Axis> axis(const std::string& dim);

  // This rank's place along every dimension.
  std::vector<int> get_coordinate() const;
  // The dimensions of the whole mesh along which this one varies, in canonical order and without groups: those of a
  // joined name stand for it. Placements of parameters name these.
  std::vector<Axis> base_axes() const;
  Coordinate coordinate() const;
  // "replicate=2, shard=2".
  std::string Describe() const { return shape_.Describe(); }
  // A picture: a line for each row of the last dimension, at most 64 of them, and a line for each joined name.
  std::string Show() const;

 private:
  struct Whole;  // what a mesh and its slices share

  DeviceMesh(std::shared_ptr<Whole> whole, MeshShape shape, comm::Communicator* group);

  std::shared_ptr<Whole> whole_;
  MeshShape shape_;
  comm::Communicator* group_;
};

}  // namespace cohort::trainer
