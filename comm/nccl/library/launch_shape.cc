#include "cohort/comm/nccl/library/launch_shape.h"

#include <vector>

#include "absl/hash/hash.h"

namespace cohort::comm::nccl {
namespace {

// A broadcast or a reduction for each block, whose algorithm depends on its length.
bool BlocksAreCollectives(CollectiveKind kind) {
  return kind == CollectiveKind::kAllGatherV || kind == CollectiveKind::kReduceScatterV;
}

// Messages of any length go the same way, but for empty ones, which go none.
size_t PeersOf(const std::vector<int64_t>& counts) {
  size_t hash = counts.size();
  for (const int64_t count : counts) hash = absl::HashOf(hash, count > 0);
  return hash;
}

size_t BlocksOf(const CollectiveRequest& request) {
  if (request.blocks == nullptr) return 0;
  if (BlocksAreCollectives(request.kind)) return absl::HashOf(request.blocks->in_counts, request.blocks->out_counts);
  return absl::HashOf(PeersOf(request.blocks->in_counts), PeersOf(request.blocks->out_counts));
}

size_t ShapeOf(const CollectiveRequest& request) {
  if (IsPointToPoint(request.kind)) return absl::HashOf(request.kind, request.peer);
  return absl::HashOf(request.kind, request.count, request.dtype, request.op, request.determinism, request.root,
                      request.in_place, BlocksOf(request));
}

}  // namespace

uint64_t LaunchShape(uint64_t before, const CollectiveRequest& request, bool registers) {
  const uint64_t hash = absl::HashOf(before, ShapeOf(request));
  return registers ? absl::HashOf(hash, request.in, request.out) : hash;
}

}  // namespace cohort::comm::nccl
