// How two processes that share the job's secret prove themselves to each other when one has connected to the other.
// Pure: frames in, frames out.
//
//   initiator                                                acceptor
//     hello   nonce I, HMAC(secret; 1, terms, I)        ───►
//                                                       ◄─── answer   nonce A, HMAC(secret; 2, terms, I, A)
//     confirm          HMAC(secret; 3, terms, I, A)     ───►
//                                                       ◄─── welcome           HMAC(secret; 4, terms, I, A)
//
// The terms are the job, its epoch, both ranks and the wire's configuration. Both nonces are drawn for this connection,
// so nothing recorded serves again: a repeated hello gets an answer that its sender can't confirm.
//
// Two processes may connect to each other at the same moment; one connection must win. The lower rank decides, by its
// confirmation or its welcome, for the first connection on which the other one is proved. It takes no other connection
// while one that it has confirmed awaits its welcome. The higher rank uses the connection that the lower one decided
// for.
//
// An initiator uses a connection only after the welcome. So an acceptor that closes one before, for want of room, costs
// the initiator another attempt and nothing more.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cohort/comm/transport/net/keyed_hash.h"

namespace cohort::comm::tcp {

inline constexpr uint32_t kHandshakeMagic = 0x68546f43;  // "CoTh"
enum class HandshakeStep : uint32_t { kHello = 1, kAnswer = 2, kConfirm = 3, kWelcome = 4 };

struct HandshakeFrame {
  uint32_t magic = kHandshakeMagic;
  HandshakeStep step = HandshakeStep::kHello;
  int32_t from = 0;  // world ranks: of the sender
  int32_t to = 0;
  net::Nonce nonce = {};  // the sender's
  net::Mac proof = {};
};
static_assert(sizeof(HandshakeFrame) == 64 && std::is_trivially_copyable_v<HandshakeFrame>);

// A process' knowledge of itself and its job.
struct HandshakeTerms {
  std::string secret;  // the job's
  std::string job_id;
  uint64_t epoch = 0;
  int rank = 0;
  int world_size = 0;
  std::string configuration;  // ConfigurationOf
};

// One connection's handshake, seen from one side.
class Handshake {
 public:
  enum class State : uint8_t { kExpectHello, kExpectAnswer, kExpectConfirm, kExpectWelcome, kProved, kRefused };

  // The side that has connected to `peer`; Hello() is what it sends first. `terms` outlives the handshake. kInternal
  // when OpenSSL refuses.
  static absl::StatusOr<Handshake> Initiate(const HandshakeTerms& terms, int peer);
  // The side that was connected to, by somebody.
  static absl::StatusOr<Handshake> Accept(const HandshakeTerms& terms);

  const HandshakeFrame& Hello() const { return hello_; }
  // Takes the peer's next frame. The result is what to send: when the state is then kProved, only if this connection is
  // the one to use. An error: this is no rank of the job, or not in time; the connection must be closed. Never
  // called again after kProved or an error.
  absl::StatusOr<std::optional<HandshakeFrame>> Take(const HandshakeFrame& frame);

  State state() const { return state_; }
  // The world rank of the other side; -1 until its hello was right.
  int peer() const { return peer_; }
  // Drawn by the other side; valid once its first frame was right.
  const net::Nonce& peer_nonce() const { return peer_nonce_; }
  // The keys of the frames that this side sends and receives; in kProved.
  const net::SessionKey& send_key() const { return send_key_; }
  const net::SessionKey& receive_key() const { return receive_key_; }
  // The key that TLS starts from; in kProved. Only these two processes know it.
  absl::StatusOr<net::Mac> TlsKey() const { return MacOf("key of TLS"); }
  bool initiator() const { return initiator_; }

 private:
  Handshake(const HandshakeTerms& terms, State state) : terms_(&terms), state_(state) {}
  absl::StatusOr<net::Mac> MacOf(std::string_view purpose) const;
  absl::StatusOr<HandshakeFrame> Make(HandshakeStep step) const;
  absl::Status Check(const HandshakeFrame& frame, HandshakeStep step) const;
  absl::StatusOr<std::optional<HandshakeFrame>> Advance(const HandshakeFrame& frame);
  absl::Status MakeKeys();

  const HandshakeTerms* terms_;
  State state_;
  bool initiator_ = false;
  int peer_ = -1;
  net::Nonce own_nonce_ = {};
  net::Nonce peer_nonce_ = {};  // zero until known
  HandshakeFrame hello_;
  net::SessionKey send_key_ = {};
  net::SessionKey receive_key_ = {};
};

// The values that a rank publishes about itself in the job's store.
struct Published {
  std::string configuration;            // ConfigurationOf
  std::vector<std::string> addresses;   // "10.0.0.1:4711", "[fe80::1]:4711"
  std::vector<std::string> rails = {};  // the same, of further interfaces (rail_ports.h)
};
std::string ToText(const Published& published);
// kInvalidArgument when `text` is something else, such as what another version of Cohort publishes.
absl::StatusOr<Published> ParsePublished(std::string_view text);

}  // namespace cohort::comm::tcp
