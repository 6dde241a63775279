// Direct access among the members of a fan-out: memory of the segment by load and store, private memory by
// process_vm_readv and process_vm_writev.
//
// How it ends. Each member has two words in its endpoint: `inside`, while it touches others' memory, and `closed`, once
// it has given the group up. Enter sets `inside` and then looks at everybody's `closed`; the end sets `closed` and then
// waits until nobody is `inside` (both with a full fence between, so at least one of two members sees the other). A
// member is inside for one piece, 256 KiB a buffer, so the wait is short. The dead are not waited for, and a process
// that was stopped inside for kLongestWait only. What such a one may still do when it goes on: finish its stores of one
// piece into window memory, which stays mapped. It takes no data for good that it read there: Leave looks at `closed`
// once more. It cannot begin a write to private memory, because every such write
// passes the gate (gate.h), a page that is made inaccessible and kept so.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <vector>

#include "cohort/comm/transport/memory_access.h"
#include "cohort/comm/transport/shm/endpoint.h"
#include "cohort/comm/transport/shm/private_memory.h"
#include "cohort/runtime/segment/segment.h"

namespace cohort::comm::shm {

class MemberMemory final : public MemoryAccess {
 public:
  static constexpr std::chrono::milliseconds kLongestWait{200};

  // All references outlive it. `peers`: all other members, in the order of their group ranks.
  MemberMemory(runtime::Segment& segment, PrivateMemory& memory, OwnEndpoint& own, int group_rank,
               std::vector<PeerEndpoint>& peers);
  // Gives up: nobody touches this process' memory any more, as far as the head of this file says. True when nobody was
  // left inside: the gate may go.
  bool Close();

  MemoryName NameOf(const void* data, size_t bytes) override;
  Progress ReachesPrivate(bool* reaches, int* waiting_for) override;
  std::byte* Resolve(int peer, const MemoryName& name, size_t bytes) override;
  bool Enter() override;
  bool Leave() override;
  Progress Read(int peer, uint64_t address, std::byte* to, size_t bytes, absl::Status* error) override;
  Progress Write(int peer, uint64_t address, const std::byte* from, size_t bytes, absl::Status* error) override;
  size_t piece_bytes() const override { return kPieceBytes; }

 private:
  // Ranges of a peer's memory that are mapped here.
  struct Mapped {
    std::array<runtime::SegmentBlock, 2> ranges;
    unsigned next = 0;
  };
  enum class Reach : uint8_t { kUnknown, kYes, kNo };

  bool AnyClosed() const;
  size_t IndexOf(int peer) const { return static_cast<size_t>(peer < group_rank_ ? peer : peer - 1); }
  Progress Outcome(ReadResult result, const PeerEndpoint& peer, absl::Status* error) const;

  runtime::Segment& segment_;
  PrivateMemory& memory_;
  OwnEndpoint& own_;
  const int group_rank_;
  std::vector<PeerEndpoint>& peers_;
  std::vector<Mapped> mapped_;  // by index of peer
  Reach reach_ = Reach::kUnknown;
};

}  // namespace cohort::comm::shm
