// Reads and writes of a local peer's private memory (process_vm_readv and _writev, "cross-memory attach"), where the
// kernel permits them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "cohort/comm/transport/shm/endpoint.h"
#include "cohort/comm/transport/shm/way/rank_ways.h"

namespace cohort::comm::shm {

enum class ReadResult : uint8_t {
  kRead,     // or written
  kGone,     // the process has ended, or is another one by now
  kRefused,  // not permitted, or no such memory there
};

class PrivateMemory {
 public:
  // `reads`: true reads wherever the kernel permits it; false behaves as if every peer refused, and copies with plain
  // stores; nothing: what is quickest.
  PrivateMemory(int local_rank, int local_ranks, std::optional<bool> reads);

  // The own process's probe word, for endpoints.
  OwnEndpoint::Probe probe() const;
  // Whether this process can read the memory of the peer behind this endpoint. Asks the kernel once per peer.
  bool Readable(const PeerEndpoint& peer);
  // Copies `bytes` from `address` in the peer's memory. The probe word is read along with every piece, so that a new
  // process under the old one's number is not mistaken for it.
  ReadResult Read(const PeerEndpoint& peer, uint64_t address, std::byte* to, size_t bytes);

  // Copies `bytes` bytes to `address` in the peer's memory. In the same call, and before that, a word is written to the
  // peer's gate (gate.h): where there is none any more, nothing is written.
  ReadResult Write(const PeerEndpoint& peer, uint64_t address, const std::byte* from, size_t bytes);

  // Whether algorithms may take it that private memory is reached (MemoryAccess::ReachesPrivate). Not so where messages
  // are usually quicker: the choice of algorithms counts on that.
  bool direct() const { return direct_; }

  // The ways of private messages, as they were learned or asked for.
  RankWays& ways() { return ways_; }

  // kPieceBytes of memory, for reductions of what was read.
  std::byte* staging();

 private:
  struct Peer {
    enum class Access : uint8_t { kUnknown, kYes, kNo } access = Access::kUnknown;
    int32_t pid = 0;
    OwnEndpoint::Probe probe;
  };
  std::unique_ptr<uint64_t> probe_word_;

  std::vector<Peer> peers_;  // by local rank
  const std::optional<bool> reads_;
  const bool direct_;
  RankWays ways_;
  std::unique_ptr<std::byte[]> staging_;
};

}  // namespace cohort::comm::shm
