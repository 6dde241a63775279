// DeviceMesh: the ranks of a world as a named, row-major grid, after torch.distributed.device_mesh. It needs no torch.
//
//   init_device_mesh({2, 2}, {"replicate", "shard"}) over 4 ranks:
//
//                 shard 0   shard 1
//   replicate 0   rank 0    rank 1        shard groups      {0,1} {2,3}
//   replicate 1   rank 2    rank 3        replicate groups  {0,2} {1,3}
//
// The last dimension varies fastest, so neighbours (ranks of one node) share its groups.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cohort/comm/communicator.h"

namespace cohort::trainer {

class DeviceMesh {
 public:
  // Lays the ranks of `world` out as a grid of `shape`, whose product must be the world's size. `dim_names` has one
  // distinct, non-empty name a dimension. All ranks of `world` call it, but it sends nothing. `world` must outlive the
  // mesh. kInvalidArgument names the offending value.
  static absl::StatusOr<std::unique_ptr<DeviceMesh>> Create(comm::Communicator& world, std::vector<int> shape,
                                                            std::vector<std::string> dim_names);

  const std::vector<int>& shape() const { return shape_; }
  const std::vector<std::string>& dim_names() const { return dim_names_; }
  comm::Communicator& world() const { return world_; }
  int ndim() const { return static_cast<int>(shape_.size()); }
  // The number of ranks along a dimension. kInvalidArgument lists the names that exist.
  absl::StatusOr<int> size(const std::string& dim) const;
  // This rank's place along one dimension. kInvalidArgument as above.
  absl::StatusOr<int> get_local_rank(const std::string& dim) const;
  // This rank's place along every dimension.
  const std::vector<int>& get_coordinate() const { return coordinate_; }
  // The communicator of the ranks that differ from this one along `dim` only. The mesh owns it.
  absl::StatusOr<comm::Communicator*> get_group(const std::string& dim);
  // The world ranks of that group, in order.
  absl::StatusOr<std::vector<int>> ranks(const std::string& dim) const;

 private:
  DeviceMesh(comm::Communicator& world, std::vector<int> shape, std::vector<std::string> dim_names);
  absl::StatusOr<int> IndexOf(const std::string& dim) const;
  std::vector<int> RanksAlong(int dim) const;

  comm::Communicator& world_;
  std::vector<int> shape_;
  std::vector<std::string> dim_names_;
  std::vector<int> coordinate_;
  std::vector<std::unique_ptr<comm::Communicator>> groups_;  // by dimension
};

// The coordinate of `rank` in a row-major grid of `shape`.
std::vector<int> MeshCoordinate(int rank, const std::vector<int>& shape);

}  // namespace cohort::trainer
