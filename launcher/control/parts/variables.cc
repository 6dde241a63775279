#include "cohort/launcher/control/parts/variables.h"

#include <charconv>

namespace cohort::launcher {
namespace {

using Request = v1::VariableRequest;

std::optional<int64_t> Number(const std::string& text) {
  int64_t number = 0;
  const char* const end = text.data() + text.size();
  const auto [read, error] = std::from_chars(text.data(), end, number);
  if (error != std::errc() || read != end) return std::nullopt;
  return number;
}

std::string WhyRefused(const Request& request) {
  if (request.kind() == Request::KIND_COUNT) return "";
  if (request.key().empty() || request.key().size() > Variables::kMaxKeyBytes) {
    return "the name of a variable has " + std::to_string(request.key().size()) + " bytes; 1 to " +
           std::to_string(Variables::kMaxKeyBytes) + " are allowed";
  }
  if (request.value().size() > Variables::kMaxValueBytes) {
    return "the value of variable '" + request.key() + "' has " + std::to_string(request.value().size()) +
           " bytes; at most " + std::to_string(Variables::kMaxValueBytes) + " are allowed";
  }
  return "";
}

}  // namespace

std::optional<v1::VariableReply> Variables::Do(const Request& request, Waiter waiter, TimePoint now, TimePoint until,
                                               std::vector<Waiter>* answered) {
  v1::VariableReply reply;
  reply.set_error(WhyRefused(request));
  if (!reply.error().empty()) return reply;
  switch (request.kind()) {
    case Request::KIND_GET:
      if (Find(request.key()) == nullptr && waiters_.Add(request.key(), waiter, now, until)) return std::nullopt;
      TakeValue(request.key(), &reply);
      break;
    case Request::KIND_SET:
      TakeValue(request.key(), &reply);
      reply.set_error(Set(request.key(), request.value(), answered));
      break;
    case Request::KIND_ADD:
      Add(request, &reply, answered);
      break;
    case Request::KIND_COMPARE_SET:
      CompareSet(request, &reply, answered);
      break;
    case Request::KIND_DELETE:
      TakeValue(request.key(), &reply);
      Delete(request.key());
      break;
    case Request::KIND_COUNT:
      reply.set_number(static_cast<int64_t>(values_.size()));
      break;
    default:
      reply.set_error("this version knows no such call on a variable; build all parts from one version of cohort");
  }
  return reply;
}

const std::string* Variables::Find(const std::string& key) const {
  const auto found = values_.find(key);
  return found == values_.end() ? nullptr : &found->second;
}

void Variables::TakeValue(const std::string& key, v1::VariableReply* reply) const {
  const std::string* const value = Find(key);
  reply->set_found(value != nullptr);
  if (value != nullptr) reply->set_value(*value);
}

std::string Variables::Set(const std::string& key, const std::string& value, std::vector<Waiter>* answered) {
  const auto found = values_.find(key);
  const size_t before = found == values_.end() ? 0 : key.size() + found->second.size();
  if (bytes_ - before + key.size() + value.size() > kMaxTotalBytes ||
      (found == values_.end() && values_.size() >= kMaxVariables)) {
    return "the job's variables are full (" + std::to_string(values_.size()) + " of them, " +
           std::to_string(bytes_ >> 20) + " MiB); delete those that nobody needs";
  }
  bytes_ += key.size() + value.size() - before;
  if (found != values_.end()) {
    found->second = value;
  } else {
    values_.emplace(key, value);
    waiters_.Take(key, answered);
  }
  return "";
}

void Variables::Add(const Request& request, v1::VariableReply* reply, std::vector<Waiter>* answered) {
  const std::string* const value = Find(request.key());
  const std::optional<int64_t> number = value == nullptr ? 0 : Number(*value);
  int64_t sum = 0;
  if (!number.has_value()) {
    reply->set_error("variable '" + request.key() + "' holds no number, so nothing can be added");
  } else if (__builtin_add_overflow(*number, request.amount(), &sum)) {
    reply->set_error("the sum of variable '" + request.key() + "' and " + std::to_string(request.amount()) +
                     " does not fit into 64 bits");
  } else {
    reply->set_error(Set(request.key(), std::to_string(sum), answered));
    reply->set_number(sum);
  }
}

void Variables::CompareSet(const Request& request, v1::VariableReply* reply, std::vector<Waiter>* answered) {
  const std::string* const value = Find(request.key());
  if (value == nullptr ? request.expected().empty() : *value == request.expected()) {
    reply->set_error(Set(request.key(), request.value(), answered));
    reply->set_number(reply->error().empty() ? 1 : 0);
  }
  const std::string* const now = Find(request.key());
  reply->set_found(now != nullptr);
  reply->set_value(now != nullptr ? *now : request.expected());
}

void Variables::Delete(const std::string& key) {
  const auto found = values_.find(key);
  if (found == values_.end()) return;
  bytes_ -= key.size() + found->second.size();
  values_.erase(found);
}

}  // namespace cohort::launcher
