// How two processes that share the job's secret prove themselves to each other, once a connection, and what that makes
// of every later message.
//
//   store (over the control plane)   rank 3 has published: versions, configuration, its nonce N3, its UCX address
//   rank 1 -> rank 3                 Hello{1, 3, epoch, N1, proof = HMAC(secret; hello, 1, 3, epoch, N1, N3, ...)}
//   rank 1 -> rank 3                 messages with tag = SipHash(K13; header),  K13 = HMAC(secret; session, ..., N1,
//   N3)
//
// A process draws its nonce when it makes its transport. The proof contains the receiver's, so a recorded hello is
// worthless to any later process; the key contains both, so the same holds for recorded messages, and sequence numbers
// do the rest within a process' life. Hello and first message leave together: the handshake costs no round trip. The
// two directions of a pair are two sessions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cohort/comm/transport/net/keyed_hash.h"

namespace cohort::comm::ucx {

using net::Nonce;
using net::SessionKey;

// The first message of one process to another. Host byte order; both ends are little-endian.
inline constexpr uint32_t kHelloMagic = 0x32484f43;  // "COH2"
struct Hello {
  uint32_t magic = kHelloMagic;
  int32_t from = 0;  // world rank
  Nonce nonce = {};  // of the sender
  net::Mac proof = {};
};
static_assert(sizeof(Hello) == 56 && std::is_trivially_copyable_v<Hello>);

// Everything that both ends of a direction must agree on.
struct SessionTerms {
  std::string_view secret;  // the job's
  std::string_view job_id;
  uint64_t epoch = 0;
  int from = 0;  // world ranks
  int to = 0;
  Nonce from_nonce = {};
  Nonce to_nonce = {};
  std::string_view configuration;  // ConfigurationOf
};
// The hello of `terms.from`, and the key of its messages. kInternal when OpenSSL refuses.
absl::StatusOr<Hello> MakeHello(const SessionTerms& terms);
absl::StatusOr<SessionKey> MakeSessionKey(const SessionTerms& terms);
// Whether `hello` is the one that `terms` make. In a time that does not depend on where they differ.
bool HelloIsRight(const Hello& hello, const SessionTerms& terms);

// The values that a rank publishes about itself in the job's store.
struct Published {
  std::string ucx_version;    // "1.13"
  std::string configuration;  // ConfigurationOf
  Nonce nonce = {};
  std::string address;  // ucp_worker_get_address
};
std::string ToText(const Published& published);
// kInvalidArgument when `text` is something else, such as what another version of Cohort publishes.
absl::StatusOr<Published> ParsePublished(std::string_view text);

}  // namespace cohort::comm::ucx
