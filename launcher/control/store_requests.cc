#include "cohort/launcher/control/store_requests.h"

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

void StoreRequests::Expire() {
  for (const KeyValueStore::Waiter& waiter : store_.Expire(time_.now())) {
    v1::ToAgent message;
    message.mutable_get()->set_request(waiter.request);
    outbox_->SendTo(waiter.connection, std::move(message));
  }
}

}  // namespace cohort::launcher
