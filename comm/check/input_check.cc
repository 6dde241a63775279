#include "cohort/comm/check/input_check.h"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <string>

#include "cohort/comm/reduce/non_finite.h"
#include "cohort/runtime/segment/call_names.h"

namespace cohort::comm {
namespace {

absl::Status NotFinite(const GroupContext& group, const CollectiveRequest& request, const runtime::CallRecord& record,
                       const void* block, size_t first, size_t count) {
  const NonFinite found = CountNonFinite(request.dtype, block, count);
  const std::string site = runtime::SiteOf(record);
  std::string text = "rank " + std::to_string(group.members[static_cast<size_t>(group.rank)]) + "'s input of " +
                     runtime::DescribeArguments(record);
  if (!site.empty()) text += " at " + site;
  text += std::string(" holds ") + (found.first_is_nan ? "NaN" : "infinity") + " at element " +
          std::to_string(first + found.first);
  if (request.parts != 0) text += " of the small calls of a batch together";
  return absl::DataLossError(text + " (" + std::to_string(found.nans) + " NaN, " + std::to_string(found.infinities) +
                             " inf); it came from this rank: look at what the program computed before this call");
}

}  // namespace

absl::Status CheckInput(const GroupContext& group, const CollectiveRequest& request, const void* in,
                        const runtime::CallRecord& record) {
  if (!IsFloat(request.dtype) || request.memory != MemoryKind::kHost || in == nullptr) return absl::OkStatus();
  const bool is_root = request.root == group.rank;
  if (request.kind == CollectiveKind::kBroadcast && !is_root) return absl::OkStatus();  // its buffer is written
  const int blocks = BlocksOf(request.kind, is_root, group.size).in;
  if (blocks == 0) return absl::OkStatus();
  if (request.blocks == nullptr) {
    const size_t count = static_cast<size_t>(request.count) * static_cast<size_t>(blocks);
    if (AllFinite(request.dtype, in, count)) return absl::OkStatus();
    return NotFinite(group, request, record, in, 0, count);
  }
  const BlockTable& table = *request.blocks;
  for (size_t i = 0; i < table.in_counts.size(); ++i) {
    const auto place = static_cast<size_t>(table.in_places[i]);
    const auto count = static_cast<size_t>(table.in_counts[i]);
    const std::byte* const block = static_cast<const std::byte*>(in) + place * SizeOf(request.dtype);
    if (!AllFinite(request.dtype, block, count)) return NotFinite(group, request, record, block, place, count);
  }
  return absl::OkStatus();
}

void NoteUnchecked(const GroupContext& group, const CollectiveRequest& request) {
  static std::atomic<bool> noted{false};
  if (noted.exchange(true)) return;
  const std::string kind(Name(request.kind));
  std::fprintf(stderr, "cohort: rank %d: --check looks at host memory only: %s on CUDA memory is not checked\n",
               group.members[static_cast<size_t>(group.rank)], kind.c_str());
}

}  // namespace cohort::comm
