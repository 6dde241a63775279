#include "cohort/comm/tape/call_difference.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <vector>

#include "cohort/runtime/segment/call_names.h"

namespace cohort::comm {
namespace {

using runtime::CallRecord;
using runtime::TapedCall;
using runtime::TapePlayer;

// " in the group of ranks 0,2,4 and 28 others"
std::string InGroup(const std::vector<int>& members) {
  constexpr size_t kNamed = 8;
  std::string text;
  for (size_t i = 0; i < std::min(members.size(), kNamed); ++i) {
    text += (text.empty() ? "" : ",") + std::to_string(members[i]);
  }
  if (members.size() > kNamed) text += " and " + std::to_string(members.size() - kNamed) + " others";
  return (members.size() == 1 ? " in the group of rank " : " in the group of ranks ") + text;
}

std::string WordsFor(const TapePlayer& player, const TapedCall& call) {
  const auto& contents = player.contents();
  return runtime::DescribeCallAndSite(contents.RecordOf(call)) + InGroup(contents.groups.at(call.group).members);
}

std::string RankOf(const GroupContext& group) {
  return "rank " + std::to_string(group.members[static_cast<size_t>(group.rank)]);
}

// The numbers of a variable-count form.
bool SameCounts(const CollectiveRequest& request, const TapedCall& taped) {
  if (request.blocks == nullptr) return !taped.unequal && taped.count == static_cast<uint64_t>(request.count);
  const std::optional<runtime::TapedCounts> counts = runtime::CountsOf(taped);
  return counts.has_value() && counts->in == request.blocks->in_counts && counts->out == request.blocks->out_counts;
}

}  // namespace

std::string Difference(const GroupContext& group, const PreparedCall& call, const TapePlayer& player,
                       const TapedCall& taped) {
  const CallRecord there = player.contents().RecordOf(taped);
  const CallRecord& here = call.record;
  const auto& a = here.signature;
  const auto& b = there.signature;
  const bool same = a.group == b.group && a.kind == b.kind && a.dtype == b.dtype && a.op == b.op && a.root == b.root &&
                    a.determinism == b.determinism && here.peer == there.peer && here.tag == there.tag &&
                    here.device == there.device &&
                    std::strncmp(here.user_op, there.user_op, sizeof here.user_op) == 0 &&
                    SameCounts(call.request, taped);
  if (same) return "";
  return RankOf(group) + " calls " + runtime::DescribeCallAndSite(here) + InGroup(group.members) +
         ", and its tape has as call " + std::to_string(player.NumberOf(taped)) + " " + WordsFor(player, taped);
}

std::string NoSuchCall(const GroupContext& group, const CallRecord& call, const TapePlayer& player) {
  std::string text = RankOf(group) + " calls " + runtime::DescribeCallAndSite(call) + InGroup(group.members);
  if (const TapedCall* const next = player.NextOfAll(); next != nullptr) {
    return text + ", and its tape has no such call there; it goes on with call " +
           std::to_string(player.NumberOf(*next)) + ", " + WordsFor(player, *next);
  }
  text += ", and its tape has no further call";
  if (const TapedCall* const latest = player.Latest(); latest != nullptr) {
    text += "; the last is call " + std::to_string(player.NumberOf(*latest)) + ", " + WordsFor(player, *latest);
  }
  return text;
}

}  // namespace cohort::comm
