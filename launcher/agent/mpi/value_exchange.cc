#include "cohort/launcher/agent/mpi/value_exchange.h"

#include <algorithm>
#include <cstdlib>
#include <utility>

namespace cohort::launcher {

ValueExchange::ValueExchange(EventLoop* loop, std::string prefix, size_t nodes, size_t own, Callbacks callbacks)
    : loop_(loop), prefix_(std::move(prefix)), own_(own), callbacks_(std::move(callbacks)), nodes_(nodes) {}

ValueExchange::~ValueExchange() {
  for (const auto& [request, timer] : again_) loop_->Cancel(timer);
}

std::string ValueExchange::KeyOf(uint64_t round, size_t node, size_t piece) const {
  return prefix_ + std::to_string(round) + "/" + std::to_string(node) + "/" + std::to_string(piece);
}

// The first piece begins with the number of pieces.
void ValueExchange::Publish(uint64_t round, const std::string& values) {
  const size_t pieces = std::max<size_t>((values.size() + kPieceBytes - 1) / kPieceBytes, 1);
  for (size_t piece = 0; piece < pieces; ++piece) {
    v1::PutRequest put;
    put.set_request(next_request_++);
    put.set_key(KeyOf(round, own_, piece));
    put.set_value((piece == 0 ? std::to_string(pieces) + "\n" : "") + values.substr(piece * kPieceBytes, kPieceBytes));
    callbacks_.put(put);
  }
}

void ValueExchange::Fetch(uint64_t round) {
  round_ = round;
  missing_nodes_ = nodes_.size() - 1;
  nodes_.assign(nodes_.size(), Node());
  if (missing_nodes_ == 0) return callbacks_.on_all({});
  for (size_t node = 0; node < nodes_.size(); ++node) {
    if (node != own_) Ask({.node = node, .piece = 0});
  }
}

void ValueExchange::Ask(Asked what) {
  v1::GetRequest get;
  get.set_request(next_request_);
  get.set_key(KeyOf(round_, what.node, what.piece));
  get.set_timeout_ms(kGetTimeoutMs);
  asked_[next_request_++] = what;
  callbacks_.get(get);
}

void ValueExchange::OnPut(const v1::PutReply& reply) {
  if (!reply.error().empty()) callbacks_.on_refused(reply.error());
}

void ValueExchange::OnGet(const v1::GetReply& reply) {
  const auto asked = asked_.extract(reply.request());
  if (asked.empty()) return;
  const Asked what = asked.mapped();
  if (reply.found()) return Take(what, reply.value());
  // It is not there yet, or too many wait in the rendezvous.
  const uint64_t request = reply.request();
  again_[request] = loop_->After(kAskAgainAfter, [this, request, what] {
    again_.erase(request);
    Ask(what);
  });
}

void ValueExchange::Take(Asked what, const std::string& value) {
  Node& node = nodes_[what.node];
  if (what.piece == 0) {
    const size_t count = std::max<size_t>(std::strtoul(value.c_str(), nullptr, 10), 1);
    node.pieces.resize(count);
    node.missing = count;
    node.pieces[0] = value.substr(std::min(value.find('\n'), value.size() - 1) + 1);
    for (size_t piece = 1; piece < count; ++piece) Ask({.node = what.node, .piece = piece});
  } else {
    node.pieces[what.piece] = value;
  }
  if (--node.missing > 0 || --missing_nodes_ > 0) return;
  std::vector<std::string> values;
  for (size_t i = 0; i < nodes_.size(); ++i) {
    if (i == own_) continue;
    std::string& whole = values.emplace_back();
    for (const std::string& piece : nodes_[i].pieces) whole += piece;
  }
  callbacks_.on_all(values);
}

}  // namespace cohort::launcher
