// Rails: what a connection between two processes has beside its own socket, one more socket for each further network
// interface. A long frame is cut into stripes, which go over all of them in turn; the reader takes them in the same
// order, so that nothing above a connection sees them.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "cohort/comm/transport/tcp/wire.h"
#include "cohort/runtime/base/file_descriptor.h"

namespace cohort::comm::tcp {

inline constexpr uint64_t kStripeBytes = 128 << 10;
// Shorter frames stay on the connection's own socket.
inline constexpr uint64_t kStripedFrom = 2 * kStripeBytes;

// The places of a frame's bytes: carrier 0 is the connection's own socket, the others are rails in ascending order.
class Striping {
 public:
  Striping() = default;
  // `rails` has the bits of wire.h.
  Striping(uint64_t bytes, uint16_t rails);

  uint64_t bytes() const { return bytes_; }
  int carriers() const { return carriers_; }
  // The number of a carrier's rail; 0 for the first.
  int RailOf(int carrier) const { return rails_[static_cast<size_t>(carrier)]; }
  // How many of the frame's bytes the carrier carries.
  uint64_t ShareOf(int carrier) const;
  // The place in the frame of the byte at `position` of the carrier's share.
  uint64_t PlaceOf(int carrier, uint64_t position) const {
    return (position / kStripeBytes * static_cast<uint64_t>(carriers_) + static_cast<uint64_t>(carrier)) *
               kStripeBytes +
           position % kStripeBytes;
  }
  // The carrier of the byte at `place`, and how many bytes follow there, this one included.
  int CarrierOf(uint64_t place) const {
    return static_cast<int>(place / kStripeBytes % static_cast<uint64_t>(carriers_));
  }
  uint64_t RunAt(uint64_t place) const { return std::min(kStripeBytes - place % kStripeBytes, bytes_ - place); }

 private:
  uint64_t bytes_ = 0;
  int carriers_ = 1;
  std::array<uint8_t, kMostRails> rails_{};
};

// A connection's rails, and the striped frames under way on them.
class RailSet {
 public:
  // `name` is for people: the interface.
  void Add(int rail, runtime::FileDescriptor socket, std::string name);
  bool Has(int rail) const { return rails_[static_cast<size_t>(rail)].has_value(); }
  // Whether all are there of which `flags` has the bits.
  bool HasAll(uint16_t flags) const;
  // As Connection::OnEvent. A rail that ends carries no frame that begins later.
  void OnEvent(int rail, bool ending);

  // Begins to write a frame of `bytes` bytes, striped unless no rail is usable. Returns the bits of the rails that
  // carry it.
  uint16_t BeginWriting(uint64_t bytes);
  bool writing() const { return writing_; }
  uint64_t writing_bytes() const { return out_.bytes(); }
  // Writes what the sockets take. `own` is the connection's own socket, `head` what is left of the frame's head, `data`
  // where its data begin.
  struct Moved {
    size_t head = 0;
    size_t data = 0;
    absl::Status error;  // the frame can't be ended
  };
  Moved Write(int own, const std::byte* head, size_t head_bytes, const std::byte* data);
  void EndWriting() { writing_ = false; }
  // Bytes that the peer's kernel has not acknowledged.
  bool unacknowledged() const;

  void BeginReading(uint64_t bytes, uint16_t flags) { in_ = Striping(bytes, flags); }
  // The rail from which the next of the frame's `left` bytes come; 0: the connection's own socket.
  int Next(uint64_t left) const { return in_.RailOf(in_.CarrierOf(in_.bytes() - left)); }
  // How many bytes follow on it.
  uint64_t Run(uint64_t left) const { return in_.RunAt(in_.bytes() - left); }
  bool readable(int rail) const { return rails_[static_cast<size_t>(rail)]->readable; }
  // Reads into `to`; 0 where there is nothing, or with an *error at the end.
  size_t Receive(int rail, std::byte* to, size_t bytes, absl::Status* error);

 private:
  struct Rail {
    runtime::FileDescriptor socket;
    std::string name;
    bool readable = true;
    bool ending = false;
  };
  void WriteShare(int carrier, int own, const std::byte* head, size_t head_bytes, const std::byte* data, Moved* moved);

  std::array<std::optional<Rail>, kMostRails>
      rails_;                                   // by number; the first is the connection's own socket, and absent
  Striping out_;                                // of the frame that is written
  std::array<uint64_t, kMostRails> written_{};  // by carrier
  bool writing_ = false;
  Striping in_;  // of the frame that is read
};

}  // namespace cohort::comm::tcp
