// The connection between two processes: frames of all their links, one after another in each direction. Knows
// nothing of links but that they write frames and take them.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "cohort/comm/transport/net/keyed_hash.h"
#include "cohort/comm/transport/tcp/frame_buffer.h"
#include "cohort/comm/transport/tcp/rails.h"
#include "cohort/comm/transport/tcp/tls_stream.h"
#include "cohort/comm/transport/tcp/wire.h"
#include "cohort/comm/transport/transport.h"
#include "cohort/runtime/base/file_descriptor.h"

namespace cohort::comm::tcp {

// Takes the data of one frame. Owned by links.
class FrameTaker {
 public:
  virtual ~FrameTaker() = default;
  // The place of the next of the frame's `left` bytes: at least 1 byte and at most `left`, told in *bytes.
  virtual std::byte* Room(uint64_t left, size_t* bytes) = 0;
  virtual void Filled(size_t bytes) = 0;
  // All of the frame's data has been taken.
  virtual void EndFrame() = 0;
};

// Decides what becomes of a frame whose header is right.
class FrameSink {
 public:
  virtual ~FrameSink() = default;
  struct Choice {
    enum Kind : uint8_t {
      kTake,  // `taker` takes the data
      kDrop,  // nobody wants them
      kHold,  // nobody wants them yet: leave the frame where it is
      kStop,  // nothing more may be read: the connection is lost
    } kind = kDrop;
    FrameTaker* taker = nullptr;
  };
  // `record` is null where none came along. `keep`: kHold must not be the answer. `again`: the sink has seen it before
  // and held it.
  virtual Choice OnFrame(const FrameHeader& header, const runtime::CallRecord* record, bool keep, bool again) = 0;
};

// The writer of a frame that the socket may not take at once.
class FrameOwner {
 public:
  virtual ~FrameOwner() = default;
  // All of it has been taken; its memory may be reused.
  virtual void FrameSent() = 0;
};

class Connection {
 public:
  // `sink` gets the frames that come; null: none will be read. `tls`, of this socket, encrypts all bytes; null: they
  // travel as they are.
  Connection(runtime::FileDescriptor socket, const net::SessionKey& send_key, const net::SessionKey& receive_key,
             std::unique_ptr<FrameSink> sink, std::unique_ptr<TlsStream> tls = nullptr)
      : socket_(std::move(socket)),
        tls_(std::move(tls)),
        send_key_(send_key),
        receive_key_(receive_key),
        sink_(std::move(sink)) {}

  int descriptor() const { return socket_.get(); }

  // ---- writing ----
  enum class Written : uint8_t { kAll, kPartly, kBusy, kFailed };
  // Writes a frame, whose tag is set here, by one system call. `record` may be null. kPartly: the rest follows by
  // Flush, which calls `owner`; until then `data` must stay, or LetGo be called. kBusy: another frame is under way, or
  // it is another owner's turn; try again. kFailed: see write_error().
  Written Write(FrameHeader& header, const runtime::CallRecord* record, const std::byte* data, FrameOwner* owner);
  // Goes on with a frame that was taken partly. Returns whether anything moved.
  bool Flush();
  // Something is to be flushed.
  bool flushing() const {
    return partial_.head_begin < partial_.head_end || partial_.data_left > 0 || (tls_ != nullptr && tls_->unsent());
  }
  // `owner` does not want to write now: it awaits no turn.
  void Leave(FrameOwner* owner) { std::erase(turns_, owner); }
  // `owner` ends: what it still has under way is copied, and it awaits no turn.
  void LetGo(FrameOwner* owner);
  const absl::Status& write_error() const { return write_error_; }
  // Bytes that the peer's kernel has not acknowledged.
  bool unacknowledged() const;

  // ---- rails ----
  // From now on long frames are striped over this socket too, and what the peer stripes is read from it.
  void AddRail(int rail, runtime::FileDescriptor socket, std::string name);
  bool HasRail(int rail) const { return rails_ != nullptr && rails_->Has(rail); }

  // ---- reading ----
  // The watch has seen something to read, or the end of what the other side sends, on a rail or on the own socket (0).
  // A rail that ends carries no further frames.
  void OnEvent(bool ending, int rail = 0) {
    if (rail != 0) return HasRail(rail) ? rails_->OnEvent(rail, ending) : void();
    readable_ = true;
    ending_ = ending_ || ending;
  }
  // Something may be there to read. False: an event will tell.
  bool readable() const;
  // Reads frames and hands them to the sink, until nothing is left, a frame is held, `enough` (may be null) is true or
  // about a MiB has been read. `long_expected`: the next frame is probably long, so only its head goes through the
  // buffer. Returns whether anything moved; at the end of the connection read_error() is set.
  bool Read(bool keep, bool long_expected, const bool* enough);
  const absl::Status& read_error() const { return read_error_; }
  // Bytes that were read and not used yet.
  bool buffering() const { return buffer_.size() > 0; }
  // A frame has been read as far as its header and waits for somebody who wants it.
  bool holding() const { return reading_ == Reading::kHeld; }
  // `taker` ends: what comes for it is dropped.
  void Forget(const FrameTaker* taker);

 private:
  enum class Reading : uint8_t { kHead, kHeld, kData };
  enum class Step : uint8_t { kOn, kStop };
  struct Partial {
    FrameOwner* owner = nullptr;
    // Short data are copied behind the head: one piece costs the kernel 0.2 us less than two.
    std::array<std::byte, kMostHeadBytes + kMostShortBytes> head;
    size_t head_begin = 0;  // what is left of it
    size_t head_end = 0;
    const std::byte* data = nullptr;
    size_t data_left = 0;
    std::unique_ptr<std::byte[]> copy;  // of the data, where their owner has ended
  };

  bool MayBegin(FrameOwner* owner);
  void EndWriting(const absl::Status& error);
  bool WritePartial();
  ssize_t SendPartial(size_t head);
  Step ReadHead(bool keep, bool long_expected, size_t* budget);
  Step Begin(const FrameHeader& header, bool keep);
  Step ReadData(size_t* budget);
  // Reads into `to`; 0 where there is nothing, or at the end.
  size_t Receive(std::byte* to, size_t bytes);
  ssize_t ReceiveTls(std::byte* to, size_t bytes);
  void FinishFrame();
  bool WriteStripes();

  runtime::FileDescriptor socket_;
  const std::unique_ptr<TlsStream> tls_;

  std::unique_ptr<RailSet> rails_;  // null: none

  const net::SessionKey send_key_;
  uint64_t frames_sent_ = 0;
  Partial partial_;
  std::deque<FrameOwner*> turns_;  // found the connection busy, and begin next, in this order
  absl::Status write_error_;

  const net::SessionKey receive_key_;
  const std::unique_ptr<FrameSink> sink_;
  uint64_t frames_received_ = 0;
  Reading reading_ = Reading::kHead;
  FrameTaker* taker_ = nullptr;  // of the data that are read; null: dropped
  uint64_t data_left_ = 0;
  bool striped_ = false;  // the frame that is read
  bool readable_ = true;
  bool ending_ = false;  // then only an empty read is the end
  absl::Status read_error_;
  FrameBuffer<kMostHeadBytes + (8 << 10)> buffer_;
};

}  // namespace cohort::comm::tcp
