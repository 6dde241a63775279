#include "cohort/launcher/agent/mpi/service_names.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <utility>

namespace cohort::launcher {
namespace {

constexpr char kNumberOfNames[] = "names";
constexpr char kValueMark[] = "=";  // before the value: an empty variable would pass for none
constexpr std::chrono::milliseconds kLongestCall{60'000};
constexpr std::chrono::milliseconds kLookAgainAfter{500};

v1::VariableRequest CallOn(v1::VariableRequest::Kind kind, const std::string& key) {
  v1::VariableRequest request;
  request.set_kind(kind);
  request.set_key(key);
  return request;
}

}  // namespace

std::string_view ServiceNames::WhyNot(Outcome outcome) {
  switch (outcome) {
    case Outcome::kDone:
      return "";
    case Outcome::kTaken:
      return "the name is published already";
    case Outcome::kUnknown:
      return "nobody has published that name";
    case Outcome::kNoRoom:
      return "too many names are published (512)";
    case Outcome::kTooLong:
      break;
  }
  return "the name or its value is empty or too long";
}

void ServiceNames::Call(v1::VariableRequest request, std::function<void(const v1::VariableReply&)> then) {
  store_->Call(std::move(request), [lives = lives_, then = std::move(then)](const v1::VariableReply& reply) {
    if (*lives) then(reply);
  });
}

void ServiceNames::Count(int64_t amount, std::function<void(int64_t)> then) {
  v1::VariableRequest add = CallOn(v1::VariableRequest::KIND_ADD, kNumberOfNames);
  add.set_amount(amount);
  Call(std::move(add), [then = std::move(then)](const v1::VariableReply& reply) {
    then(reply.error().empty() ? reply.number() : static_cast<int64_t>(kMostNames) + 1);
  });
}

void ServiceNames::Publish(const std::string& name, const std::string& value, Done done) {
  if (name.empty() || name.size() > kMostNameBytes || value.size() > kMostValueBytes) return done(Outcome::kTooLong);
  Count(1, [this, name, value, done = std::move(done)](int64_t names) {
    const auto give_back = [this, done](Outcome why) { Count(-1, [done, why](int64_t) { done(why); }); };
    if (names > static_cast<int64_t>(kMostNames)) return give_back(Outcome::kNoRoom);
    v1::VariableRequest set = CallOn(v1::VariableRequest::KIND_COMPARE_SET, KeyOf(name));
    set.set_value(kValueMark + value);
    Call(std::move(set), [done, give_back](const v1::VariableReply& reply) {
      if (reply.number() == 1) return done(Outcome::kDone);
      give_back(reply.error().empty() ? Outcome::kTaken : Outcome::kNoRoom);
    });
  });
}

void ServiceNames::Unpublish(const std::string& name, Done done) {
  if (name.empty() || name.size() > kMostNameBytes) return done(Outcome::kUnknown);
  Call(CallOn(v1::VariableRequest::KIND_DELETE, KeyOf(name)),
       [this, done = std::move(done)](const v1::VariableReply& reply) {
         if (!reply.found()) return done(Outcome::kUnknown);
         Count(-1, [done](int64_t) { done(Outcome::kDone); });
       });
}

void ServiceNames::Look(const std::string& name, std::chrono::milliseconds wait, Found found) {
  if (name.empty() || name.size() > kMostNameBytes) return found(std::nullopt);
  LookUntil(name, EventLoop::Clock::now() + wait, std::move(found));
}

// The rendezvous answers at once where too many wait there already.
void ServiceNames::LookUntil(const std::string& name, EventLoop::Clock::time_point until, Found found) {
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(until - EventLoop::Clock::now());
  v1::VariableRequest get = CallOn(v1::VariableRequest::KIND_GET, KeyOf(name));
  get.set_timeout_ms(static_cast<uint32_t>(std::clamp(left, std::chrono::milliseconds(0), kLongestCall).count()));
  Call(std::move(get), [this, name, until, found = std::move(found)](const v1::VariableReply& reply) {
    if (reply.found()) return found(reply.value().substr(sizeof kValueMark - 1));
    if (EventLoop::Clock::now() >= until) return found(std::nullopt);
    const auto timer = std::make_shared<EventLoop::TimerId>(0);
    *timer = loop_->After(kLookAgainAfter, [this, name, until, found, timer] {
      timers_.erase(*timer);
      LookUntil(name, until, found);
    });
    timers_.insert(*timer);
  });
}

}  // namespace cohort::launcher
