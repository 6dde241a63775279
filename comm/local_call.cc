#include "comm/local_call.h"

#include <cstring>

namespace cohort::comm {

void RunLocalCall(const CollectiveRequest& request) {
  if (request.blocks != nullptr) {
    const size_t element = SizeOf(request.dtype);
    const BlockTable& blocks = *request.blocks;
    if (request.in_place || blocks.in_counts[0] == 0) return;
    std::memcpy(static_cast<std::byte*>(request.out) + static_cast<size_t>(blocks.out_places[0]) * element,
                static_cast<const std::byte*>(request.in) + static_cast<size_t>(blocks.in_places[0]) * element,
                static_cast<size_t>(blocks.in_counts[0]) * element);
    return;
  }
  if (request.count == 0 || request.in == nullptr || request.out == nullptr || request.in == request.out) return;
  std::memcpy(request.out, request.in, static_cast<size_t>(request.count) * SizeOf(request.dtype));
}

}  // namespace cohort::comm
