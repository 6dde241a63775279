#include "tools/collperf/buffers.h"

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <string>
#include <utility>

#include "cohort/runtime/base/status_macros.h"
#include "cohort/runtime/segment/memory_limits.h"
#include "tools/measure/text.h"

namespace cohort::collperf {
namespace {

using measure::Operation;

constexpr size_t kAlignment = 4096;

absl::Status NoMemory(int64_t block_bytes, const std::string& why) {
  return absl::ResourceExhaustedError("no memory for blocks of " +
                                      measure::BytesText(static_cast<double>(block_bytes)) + ": " + why + "; lower -e");
}

}  // namespace

bool IsInPlace(const Options& options, Operation operation) {
  return options.in_place && operation != Operation::kSendRecv;
}

void Buffers::Free::operator()(char* memory) const { std::free(memory); }

absl::StatusOr<char*> Buffers::AllocatePrivate(size_t bytes) {
  const size_t rounded = (std::max<size_t>(bytes, 1) + kAlignment - 1) / kAlignment * kAlignment;
  memory_.emplace_back(static_cast<char*>(std::aligned_alloc(kAlignment, rounded)));
  char* const memory = memory_.back().get();
  if (memory == nullptr) return absl::ResourceExhaustedError("no memory for " + std::to_string(rounded) + " bytes");
  return memory;
}

absl::StatusOr<char*> Buffers::AllocateOn(CudaDevice& device, size_t bytes) {
  COHORT_ASSIGN_OR_RETURN(char* const memory, device.Allocate(bytes));
  on_device_.emplace_back(memory, FreeOnDevice{&device});
  return memory;
}

absl::StatusOr<Buffers> Buffers::Make(RankSession& session, const Options& options, Operation operation,
                                      int64_t block_bytes) {
  const bool is_root = session.rank() == options.root;
  const measure::Blocks blocks = measure::BlocksOf(operation, is_root, session.ranks());
  // No more than what the sum over all ranks can take: nobody has so much.
  const size_t most = std::numeric_limits<size_t>::max() / 4 / static_cast<size_t>(session.ranks());
  const auto bytes_of = [block_bytes, most](int count) {
    const auto block = static_cast<size_t>(block_bytes), blocks_of = static_cast<size_t>(count);
    return blocks_of == 0 || block <= most / blocks_of ? block * blocks_of : most;
  };
  size_t sizes[2] = {bytes_of(blocks.in), bytes_of(blocks.out)};
  if (IsInPlace(options, operation)) {
    sizes[0] = std::max(sizes[0], sizes[1]);
    sizes[1] = 0;
  }
  // Asked before anything is allocated, so that the ranks agree.
  uint64_t needed[1] = {sizes[0] + sizes[1]};
  COHORT_RETURN_IF_ERROR(session.gate().Sum(needed));
  uint64_t lacking[1] = {needed[0] / 10 * 11 > runtime::AvailableMemory() ? 1u : 0u};
  COHORT_RETURN_IF_ERROR(session.gate().Max(lacking));
  if (lacking[0] != 0) {
    return NoMemory(block_bytes, "the ranks need " + measure::BytesText(static_cast<double>(needed[0])));
  }
  Buffers buffers;
  Place places[2];
  absl::Status on_device;
  for (int i = 0; i < 2; ++i) {
    if (options.window) {
      COHORT_ASSIGN_OR_RETURN(comm::Window window, session.world().AllocateWindow(sizes[i]));
      places[i].host = static_cast<char*>(window.data());
      buffers.windows_.push_back(static_cast<comm::Window&&>(window));
    } else {
      COHORT_ASSIGN_OR_RETURN(places[i].host, buffers.AllocatePrivate(sizes[i]));
    }
    places[i].data = places[i].host;
    if (session.device() == nullptr || !on_device.ok()) continue;
    const absl::StatusOr<char*> memory = buffers.AllocateOn(*session.device(), sizes[i]);
    on_device = memory.status();
    if (memory.ok()) places[i].data = *memory;
  }
  if (session.device() != nullptr) {
    uint64_t failed[1] = {on_device.ok() ? 0u : 1u};
    COHORT_RETURN_IF_ERROR(session.gate().Max(failed));
    if (!on_device.ok()) return NoMemory(block_bytes, std::string(on_device.message()));
    if (failed[0] != 0) return NoMemory(block_bytes, "another rank's device has too little");
  }
  buffers.in_ = places[0];
  buffers.out_ = places[1];
  return buffers;
}

}  // namespace cohort::collperf
