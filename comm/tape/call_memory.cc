#include "cohort/comm/tape/call_memory.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "cohort/runtime/tape/memory_hash.h"

namespace cohort::comm {
namespace {

// One of a call's two buffers, cut into blocks.
struct Blocks {
  const std::vector<int64_t>* counts = nullptr;  // null: all blocks have `count` elements, one after another
  const std::vector<int64_t>* places = nullptr;
  int64_t count = 0;
  size_t blocks = 0;
  size_t element = 1;

  size_t bytes(size_t block) const {
    return static_cast<size_t>(counts == nullptr ? count : (*counts)[block]) * element;
  }
  size_t place(size_t block) const {
    return places == nullptr ? block * static_cast<size_t>(count) * element
                             : static_cast<size_t>((*places)[block]) * element;
  }
};

enum class Side { kIn, kOut };

// The blocks of one side that the call uses on this rank. A broadcast has one buffer, which its root reads and the
// others write.
Blocks BlocksOn(Side side, const GroupContext& group, const CollectiveRequest& request) {
  const bool is_root = request.root == group.rank;
  const bool in = side == Side::kIn;
  Blocks blocks{.count = request.count, .element = SizeOf(request.dtype)};
  if (request.kind == CollectiveKind::kBroadcast && in != is_root) return blocks;
  const BufferBlocks used = BlocksOf(request.kind, is_root, group.size);
  blocks.blocks = static_cast<size_t>(in ? used.in : used.out);
  if (request.blocks == nullptr) return blocks;
  blocks.counts = in ? &request.blocks->in_counts : &request.blocks->out_counts;
  blocks.places = in ? &request.blocks->in_places : &request.blocks->out_places;
  blocks.blocks = blocks.counts->size();
  return blocks;
}

// The block of the output that is this rank's own input. -1: there is none.
int OwnBlock(const GroupContext& group, const CollectiveRequest& request) {
  const bool is_root = request.root == group.rank;
  switch (request.kind) {
    case CollectiveKind::kAllGather:
    case CollectiveKind::kAllGatherV:
    case CollectiveKind::kAllToAll:
    case CollectiveKind::kAllToAllV:
      return group.rank;
    case CollectiveKind::kGather:
    case CollectiveKind::kGatherV:
      return is_root ? group.rank : -1;
    case CollectiveKind::kScatter:
    case CollectiveKind::kScatterV:
      return is_root ? 0 : -1;
    default:
      return -1;
  }
}

}  // namespace

void InputOf(const GroupContext& group, const CollectiveRequest& request, const void* in,
             std::vector<runtime::MemoryPiece>* pieces) {
  pieces->clear();
  const Blocks blocks = BlocksOn(Side::kIn, group, request);
  const auto* const at = static_cast<const std::byte*>(in);
  for (size_t i = 0; i < blocks.blocks; ++i) {
    if (blocks.bytes(i) > 0) pieces->push_back({at + blocks.place(i), blocks.bytes(i)});
  }
}

uint16_t HashOfInput(const GroupContext& group, const PreparedCall& call, const void* in,
                     std::vector<runtime::MemoryPiece>* pieces) {
  if (call.input == InputMeaning::kPlaces) return 0;
  InputOf(group, call.request, in, pieces);
  runtime::MemoryHash hash;
  for (const runtime::MemoryPiece& piece : *pieces) hash.Add(piece.data, piece.bytes);
  return static_cast<uint16_t>(hash.Finish());
}

void ReceivedBy(const GroupContext& group, const CollectiveRequest& request, void* out,
                std::vector<WrittenPiece>* pieces) {
  pieces->clear();
  const Blocks blocks = BlocksOn(Side::kOut, group, request);
  const int own = OwnBlock(group, request);
  auto* const at = static_cast<std::byte*>(out);
  for (size_t i = 0; i < blocks.blocks; ++i) {
    if (blocks.bytes(i) == 0 || static_cast<int>(i) == own) continue;
    std::byte* const block = at + blocks.place(i);
    // Blocks that lie one after another are one piece.
    if (!pieces->empty() && static_cast<std::byte*>(pieces->back().data) + pieces->back().bytes == block) {
      pieces->back().bytes += blocks.bytes(i);
    } else {
      pieces->push_back({block, blocks.bytes(i)});
    }
  }
}

size_t BytesOf(const std::vector<WrittenPiece>& pieces) {
  size_t bytes = 0;
  for (const WrittenPiece& piece : pieces) bytes += piece.bytes;
  return bytes;
}

void CopyOwnBlock(const GroupContext& group, const CollectiveRequest& request, const void* in, void* out) {
  const int own = OwnBlock(group, request);
  if (own < 0) return;
  const Blocks from = BlocksOn(Side::kIn, group, request);
  const Blocks to = BlocksOn(Side::kOut, group, request);
  const auto to_block = static_cast<size_t>(own);
  // An input of several blocks has this rank's at its number.
  const size_t from_block = from.blocks == 1 ? 0 : static_cast<size_t>(group.rank);
  if (from_block >= from.blocks || to_block >= to.blocks) return;
  const size_t bytes = std::min(from.bytes(from_block), to.bytes(to_block));
  const std::byte* const source = static_cast<const std::byte*>(in) + from.place(from_block);
  std::byte* const target = static_cast<std::byte*>(out) + to.place(to_block);
  if (bytes > 0 && source != target) std::memmove(target, source, bytes);
}

}  // namespace cohort::comm
