// Protobuf messages over a byte stream, each preceded by its length (a varint, as protobuf's own delimited format).
#pragma once

#include <cstddef>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cohort/launcher/base/event_loop.h"
#include "cohort/runtime/base/file_descriptor.h"
#include "google/protobuf/message_lite.h"

namespace cohort::launcher {

// A plan for 10,000 ranks is about 1 MiB.
inline constexpr size_t kMaxPipeMessage = 64u << 20;

// Cuts a stream into messages.
class MessageReader {
 public:
  void Append(const char* data, size_t size) { buffer_.append(data, size); }
  // Drops everything up to the end of `text`, which is no message. Called before the first Append.
  void SkipUntil(std::string text) { awaited_ = std::move(text); }
  // Parses the next complete message into `message`. Returns false when more bytes are needed. kInvalidArgument: the
  // stream is broken, and nothing after it can be read. It is broken by a length above kMaxPipeMessage, by bytes that
  // are no such message, or by a mebibyte without the awaited text.
  absl::StatusOr<bool> Next(google::protobuf::MessageLite* message);

 private:
  std::string buffer_;
  size_t consumed_ = 0;
  std::string awaited_;
};

// Appends the message behind its length, as MessageReader reads it.
void AppendDelimited(const google::protobuf::MessageLite& message, std::string* out);

// Writes messages to a pipe from an event loop without ever blocking it. The rest waits in memory. Sources of bulk data
// look at full() and on_drained.
class MessageWriter {
 public:
  static constexpr size_t kHighWater = 1u << 20;

  // Takes `fd` over and makes it non-blocking.
  MessageWriter(EventLoop* loop, runtime::FileDescriptor fd);
  ~MessageWriter();
  MessageWriter(const MessageWriter&) = delete;
  MessageWriter& operator=(const MessageWriter&) = delete;

  // Accepts every message. Returns false once the other end has gone.
  bool Write(const google::protobuf::MessageLite& message);
  bool full() const { return pending_.size() - written_ >= kHighWater; }
  bool empty() const { return written_ == pending_.size(); }
  // `fn` is called after full() has become false again, and when everything was written.
  void set_on_drained(std::function<void()> fn) { on_drained_ = std::move(fn); }
  // Closes the stream. Data that was not written yet is lost.
  void Close();
  // Blocks until everything is written, the other end has gone, or the time is over.
  void Flush(std::chrono::milliseconds timeout);

 private:
  void WriteSome();

  EventLoop* loop_;
  runtime::FileDescriptor fd_;
  std::string pending_;
  size_t written_ = 0;
  bool armed_ = false;
  bool broken_ = false;
  std::function<void()> on_drained_;
};

}  // namespace cohort::launcher
