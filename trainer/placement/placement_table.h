// PlacementTable: the placements of this process's parameters, by tensor.
//
// A layer that cuts its parameters says so in its constructor, when only it knows their sizes in the unsplit model:
//
//   weight = register_parameter("weight", torch::empty(placement.local_sizes()));
//   Placements().Add(weight, placement);
//
// Wrappers change the entry later: FSDP cuts what is left, and a pipeline adds owner and name. A parameter without an
// entry is whole on every rank.
#pragma once

#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "ATen/core/Tensor.h"
#include "cohort/trainer/placement/placement.h"
#include "torch/nn/module.h"

namespace cohort::trainer {

// Any thread may call it.
class PlacementTable {
 public:
  PlacementTable();
  ~PlacementTable();
  PlacementTable(const PlacementTable&) = delete;
  PlacementTable& operator=(const PlacementTable&) = delete;

  // Enters a parameter, or replaces its entry. The table does not keep the tensor: an entry ends with its tensor's
  // memory. The entry stays with the tensor object: set_data, and so Module::to, leave it as it is. Copies of the
  // tensor, and so clones of a module, have none. Throws c10::Error for an undefined tensor.
  void Add(const at::Tensor& parameter, Placement placement);
  // Ends an entry before its tensor ends.
  void Remove(const at::Tensor& parameter);
  // Returns the entry of a parameter, or null for one without.
  std::shared_ptr<const Placement> Of(const at::Tensor& parameter) const;
  // Returns the entry of a parameter. Without an entry it is whole, of the tensor's sizes.
  std::shared_ptr<const Placement> OrWhole(const at::Tensor& parameter) const;

 private:
  struct Entries;
  const std::unique_ptr<Entries> entries_;
};

// The table of the process.
PlacementTable& Placements();

// Returns the name of a parameter in the unsplit model: that of its placement, or else `name` without the names of
// wrappers.
std::string NameInWhole(const at::Tensor& parameter, const std::string& name);

// Refuses a parameter of which ranks of `group` have other parts than this rank, or none: averaging or broadcasting it
// over the group would mix different rows. Wrappers that take equal copies call it. Local. Throws c10::Error, which
// names `who`, the parameter and the axis.
void RefuseOtherParts(const std::string& who, const comm::Communicator& group, const std::string& name,
                      const at::Tensor& parameter);

// Returns a text with a line for each parameter of `module`: its name in the unsplit model, its sizes there and here,
// how each axis uses it, and whether this rank writes it. Parameters that modules share are listed once.
std::string ShowPlacements(const torch::nn::Module& module, const Coordinate& at = {});

// Returns the part of a rank's tensor that is `box`, as a view of the box's sizes. A tensor of other dimensions than
// the box must be contiguous and have nothing else: a shard of a parameter without dimensions has one. Throws
// c10::Error for a tensor that does not have the box.
at::Tensor BoxOf(const at::Tensor& local, const Box& box);

// Returns the axes over which some of `parameters` or their gradients are cut or owned, each once, in canonical order:
// the axes that share one model. Norms are summed over them. Throws c10::Error where two parameters disagree about the
// size of an axis or this rank's place on it.
std::vector<Axis> ModelAxes(const std::vector<at::Tensor>& parameters);
// Returns this rank's place on each of `axes`.
Coordinate CoordinateOn(const std::vector<Axis>& axes);

}  // namespace cohort::trainer
