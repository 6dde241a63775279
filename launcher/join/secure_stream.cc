#include "cohort/launcher/join/secure_stream.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <utility>

#include "cohort/runtime/base/status_macros.h"

namespace cohort::launcher {
namespace {

using runtime::Deadline;

constexpr unsigned char kIdentity[] = "cohort-join";
constexpr unsigned char kCipher[] = {0x13, 0x01};  // TLS_AES_128_GCM_SHA256
constexpr size_t kBuffer = 256u << 10;
constexpr std::chrono::seconds kLostAfter{10};  // without an answer

struct FreeContext {
  void operator()(SSL_CTX* context) const { ::SSL_CTX_free(context); }
};
struct FreeSsl {
  void operator()(SSL* ssl) const { ::SSL_free(ssl); }
};

SSL_SESSION* MakeSession(SSL* ssl) {
  const auto* key = static_cast<const JoinKey*>(SSL_get_app_data(ssl));
  SSL_SESSION* session = ::SSL_SESSION_new();
  const SSL_CIPHER* cipher = ::SSL_CIPHER_find(ssl, kCipher);
  if (session != nullptr && cipher != nullptr &&
      ::SSL_SESSION_set1_master_key(session, key->data(), key->size()) == 1 &&
      ::SSL_SESSION_set_cipher(session, cipher) == 1 &&
      ::SSL_SESSION_set_protocol_version(session, TLS1_3_VERSION) == 1) {
    return session;
  }
  ::SSL_SESSION_free(session);
  return nullptr;
}

int UseSession(SSL* ssl, const EVP_MD*, const unsigned char** id, size_t* id_size, SSL_SESSION** session) {
  *session = MakeSession(ssl);
  *id = kIdentity;
  *id_size = sizeof kIdentity - 1;
  return *session != nullptr ? 1 : 0;
}

int FindSession(SSL* ssl, const unsigned char* id, size_t id_size, SSL_SESSION** session) {
  const bool known = id_size == sizeof kIdentity - 1 && std::memcmp(id, kIdentity, id_size) == 0;
  *session = known ? MakeSession(ssl) : nullptr;
  return 1;  // without a session the handshake fails: there is no certificate
}

std::unique_ptr<SSL_CTX, FreeContext> MakeContext(bool server) {
  std::unique_ptr<SSL_CTX, FreeContext> context(::SSL_CTX_new(server ? ::TLS_server_method() : ::TLS_client_method()));
  if (!context || SSL_CTX_set_min_proto_version(context.get(), TLS1_3_VERSION) != 1 ||
      ::SSL_CTX_set_ciphersuites(context.get(), "TLS_AES_128_GCM_SHA256") != 1 ||
      ::SSL_CTX_set_num_tickets(context.get(), 0) != 1) {
    return nullptr;
  }
  SSL_CTX_set_mode(context.get(), SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
  if (server) {
    ::SSL_CTX_set_psk_find_session_callback(context.get(), &FindSession);
  } else {
    ::SSL_CTX_set_psk_use_session_callback(context.get(), &UseSession);
    ::SSL_CTX_set_verify(context.get(), SSL_VERIFY_PEER, nullptr);  // no certificate is trusted, only the key
  }
  return context;
}

// The kernel knows within kLostAfter of a peer that is gone without a word, as long as we send nothing; otherwise we
// have to know (Silence). TCP_USER_TIMEOUT would also end a connection whose peer answers that it has no room.
void NoticeLoss(int socket) {
  const int on = 1, idle = 4, interval = 2, count = 3;
  ::setsockopt(socket, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
  ::setsockopt(socket, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof idle);
  ::setsockopt(socket, IPPROTO_TCP, TCP_KEEPINTVL, &interval, sizeof interval);
  ::setsockopt(socket, IPPROTO_TCP, TCP_KEEPCNT, &count, sizeof count);
  ::setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

void MakeNonBlocking(int fd) { ::fcntl(fd, F_SETFL, ::fcntl(fd, F_GETFL) | O_NONBLOCK); }

// Bytes on their way from one side to the other.
struct Flow {
  std::string bytes;
  size_t done = 0;
  bool ended = false;  // nothing more will come in
  bool room() const { return !ended && bytes.size() - done < kBuffer; }
  bool empty() const { return done == bytes.size(); }
  void Add(const char* data, size_t size) {
    if (empty() || done > kBuffer) {
      bytes.erase(0, done);
      done = 0;
    }
    bytes.append(data, size);
  }
};

// Whether a peer to which something was sent does not answer at all. One that has no room for more for a while answers
// so; it is asked ever more seldom, and that nothing is heard between two questions is no sign.
class Silence {
 public:
  // To be called every second or so: true when it is lost.
  bool IsTooLong(int socket) {
    tcp_info info{};
    socklen_t size = sizeof info;
    const auto now = std::chrono::steady_clock::now();
    if (::getsockopt(socket, IPPROTO_TCP, TCP_INFO, &info, &size) != 0) return false;
    const uint32_t heard_ms_ago = std::min(info.tcpi_last_ack_recv, info.tcpi_last_data_recv);
    const bool sent_since = info.tcpi_unacked > 0 && info.tcpi_last_data_sent < heard_ms_ago;
    if (!sent_since && info.tcpi_probes < kProbes) asked_ = now;  // a single one may be lost, or its answer
    return now - asked_ > kLostAfter && std::chrono::milliseconds(heard_ms_ago) > kLostAfter;
  }

 private:
  static constexpr int kProbes = 3;

  std::chrono::steady_clock::time_point asked_ = std::chrono::steady_clock::now();
};

// As much as the descriptor takes. Where nobody reads it any more, what comes is dropped.
void WriteOut(Flow* flow, runtime::FileDescriptor* output) {
  while (output->valid() && !flow->empty()) {
    const ssize_t n = ::write(output->get(), flow->bytes.data() + flow->done, flow->bytes.size() - flow->done);
    if (n < 0 && errno == EAGAIN) return;
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) output->Close();
    if (n > 0) flow->done += static_cast<size_t>(n);
  }
  if (!output->valid()) flow->done = flow->bytes.size();
}

void ReadIn(int input, Flow* flow) {
  char buffer[64u << 10];
  const ssize_t n = ::read(input, buffer, sizeof buffer);
  if (n > 0) flow->Add(buffer, static_cast<size_t>(n));
  if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR)) flow->ended = true;
}

}  // namespace

struct SecureStream::Rep {
  runtime::FileDescriptor socket;
  JoinKey key;
  std::unique_ptr<SSL_CTX, FreeContext> context;
  std::unique_ptr<SSL, FreeSsl> ssl;
  std::string early;  // read before Pump

  // After a call that returned `result`: true when it only has to wait, for `events`.
  bool MustWait(int result, short* events) const {
    const int error = ::SSL_get_error(ssl.get(), result);
    if (error == SSL_ERROR_WANT_READ) *events = POLLIN;
    if (error == SSL_ERROR_WANT_WRITE) *events = POLLOUT;
    return error == SSL_ERROR_WANT_READ || error == SSL_ERROR_WANT_WRITE;
  }
  absl::Status Wait(short events, Deadline deadline) const {
    pollfd polled = {socket.get(), events, 0};
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline.left());
    if (deadline.passed()) return absl::DeadlineExceededError("no answer in time");
    ::poll(&polled, 1, static_cast<int>(std::clamp<int64_t>(left.count(), 0, 1000)));
    return absl::OkStatus();
  }
  // Reads what there is into the flow. False: the connection is lost.
  bool Receive(Flow* flow);
  bool Send(Flow* flow);
  // Says that nothing more will be sent. False while the connection has no room for it: to be called again.
  bool SayEnd() {
    ::ERR_clear_error();
    const int result = ::SSL_shutdown(ssl.get());
    short events = 0;
    return result >= 0 || !MustWait(result, &events) || events != POLLOUT;
  }
};

bool SecureStream::Rep::Receive(Flow* flow) {
  char buffer[16u << 10];
  while (flow->room()) {
    ::ERR_clear_error();
    const int n = ::SSL_read(ssl.get(), buffer, sizeof buffer);
    if (n > 0) {
      flow->Add(buffer, static_cast<size_t>(n));
      continue;
    }
    short events = 0;
    if (MustWait(n, &events)) return true;
    flow->ended = true;
    return ::SSL_get_error(ssl.get(), n) == SSL_ERROR_ZERO_RETURN;
  }
  return true;
}

bool SecureStream::Rep::Send(Flow* flow) {
  while (!flow->empty()) {
    ::ERR_clear_error();
    const int n = ::SSL_write(ssl.get(), flow->bytes.data() + flow->done,
                              static_cast<int>(std::min<size_t>(flow->bytes.size() - flow->done, 16u << 10)));
    if (n <= 0) {
      short events = 0;
      return MustWait(n, &events);
    }
    flow->done += static_cast<size_t>(n);
  }
  return true;
}

SecureStream::SecureStream(std::unique_ptr<Rep> rep) : rep_(std::move(rep)) {}
SecureStream::SecureStream(SecureStream&&) noexcept = default;
SecureStream& SecureStream::operator=(SecureStream&&) noexcept = default;
SecureStream::~SecureStream() = default;

absl::StatusOr<SecureStream> SecureStream::Connect(runtime::FileDescriptor socket, const JoinKey& key,
                                                   Deadline deadline) {
  return Shake(std::move(socket), key, deadline, false);
}

absl::StatusOr<SecureStream> SecureStream::Accept(runtime::FileDescriptor socket, const JoinKey& key,
                                                  Deadline deadline) {
  return Shake(std::move(socket), key, deadline, true);
}

absl::StatusOr<SecureStream> SecureStream::Shake(runtime::FileDescriptor socket, const JoinKey& key, Deadline deadline,
                                                 bool server) {
  auto rep = std::make_unique<Rep>();
  rep->socket = std::move(socket);
  rep->key = key;
  rep->context = MakeContext(server);
  if (rep->context) rep->ssl.reset(::SSL_new(rep->context.get()));
  if (!rep->ssl || ::SSL_set_fd(rep->ssl.get(), rep->socket.get()) != 1) {
    return absl::InternalError("OpenSSL can't make a TLS 1.3 connection");
  }
  SSL_set_app_data(rep->ssl.get(), &rep->key);
  MakeNonBlocking(rep->socket.get());
  NoticeLoss(rep->socket.get());
  for (;;) {
    ::ERR_clear_error();
    const int result = server ? ::SSL_accept(rep->ssl.get()) : ::SSL_connect(rep->ssl.get());
    if (result == 1) break;
    short events = 0;
    if (!rep->MustWait(result, &events)) {
      if (::SSL_get_error(rep->ssl.get(), result) == SSL_ERROR_SYSCALL) {
        return absl::UnavailableError("the connection ended during the handshake");
      }
      return absl::UnauthenticatedError("the other side does not have the key");
    }
    COHORT_RETURN_IF_ERROR(rep->Wait(events, deadline));
  }
  if (::SSL_session_reused(rep->ssl.get()) != 1) {
    return absl::UnauthenticatedError("the other side does not have the key");
  }
  return SecureStream(std::move(rep));
}

absl::Status SecureStream::Write(const std::string& bytes, Deadline deadline) {
  Flow flow;
  flow.Add(bytes.data(), bytes.size());
  for (;;) {
    if (!rep_->Send(&flow)) return absl::UnavailableError("the connection ended");
    if (flow.empty()) return absl::OkStatus();
    COHORT_RETURN_IF_ERROR(rep_->Wait(POLLOUT, deadline));
  }
}

absl::StatusOr<std::string> SecureStream::AwaitBytes() {
  Flow flow;
  Silence silence;
  for (;;) {
    const bool connected = rep_->Receive(&flow) && !silence.IsTooLong(rep_->socket.get());
    if (!flow.empty()) {
      rep_->early = flow.bytes;
      return flow.bytes;
    }
    if (!connected) return absl::UnavailableError("the connection ended");
    if (flow.ended) return "";
    pollfd polled = {rep_->socket.get(), POLLIN, 0};
    ::poll(&polled, 1, 1000);
  }
}

absl::Status SecureStream::Pump(runtime::FileDescriptor input, runtime::FileDescriptor output,
                                const PumpOptions& options) {
  Flow out, in;  // to the other side, and from it
  in.Add(rep_->early.data(), rep_->early.size());
  MakeNonBlocking(input.get());
  MakeNonBlocking(output.get());
  Silence silence;
  for (bool connected = true, said_end = false;;) {
    // A loss is seen once: where `output` takes nothing for a while, there are more passes after it.
    connected = connected && rep_->Receive(&in) && rep_->Send(&out) && !silence.IsTooLong(rep_->socket.get());
    in.ended = in.ended || !connected;
    WriteOut(&in, &output);
    const bool ends = out.ended && out.empty();
    said_end = said_end || (connected && ends && rep_->SayEnd());
    if (in.ended && in.empty()) {
      output.Close();
      if (!connected && !said_end) return absl::UnavailableError("the connection was lost");
      if (connected && !said_end && options.ends_with_peer) ::SSL_shutdown(rep_->ssl.get());
      if (options.ends_with_peer || said_end) return absl::OkStatus();
    }
    const bool sends = !out.empty() || (ends && !said_end);
    const short events = static_cast<short>((in.room() ? POLLIN : 0) | (sends ? POLLOUT : 0));
    pollfd polled[4] = {{events != 0 && connected ? rep_->socket.get() : -1, events, 0},
                        {out.room() ? input.get() : -1, POLLIN, 0},
                        {in.empty() ? -1 : output.get(), POLLOUT, 0},
                        {options.signals, POLLIN, 0}};
    ::poll(polled, 4, 1000);
    if (polled[3].revents != 0) {
      const bool told_to_end = options.on_signal();
      if (told_to_end && out.ended) return absl::OkStatus();  // nobody is left to whom it could be told
    }
    if (polled[1].revents != 0) ReadIn(input.get(), &out);
  }
}

}  // namespace cohort::launcher
