#include "cohort/launcher/agent/rank/store_relay.h"

#include "cohort/launcher/remedies/remedies.h"

namespace cohort::launcher {

uint64_t StoreRelay::Note(RankSocket::PeerId from, uint64_t request, std::string key) {
  pending_[next_request_] = {from, request, std::move(key)};
  return next_request_++;
}

void StoreRelay::Answer(RankSocket::PeerId to, const v1::AgentMessage& message) {
  to == kAgentItself ? callbacks_.to_agent(message) : callbacks_.to_rank(to, message);
}

void StoreRelay::OnPut(RankSocket::PeerId from, const v1::PutRequest& request) {
  v1::FromAgent up;
  *up.mutable_put() = request;
  up.mutable_put()->set_request(Note(from, request.request(), ""));
  callbacks_.to_rendezvous(up);
}

void StoreRelay::OnGet(RankSocket::PeerId from, const v1::GetRequest& request) {
  const auto cached = cache_.find(request.key());
  if (cached != cache_.end()) {
    v1::AgentMessage message;
    message.mutable_get()->set_request(request.request());
    message.mutable_get()->set_found(true);
    message.mutable_get()->set_value(cached->second);
    Answer(from, message);
    return;
  }
  v1::FromAgent up;
  *up.mutable_get() = request;
  up.mutable_get()->set_request(Note(from, request.request(), request.key()));
  callbacks_.to_rendezvous(up);
}

void StoreRelay::OnVariable(RankSocket::PeerId from, const v1::VariableRequest& request) {
  const bool reads =
      request.kind() == v1::VariableRequest::KIND_GET || request.kind() == v1::VariableRequest::KIND_COUNT;
  if (from != kAgentItself && !reads && request.key().starts_with(kOwnNames)) {
    v1::AgentMessage message;
    message.mutable_variable()->set_request(request.request());
    message.mutable_variable()->set_error(
        WithRemedy(Remedy::kReservedVariable, "variable '" + request.key() + "': names that begin with " +
                                                  std::string(kOwnNames) + " are dlaunch's own; use another"));
    return Answer(from, message);
  }
  v1::FromAgent up;
  *up.mutable_variable() = request;
  up.mutable_variable()->set_request(Note(from, request.request(), ""));
  callbacks_.to_rendezvous(up);
}

void StoreRelay::OnPutReply(const v1::PutReply& reply) {
  const auto node = pending_.extract(reply.request());
  if (node.empty()) return;  // its rank has gone
  v1::AgentMessage message;
  *message.mutable_put() = reply;
  message.mutable_put()->set_request(node.mapped().request);
  Answer(node.mapped().peer, message);
}

void StoreRelay::OnGetReply(const v1::GetReply& reply) {
  const auto node = pending_.extract(reply.request());
  if (node.empty()) return;
  const size_t bytes = node.mapped().key.size() + reply.value().size();
  if (reply.found() && cache_bytes_ + bytes <= kMaxCacheBytes &&
      cache_.emplace(node.mapped().key, reply.value()).second) {
    cache_bytes_ += bytes;
  }
  v1::AgentMessage message;
  *message.mutable_get() = reply;
  message.mutable_get()->set_request(node.mapped().request);
  Answer(node.mapped().peer, message);
}

void StoreRelay::OnVariableReply(const v1::VariableReply& reply) {
  const auto node = pending_.extract(reply.request());
  if (node.empty()) return;  // its rank has gone
  v1::AgentMessage message;
  *message.mutable_variable() = reply;
  message.mutable_variable()->set_request(node.mapped().request);
  Answer(node.mapped().peer, message);
}

void StoreRelay::Forget(RankSocket::PeerId peer) {
  std::erase_if(pending_, [&](const auto& entry) { return entry.second.peer == peer; });
}

}  // namespace cohort::launcher
