// The parallel group of TorchShard (Yue, "TorchShard", 2021) and its four functions. This folder has TorchShard's API
// under its names: layers whose weights are cut over a group, for models most of which is data-parallel.
//
//   namespace ts = cohort::trainer::torchshard;
//   ts::distributed::init_process_group(job.world(), 4);       // groups {0,1,2,3}, {4,5,6,7}
//   ts::nn::ParallelLinear head(ts::nn::ParallelLinearOptions(2048, 1000000).dim(1));
//   ...
//   x = ts::distributed::gather(backbone.forward(images), 0);  // the group's images
//   target = ts::distributed::gather(target, 0);
//   loss = ts::nn::ParallelCrossEntropyLoss()(head(x), target);
//
// One process group at a time, of the whole process, as in TorchShard. One thread uses it.
#pragma once

#include <cstdint>
#include <source_location>

#include "ATen/core/Tensor.h"
#include "cohort/comm/communicator.h"
#include "cohort/trainer/parallel/tensor/tensor_axis.h"

namespace cohort::trainer::torchshard::distributed {

// Makes groups of `group_size` neighbouring ranks of `world`; -1: all ranks are one group. Local. `world` must outlive
// the group. Throws c10::Error for a size that does not divide the world's, and if there is a group already.
void init_process_group(comm::Communicator& world, int group_size = -1);
bool is_initialized();
// Ends the group. Layers made in it throw c10::Error from then on, also in a later group. Their placements, adapters
// and graphs stay usable until the job ends, because the group's communicators are kept until the process ends. Local.
void destroy_process_group();
// Whether `group` was the parallel group of this process and has been ended.
bool has_ended(const comm::Communicator* group);

// The ranks of this process's group, and those that have the same part in other groups. Throw c10::Error without
// init_process_group, as do all functions below.
comm::Communicator& get_group();
comm::Communicator& get_replicas();
int get_rank();        // in the group
int get_group_size();  // its ranks; TorchShard's own calls take the world's size here, which breaks smaller groups
int get_world_size();  // all ranks
// The group as an axis for the layers of parallel/tensor.
const TensorAxis& get_axis();

// Functions with a gradient; all ranks of the group call them alike. They block. They throw DistributedError.
//
//   scatter   own chunk of `dim`          backward: gathers the chunks; of dimension 0: divided by the group's size
//   gather    the chunks of all ranks     backward: own chunk; of dimension 0: own chunk of the sum over the ranks
//   reduce    sum                         backward: identity
//   copy      identity                    backward: sum
//
// Dimension 0 is the batch: each rank's part of the model gave its rows, and DistributedDataParallel divides their
// gradients by the number of ranks. So the gradient that reaches a rank must be that of all ranks' losses, each of
// which is the mean over the group's batch. TorchShard takes the chunk alone, which makes it too small by the group's
// size.
//
// scatter is the way back from the layers that are cut to data-parallel ones. Behind it each rank's loss is the mean
// over its own rows, and the group's loss is the mean of these. So a rank's rows count 1 / group's size in front of it,
// where TorchShard's gradients are too large by the group's size. gather and scatter of dimension 0 undo each other,
// forward and backward.
//
// -1 is the dimension of features, also of a tensor with one dimension. `whole` is the size of the joined dimension;
// -1: all ranks have the same size.
at::Tensor scatter(const at::Tensor& x, int64_t dim = -1, std::source_location site = std::source_location::current());
at::Tensor gather(const at::Tensor& x, int64_t dim = -1, int64_t whole = -1,
                  std::source_location site = std::source_location::current());
at::Tensor reduce(const at::Tensor& x, std::source_location site = std::source_location::current());
at::Tensor copy(const at::Tensor& x, std::source_location site = std::source_location::current());

}  // namespace cohort::trainer::torchshard::distributed

namespace cohort::trainer::torchshard {

// Returns this rank's chunk of `dim` of a tensor that all ranks have, without a gradient and without sending. A copy.
at::Tensor slice(const at::Tensor& x, int64_t dim = -1);

}  // namespace cohort::trainer::torchshard
