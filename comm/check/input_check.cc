#include "cohort/comm/check/input_check.h"

#include <cstddef>
#include <cstdint>
#include <string>

#include "cohort/comm/check/named_input.h"
#include "cohort/runtime/segment/call_names.h"

namespace cohort::comm {

absl::Status NotFinite(const GroupContext& group, const CollectiveRequest& request, const void* in,
                       const runtime::CallRecord& record, const InputBlock& block, const NonFinite& found) {
  const std::string site = runtime::SiteOf(record);
  const size_t element = block.place + found.first;
  std::string text = "rank " + std::to_string(group.members[static_cast<size_t>(group.rank)]) + "'s input of " +
                     runtime::DescribeArguments(record);
  if (!site.empty()) text += " at " + site;
  text += std::string(" holds ") + (found.first_is_nan ? "NaN" : "infinity") + " at element " + std::to_string(element);
  if (request.parts != 0) {
    text += " of the small calls of a batch together";
  } else if (const NamedInput* const named = NamedInput::Of(in); named != nullptr) {
    if (const std::string name = named->NameOf(element); !name.empty()) text += ", in " + name;
  }
  return absl::DataLossError(text + " (" + std::to_string(found.nans) + " NaN, " + std::to_string(found.infinities) +
                             " inf); it came from this rank: look at what the program computed before this call");
}

absl::Status CheckInput(const GroupContext& group, const CollectiveRequest& request, const void* in,
                        const runtime::CallRecord& record) {
  if (request.memory != MemoryKind::kHost || in == nullptr) return absl::OkStatus();
  return LookAtInput(group, request, [&](const InputBlock& block) {
    const std::byte* const data = static_cast<const std::byte*>(in) + block.place * SizeOf(request.dtype);
    if (AllFinite(request.dtype, data, block.count)) return absl::OkStatus();
    return NotFinite(group, request, in, record, block, CountNonFinite(request.dtype, data, block.count));
  });
}

}  // namespace cohort::comm
