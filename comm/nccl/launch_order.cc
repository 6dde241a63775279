#include "comm/nccl/launch_order.h"

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "runtime/segment/black_box.h"
#include "runtime/segment/call_names.h"

namespace cohort::comm::nccl {
namespace {

using runtime::CallRecord;

// Unfinished collectives in the queue of `tag`, in the order of issue.
std::vector<CallRecord> Unfinished(const runtime::BlackBoxReader& box, uint64_t tag, uint32_t epoch) {
  std::vector<CallRecord> calls = box.All();
  std::erase_if(calls, [=](const CallRecord& call) {
    return call.state != runtime::CallState::kStarted || call.signature.tuning != tag ||
           call.signature.epoch != epoch || runtime::IsPointToPoint(call.signature.kind);
  });
  return calls;
}

}  // namespace

bool GuardsOrder(const std::string& settings, int nccl_version) {
  constexpr int kImplicitOrderVersion = 22600;
  if (settings.find("NCCL_LAUNCH_ORDER_IMPLICIT=0") != std::string::npos) return false;
  return settings.find("NCCL_LAUNCH_ORDER_IMPLICIT=1") == std::string::npos || nccl_version < kImplicitOrderVersion;
}

uint64_t DeviceTag(int index) { return 0x6e63636c'00000001u + static_cast<uint64_t>(index); }

std::string CompareOrder(int rank, std::span<const CallRecord> calls, int peer,
                         std::span<const CallRecord> peers_calls) {
  std::map<std::pair<uint64_t, uint64_t>, size_t> place;  // at the peer, by group and sequence
  for (size_t i = 0; i < peers_calls.size(); ++i) {
    place[{peers_calls[i].signature.group, peers_calls[i].signature.sequence}] = i + 1;
  }
  const CallRecord* latest = nullptr;  // of the calls before, the one that comes last at the peer
  size_t latest_place = 0;
  for (const CallRecord& call : calls) {
    const auto found = place.find({call.signature.group, call.signature.sequence});
    if (found == place.end()) continue;
    if (found->second < latest_place && latest->signature.group != call.signature.group) {
      return "calls of two communicators on one device in different orders: rank " + std::to_string(rank) + " called " +
             runtime::DescribeCallAndSite(*latest) + " before " + runtime::DescribeCallAndSite(call) + ", rank " +
             std::to_string(peer) +
             " the other way round; all ranks must issue the calls on a device in the same order, whatever their "
             "communicators";
    }
    if (found->second >= latest_place) {
      latest_place = found->second;
      latest = &call;
    }
  }
  return "";
}

std::string DescribeOrderConflict(const GroupContext& group, const CallRecord& stalled) {
  runtime::Runtime& runtime = *group.runtime;
  const uint64_t tag = stalled.signature.tuning;
  const std::vector<CallRecord> mine =
      Unfinished(runtime.segment().black_box_of(runtime.local_rank()), tag, group.epoch);
  if (mine.size() < 2) return "";
  for (const int member : group.members) {
    if (member == runtime.rank() || runtime.node_of(member) != runtime.node()) continue;
    const std::vector<CallRecord> theirs =
        Unfinished(runtime.segment().black_box_of(runtime.local_rank_of(member)), tag, group.epoch);
    if (std::string text = CompareOrder(runtime.rank(), mine, member, theirs); !text.empty()) return text;
  }
  return "";
}

}  // namespace cohort::comm::nccl
