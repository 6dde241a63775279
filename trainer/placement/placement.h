// Placement: how one parameter lies on the ranks of a mesh. It needs no torch.
//
//   [6, 4], tensor=2 cuts dimension 0, then shard=2 cuts what is left:
//
//                shard 0    shard 1          Placement weight({6, 4});
//     tensor 0   rows 0-1   row 2            weight.Split(tensor, {.dim = 0});
//     tensor 1   rows 3-4   row 5            weight.Split(shard, {.dim = 0});
//
// Each axis uses the parameter in one way. An axis that a placement does not mention has equal copies. Layers say how
// they cut their own parameters, FSDP cuts what is left of them, and a stage of a pipeline owns its parameters. Norms,
// scalers, initial values and checkpoints read placements (placement_table.h) and know no wrapper.
// The idea is DTensor's placements and Megatron's sharded tensors, with boxes for parts that are not contiguous.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "cohort/trainer/mesh/axis.h"

namespace cohort::trainer {

// A rectangular part of a tensor. That of a tensor without dimensions has none either.
struct Box {
  std::vector<int64_t> offset;  // in the whole tensor, by dimension
  std::vector<int64_t> sizes;   // by dimension
  std::vector<int64_t> local;   // offset in the rank's own tensor, by dimension

  int64_t numel() const;
  bool operator==(const Box&) const = default;
};

// Calls `visit(in_whole, in_part, count)` for each run of a box's elements that follow each other, row by row, both in
// the whole tensor of sizes `whole` and in the rank's own tensor of sizes `part`: `count` elements from those numbers
// on. A part of a tensor without dimensions may have one.
void ForRuns(const std::vector<int64_t>& whole, const std::vector<int64_t>& part, const Box& box,
             const std::function<void(int64_t in_whole, int64_t in_part, int64_t count)>& visit);

enum class AxisUse {
  kReplicated,  // equal copies with equal gradients
  kSplit,       // each rank has a part
  kPartial,     // equal copies, but each rank's gradient is a term of a sum over the axis
  kOwned,       // one rank of the axis has it: a stage of a pipeline
  kReduced,     // equal copies, but one rank has the reduced gradient and steps it: ZeRO-2
};

// How a dimension is cut. Blocks and units are possible only in the first cut of a dimension. The ranks of an axis get
// whole units as torch.chunk cuts them: each rank has ceil(units / ranks), the last ranks have fewer or none.
struct Cut {
  int dim = 0;
  // Lengths of fused parts that are cut one by one: a rank of a fused QKV weight has its rows of Q, of K and of V. They
  // add up to the dimension. Empty: the dimension is one part.
  std::vector<int64_t> blocks = {};
  int64_t unit = 1;  // divides each part: the size of an attention head, so that no head is cut in two
};

class Placement {
 public:
  // A parameter of these sizes, whole on every rank.
  explicit Placement(std::vector<int64_t> sizes);

  // Cuts what this placement has given each rank so far. Axes that cut are applied in the order of calls, which is the
  // order in which wrappers are applied: tensor, then shard. A tensor without dimensions counts as one row.
  // kInvalidArgument: the axis is used already, there is no such dimension, or the blocks or units do not fit.
  [[nodiscard]] absl::Status Split(const Axis& axis, const Cut& cut);
  // Says that the gradients on the ranks of the axis are terms of a sum: norms and biases under sequence parallelism.
  // kInvalidArgument as above.
  [[nodiscard]] absl::Status Partial(const Axis& axis);
  // Says that there are equal copies, which needs no saying where the axis is known otherwise. kInvalidArgument as
  // above.
  [[nodiscard]] absl::Status Replicated(const Axis& axis);
  // Says that rank `owner` of the axis has the parameter and the others do not. kInvalidArgument as above, and for an
  // owner outside of the axis.
  [[nodiscard]] absl::Status Owned(const Axis& axis, int owner);
  // Says that there are equal copies, and that rank `owner` of the axis alone has the gradient. As Owned.
  [[nodiscard]] absl::Status Reduced(const Axis& axis, int owner);

  // Says that this is copy `copy` of `copies` tensors that are one weight of the unsplit model: two stages share it.
  // All are read from checkpoints, which keep it once; the first alone counts in norms.
  void set_copy(int copy, int copies);
  int copy() const { return copy_; }
  int copies() const { return copies_; }

  // The name in the unsplit model. Empty until it is known: then it is the name in the module.
  const std::string& name() const { return name_; }
  void set_name(std::string name) { name_ = std::move(name); }
  const std::vector<int64_t>& sizes() const { return sizes_; }  // of the whole
  int64_t numel() const;                                        // of the whole

  // All axes that this placement mentions, in the order of calls.
  std::vector<Axis> axes() const;
  AxisUse use(const std::string& axis) const;  // kReplicated for an axis that it does not mention
  bool mentions(const std::string& axis) const;
  // The rank of an axis that owns the parameter or has its gradient. -1 for other uses.
  int owner(const std::string& axis) const;
  // Whether no axis cuts or owns it, so that every rank has all of it.
  bool whole() const;

  // The next three are for the rank at `at`. Axes that `at` leaves out have this rank's place, so {} is this rank.
  //
  // Its parts, in the order in which they lie in its tensor; parts without elements are left out.
  std::vector<Box> boxes(const Coordinate& at = {}) const;
  // The sizes of its tensor. They are those of the whole, if it has the parameter at all, except in cut dimensions.
  std::vector<int64_t> local_sizes(const Coordinate& at = {}) const;
  // Whether it is the first of those that have the same part: the one that counts in norms and writes files. Axes in
  // `at` that this placement does not mention have equal copies.
  bool writes(const Coordinate& at = {}) const;

  // One line: "[192, 64]: tensor 0/2 cuts dim 0 in blocks 64 64 64; shard 1/2 cuts dim 0; partial over context".
  std::string Describe() const;

 private:
  struct Use {
    Axis axis;
    AxisUse use = AxisUse::kReplicated;
    Cut cut = {};   // kSplit
    int owner = 0;  // kOwned and kReduced
  };
  // Pieces of a dimension of the whole, in the order in which they follow each other in a rank's tensor.
  struct Piece {
    int64_t begin = 0, length = 0;
  };
  using Pieces = std::vector<Piece>;

  absl::Status Add(Use use);
  absl::Status AddOwner(const Axis& axis, AxisUse use, int owner);
  bool owned_at(const Coordinate& at) const;
  std::vector<Pieces> PiecesAt(const Coordinate& at) const;
  static Pieces Take(const Pieces& from, const Cut& cut, int ranks, int rank);

  std::string name_;
  int copy_ = 0, copies_ = 1;
  std::vector<int64_t> sizes_;
  std::vector<Use> uses_;
};

}  // namespace cohort::trainer
