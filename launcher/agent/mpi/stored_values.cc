#include "cohort/launcher/agent/mpi/stored_values.h"

#include <algorithm>
#include <charconv>
#include <system_error>
#include <utility>

namespace cohort::launcher {

StoredValues::StoredValues(EventLoop* loop, std::string prefix, Callbacks callbacks)
    : loop_(loop), prefix_(std::move(prefix)), callbacks_(std::move(callbacks)) {}

StoredValues::~StoredValues() {
  for (const auto& [request, timer] : again_) loop_->Cancel(timer);
}

// The first piece begins with the number of pieces. It comes last: who has it finds the others at once.
size_t StoredValues::Put(const std::string& name, const std::string& value) {
  const size_t pieces = std::max<size_t>((value.size() + kPieceBytes - 1) / kPieceBytes, 1);
  for (size_t piece = pieces; piece-- > 0;) {
    v1::VariableRequest set;
    set.set_request(next_++);
    set.set_kind(v1::VariableRequest::KIND_SET);
    set.set_key(KeyOf(name, piece));
    set.set_value((piece == 0 ? std::to_string(pieces) + "\n" : "") + value.substr(piece * kPieceBytes, kPieceBytes));
    AskInTurn(std::move(set));
  }
  return pieces;
}

void StoredValues::Get(const std::string& name, Then then) {
  const uint64_t number = next_++;
  wanted_[number] = {.name = name, .then = std::move(then), .pieces = {}};
  Ask({.wanted = number, .piece = 0});
}

void StoredValues::Remove(const std::string& name, size_t pieces) {
  for (size_t piece = 0; piece < pieces; ++piece) {
    v1::VariableRequest remove;
    remove.set_request(next_++);
    remove.set_kind(v1::VariableRequest::KIND_DELETE);
    remove.set_key(KeyOf(name, piece));
    AskInTurn(std::move(remove));
  }
}

void StoredValues::Call(v1::VariableRequest request, std::function<void(const v1::VariableReply&)> then) {
  const bool may_wait = request.timeout_ms() > 0;
  request.set_request(next_++);
  request.set_key(prefix_ + request.key());
  calls_[request.request()] = std::move(then);
  if (may_wait) return callbacks_.ask(request);
  AskInTurn(std::move(request));
}

void StoredValues::Ask(Asked what) {
  v1::VariableRequest get;
  get.set_request(next_);
  get.set_kind(v1::VariableRequest::KIND_GET);
  get.set_key(KeyOf(wanted_[what.wanted].name, what.piece));
  get.set_timeout_ms(kGetTimeoutMs);
  asked_[next_++] = what;
  // The first piece may be long in coming; the others are there then.
  if (what.piece == 0) return callbacks_.ask(get);
  AskInTurn(std::move(get));
}

void StoredValues::AskInTurn(v1::VariableRequest request) {
  in_turn_.push_back(std::move(request));
  AskNext();
}

void StoredValues::AskNext() {
  while (!in_turn_.empty() && under_way_.size() < kMostUnderWay) {
    const v1::VariableRequest next = std::move(in_turn_.front());
    in_turn_.pop_front();
    under_way_.insert(next.request());
    callbacks_.ask(next);
  }
}

void StoredValues::OnReply(const v1::VariableReply& reply) {
  if (under_way_.erase(reply.request()) > 0) AskNext();
  if (const auto call = calls_.extract(reply.request()); !call.empty()) return call.mapped()(reply);
  const auto asked = asked_.extract(reply.request());
  if (asked.empty()) {
    if (!reply.error().empty()) callbacks_.on_refused(reply.error());
    return;
  }
  const Asked what = asked.mapped();
  if (reply.found()) return Take(what, reply.value());
  // It is not there yet, or too many wait in the rendezvous.
  const uint64_t request = reply.request();
  again_[request] = loop_->After(kAskAgainAfter, [this, request, what] {
    again_.erase(request);
    Ask(what);
  });
}

void StoredValues::Take(Asked what, const std::string& value) {
  Wanted& wanted = wanted_[what.wanted];
  if (what.piece == 0) {
    const size_t end = std::min(value.find('\n'), value.size());
    size_t count = 0;
    const auto [read, error] = std::from_chars(value.data(), value.data() + end, count);
    if (error != std::errc() || read != value.data() + end || end == value.size() || count == 0 ||
        count > kMostPieces) {
      callbacks_.on_refused("'" + wanted.name + "' of another node is damaged");
      wanted_.erase(what.wanted);
      return;
    }
    wanted.pieces.resize(count);
    wanted.missing = count;
    wanted.pieces[0] = value.substr(end + 1);
    for (size_t piece = 1; piece < count; ++piece) Ask({.wanted = what.wanted, .piece = piece});
  } else {
    wanted.pieces[what.piece] = value;
  }
  if (--wanted.missing > 0) return;
  const auto whole = wanted_.extract(what.wanted);
  std::string text;
  for (const std::string& piece : whole.mapped().pieces) text += piece;
  whole.mapped().then(std::move(text));
}

}  // namespace cohort::launcher
