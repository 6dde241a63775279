// Bytes of strangers and of peers, cut anywhere, on the three ways into the transport: a handshake on either side, a
// connection whose frames carry right tags, and one whose bytes are raw. No crash; nobody without the secret is proved;
// frames come to the sink only as they fit, and no byte more than they say.
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

#include "cohort/comm/transport/tcp/connection.h"
#include "cohort/comm/transport/tcp/handshake.h"
#include "cohort/comm/transport/tcp/wire.h"
#include "cohort/runtime/base/file_descriptor.h"
#include "tests/support/fuzz_input.h"

namespace cohort::comm::tcp {
namespace {

void FuzzHandshake(FuzzInput& input) {
  const HandshakeTerms terms = {"the secret of the job", "job", 1, 1, 4, "configuration"};
  auto handshake =
      input.Bool() ? Handshake::Accept(terms) : Handshake::Initiate(terms, static_cast<int>(input.Below(4)));
  if (!handshake.ok()) return;
  for (int i = 0; i < 4 && !input.empty(); ++i) {
    HandshakeFrame frame;
    auto* raw = reinterpret_cast<uint8_t*>(&frame);
    if (input.Bool()) {  // mostly right
      frame.step = static_cast<HandshakeStep>(input.Below(6));
      frame.from = input.Signed32();
      frame.to = input.Signed32();
    }
    for (uint32_t change = input.Below(70); change > 0; --change) raw[input.Below(sizeof frame)] = input.Byte();
    const bool went_on = handshake->Take(frame).ok();
    FuzzCheck(!went_on && handshake->state() == Handshake::State::kRefused);
    break;
  }
}

// Takes, drops and holds frames as the input says, and counts.
class Sink : public FrameSink, public FrameTaker {
 public:
  explicit Sink(FuzzInput* input) : input_(input) {}
  Choice OnFrame(const FrameHeader& header, const runtime::CallRecord* record, bool keep, bool) override {
    FuzzCheck(CheckFrame(header).ok());
    FuzzCheck(left_ == 0 && !taking_);
    FuzzCheck(record == nullptr || std::memchr(record->site, 0, sizeof record->site) != nullptr);
    const uint32_t kind = input_->Below(4);
    if (kind == 0 && !keep) return {Choice::kHold, nullptr};
    if (kind == 1) return {Choice::kDrop, nullptr};
    if (kind == 2 && input_->Below(8) == 0) return {Choice::kStop, nullptr};
    left_ = header.frame_bytes;
    taking_ = true;
    return {Choice::kTake, this};
  }
  std::byte* Room(uint64_t left, size_t* bytes) override {
    FuzzCheck(taking_ && left == left_);
    *bytes = 1 + input_->Byte() * 64;
    if (*bytes > left) *bytes = left;
    memory_ = std::make_unique<std::byte[]>(*bytes);  // exactly so much: the address sanitizer watches
    return memory_.get();
  }
  void Filled(size_t bytes) override {
    FuzzCheck(bytes <= left_);
    left_ -= bytes;
  }
  void EndFrame() override {
    FuzzCheck(left_ == 0);
    taking_ = false;
  }

 private:
  FuzzInput* const input_;
  std::unique_ptr<std::byte[]> memory_;
  uint64_t left_ = 0;
  bool taking_ = false;
};

void FuzzConnection(FuzzInput& input) {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends) != 0) return;
  const runtime::FileDescriptor other(ends[1]);
  const net::SessionKey key = {7};
  Connection connection(runtime::FileDescriptor(ends[0]), key, key, std::make_unique<Sink>(&input));
  uint64_t number = 0;
  for (int i = 0; i < 40 && !input.empty() && connection.read_error().ok(); ++i) {
    std::vector<uint8_t> bytes;
    if (input.Below(8) == 0) {
      for (uint32_t left = input.Byte(); left > 0; --left) bytes.push_back(input.Byte());
    } else {
      FrameHeader header;
      header.flags = static_cast<uint16_t>(input.Below(8) == 0 ? input.Byte() : input.Below(3));
      header.frame_bytes = input.Number32();
      header.message_bytes = input.Bool() ? header.frame_bytes : input.Number();
      header.offset = input.Bool() ? 0 : input.Number();
      header.granted = input.Number();
      header.tag = TagOf(key, header, number++);
      bytes.resize(HeadBytes(header) + std::min<uint32_t>(header.frame_bytes, 4096));
      std::memcpy(bytes.data(), &header, sizeof header);
    }
    for (size_t at = 0; at < bytes.size();) {
      const size_t part = std::min<size_t>(bytes.size() - at, 1 + input.Byte() * 16);
      if (write(other.get(), bytes.data() + at, part) < 0) break;
      at += part;
      connection.Read(input.Bool(), input.Bool(), nullptr);
    }
  }
}

}  // namespace
}  // namespace cohort::comm::tcp

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  cohort::FuzzInput input(data, size);
  if (input.Below(4) == 0) {
    cohort::comm::tcp::FuzzHandshake(input);
  } else {
    cohort::comm::tcp::FuzzConnection(input);
  }
  return 0;
}
