// Norms of gradients that are split among ranks, and clipping by them.
#pragma once

#include <vector>

#include "ATen/core/Tensor.h"
#include "cohort/comm/communicator.h"
#include "cohort/trainer/mesh/axis.h"
#include "cohort/trainer/mesh/device_mesh.h"

namespace cohort::trainer {

// Scales the gradients of `parameters` so that their norm over the whole model is at most max_norm, and returns the
// norm before, as torch::nn::utils::clip_grad_norm_ does. Every rank passes the parameters of its part of the model.
// Placements say which gradients are parts and which are copies: each element of the unsplit model counts once
// (placement/placement_table.h). Gradients that are terms of a sum must have been summed.
//
// The norm is added up over each axis that cuts or owns a parameter or its gradient, one after another. With the `mesh`
// that those axes are of, it is one all-reduce over all axes of the mesh; "replicate" counts under ZeRO-2 and beside a
// pipeline. Ranks of one group must be cut over the same axes; where they are not, as in stages of a pipeline of which
// one alone has tensor-parallel layers, pass the mesh. Collective over these ranks; blocks. Throws DistributedError.
// Throws c10::Error for a norm_type that is not positive, and for axes of a placement that have no group.
at::Tensor clip_grad_norm_(const std::vector<at::Tensor>& parameters, double max_norm, double norm_type = 2.0,
                           DeviceMesh* mesh = nullptr);

// The gradients that `parameters` have and that count for the rank at `at`, whose axes a norm is added up over: this
// rank is the first along them that has the part, or the owner of the gradient. A parameter counts once however often
// it is listed.
std::vector<at::Tensor> CountedGradients(const std::vector<at::Tensor>& parameters, const Coordinate& at);

// Returns the norm of all ranks' parts together, on the CPU. It is float64 if some rank's part is, otherwise float32.
// This rank's norm to the power `norm_type` is summed over each of `groups` in turn; an infinite norm_type takes the
// maximum. A rank may have no parts. `found`, if not null, holds a number from 0 to 1, and becomes positive if some
// rank's is: the same messages carry it. Collective; blocks. Throws DistributedError. Throws c10::Error for a norm_type
// that is not positive.
at::Tensor ShardedNorm(const std::vector<at::Tensor>& parts, double norm_type,
                       const std::vector<comm::Communicator*>& groups, double* found = nullptr);

// Multiplies the gradients in place by max_norm / (norm + 1e-6) if that is below 1, as torch's clip_grad_norm_ does.
void ClipByNorm(const std::vector<at::Tensor>& gradients, const at::Tensor& norm, double max_norm);

// The ranks that share a model: a norm is added up over each of `groups`, and this rank is at `at` among them.
struct ModelRanks {
  std::vector<comm::Communicator*> groups;
  Coordinate at;
};
// Returns those of `parameters`: the axes that cut or own one of them. With a mesh, all of its axes, as one
// group, but "replicate" where gradients are equal and no pipeline has stages. All ranks call it alike; it sends
// nothing. Throws c10::Error, which names `who`, as GroupsOf does, and for a parameter that is cut or owned over an
// axis that the mesh lacks.
ModelRanks RanksOfModel(const std::vector<at::Tensor>& parameters, DeviceMesh* mesh, const char* who);

// The groups of `axes`, in their order, those of one rank left out. Throws c10::Error, which names `who`, for an axis
// of several ranks without a group.
std::vector<comm::Communicator*> GroupsOf(const std::vector<Axis>& axes, const char* who);

}  // namespace cohort::trainer
