#include "cohort/comm/transport/tcp/tls_stream.h"

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/ssl.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <string_view>

namespace cohort::comm::tcp {
namespace {

constexpr size_t kRecordBytes = SSL3_RT_MAX_PLAIN_LENGTH;
// Encrypted bytes that go to the socket by one system call, and that come from it.
constexpr size_t kBytesPerSend = 128 << 10;
constexpr size_t kBytesPerReceive = 64 << 10;
constexpr char kCipher[] = "TLS_AES_256_GCM_SHA384";
constexpr unsigned char kCipherNumber[] = {0x13, 0x02};
constexpr std::string_view kKeyName = "cohort";

absl::Status Refused(const std::string& doing) {
  std::array<char, 256> text = {};
  ERR_error_string_n(ERR_get_error(), text.data(), text.size());
  ERR_clear_error();
  return absl::InternalError("OpenSSL refuses " + doing + ": " + text.data());
}

TlsStream* StreamOf(const SSL* ssl) { return static_cast<TlsStream*>(SSL_get_app_data(ssl)); }

// The pre-shared key as TLS 1.3 wants it: a session that never was. Null when OpenSSL refuses.
SSL_SESSION* SessionOf(SSL* ssl) {
  SSL_SESSION* session = SSL_SESSION_new();
  const SSL_CIPHER* cipher = SSL_CIPHER_find(ssl, kCipherNumber);
  const net::Mac& key = StreamOf(ssl)->key();
  if (session != nullptr && cipher != nullptr && SSL_SESSION_set1_master_key(session, key.data(), key.size()) == 1 &&
      SSL_SESSION_set_cipher(session, cipher) == 1 && SSL_SESSION_set_protocol_version(session, TLS1_3_VERSION) == 1) {
    return session;
  }
  SSL_SESSION_free(session);
  return nullptr;
}

int UseKey(SSL* ssl, const EVP_MD*, const unsigned char** name, size_t* name_bytes, SSL_SESSION** session) {
  *name = reinterpret_cast<const unsigned char*>(kKeyName.data());
  *name_bytes = kKeyName.size();
  *session = SessionOf(ssl);
  return *session != nullptr ? 1 : 0;
}

int FindKey(SSL* ssl, const unsigned char* name, size_t name_bytes, SSL_SESSION** session) {
  const bool known = std::string_view(reinterpret_cast<const char*>(name), name_bytes) == kKeyName;
  *session = known ? SessionOf(ssl) : nullptr;
  return !known || *session != nullptr ? 1 : 0;
}

int PullBytes(BIO* bio, char* to, int bytes) {
  BIO_clear_retry_flags(bio);
  const ssize_t got = static_cast<TlsStream*>(BIO_get_data(bio))->Pull(to, static_cast<size_t>(bytes));
  if (got < 0 && errno == EAGAIN) BIO_set_retry_read(bio);
  return static_cast<int>(got);
}

int PushBytes(BIO* bio, const char* data, int bytes) {
  BIO_clear_retry_flags(bio);
  static_cast<TlsStream*>(BIO_get_data(bio))->Push(data, static_cast<size_t>(bytes));
  return bytes;
}

long Control(BIO*, int command, long, void*) { return command == BIO_CTRL_FLUSH ? 1 : 0; }

// Never freed: streams may outlive static objects.
const BIO_METHOD* Method() {
  static const BIO_METHOD* const method = [] {
    BIO_METHOD* made = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "cohort connection");
    if (made == nullptr) return made;
    BIO_meth_set_read(made, &PullBytes);
    BIO_meth_set_write(made, &PushBytes);
    BIO_meth_set_ctrl(made, &Control);
    return made;
  }();
  return method;
}

}  // namespace

absl::StatusOr<std::unique_ptr<TlsContext>> TlsContext::Make() {
  ERR_clear_error();
  std::unique_ptr<TlsContext> made(new TlsContext(SSL_CTX_new(TLS_method())));
  SSL_CTX* context = made->context_;
  if (context == nullptr || SSL_CTX_set_min_proto_version(context, TLS1_3_VERSION) != 1 ||
      SSL_CTX_set_max_proto_version(context, TLS1_3_VERSION) != 1 || SSL_CTX_set_ciphersuites(context, kCipher) != 1 ||
      SSL_CTX_set1_groups_list(context, "X25519:P-256") != 1 || SSL_CTX_set_num_tickets(context, 0) != 1) {
    return Refused("TLS 1.3 for --encrypt-data");
  }
  SSL_CTX_set_options(context, SSL_OP_NO_TICKET | SSL_OP_NO_RENEGOTIATION);
  SSL_CTX_clear_options(context, SSL_OP_ENABLE_MIDDLEBOX_COMPAT);
  SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);
  SSL_CTX_set_mode(context, SSL_MODE_RELEASE_BUFFERS);
  SSL_CTX_set_read_ahead(context, 1);
  SSL_CTX_set_default_read_buffer_len(context, kBytesPerReceive);
  SSL_CTX_set_psk_use_session_callback(context, &UseKey);
  SSL_CTX_set_psk_find_session_callback(context, &FindKey);
  return made;
}

TlsContext::~TlsContext() { SSL_CTX_free(context_); }

std::string DescribeEncryption() {
  using Clock = std::chrono::steady_clock;
  const std::string text = "TLS 1.3, AES-256-GCM";
  const std::array<unsigned char, 32> key = {};
  const std::array<unsigned char, 12> nonce = {};
  std::vector<unsigned char> record(kRecordBytes);
  EVP_CIPHER_CTX* cipher = EVP_CIPHER_CTX_new();
  bool right =
      cipher != nullptr && EVP_EncryptInit_ex(cipher, EVP_aes_256_gcm(), nullptr, key.data(), nonce.data()) == 1;
  std::chrono::duration<double> least(1e9);
  for (int i = 0; right && i < 50; ++i) {
    const Clock::time_point begin = Clock::now();
    int bytes = 0;
    right = EVP_EncryptInit_ex(cipher, nullptr, nullptr, nullptr, nonce.data()) == 1 &&
            EVP_EncryptUpdate(cipher, record.data(), &bytes, record.data(), static_cast<int>(record.size())) == 1 &&
            EVP_EncryptFinal_ex(cipher, record.data(), &bytes) == 1;
    least = std::min<std::chrono::duration<double>>(least, Clock::now() - begin);
  }
  EVP_CIPHER_CTX_free(cipher);
  if (!right) return text;
  std::array<char, 32> speed = {};
  std::snprintf(speed.data(), speed.size(), ", %.1f GB/s a core",
                static_cast<double>(kRecordBytes) / 1e9 / std::max(least.count(), 1e-9));
  return text + speed.data();
}

absl::StatusOr<std::unique_ptr<TlsStream>> TlsStream::Make(const TlsContext& context, int socket, bool client,
                                                           const net::Mac& key, uint64_t records_per_key) {
  ERR_clear_error();
  std::unique_ptr<TlsStream> made(new TlsStream(socket, key, records_per_key));
  made->ssl_ = SSL_new(context.get());
  BIO* bio = Method() != nullptr ? BIO_new(Method()) : nullptr;
  if (made->ssl_ == nullptr || bio == nullptr) {
    BIO_free(bio);
    return Refused("a TLS connection");
  }
  BIO_set_data(bio, made.get());
  BIO_set_init(bio, 1);
  SSL_set_bio(made->ssl_, bio, bio);
  SSL_set_app_data(made->ssl_, made.get());
  if (client) {
    // No certificate is trusted: only the key counts.
    SSL_set_verify(made->ssl_, SSL_VERIFY_PEER, nullptr);
    SSL_set_connect_state(made->ssl_);
  } else {
    SSL_set_accept_state(made->ssl_);
  }
  return made;
}

TlsStream::~TlsStream() { SSL_free(ssl_); }

ssize_t TlsStream::Pull(void* to, size_t bytes) {
  while (true) {
    const ssize_t got = recv(socket_, to, bytes, MSG_DONTWAIT);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && errno == EWOULDBLOCK) errno = EAGAIN;
    drained_ = got < static_cast<ssize_t>(bytes);
    if (got == 0) ended_ = true;
    if (got < 0 && errno != EAGAIN) read_errno_ = errno;
    return got;
  }
}

void TlsStream::Push(const void* data, size_t bytes) {
  const auto* begin = static_cast<const std::byte*>(data);
  out_.insert(out_.end(), begin, begin + bytes);
}

// False: the socket has failed, with errno.
bool TlsStream::SendOut() {
  while (unsent()) {
    const ssize_t sent = send(socket_, out_.data() + out_begin_, out_.size() - out_begin_, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 && errno == EINTR) continue;
    // Under memory pressure the kernel takes nothing for a while.
    if (sent < 0) return errno == EAGAIN || errno == EWOULDBLOCK || errno == ENOBUFS || errno == ENOMEM;
    out_begin_ += static_cast<size_t>(sent);
  }
  DropUnsent();
  return true;
}

bool TlsStream::Encrypt(const std::byte* data, size_t bytes) {
  if (++records_ % records_per_key_ == 0) SSL_key_update(ssl_, SSL_KEY_UPDATE_NOT_REQUESTED);
  size_t written = 0;
  return SSL_write_ex(ssl_, data, bytes, &written) == 1 && written == bytes;
}

ssize_t TlsStream::Send(const std::byte* head, size_t head_bytes, const std::byte* data, size_t data_bytes) {
  static thread_local std::array<std::byte, kRecordBytes> first;
  if (!SendOut()) return -1;
  ERR_clear_error();
  ssize_t taken = 0;
  while (!greeting_ && !unsent() && head_bytes + data_bytes > 0) {
    while (out_.size() < kBytesPerSend && head_bytes + data_bytes > 0) {
      // A head shares its record with what follows.
      const size_t of_data = std::min(data_bytes, kRecordBytes - head_bytes);
      const std::byte* record = data;
      if (head_bytes > 0) {
        std::memcpy(first.data(), head, head_bytes);
        if (of_data > 0) std::memcpy(first.data() + head_bytes, data, of_data);
        record = first.data();
      }
      if (!Encrypt(record, head_bytes + of_data)) {
        status_ = absl::UnavailableError(std::string(Refused("to encrypt").message()));
        errno = EPROTO;
        return -1;
      }
      taken += static_cast<ssize_t>(head_bytes + of_data);
      head_bytes = 0;
      data += of_data;
      data_bytes -= of_data;
    }
    if (!SendOut()) return -1;
  }
  return taken;
}

// Translates the result of a call of OpenSSL that has read nothing into that of recv().
ssize_t TlsStream::EndReading(int result) {
  const int error = SSL_get_error(ssl_, result);
  const unsigned long reason = ERR_peek_error();
  ERR_clear_error();  // the thread's, which other users of OpenSSL would take for theirs
  // Alerts and handshakes leave at once. Encrypted data leave by Send alone, whose caller counts them.
  if (greeting_ || error != SSL_ERROR_WANT_READ) SendOut();
  if (error == SSL_ERROR_WANT_READ) {
    errno = EAGAIN;
    return -1;
  }
  if (ended_ || error == SSL_ERROR_ZERO_RETURN) return 0;
  if (read_errno_ != 0) {
    errno = read_errno_;
    return -1;
  }
  const char* text = ERR_reason_error_string(reason);
  status_ = absl::UnavailableError("the encrypted connection carried what it must not: " +
                                   std::string(text != nullptr ? text : "TLS can't read it"));
  errno = EBADMSG;
  return -1;
}

// False: it goes on, or has failed, with errno.
bool TlsStream::Greet() {
  const int result = SSL_do_handshake(ssl_);
  if (result != 1) {
    if (EndReading(result) == 0) errno = ECONNRESET;
    return false;
  }
  SendOut();
  // Without the key somebody else has answered.
  if (SSL_session_reused(ssl_) != 1) {
    status_ = absl::UnavailableError("the encrypted connection was not made by the job's key");
    errno = EBADMSG;
    return false;
  }
  greeting_ = false;
  return true;
}

ssize_t TlsStream::Receive(std::byte* to, size_t bytes, bool* more) {
  ERR_clear_error();
  *more = false;
  if (!status_.ok()) {
    errno = EBADMSG;
    return -1;
  }
  if (greeting_ && !Greet()) return -1;
  size_t got = 0;
  while (got < bytes) {
    size_t one = 0;
    if (SSL_read_ex(ssl_, to + got, bytes - got, &one) == 1) {
      got += one;
      *more = !drained_ || ended_ || SSL_has_pending(ssl_) == 1;
      if (!*more) break;
      continue;
    }
    const ssize_t end = EndReading(0);
    // An end is told by the next call.
    *more = !(end < 0 && errno == EAGAIN);
    return got > 0 ? static_cast<ssize_t>(got) : end;
  }
  return static_cast<ssize_t>(got);
}

}  // namespace cohort::comm::tcp
