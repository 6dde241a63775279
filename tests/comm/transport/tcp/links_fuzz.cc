// Frames of a proved peer, in any order and of any size, while this side posts, retries, gives links up and loses the
// peer. A receive that is done has all of its data; memory of operations that have ended is never touched.
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "cohort/comm/transport/net/ordered_link.h"
#include "cohort/comm/transport/tcp/connection.h"
#include "cohort/comm/transport/tcp/link_state.h"
#include "cohort/comm/transport/tcp/peer.h"
#include "cohort/comm/transport/tcp/wire.h"
#include "cohort/runtime/base/file_descriptor.h"
#include "tests/support/fuzz_input.h"

namespace cohort::comm::tcp {
namespace {

constexpr int kPeer = 1;
constexpr uint64_t kSignature = 7;
constexpr std::byte kData{0x5a};
constexpr FlowLimits kLimits = {4096};

void Xor(void* to, const void* a, const void* b, size_t count) {
  for (size_t i = 0; i < count * 4; ++i) {
    static_cast<uint8_t*>(to)[i] = static_cast<const uint8_t*>(a)[i] ^ static_cast<const uint8_t*>(b)[i];
  }
}

// One message of this side, in memory of exactly its size, which is freed when it has ended.
struct Receive {
  std::vector<std::byte> data, operand;
  RecvOperation operation;
};
struct Send {
  std::vector<std::byte> data;
  SendOperation operation;
};

// A group's link, and how far the peer has come in it.
struct End {
  LinkState* link = nullptr;
  std::vector<std::unique_ptr<Receive>> receives;
  std::vector<std::unique_ptr<Send>> sends;
  uint64_t message = 0;
};

class Side : public PeerKeeper {
 public:
  Side(FuzzInput* input, int socket, int other) : input_(input), other_(other), links_(LinkMaker(kLimits, &pending_)) {
    peer_.world_rank = kPeer;
    peer_.keeper = this;
    peer_.awaited_peers = &awaited_;
    peer_.state = PeerState::kConnected;
    peer_.connection = std::make_unique<Connection>(runtime::FileDescriptor(socket), kKey, kKey,
                                                    std::make_unique<FrameRouter>(&links_, &peer_));
    links_.set_released([this](LinkState& link) { reports_.Remove(link.receiver); });
  }
  ~Side() override {
    for (size_t i = 0; i < ends_.size(); ++i) GiveUp(i);
    links_.Clear();
    FuzzCheck(pending_ == 0 && awaited_ == 0);
  }

  void Step() {
    const size_t which = input_->Below(kEnds);
    switch (input_->Below(9)) {
      case 0:
      case 1:
        return WriteFrame(which);
      case 2:
        return PostReceive(which);
      case 3:
        return PostSend(which);
      case 4:
        return TryAll(which);
      case 5:
        Drain();
        return Look(input_->Bool());
      case 6:
        if (input_->Below(4) == 0) GiveUp(which);
        return;
      case 7:
        if (input_->Below(8) == 0) links_.EndGroup(which, 1);
        return;
      default:
        if (input_->Below(16) == 0) FailPeer(peer_, absl::UnavailableError("lost"));
        return;
    }
  }

  void WantConnection(Peer&) override {}
  void FailPeer(Peer& peer, const absl::Status& status) override {
    if (peer.state == PeerState::kFailed) return;
    peer.state = PeerState::kFailed;
    peer.status = status;
    if (peer.connection != nullptr) closed_ = std::move(peer.connection);
  }
  bool ReadFor(Peer& peer, bool long_expected, const bool* enough) override {
    Connection& connection = *peer.connection;
    connection.OnEvent(false);
    const bool moved = connection.Read(peer.stalled_sends > 0, long_expected, enough);
    if (!connection.read_error().ok()) FailPeer(peer, connection.read_error());
    return moved;
  }
  void OnWriteError(Peer&) override {}
  void ReportLater(LinkReceiver& link) override { reports_.Add(link); }

 private:
  static constexpr size_t kEnds = 3;
  static constexpr net::SessionKey kKey = {7};

  LinkState* Link(size_t which) {
    LinkState*& link = ends_[which].link;
    const net::LinkKey key = {which, 1, 0, kPeer};
    if (link == nullptr && !links_.Ended(key)) link = links_.Claim(key, peer_);
    return link;
  }

  // Mostly the right one.
  void WriteFrame(size_t which) {
    FrameHeader header;
    header.group = which;
    header.epoch = 1;
    header.signature = input_->Below(16) == 0 ? 8 : kSignature;
    header.frame_bytes = input_->Byte() * 16;
    header.message_bytes = header.frame_bytes;
    header.message = ends_[which].message;
    header.granted = input_->Number();
    if (input_->Below(4) == 0) header.message_bytes = input_->Byte() * 16;
    if (input_->Below(8) == 0) header.offset = input_->Byte() * 16;
    if (input_->Below(16) == 0) header.message = input_->Number();
    if (input_->Below(8) == 0) {
      header = {.flags = kGrantOnly, .epoch = 1, .group = which, .granted = header.granted};
    } else if (header.offset + header.frame_bytes == header.message_bytes) {
      ++ends_[which].message;
    }
    if (!CheckFrame(header).ok()) return;
    header.tag = TagOf(kKey, header, frames_++);
    std::vector<std::byte> bytes(sizeof header + header.frame_bytes, kData);
    std::memcpy(bytes.data(), &header, sizeof header);
    (void)!send(other_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
  }

  void PostReceive(size_t which) {
    if (Link(which) == nullptr || ends_[which].receives.size() > 8) return;
    auto receive = std::make_unique<Receive>();
    receive->data.resize(input_->Byte() * 16);
    receive->operation.data = receive->data.data();
    receive->operation.bytes = receive->data.size();
    receive->operation.signature = kSignature;
    if (input_->Bool()) {
      receive->operand.resize(receive->data.size());
      receive->operation.operand = receive->operand.data();
      receive->operation.reduce = &Xor;
      receive->operation.element_bytes = 4;
      receive->operation.incoming_first = input_->Bool();
    }
    ends_[which].receives.push_back(std::move(receive));
    TryAll(which);
  }

  void PostSend(size_t which) {
    if (Link(which) == nullptr || ends_[which].sends.size() > 8) return;
    auto send = std::make_unique<Send>();
    send->data.resize(input_->Byte() * 64, kData);
    send->operation.data = send->data.data();
    send->operation.bytes = send->data.size();
    send->operation.signature = kSignature;
    ends_[which].sends.push_back(std::move(send));
    TryAll(which);
  }

  void TryAll(size_t which) {
    End& end = ends_[which];
    if (end.link == nullptr) return;
    std::erase_if(end.receives, [&](const std::unique_ptr<Receive>& receive) {
      const Progress progress = end.link->receiver.TryRecv(receive->operation);
      if (progress == Progress::kDone) {
        const auto right = [](std::byte byte) { return byte == kData; };
        FuzzCheck(std::all_of(receive->data.begin(), receive->data.end(), right));
      }
      return progress == Progress::kDone || progress == Progress::kFailed;
    });
    std::erase_if(end.sends, [&](const std::unique_ptr<Send>& send) {
      const Progress progress = end.link->sender.TrySend(send->operation);
      return progress == Progress::kDone || progress == Progress::kFailed;
    });
    closed_.reset();
  }

  void Look(bool keep) {
    if (peer_.state == PeerState::kConnected) {
      peer_.connection->OnEvent(false);
      peer_.connection->Flush();
      Connection& connection = *peer_.connection;
      connection.Read(keep, false, nullptr);
      if (!connection.read_error().ok()) FailPeer(peer_, connection.read_error());
    }
    reports_.Send();
    closed_.reset();
  }

  void GiveUp(size_t which) {
    if (ends_[which].link != nullptr) links_.Release(std::exchange(ends_[which].link, nullptr));
    ends_[which].receives.clear();
    ends_[which].sends.clear();
  }

  void Drain() {
    std::array<std::byte, 4096> buffer;
    (void)!recv(other_, buffer.data(), buffer.size(), MSG_DONTWAIT);
  }

  FuzzInput* const input_;
  const int other_;
  Peer peer_;
  std::unique_ptr<Connection> closed_;
  size_t pending_ = 0;
  size_t awaited_ = 0;
  LinkTable links_;
  net::OwedReports<LinkReceiver> reports_;
  std::array<End, kEnds> ends_;
  uint64_t frames_ = 0;
};

}  // namespace
}  // namespace cohort::comm::tcp

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends) != 0) return 0;
  const cohort::runtime::FileDescriptor other(ends[1]);
  const int small = 1;  // so that sockets take frames partly
  setsockopt(ends[0], SOL_SOCKET, SO_SNDBUF, &small, sizeof small);
  cohort::FuzzInput input(data, size);
  cohort::comm::tcp::Side side(&input, ends[0], other.get());
  for (int i = 0; i < 200 && !input.empty(); ++i) side.Step();
  return 0;
}
