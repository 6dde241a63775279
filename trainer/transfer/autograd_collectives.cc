#include "cohort/trainer/transfer/autograd_collectives.h"

#include <utility>
#include <vector>

#include "cohort/trainer/transfer/tensor_call.h"
#include "torch/csrc/autograd/custom_function.h"
#include "torch/torch.h"

namespace cohort::trainer {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

enum class Move { kIdentity, kAllReduce, kOwnBlock, kAllGather, kReduceScatter, kAllToAll };

// The moves that a function makes forward and backward.
struct Mapping : torch::CustomClassHolder {
  Mapping(comm::Communicator& group_in, Move forward_in, Move backward_in, std::source_location site_in)
      : group(group_in), forward(forward_in), backward(backward_in), site(site_in) {}
  c10::intrusive_ptr<Mapping> Conjugate() const {
    auto other = c10::make_intrusive<Mapping>(group, backward, forward, site);
    other->dim = concat_dim;
    other->sizes = concat_sizes;
    other->concat_dim = dim;
    other->concat_sizes = sizes;
    return other;
  }

  comm::Communicator& group;
  Move forward, backward;
  std::source_location site;
  // The dimension that is split or joined, and its size on each rank. Of an all-to-all the one that it splits.
  int64_t dim = 0;
  std::vector<int64_t> sizes;
  int64_t concat_dim = 0;
  std::vector<int64_t> concat_sizes;
};

at::Tensor ToFront(const at::Tensor& x, int64_t dim) { return dim == 0 ? x : x.movedim(dim, 0); }
at::Tensor FromFront(const at::Tensor& x, int64_t dim) { return dim == 0 ? x : x.movedim(0, dim).contiguous(); }

at::Tensor OwnBlock(const at::Tensor& x, const Mapping& mapping) {
  int64_t begin = 0;
  for (int rank = 0; rank < mapping.group.rank(); ++rank) begin += mapping.sizes[rank];
  // A copy, so that the whole does not live as long as the block.
  return x.narrow(mapping.dim, begin, mapping.sizes[mapping.group.rank()]).clone(at::MemoryFormat::Contiguous);
}

// Blocks of the joined dimension arrive one behind the other.
at::Tensor AllToAll(const at::Tensor& x, const Mapping& mapping) {
  const int rank = mapping.group.rank();
  std::vector<int64_t> rows = x.sizes().vec();
  rows[mapping.dim] = 1;
  rows[mapping.concat_dim] = 1;
  int64_t row = 1;  // elements that belong to one index of both dimensions
  for (const int64_t size : rows) row *= size;
  std::vector<int64_t> in_sizes, out_sizes;
  std::vector<at::Tensor> blocks;
  int64_t begin = 0;
  for (size_t peer = 0; peer < mapping.sizes.size(); ++peer) {
    blocks.push_back(x.narrow(mapping.dim, begin, mapping.sizes[peer]).reshape({-1}));
    begin += mapping.sizes[peer];
    in_sizes.push_back(mapping.sizes[peer] * mapping.concat_sizes[rank] * row);
    out_sizes.push_back(mapping.sizes[rank] * mapping.concat_sizes[peer] * row);
  }
  const at::Tensor received = StartAllToAll(at::cat(blocks), mapping.group, in_sizes, out_sizes, mapping.site).Wait();
  std::vector<at::Tensor> parts;
  begin = 0;
  for (size_t peer = 0; peer < out_sizes.size(); ++peer) {
    std::vector<int64_t> sizes = x.sizes().vec();
    sizes[mapping.dim] = mapping.sizes[rank];
    sizes[mapping.concat_dim] = mapping.concat_sizes[peer];
    parts.push_back(received.narrow(0, begin, out_sizes[peer]).view(sizes));
    begin += out_sizes[peer];
  }
  return at::cat(parts, mapping.concat_dim);
}

at::Tensor Do(const at::Tensor& x, const Mapping& mapping) {
  switch (mapping.forward) {
    case Move::kIdentity:
      return x.view_as(x);
    case Move::kAllReduce:
      return StartAllReduce(x, mapping.group, comm::ReduceOp::kSum, mapping.site).Wait();
    case Move::kOwnBlock:
      return OwnBlock(x, mapping);
    case Move::kAllGather:
      return FromFront(StartAllGather(ToFront(x, mapping.dim), mapping.group, mapping.sizes, mapping.site).Wait(),
                       mapping.dim);
    case Move::kReduceScatter:
      return FromFront(StartReduceScatter(ToFront(x, mapping.dim), mapping.group, mapping.sizes, mapping.site).Wait(),
                       mapping.dim);
    case Move::kAllToAll:
      return AllToAll(x, mapping);
  }
  return x;
}

class MappingFunction : public torch::autograd::Function<MappingFunction> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, c10::intrusive_ptr<Mapping> mapping) {
    ctx->saved_data["mapping"] = c10::IValue::make_capsule(mapping);
    return Do(x, *mapping);
  }
  // Applied again, so that it has a gradient too.
  static variable_list backward(AutogradContext* ctx, variable_list gradients) {
    const auto mapping = c10::static_intrusive_pointer_cast<Mapping>(ctx->saved_data["mapping"].toCapsule());
    return {MappingFunction::apply(gradients.front(), mapping->Conjugate()), at::Tensor()};
  }
};

at::Tensor Apply(const at::Tensor& x, comm::Communicator& group, Move forward, Move backward,
                 std::source_location site) {
  if (group.size() == 1) return x;
  return MappingFunction::apply(x, c10::make_intrusive<Mapping>(group, forward, backward, site));
}

int64_t Wrapped(const at::Tensor& x, int64_t dim) {
  TORCH_CHECK(dim >= -x.dim() && dim < x.dim(), "dimension ", dim, " of a tensor of ", x.dim(), " dimensions");
  return dim < 0 ? dim + x.dim() : dim;
}

std::vector<int64_t> SizesOf(const at::Tensor& x, const comm::Communicator& group, int64_t dim, int64_t whole) {
  return ChunkSizes(whole == kEven ? x.size(dim) * group.size() : whole, group.size());
}

// A move along one dimension, whose blocks have these sizes in both directions.
at::Tensor ApplyAlong(const at::Tensor& x, comm::Communicator& group, Move forward, Move backward, int64_t dim,
                      std::vector<int64_t> sizes, std::source_location site) {
  if (group.size() == 1) return x;
  auto mapping = c10::make_intrusive<Mapping>(group, forward, backward, site);
  mapping->dim = mapping->concat_dim = dim;
  mapping->concat_sizes = sizes;
  mapping->sizes = std::move(sizes);
  return MappingFunction::apply(x, std::move(mapping));
}

}  // namespace

at::Tensor copy_to_region(const at::Tensor& x, comm::Communicator& group, std::source_location site) {
  return Apply(x, group, Move::kIdentity, Move::kAllReduce, site);
}

at::Tensor reduce_from_region(const at::Tensor& x, comm::Communicator& group, std::source_location site) {
  return Apply(x, group, Move::kAllReduce, Move::kIdentity, site);
}

at::Tensor scatter_to_region(const at::Tensor& x, comm::Communicator& group, int64_t dim, std::source_location site) {
  dim = Wrapped(x, dim);
  return ApplyAlong(x, group, Move::kOwnBlock, Move::kAllGather, dim, ChunkSizes(x.size(dim), group.size()), site);
}

at::Tensor gather_from_region(const at::Tensor& x, comm::Communicator& group, int64_t dim, int64_t whole,
                              std::source_location site) {
  dim = Wrapped(x, dim);
  return ApplyAlong(x, group, Move::kAllGather, Move::kOwnBlock, dim, SizesOf(x, group, dim, whole), site);
}

at::Tensor gather_from_sequence_region(const at::Tensor& x, comm::Communicator& group, int64_t dim, int64_t whole,
                                       std::source_location site) {
  dim = Wrapped(x, dim);
  return ApplyAlong(x, group, Move::kAllGather, Move::kReduceScatter, dim, SizesOf(x, group, dim, whole), site);
}

at::Tensor reduce_scatter_to_sequence_region(const at::Tensor& x, comm::Communicator& group, int64_t dim,
                                             std::source_location site) {
  dim = Wrapped(x, dim);
  return ApplyAlong(x, group, Move::kReduceScatter, Move::kAllGather, dim, ChunkSizes(x.size(dim), group.size()), site);
}

at::Tensor all_to_all(const at::Tensor& x, comm::Communicator& group, int64_t split_dim, int64_t concat_dim,
                      int64_t whole, std::source_location site) {
  split_dim = Wrapped(x, split_dim);
  concat_dim = Wrapped(x, concat_dim);
  TORCH_CHECK(split_dim != concat_dim, "all_to_all: it can't both split and join dimension ", split_dim);
  if (group.size() == 1) return x;
  auto mapping = c10::make_intrusive<Mapping>(group, Move::kAllToAll, Move::kAllToAll, site);
  mapping->dim = split_dim;
  mapping->sizes = ChunkSizes(x.size(split_dim), group.size());
  mapping->concat_dim = concat_dim;
  mapping->concat_sizes = SizesOf(x, group, concat_dim, whole);
  TORCH_CHECK(mapping->concat_sizes[group.rank()] == x.size(concat_dim), "all_to_all: this rank has ",
              x.size(concat_dim), " of dimension ", concat_dim, ", and its part of ", whole, " on ", group.size(),
              " ranks is ", mapping->concat_sizes[group.rank()]);
  return MappingFunction::apply(x, std::move(mapping));
}

}  // namespace cohort::trainer
