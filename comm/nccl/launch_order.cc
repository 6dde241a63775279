#include "cohort/comm/nccl/launch_order.h"

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "cohort/runtime/segment/black_box.h"
#include "cohort/runtime/segment/call_names.h"

namespace cohort::comm::nccl {
namespace {

using runtime::CallRecord;

// Its upper half is that of no other hash but by chance.
constexpr uint64_t kDeviceTag = 0x6e63636c'00000001u;

// Unfinished collectives that NCCL serves, in the order of issue.
std::vector<CallRecord> Unfinished(const runtime::BlackBoxReader& box, uint32_t epoch) {
  std::vector<CallRecord> calls = box.All();
  std::erase_if(calls, [=](const CallRecord& call) {
    return call.state != runtime::CallState::kStarted || call.signature.tuning >> 32 != kDeviceTag >> 32 ||
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

uint64_t DeviceTag(int index) { return kDeviceTag + static_cast<uint64_t>(index); }

std::string CompareOrder(int rank, std::span<const CallRecord> calls, int peer,
                         std::span<const CallRecord> peers_calls) {
  std::map<std::pair<uint64_t, uint64_t>, size_t> place;  // at the peer, by group and sequence
  for (size_t i = 0; i < peers_calls.size(); ++i) {
    place[{peers_calls[i].signature.group, peers_calls[i].signature.sequence}] = i;
  }
  // By the peer's device: the earlier call that comes last at the peer, and its place there.
  struct Latest {
    const CallRecord* call;
    size_t place;
  };
  std::map<int, Latest> latest;
  for (const CallRecord& call : calls) {
    const auto found = place.find({call.signature.group, call.signature.sequence});
    if (found == place.end()) continue;
    const auto [entry, first] = latest.try_emplace(peers_calls[found->second].device, Latest{&call, found->second});
    Latest& before = entry->second;
    if (found->second < before.place && before.call->signature.group != call.signature.group) {
      return "calls of two communicators on one device in different orders: rank " + std::to_string(rank) + " called " +
             runtime::DescribeCallAndSite(*before.call) + " before " + runtime::DescribeCallAndSite(call) + ", rank " +
             std::to_string(peer) +
             " the other way round; all ranks must issue the calls on a device in the same order, whatever their "
             "communicators";
    }
    if (found->second >= before.place) before = {&call, found->second};
  }
  return "";
}

std::string DescribeOrderConflict(const GroupContext& group, const CallRecord& stalled) {
  runtime::Runtime& runtime = *group.runtime;
  std::vector<CallRecord> mine = Unfinished(runtime.segment().black_box_of(runtime.local_rank()), group.epoch);
  std::erase_if(mine, [&](const CallRecord& call) { return call.device != stalled.device; });
  if (mine.size() < 2) return "";
  for (const int member : group.members) {
    if (member == runtime.rank() || runtime.node_of(member) != runtime.node()) continue;
    const std::vector<CallRecord> theirs =
        Unfinished(runtime.segment().black_box_of(runtime.local_rank_of(member)), group.epoch);
    if (std::string text = CompareOrder(runtime.rank(), mine, member, theirs); !text.empty()) return text;
  }
  return "";
}

}  // namespace cohort::comm::nccl
