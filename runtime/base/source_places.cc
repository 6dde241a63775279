#include "cohort/runtime/base/source_places.h"

#include <bit>

namespace cohort::runtime {

std::source_location SourcePlaces::LocationOf(const Place* place) {
  static_assert(sizeof(std::source_location) == sizeof(const Place*));
  return std::bit_cast<std::source_location>(place);
}

const char* SourcePlaces::Keep(std::string_view file) {
  MutexLock lock(mutex_);
  if (const auto known = files_.find(file); known != files_.end()) return known->c_str();
  if (files_.size() >= kMostPlaces || file.size() > kLongestName) return unknown_.file;
  return files_.emplace(file).first->c_str();
}

std::source_location SourcePlaces::At(const char* kept, unsigned line) {
  if (kept == unknown_.file) return unknown();
  MutexLock lock(mutex_);
  const auto key = std::pair(kept, line);
  if (const auto known = by_line_.find(key); known != by_line_.end()) return LocationOf(known->second);
  if (places_.size() >= kMostPlaces) return unknown();
  places_.push_back({kept, "", line, 0});
  by_line_.emplace(key, &places_.back());
  return LocationOf(&places_.back());
}

}  // namespace cohort::runtime
