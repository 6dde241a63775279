// Collectives with a gradient, after Megatron-LM's mappings (tensor_parallel/mappings.py; Shoeybi et al., 2019;
// Korthikanti et al., 2022). They come in conjugate pairs: the backward pass of one is the forward pass of the other.
//
//   here                                Megatron's name                                forward         backward
//   copy_to_region                      copy_to_tensor_model_parallel_region           identity        all-reduce
//   reduce_from_region                  reduce_from_tensor_model_parallel_region       all-reduce      identity
//   scatter_to_region                   scatter_to_tensor_model_parallel_region        own block       all-gather
//   gather_from_region                  gather_from_tensor_model_parallel_region       all-gather      own block
//   gather_from_sequence_region         gather_from_sequence_parallel_region           all-gather      reduce-scatter
//   reduce_scatter_to_sequence_region   reduce_scatter_to_sequence_parallel_region     reduce-scatter  all-gather
//   all_to_all                          all_to_all                                     all-to-all      all-to-all
//
// Which gather? Its output is the same on all ranks. If all ranks go on alike with it, each has the whole gradient:
// gather_from_region. If each rank goes on with its own part of the work, each has a part of the gradient, which must
// be added up: gather_from_sequence_region.
//
// All ranks of `group` call them in the same order, and in the same order in backward. They block on the host. On a
// device the current stream waits. Gradients of gradients work. A group of one rank sends nothing. `whole` is the size
// of the unsplit dimension, which is split as torch.chunk does; kEven means that all ranks have the same size. They
// throw DistributedError if a collective fails, and c10::Error for sizes that do not fit.
#pragma once

#include <cstdint>
#include <source_location>

#include "ATen/core/Tensor.h"
#include "cohort/comm/communicator.h"

namespace cohort::trainer {

inline constexpr int64_t kEven = -1;

at::Tensor copy_to_region(const at::Tensor& x, comm::Communicator& group,
                          std::source_location site = std::source_location::current());
at::Tensor reduce_from_region(const at::Tensor& x, comm::Communicator& group,
                              std::source_location site = std::source_location::current());
// Any size of dimension `dim` is split; the last ranks may get fewer elements or none.
at::Tensor scatter_to_region(const at::Tensor& x, comm::Communicator& group, int64_t dim = -1,
                             std::source_location site = std::source_location::current());
at::Tensor gather_from_region(const at::Tensor& x, comm::Communicator& group, int64_t dim = -1, int64_t whole = kEven,
                              std::source_location site = std::source_location::current());
at::Tensor gather_from_sequence_region(const at::Tensor& x, comm::Communicator& group, int64_t dim = 0,
                                       int64_t whole = kEven,
                                       std::source_location site = std::source_location::current());
at::Tensor reduce_scatter_to_sequence_region(const at::Tensor& x, comm::Communicator& group, int64_t dim = 0,
                                             std::source_location site = std::source_location::current());
// Splits dimension `split_dim` and joins dimension `concat_dim`, of which this rank has a part. For example from a
// sequence that is split to heads that are split. `whole` is of `concat_dim`.
at::Tensor all_to_all(const at::Tensor& x, comm::Communicator& group, int64_t split_dim, int64_t concat_dim,
                      int64_t whole = kEven, std::source_location site = std::source_location::current());

}  // namespace cohort::trainer
