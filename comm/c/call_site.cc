#include "cohort/comm/c/call_site.h"

#include <string_view>

#include "cohort/runtime/base/source_places.h"

namespace cohort::comm::c {

std::source_location CallSite(const char* file, int line) {
  static auto* const places = new runtime::SourcePlaces("");  // communicators may read the names until the process ends
  thread_local std::source_location latest = places->unknown();
  if (file == nullptr || line < 0) return places->unknown();
  // Most calls come from the same place as the one before. Names are compared, because the memory may be used again.
  if (latest.line() != static_cast<unsigned>(line) || std::string_view(latest.file_name()) != file) {
    latest = places->At(places->Keep(file), static_cast<unsigned>(line));
  }
  return latest;
}

}  // namespace cohort::comm::c
