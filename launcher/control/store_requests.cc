#include "cohort/launcher/control/store_requests.h"

#include <algorithm>
#include <chrono>
#include <string>
#include <utility>
#include <vector>

namespace cohort::launcher {

void StoreRequests::OnPut(ConnectionId from, const v1::PutRequest& put) {
  std::vector<KeyValueStore::Waiter> answered;
  v1::ToAgent reply;
  reply.mutable_put()->set_request(put.request());
  reply.mutable_put()->set_error(store_.Put(put.key(), put.value(), &answered));
  outbox_->SendTo(from, std::move(reply));
  for (const KeyValueStore::Waiter& waiter : answered) {
    v1::ToAgent answer;
    answer.mutable_get()->set_request(waiter.request);
    answer.mutable_get()->set_found(true);
    answer.mutable_get()->set_value(put.value());
    outbox_->SendTo(waiter.connection, std::move(answer));
  }
}

void StoreRequests::OnGet(ConnectionId from, const v1::GetRequest& get) {
  bool refused = false;
  const TimePoint expiry = time_.now() + std::chrono::milliseconds(get.timeout_ms());
  const std::string* value = store_.Get(get.key(), {from, get.request()}, time_.now(), expiry, &refused);
  if (value == nullptr && !refused) return;  // answered later
  v1::ToAgent reply;
  reply.mutable_get()->set_request(get.request());
  reply.mutable_get()->set_found(value != nullptr);
  if (value != nullptr) reply.mutable_get()->set_value(*value);
  outbox_->SendTo(from, std::move(reply));
}

void StoreRequests::OnVariable(ConnectionId from, const v1::VariableRequest& request) {
  std::vector<KeyWaiters::Waiter> answered;
  const TimePoint expiry = time_.now() + std::chrono::milliseconds(request.timeout_ms());
  std::optional<v1::VariableReply> reply =
      variables_.Do(request, {from, request.request()}, time_.now(), expiry, &answered);
  if (reply.has_value()) {
    reply->set_request(request.request());
    v1::ToAgent message;
    *message.mutable_variable() = *std::move(reply);
    outbox_->SendTo(from, std::move(message));
  }
  const std::string* const value = answered.empty() ? nullptr : variables_.Find(request.key());
  for (const KeyWaiters::Waiter& waiter : answered) {
    v1::ToAgent answer;
    answer.mutable_variable()->set_request(waiter.request);
    answer.mutable_variable()->set_found(true);
    answer.mutable_variable()->set_value(*value);
    outbox_->SendTo(waiter.connection, std::move(answer));
  }
}

void StoreRequests::Expire() {
  for (const KeyWaiters::Waiter& waiter : store_.Expire(time_.now())) {
    v1::ToAgent message;
    message.mutable_get()->set_request(waiter.request);
    outbox_->SendTo(waiter.connection, std::move(message));
  }
  for (const KeyWaiters::Waiter& waiter : variables_.Expire(time_.now())) {
    v1::ToAgent message;
    message.mutable_variable()->set_request(waiter.request);
    outbox_->SendTo(waiter.connection, std::move(message));
  }
}

std::optional<TimePoint> StoreRequests::NextExpiry() const {
  const std::optional<TimePoint> one = store_.NextExpiry(), other = variables_.NextExpiry();
  if (!one.has_value() || !other.has_value()) return one.has_value() ? one : other;
  return std::min(*one, *other);
}

void StoreRequests::Forget(ConnectionId connection) {
  store_.Forget(connection);
  variables_.Forget(connection);
}

void StoreRequests::Clear() {
  store_ = KeyValueStore();
  variables_ = Variables();
}

}  // namespace cohort::launcher
