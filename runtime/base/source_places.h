// SourcePlaces: places in programs that are not C++, as the std::source_location that communicators put into messages.
#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <map>
#include <set>
#include <source_location>
#include <string>
#include <string_view>
#include <utility>

#include "cohort/runtime/base/mutex.h"

namespace cohort::runtime {

// Any thread may call. Names and places stay valid as long as the object. Both are bounded, since programs that make
// code for ever must not fill the memory: later ones are `unknown`.
class SourcePlaces {
 public:
  static constexpr size_t kMostPlaces = 65'536;
  static constexpr size_t kLongestName = 4096;

  // `unknown` stands for the file of a place that has none. It lives as long as the object.
  explicit SourcePlaces(const char* unknown) : unknown_{unknown, "", 0, 0} {}
  SourcePlaces(const SourcePlaces&) = delete;
  SourcePlaces& operator=(const SourcePlaces&) = delete;

  // The copy of a file's name that is kept: one for each name.
  const char* Keep(std::string_view file) COHORT_EXCLUDES(mutex_);
  // The place in a file whose name is kept here.
  std::source_location At(const char* kept, unsigned line) COHORT_EXCLUDES(mutex_);
  std::source_location unknown() const { return LocationOf(&unknown_); }

 private:
  // The object behind a std::source_location, as GCC and Clang lay it out for libstdc++ (bits of the C++ ABI: compilers
  // emit it, the library reads it). The standard has no other way to make one from names that are not C++.
  struct Place {
    const char* file;
    const char* function;
    unsigned line;
    unsigned column;
  };
  static std::source_location LocationOf(const Place* place);

  const Place unknown_;
  Mutex mutex_;
  // None of them shrinks: their addresses are in use.
  std::set<std::string, std::less<>> files_ COHORT_GUARDED_BY(mutex_);
  std::deque<Place> places_ COHORT_GUARDED_BY(mutex_);
  std::map<std::pair<const char*, unsigned>, const Place*> by_line_ COHORT_GUARDED_BY(mutex_);
};

}  // namespace cohort::runtime
