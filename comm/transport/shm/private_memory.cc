#include "cohort/comm/transport/shm/private_memory.h"

#include <sys/uio.h>

#include <cerrno>
#include <random>

#include "cohort/runtime/base/cpu_cache.h"

namespace cohort::comm::shm {
namespace {

uint64_t RandomWord() {
  std::random_device device;
  return static_cast<uint64_t>(device()) << 32 | device();
}

ReadResult ReadWithProbe(int32_t pid, OwnEndpoint::Probe probe, uint64_t address, std::byte* to, size_t bytes) {
  for (size_t done = 0;;) {
    uint64_t value = 0;
    const iovec local[] = {{&value, sizeof value}, {to + done, bytes - done}};
    // Addresses in the other process: the kernel checks them.
    const iovec remote[] = {{reinterpret_cast<void*>(probe.address), sizeof value},    // NOLINT
                            {reinterpret_cast<void*>(address + done), bytes - done}};  // NOLINT
    const ssize_t read = process_vm_readv(pid, local, 2, remote, 2, 0);
    if (read < 0) {
      if (errno == EINTR) continue;
      return errno == ESRCH ? ReadResult::kGone : ReadResult::kRefused;
    }
    if (read < static_cast<ssize_t>(sizeof value)) return ReadResult::kRefused;
    if (value != probe.value) return ReadResult::kGone;
    const size_t moved = static_cast<size_t>(read) - sizeof value;
    done += moved;
    if (done == bytes) return ReadResult::kRead;
    if (moved == 0) return ReadResult::kRefused;
  }
}

}  // namespace

PrivateMemory::PrivateMemory(int local_rank, int local_ranks, std::optional<bool> reads)
    : probe_word_(std::make_unique<uint64_t>(RandomWord())),
      peers_(static_cast<size_t>(local_ranks)),
      reads_(reads),
      direct_(reads.value_or(!runtime::Level3IsNear())),
      ways_(local_rank, local_ranks, reads) {}

OwnEndpoint::Probe PrivateMemory::probe() const {
  return {.address = reinterpret_cast<uintptr_t>(probe_word_.get()), .value = *probe_word_};
}

bool PrivateMemory::Readable(const PeerEndpoint& endpoint) {
  Peer& peer = peers_[static_cast<size_t>(endpoint.address().local_rank)];
  if (peer.access == Peer::Access::kUnknown || peer.probe.value != endpoint.header().probe_value) {
    peer.pid = endpoint.header().pid;
    peer.probe = {.address = endpoint.header().probe_address, .value = endpoint.header().probe_value};
    const bool read = reads_.value_or(true) && peer.pid > 0 &&
                      ReadWithProbe(peer.pid, peer.probe, peer.probe.address, nullptr, 0) == ReadResult::kRead;
    peer.access = read ? Peer::Access::kYes : Peer::Access::kNo;
  }
  return peer.access == Peer::Access::kYes;
}

ReadResult PrivateMemory::Read(const PeerEndpoint& endpoint, uint64_t address, std::byte* to, size_t bytes) {
  const Peer& peer = peers_[static_cast<size_t>(endpoint.address().local_rank)];
  if (peer.access != Peer::Access::kYes) return ReadResult::kRefused;
  return ReadWithProbe(peer.pid, peer.probe, address, to, bytes);
}

ReadResult PrivateMemory::Write(const PeerEndpoint& endpoint, uint64_t address, const std::byte* from, size_t bytes) {
  const Peer& peer = peers_[static_cast<size_t>(endpoint.address().local_rank)];
  const uint64_t gate = endpoint.header().gate_address;
  if (peer.access != Peer::Access::kYes || gate == 0) return ReadResult::kRefused;
  for (size_t done = 0;;) {
    uint64_t token = 0;
    const iovec local[] = {{&token, sizeof token}, {const_cast<std::byte*>(from) + done, bytes - done}};
    // The kernel takes these in their order and stops at the first that it cannot write.
    const iovec remote[] = {{reinterpret_cast<void*>(gate), sizeof token},             // NOLINT
                            {reinterpret_cast<void*>(address + done), bytes - done}};  // NOLINT
    const ssize_t written = process_vm_writev(peer.pid, local, 2, remote, 2, 0);
    if (written < 0) {
      if (errno == EINTR) continue;
      return errno == ESRCH ? ReadResult::kGone : ReadResult::kRefused;
    }
    if (written < static_cast<ssize_t>(sizeof token)) return ReadResult::kRefused;
    const size_t moved = static_cast<size_t>(written) - sizeof token;
    done += moved;
    if (done == bytes) return ReadResult::kRead;
    if (moved == 0) return ReadResult::kRefused;
  }
}

std::byte* PrivateMemory::staging() {
  if (staging_ == nullptr) staging_ = std::make_unique_for_overwrite<std::byte[]>(kPieceBytes);
  return staging_.get();
}

}  // namespace cohort::comm::shm
