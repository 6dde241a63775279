#include "cohort/trainer/base/json_text.h"

#include <optional>
#include <set>
#include <vector>

namespace cohort::trainer {
namespace {

using Json = nlohmann::json;

constexpr size_t kDeepest = 100;  // arrays and objects within each other
constexpr size_t kMostOfAKey = 200;

struct TooDeep {};

// Watches a text while it is parsed, for the first key that its object has already. Throws TooDeep.
class RepeatedKey {
 public:
  bool Sees(Json::parse_event_t event, const Json& parsed) {
    switch (event) {
      case Json::parse_event_t::object_start:
      case Json::parse_event_t::array_start:
        if (open_.size() == kDeepest) throw TooDeep();
        open_.emplace_back();
        break;
      case Json::parse_event_t::object_end:
      case Json::parse_event_t::array_end:
        open_.pop_back();
        break;
      case Json::parse_event_t::key:
        See(parsed.get_ref<const std::string&>());
        break;
      case Json::parse_event_t::value:
        break;
    }
    return true;
  }
  // With the objects around it, "fp16.enabled"; none where no key stands twice.
  const std::optional<std::string>& found() const { return found_; }

 private:
  struct Open {
    std::set<std::string, std::less<>> keys;
    std::string last;
  };

  void See(const std::string& key) {
    open_.back().last = key;
    if (open_.back().keys.insert(key).second || found_.has_value()) return;
    found_ = "";
    for (const Open& object : open_) {
      if (object.last.empty()) continue;  // an array
      *found_ += (found_->empty() ? "" : ".") + object.last.substr(0, kMostOfAKey);
    }
  }

  std::vector<Open> open_;
  std::optional<std::string> found_;
};

}  // namespace

ParsedJson ParseJson(const std::string& text, bool comments) {
  RepeatedKey repeated;
  const auto watch = [&repeated](int, Json::parse_event_t event, Json& parsed) { return repeated.Sees(event, parsed); };
  try {
    Json value = Json::parse(text, watch, /*allow_exceptions=*/true, comments);
    if (repeated.found().has_value()) {
      return {.value = nullptr, .why = "it has the key " + *repeated.found() + " twice; keep one of them"};
    }
    return {.value = std::move(value), .why = ""};
  } catch (const TooDeep&) {
    return {.value = nullptr, .why = "it is nested too deep"};
  } catch (const Json::exception& error) {
    std::string why = error.what();  // "[json.exception.parse_error.101] parse error at line 1, column 3: ..."
    const size_t behind = why.find("] ");
    if (behind != std::string::npos) why.erase(0, behind + 2);
    return {.value = nullptr, .why = "it is no JSON: " + why.substr(0, 200)};
  }
}

std::string ShortText(const Json& value, size_t most) {
  std::string text = value.dump(-1, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace);
  if (text.size() <= most) return text;
  text.resize(most);
  return text + "...";
}

}  // namespace cohort::trainer
