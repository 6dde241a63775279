#include "cohort/comm/transport/shm/endpoint.h"

#include <unistd.h>

#include <algorithm>
#include <new>
#include <string>
#include <utility>

#include "cohort/runtime/base/status_macros.h"

namespace cohort::comm::shm {

absl::StatusOr<std::unique_ptr<OwnEndpoint>> OwnEndpoint::Create(runtime::Segment& segment, uint64_t key,
                                                                 uint32_t slots, uint32_t sources, Probe probe) {
  std::unique_ptr<OwnEndpoint> endpoint(new OwnEndpoint(segment, key));
  COHORT_ASSIGN_OR_RETURN(const Area area, endpoint->AllocateArea(EndpointBytes(slots, sources)));
  auto* header = new (area.data) EndpointHeader{};
  header->key = key;
  header->slots = slots;
  header->sources = sources;
  header->pid = getpid();
  header->probe_address = probe.address;
  header->probe_value = probe.value;
  header->gate_address = probe.gate;
  header->magic = kEndpointMagic;
  endpoint->header_ = header;
  endpoint->acks_ = new (area.data + sizeof(EndpointHeader)) Ack[sources]{};
  endpoint->slots_ = new (area.data + sizeof(EndpointHeader) + AckBytes(sources)) Slot[slots]{};
  endpoint->slot_count_ = slots;
  if (absl::Status status = segment.Publish(key, area.block); !status.ok()) {
    segment.Free(area.block);
    return status;
  }
  return endpoint;
}

absl::StatusOr<Area> OwnEndpoint::AllocateArea(size_t bytes) {
  Area area;
  COHORT_ASSIGN_OR_RETURN(area.block, segment_.Allocate(bytes, kSlotStride));
  absl::StatusOr<void*> data = segment_.Map(area.block);
  if (!data.ok()) {
    segment_.Free(area.block);
    return data.status();
  }
  area.data = static_cast<std::byte*>(*data);
  blocks_.push_back(area.block);
  return area;
}

void OwnEndpoint::Free() {
  segment_.Unpublish(key_);
  for (const runtime::SegmentBlock& block : blocks_) segment_.Free(block);
  blocks_.clear();
}

Progress PeerEndpoint::AttachSlowly() {
  const std::optional<runtime::SegmentBlock> block = segment_->LookUp(address_.local_rank, address_.key);
  if (!block.has_value()) return Progress::kBlocked;
  if (block->bytes < EndpointBytes(address_.slots, address_.sources) || block->offset % kSlotStride != 0) {
    return Progress::kFailed;
  }
  absl::StatusOr<void*> data =
      segment_->Map({.offset = block->offset, .bytes = EndpointBytes(address_.slots, address_.sources)});
  if (!data.ok()) return Progress::kFailed;
  auto* bytes = static_cast<std::byte*>(*data);
  auto* header = reinterpret_cast<EndpointHeader*>(bytes);
  if (header->magic != kEndpointMagic || header->key != address_.key || header->slots != address_.slots ||
      header->sources != address_.sources) {
    return Progress::kFailed;
  }
  header_ = header;
  ack_ = reinterpret_cast<const Ack*>(bytes + sizeof(EndpointHeader)) + address_.source;
  slots_ = reinterpret_cast<const Slot*>(bytes + sizeof(EndpointHeader) + AckBytes(address_.sources));
  return Progress::kDone;
}

absl::Status PeerEndpoint::error() const {
  return absl::InternalError("what rank " + std::to_string(address_.world_rank) +
                             " shares with this rank over the node segment is damaged or of another version of cohort");
}

bool PeerEndpoint::SayDone() {
  if (Ended(segment_->control(segment_->local_rank()))) return true;
  switch (Attach()) {
    case Progress::kDone:
      header_->peers_done[address_.source / 64].fetch_or(uint64_t{1} << (address_.source % 64),
                                                         std::memory_order_acq_rel);
      slots_ = nullptr;
      return true;
    case Progress::kFailed:
      return true;
    default:
      return false;
  }
}

void Graveyard::Bury(std::unique_ptr<OwnEndpoint> own, std::vector<PeerEndpoint> peers) {
  graves_.push_back({.own = std::move(own), .untold = peers, .peers = std::move(peers)});
  Sweep();
}

bool Graveyard::Settled(Grave& grave) {
  std::erase_if(grave.untold, [](PeerEndpoint& peer) { return peer.gone() || peer.SayDone(); });
  if (!grave.untold.empty()) return false;
  return std::all_of(grave.peers.begin(), grave.peers.end(), [&grave](const PeerEndpoint& peer) {
    return peer.gone() || grave.own->PeerDone(peer.address().own_source);
  });
}

void Graveyard::Sweep() {
  std::erase_if(graves_, [](Grave& grave) {
    if (!Settled(grave)) return false;
    grave.own->Free();
    return true;
  });
}

}  // namespace cohort::comm::shm
