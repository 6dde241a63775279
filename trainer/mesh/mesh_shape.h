// MeshShape: names and sizes of a mesh's axes, as a value that needs no ranks.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace cohort::trainer {

struct MeshShape {
  std::vector<std::string> names;  // outermost first
  std::vector<int> sizes;          // as many

  int ranks() const;
  // "pipeline=2, shard=4".
  std::string Describe() const;
};

// Reads "pipeline=2,shard=2,tensor=2", in any order: the axes of the result are in canonical order (axis.h).
// kInvalidArgument, with the text, for anything but names of the canonical axes, each once, with sizes from 1 on.
// kUnimplemented for more than one rank along a reserved axis.
absl::StatusOr<MeshShape> ParseMesh(std::string_view text);

// OK for a shape that `ranks` ranks can form: as many sizes as names, distinct names that are not empty, sizes from 1
// on whose product is `ranks`. kInvalidArgument names what does not fit.
absl::Status CheckShape(const MeshShape& shape, int ranks);

// The coordinate of `rank` in a row-major grid of `shape`.
std::vector<int> MeshCoordinate(int rank, const std::vector<int>& shape);

}  // namespace cohort::trainer
