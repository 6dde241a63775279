#include "cohort/comm/transport/tcp/handshake.h"

#include <algorithm>
#include <utility>

#include "cohort/runtime/base/status_macros.h"

namespace cohort::comm::tcp {
namespace {

// Comes first in what is published and in every proof: another version of the wire has another word.
constexpr std::string_view kFormat = "cohort-tcp-2";
constexpr std::string_view kRailWord = "rail=";

std::string_view PurposeOf(HandshakeStep step) {
  switch (step) {
    case HandshakeStep::kHello:
      return "hello";
    case HandshakeStep::kAnswer:
      return "answer";
    case HandshakeStep::kConfirm:
      return "confirm";
    case HandshakeStep::kWelcome:
      return "welcome";
  }
  return "";
}

net::SessionKey KeyOf(const net::Mac& mac) {
  net::SessionKey key;
  std::copy_n(mac.begin(), key.size(), key.begin());
  return key;
}

}  // namespace

absl::StatusOr<Handshake> Handshake::Initiate(const HandshakeTerms& terms, int peer) {
  Handshake handshake(terms, State::kExpectAnswer);
  handshake.initiator_ = true;
  handshake.peer_ = peer;
  COHORT_ASSIGN_OR_RETURN(handshake.own_nonce_, net::MakeNonce());
  COHORT_ASSIGN_OR_RETURN(handshake.hello_, handshake.Make(HandshakeStep::kHello));
  return handshake;
}

absl::StatusOr<Handshake> Handshake::Accept(const HandshakeTerms& terms) {
  Handshake handshake(terms, State::kExpectHello);
  COHORT_ASSIGN_OR_RETURN(handshake.own_nonce_, net::MakeNonce());
  return handshake;
}

absl::StatusOr<net::Mac> Handshake::MacOf(std::string_view purpose) const {
  const int initiator = initiator_ ? terms_->rank : peer_;
  const int acceptor = initiator_ ? peer_ : terms_->rank;
  const net::Nonce& first = initiator_ ? own_nonce_ : peer_nonce_;
  net::Nonce second = initiator_ ? peer_nonce_ : own_nonce_;
  if (purpose == PurposeOf(HandshakeStep::kHello)) second = {};  // it is not known yet
  return net::HmacOf(terms_->secret,
                     {kFormat, purpose, terms_->job_id, std::to_string(terms_->epoch), std::to_string(initiator),
                      std::to_string(acceptor), net::AsText(first), net::AsText(second), terms_->configuration});
}

absl::StatusOr<HandshakeFrame> Handshake::Make(HandshakeStep step) const {
  HandshakeFrame frame;
  frame.step = step;
  frame.from = terms_->rank;
  frame.to = peer_;
  frame.nonce = own_nonce_;
  COHORT_ASSIGN_OR_RETURN(frame.proof, MacOf(PurposeOf(step)));
  return frame;
}

absl::Status Handshake::Check(const HandshakeFrame& frame, HandshakeStep step) const {
  if (frame.magic != kHandshakeMagic || frame.step != step) return absl::InvalidArgumentError("not the expected step");
  if (frame.from != peer_ || frame.to != terms_->rank) return absl::InvalidArgumentError("of other ranks");
  if (frame.nonce != peer_nonce_) return absl::InvalidArgumentError("another nonce");
  COHORT_ASSIGN_OR_RETURN(const net::Mac right, MacOf(PurposeOf(step)));
  return net::SameMac(frame.proof, right) ? absl::OkStatus() : absl::PermissionDeniedError("a wrong proof");
}

absl::Status Handshake::MakeKeys() {
  COHORT_ASSIGN_OR_RETURN(const net::Mac to_acceptor, MacOf("key to acceptor"));
  COHORT_ASSIGN_OR_RETURN(const net::Mac to_initiator, MacOf("key to initiator"));
  send_key_ = KeyOf(initiator_ ? to_acceptor : to_initiator);
  receive_key_ = KeyOf(initiator_ ? to_initiator : to_acceptor);
  return absl::OkStatus();
}

absl::StatusOr<std::optional<HandshakeFrame>> Handshake::Take(const HandshakeFrame& frame) {
  absl::StatusOr<std::optional<HandshakeFrame>> reply = Advance(frame);
  if (!reply.ok()) state_ = State::kRefused;
  return reply;
}

absl::StatusOr<std::optional<HandshakeFrame>> Handshake::Advance(const HandshakeFrame& frame) {
  switch (state_) {
    case State::kExpectHello: {
      if (frame.from < 0 || frame.from >= terms_->world_size || frame.from == terms_->rank) {
        return absl::InvalidArgumentError("no such rank");
      }
      peer_ = frame.from;
      peer_nonce_ = frame.nonce;
      absl::Status right = Check(frame, HandshakeStep::kHello);
      if (!right.ok()) {
        peer_ = -1;
        return right;
      }
      state_ = State::kExpectConfirm;
      return Make(HandshakeStep::kAnswer);
    }
    case State::kExpectAnswer: {
      peer_nonce_ = frame.nonce;
      COHORT_RETURN_IF_ERROR(Check(frame, HandshakeStep::kAnswer));
      COHORT_RETURN_IF_ERROR(MakeKeys());
      state_ = State::kExpectWelcome;
      return Make(HandshakeStep::kConfirm);
    }
    case State::kExpectConfirm: {
      COHORT_RETURN_IF_ERROR(Check(frame, HandshakeStep::kConfirm));
      COHORT_RETURN_IF_ERROR(MakeKeys());
      state_ = State::kProved;
      return Make(HandshakeStep::kWelcome);
    }
    case State::kExpectWelcome:
      COHORT_RETURN_IF_ERROR(Check(frame, HandshakeStep::kWelcome));
      state_ = State::kProved;
      return std::optional<HandshakeFrame>();
    case State::kProved:
    case State::kRefused:
      break;
  }
  return absl::InvalidArgumentError("the handshake is over");
}

std::string ToText(const Published& published) {
  std::string text = std::string(kFormat) + " " + published.configuration;
  for (const std::string& address : published.addresses) text += " " + address;
  for (const std::string& rail : published.rails) text += " " + std::string(kRailWord) + rail;
  return text;
}

absl::StatusOr<Published> ParsePublished(std::string_view text) {
  std::vector<std::string> words;
  while (!text.empty()) {
    const size_t space = std::min(text.find(' '), text.size());
    words.emplace_back(text.substr(0, space));
    text.remove_prefix(std::min(space + 1, text.size()));
  }
  if (words.empty() || words[0] != kFormat) {
    return absl::InvalidArgumentError("it runs another version of Cohort: start all ranks from the same build");
  }
  if (words.size() < 3 || std::find(words.begin(), words.end(), "") != words.end()) {
    return absl::InvalidArgumentError("what it has published about itself can't be read");
  }
  Published published;
  published.configuration = words[1];
  for (size_t i = 2; i < words.size(); ++i) {
    if (words[i].starts_with(kRailWord)) {
      published.rails.push_back(words[i].substr(kRailWord.size()));
    } else {
      published.addresses.push_back(words[i]);
    }
  }
  if (published.addresses.empty()) return absl::InvalidArgumentError("it has published no address");
  return published;
}

}  // namespace cohort::comm::tcp
