#include "cohort/comm/c/call_site.h"

#include <bit>
#include <cstddef>
#include <map>
#include <string>
#include <string_view>
#include <utility>

#include "cohort/runtime/base/mutex.h"

namespace cohort::comm::c {
namespace {

// The object behind a std::source_location, as GCC and Clang lay it out for libstdc++. The standard has no other way to
// make one from names that are not C++.
struct Place {
  const char* file;
  const char* function;
  unsigned line;
  unsigned column;
};
static_assert(sizeof(std::source_location) == sizeof(const Place*));

constexpr Place kNowhere{"", "", 0, 0};
constexpr size_t kMostPlaces = 65'536;
constexpr size_t kLongestName = 4096;

class Places {
 public:
  const Place* At(std::string_view file, unsigned line) COHORT_EXCLUDES(mutex_) {
    runtime::MutexLock lock(mutex_);
    const auto known = places_.find(std::pair(file, line));
    if (known != places_.end()) return &known->second;
    if (places_.size() >= kMostPlaces || file.size() > kLongestName) return &kNowhere;
    // Nodes of the map stay where they are, and so do the names in their keys.
    const auto added = places_.try_emplace({std::string(file), line}, kNowhere).first;
    added->second = {added->first.first.c_str(), "", line, 0};
    return &added->second;
  }

 private:
  struct Order {
    using is_transparent = void;
    template <typename A, typename B>
    bool operator()(const A& a, const B& b) const {
      const int order = std::string_view(a.first).compare(std::string_view(b.first));
      return order != 0 ? order < 0 : a.second < b.second;
    }
  };
  runtime::Mutex mutex_;
  std::map<std::pair<std::string, unsigned>, Place, Order> places_ COHORT_GUARDED_BY(mutex_);
};

}  // namespace

std::source_location CallSite(const char* file, int line) {
  static auto* const places = new Places;  // communicators may read the names until the process ends
  thread_local const Place* latest = &kNowhere;
  if (file == nullptr || line < 0) return std::bit_cast<std::source_location>(&kNowhere);
  // Most calls come from the same place as the one before. Names are compared, because the memory may be used again.
  if (latest->line != static_cast<unsigned>(line) || std::string_view(latest->file) != file) {
    latest = places->At(file, static_cast<unsigned>(line));
  }
  return std::bit_cast<std::source_location>(latest);
}

}  // namespace cohort::comm::c
