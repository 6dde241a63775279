// A gate over TCP, for ranks on several machines: a star with rank 0 in the middle. It releases the ranks one message
// apart, some tens of microseconds on most networks, so times of that order say little there.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "cohort/runtime/base/deadline.h"
#include "cohort/runtime/base/file_descriptor.h"
#include "tools/measure/gate.h"

namespace cohort::measure {

using GateToken = std::array<char, 16>;

class TcpGate final : public Gate {
 public:
  // Rank 0's side before the others have come: listens on `ip` (IPv4 or IPv6, numeric; empty: any).
  struct Listener {
    runtime::FileDescriptor fd;
    uint16_t port = 0;
  };
  static absl::StatusOr<Listener> Listen(const std::string& ip);
  // How long to wait for the others, and what to ask meanwhile, once a second: what is not OK ends the wait with it.
  struct Patience {
    runtime::Deadline deadline;
    std::function<absl::Status()> idle;
  };
  // Rank 0. Connections that do not begin with the token are dropped.
  static absl::StatusOr<std::unique_ptr<TcpGate>> Accept(Listener listener, int ranks, const GateToken& token,
                                                         const Patience& patience);
  // The others.
  static absl::StatusOr<std::unique_ptr<TcpGate>> Connect(const std::string& ip, uint16_t port, int rank,
                                                          const GateToken& token, const Patience& patience);
  absl::Status Wait() override;
  absl::Status Max(std::span<uint64_t> numbers) override;
  absl::Status Sum(std::span<uint64_t> numbers) override;
  std::string Describe() const override { return "TCP, released one message apart"; }

 private:
  enum class How { kMax, kSum };
  TcpGate() = default;
  absl::Status Reduce(std::span<uint64_t> numbers, How how);
  absl::Status Read(int fd, void* data, size_t bytes);
  absl::Status Write(int fd, const void* data, size_t bytes);

  // Rank 0: the others, by rank - 1. Else: rank 0.
  std::vector<runtime::FileDescriptor> peers_;
  bool root_ = false;
  std::vector<uint64_t> received_;
};

}  // namespace cohort::measure
