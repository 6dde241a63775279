#include "cohort/comm/transport/tcp/rails.h"

#include <sys/socket.h>
#include <sys/uio.h>

#include <cerrno>
#include <utility>

#include "cohort/comm/transport/tcp/socket/sockets.h"
#include "cohort/runtime/base/errno_status.h"

namespace cohort::comm::tcp {
namespace {

bool WouldBlock(int error) { return error == EAGAIN || error == EWOULDBLOCK; }

}  // namespace

Striping::Striping(uint64_t bytes, uint16_t rails) : bytes_(bytes) {
  for (int rail = 1; rail < kMostRails; ++rail) {
    if ((rails & RailBit(rail)) != 0) rails_[static_cast<size_t>(carriers_++)] = static_cast<uint8_t>(rail);
  }
}

uint64_t Striping::ShareOf(int carrier) const {
  const auto all = static_cast<uint64_t>(carriers_);
  const auto own = static_cast<uint64_t>(carrier);
  const uint64_t whole = bytes_ / kStripeBytes;
  const uint64_t rest = whole % all == own ? bytes_ % kStripeBytes : 0;
  return (whole / all + (own < whole % all ? 1 : 0)) * kStripeBytes + rest;
}

void RailSet::Add(int rail, runtime::FileDescriptor socket, std::string name) {
  rails_[static_cast<size_t>(rail)] = Rail{std::move(socket), std::move(name)};
}

bool RailSet::HasAll(uint16_t flags) const {
  for (int rail = 1; rail < kMostRails; ++rail) {
    if ((flags & RailBit(rail)) != 0 && !Has(rail)) return false;
  }
  return true;
}

void RailSet::OnEvent(int rail, bool ending) {
  if (!Has(rail)) return;
  Rail& one = *rails_[static_cast<size_t>(rail)];
  one.readable = true;
  one.ending = one.ending || ending;
}

uint16_t RailSet::BeginWriting(uint64_t bytes) {
  uint16_t bits = 0;
  for (int rail = 1; rail < kMostRails; ++rail) {
    std::optional<Rail>& one = rails_[static_cast<size_t>(rail)];
    if (!one.has_value()) continue;
    // Its end may have come since the last look at events.
    one->ending = one->ending || HasEnded(one->socket.get());
    if (!one->ending) bits = static_cast<uint16_t>(bits | RailBit(rail));
  }
  writing_ = bits != 0;
  out_ = Striping(bytes, bits);
  written_ = {};
  return bits;
}

RailSet::Moved RailSet::Write(int own, const std::byte* head, size_t head_bytes, const std::byte* data) {
  Moved moved;
  for (int carrier = 0; carrier < out_.carriers() && moved.error.ok(); ++carrier) {
    WriteShare(carrier, own, head, carrier == 0 ? head_bytes : 0, data, &moved);
  }
  return moved;
}

void RailSet::WriteShare(int carrier, int own, const std::byte* head, size_t head_bytes, const std::byte* data,
                         Moved* moved) {
  uint64_t& written = written_[static_cast<size_t>(carrier)];
  std::array<iovec, 1 + kMostFrameBytes / kStripeBytes> parts;
  size_t count = 0;
  if (head_bytes > 0) parts[count++] = {const_cast<std::byte*>(head), head_bytes};
  const uint64_t share = out_.ShareOf(carrier);
  for (uint64_t position = written; position < share && count < parts.size();) {
    const uint64_t place = out_.PlaceOf(carrier, position);
    const uint64_t run = out_.RunAt(place);
    parts[count++] = {const_cast<std::byte*>(data) + place, run};
    position += run;
  }
  if (count == 0) return;
  msghdr message = {};
  message.msg_iov = parts.data();
  message.msg_iovlen = count;
  const Rail* rail = carrier == 0 ? nullptr : &*rails_[static_cast<size_t>(out_.RailOf(carrier))];
  const ssize_t bytes = sendmsg(rail == nullptr ? own : rail->socket.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  if (bytes < 0) {
    if (WouldBlock(errno) || errno == EINTR || errno == ENOBUFS || errno == ENOMEM) return;
    moved->error =
        absl::UnavailableError((rail == nullptr ? "" : "interface " + rail->name + ": ") + runtime::ErrnoText(errno));
    return;
  }
  const size_t of_head = std::min(static_cast<size_t>(bytes), head_bytes);
  moved->head += of_head;
  moved->data += static_cast<size_t>(bytes) - of_head;
  written += static_cast<size_t>(bytes) - of_head;
}

bool RailSet::unacknowledged() const {
  return std::any_of(rails_.begin(), rails_.end(), [](const std::optional<Rail>& rail) {
    return rail.has_value() && HasUnacknowledged(rail->socket.get());
  });
}

size_t RailSet::Receive(int number, std::byte* to, size_t bytes, absl::Status* error) {
  Rail& rail = *rails_[static_cast<size_t>(number)];
  ssize_t got = 0;
  do {
    got = recv(rail.socket.get(), to, bytes, MSG_DONTWAIT);
  } while (got < 0 && errno == EINTR);
  if (got > 0) {
    // Fewer bytes than fit: the socket is empty, and an event comes with the next ones.
    rail.readable = rail.ending || static_cast<size_t>(got) == bytes;
    return static_cast<size_t>(got);
  }
  rail.readable = false;
  if (got == 0 || !WouldBlock(errno)) {
    *error = absl::UnavailableError("interface " + rail.name + ": " +
                                    (got == 0 ? "the other side closed the connection" : runtime::ErrnoText(errno)));
  }
  return 0;
}

}  // namespace cohort::comm::tcp
