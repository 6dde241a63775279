// The transport between ranks of one host, over the node segment. See README.md for the protocol and the figures.
//
// Messages up to 48 bytes travel in the cache line that announces them. Longer ones are read by the receiver where they
// lie (memory of the segment; private memory where process_vm_readv is permitted and the quickest way), or copied into
// a ring in parts. Copies may bypass the sender's cache. Receivers reduce straight from the slot, the ring or the
// peer's memory.
//
// Nothing that a peer writes is trusted: whatever it puts into the segment, this process neither crashes nor reads or
// writes outside the segment and the operation's own memory.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cohort/comm/transport/transport.h"
#include "cohort/runtime/segment/segment.h"

namespace cohort::comm {

struct ShmOptions {
  // Whether long messages from private memory are read by process_vm_readv, where the kernel permits it, or copied
  // through memory that both ranks share, with plain stores. Nothing: what has lately been quicker for this pair of
  // ranks, message by message, copies past the cache among them (way/README.md).
  std::optional<bool> private_reads = std::nullopt;
};

class ShmTransport : public Transport {
 public:
  // Local rank of a world rank, or -1 when that one lives on another node.
  using LocalRankOf = std::function<int(int world_rank)>;

  // The segment outlives the transport, the transport its links and fan-outs.
  ShmTransport(runtime::Segment& segment, int world_rank, LocalRankOf local_rank_of, ShmOptions options = {});
  ~ShmTransport() override;

  std::string_view name() const override { return "shm"; }
  bool Reaches(int world_rank) const override;
  // kAlreadyExists: this (group, epoch, peer, lane) has a link, or had one that the peer has not closed yet.
  absl::StatusOr<std::unique_ptr<Link>> Connect(const LinkSpec& spec) override;
  // kUnimplemented when a member lives on another node. Fan-outs carry up to 8 KiB a message.
  absl::StatusOr<std::unique_ptr<Fanout>> ConnectFanout(const FanoutSpec& spec) override;
  void OnPeerLost(int world_rank, const absl::Status& status) override;

  // All progress is made by the Try calls of links and fan-outs.
  bool Poll() override { return false; }
  bool Active() const override { return false; }

  // Blocks of closed links that a peer may still use. They are freed as peers close theirs.
  size_t unreleased_blocks() const;

  struct State;  // shared with links and fan-outs

 private:
  std::shared_ptr<State> state_;
};

}  // namespace cohort::comm
