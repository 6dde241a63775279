// The memory of a call on this rank: what it gives, what it gets from others, and its own block that stays with it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "cohort/comm/provider/prepared_call.h"
#include "cohort/comm/provider/provider.h"
#include "cohort/comm/request.h"
#include "cohort/runtime/tape/tape_file.h"

namespace cohort::comm {

// A place in memory that a call writes.
struct WrittenPiece {
  void* data = nullptr;
  size_t bytes = 0;
};

// The pieces that this rank gives to the call, whose input begins at `in`. Replaces what `pieces` holds.
void InputOf(const GroupContext& group, const CollectiveRequest& request, const void* in,
             std::vector<runtime::MemoryPiece>* pieces);
// A hash of these pieces, for a comparison with another run. 0 where the input names places of this process.
// `pieces` is memory to work in.
uint16_t HashOfInput(const GroupContext& group, const PreparedCall& call, const void* in,
                     std::vector<runtime::MemoryPiece>* pieces);
// The pieces of the output, which begins at `out`, that hold what others gave. They come in the order of ranks. A block
// that this rank has itself given is none of them.
void ReceivedBy(const GroupContext& group, const CollectiveRequest& request, void* out,
                std::vector<WrittenPiece>* pieces);
// Bytes of all pieces.
size_t BytesOf(const std::vector<WrittenPiece>& pieces);
// Puts the block that this rank gives to itself where the call would put it.
void CopyOwnBlock(const GroupContext& group, const CollectiveRequest& request, const void* in, void* out);

}  // namespace cohort::comm
