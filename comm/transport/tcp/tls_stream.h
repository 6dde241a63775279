// The bytes of one connection under TLS 1.3, between two processes that have proved themselves to each other
// (handshake.h). The handshake's key is the external pre-shared key, with ephemeral Diffie-Hellman: there are no
// certificates, and a secret that leaks later does not open what was recorded.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cohort/comm/transport/net/keyed_hash.h"

struct ssl_st;
struct ssl_ctx_st;

namespace cohort::comm::tcp {

// The settings of all streams of a process.
class TlsContext {
 public:
  // kInternal when OpenSSL refuses, as where the system's settings forbid TLS 1.3.
  static absl::StatusOr<std::unique_ptr<TlsContext>> Make();
  ~TlsContext();
  TlsContext(const TlsContext&) = delete;
  TlsContext& operator=(const TlsContext&) = delete;
  ssl_ctx_st* get() const { return context_; }

 private:
  explicit TlsContext(ssl_ctx_st* context) : context_(context) {}
  ssl_ctx_st* const context_;
};

// Measures this processor for about a millisecond: "TLS 1.3, AES-256-GCM, 3.1 GB/s a core".
std::string DescribeEncryption();

class TlsStream {
 public:
  // Number of records for which a key serves. It is far below the 2^24.5 that AES-GCM bears.
  static constexpr uint64_t kRecordsPerKey = uint64_t{1} << 22;

  // `context` and the socket outlive it. `key` is known to both sides alone. kInternal when OpenSSL refuses.
  static absl::StatusOr<std::unique_ptr<TlsStream>> Make(const TlsContext& context, int socket, bool client,
                                                         const net::Mac& key,
                                                         uint64_t records_per_key = kRecordsPerKey);
  ~TlsStream();
  TlsStream(const TlsStream&) = delete;
  TlsStream& operator=(const TlsStream&) = delete;

  // TLS's own handshake goes on, by Receive. Nothing can be sent meanwhile.
  bool greeting() const { return greeting_; }
  // Takes bytes of `head`, then of `data`, until the socket is full. Returns their number, or -1 with errno.
  ssize_t Send(const std::byte* head, size_t head_bytes, const std::byte* data, size_t data_bytes);
  // Bytes that were taken and that the socket has not.
  bool unsent() const { return out_begin_ < out_.size(); }
  void DropUnsent() { out_.clear(), out_begin_ = 0; }
  // As recv(): -1 with EAGAIN where there is nothing, 0 at the end, -1 with EBADMSG where the peer's bytes are not
  // right: see status(). *more: no event need announce what comes next.
  ssize_t Receive(std::byte* to, size_t bytes, bool* more);
  const absl::Status& status() const { return status_; }

  // OpenSSL reads and writes through these.
  ssize_t Pull(void* to, size_t bytes);
  void Push(const void* data, size_t bytes);
  const net::Mac& key() const { return key_; }

 private:
  TlsStream(int socket, const net::Mac& key, uint64_t records_per_key)
      : socket_(socket), key_(key), records_per_key_(records_per_key) {}
  bool Greet();
  bool Encrypt(const std::byte* data, size_t bytes);
  bool SendOut();
  ssize_t EndReading(int result);

  const int socket_;
  const net::Mac key_;
  const uint64_t records_per_key_;
  ssl_st* ssl_ = nullptr;
  bool greeting_ = true;
  uint64_t records_ = 0;        // sent
  std::vector<std::byte> out_;  // encrypted
  size_t out_begin_ = 0;        // of what the socket has not taken
  bool drained_ = false;        // the socket had less than was asked for
  bool ended_ = false;          // the socket has ended
  int read_errno_ = 0;
  absl::Status status_;
};

}  // namespace cohort::comm::tcp
