#include "cohort/comm/group/group_links.h"

#include <utility>

#include "cohort/comm/group/transport_set.h"
#include "cohort/runtime/runtime.h"

namespace cohort::comm {

absl::StatusOr<std::unique_ptr<Link>> GroupLinks::MakeLink(int peer, uint16_t lane) {
  const int world_rank = group_.members[peer];
  absl::StatusOr<Transport*> transport = TransportSet::Of(*group_.runtime).For(world_rank, group_.transports);
  if (!transport.ok()) return transport.status();
  LinkSpec spec;
  spec.group = group_.id;
  spec.epoch = group_.epoch;
  spec.peer_world_rank = world_rank;
  spec.lane = lane;
  return (*transport)->Connect(spec);
}

absl::StatusOr<std::unique_ptr<Fanout>> GroupLinks::MakeFanout(uint16_t lane) {
  // Only where one transport reaches everybody, which all members see alike.
  Transport* common = nullptr;
  for (int i = 0; i < group_.size; ++i) {
    if (i == group_.rank) continue;
    absl::StatusOr<Transport*> transport = TransportSet::Of(*group_.runtime).For(group_.members[i], group_.transports);
    if (!transport.ok()) return transport.status();
    if (common != nullptr && common != *transport) return nullptr;
    common = *transport;
  }
  FanoutSpec spec;
  spec.group = group_.id;
  spec.epoch = group_.epoch;
  spec.group_rank = group_.rank;
  spec.world_ranks.assign(group_.members.begin(), group_.members.end());
  spec.lane = lane;
  absl::StatusOr<std::unique_ptr<Fanout>> fanout = common->ConnectFanout(spec);
  if (absl::IsUnimplemented(fanout.status())) return nullptr;
  return fanout;
}

void GroupLinks::TellEnd() {
  if (group_.runtime->attachment() == nullptr) return;  // the runtime has ended: none is made for this
  TransportSet::Of(*group_.runtime).OnGroupEnd(group_.id, group_.epoch);
}

}  // namespace cohort::comm
