// A TCP connection between machines that share a key: TLS 1.3 with the key as pre-shared key, so that neither side
// needs a certificate, each proves itself to the other, and a key that leaks later opens nothing recorded before. The
// process must ignore SIGPIPE.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cohort/launcher/join/token.h"
#include "cohort/runtime/base/deadline.h"
#include "cohort/runtime/base/file_descriptor.h"

namespace cohort::launcher {

class SecureStream {
 public:
  // The handshake over a connected TCP socket. kUnauthenticated: the other side does not have the key, or speaks
  // something else; kUnavailable: the connection ended; kDeadlineExceeded.
  static absl::StatusOr<SecureStream> Connect(runtime::FileDescriptor socket, const JoinKey& key,
                                              runtime::Deadline deadline);
  static absl::StatusOr<SecureStream> Accept(runtime::FileDescriptor socket, const JoinKey& key,
                                             runtime::Deadline deadline);
  SecureStream(SecureStream&&) noexcept;
  SecureStream& operator=(SecureStream&&) noexcept;
  ~SecureStream();

  // Writes all of it. kUnavailable: the connection ended; kDeadlineExceeded.
  absl::Status Write(const std::string& bytes, runtime::Deadline deadline);
  // Waits for the other side's first bytes, which the next Pump passes on: all of its first record at least. Empty: it
  // ended the stream in order.
  absl::StatusOr<std::string> AwaitBytes();

  struct PumpOptions {
    // Returns when the other side has ended. Otherwise it goes on until `input` has ended as well, and the other side
    // has taken all of it, for however long that has no room for more; to be told to end after that ends it.
    bool ends_with_peer = false;
    int signals = -1;                      // a descriptor to watch too
    std::function<bool()> on_signal = {};  // when it can be read; true: somebody tells this process to end
  };
  // Carries `input` to the other side and what comes from it to `output`, closing each where the other has ended. OK:
  // all was carried, both ways. kUnavailable: the connection was lost. Blocks until then.
  absl::Status Pump(runtime::FileDescriptor input, runtime::FileDescriptor output, const PumpOptions& options);

 private:
  struct Rep;
  explicit SecureStream(std::unique_ptr<Rep> rep);
  static absl::StatusOr<SecureStream> Shake(runtime::FileDescriptor socket, const JoinKey& key,
                                            runtime::Deadline deadline, bool server);
  std::unique_ptr<Rep> rep_;
};

}  // namespace cohort::launcher
