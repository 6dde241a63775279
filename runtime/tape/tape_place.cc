#include "cohort/runtime/tape/tape_place.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <system_error>
#include <tuple>

#include "absl/status/status.h"

namespace cohort::runtime {
namespace {

constexpr std::string_view kTapeEnding = ".tape";

// Takes `word` and a number from the front of `text`.
template <typename Number>
bool TakeNumber(std::string_view word, std::string_view* text, Number* number) {
  if (!text->starts_with(word)) return false;
  text->remove_prefix(word.size());
  const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), *number);
  if (error != std::errc() || *number < 0) return false;
  text->remove_prefix(static_cast<size_t>(end - text->data()));
  return true;
}

}  // namespace

std::string TapeName(const TapePlace& place) {
  std::string name = "rank-" + std::to_string(place.rank) + ".epoch-" + std::to_string(place.epoch);
  if (place.runtime > 1) name += ".runtime-" + std::to_string(place.runtime);
  return name.append(kTapeEnding);
}

std::optional<TapePlace> ReadTapeName(std::string_view name) {
  TapePlace place;
  std::string_view left = name;
  if (!TakeNumber("rank-", &left, &place.rank) || !TakeNumber(".epoch-", &left, &place.epoch)) return std::nullopt;
  if (left != kTapeEnding && !TakeNumber(".runtime-", &left, &place.runtime)) return std::nullopt;
  if (TapeName(place) != name) return std::nullopt;
  return place;
}

std::string TapePartPath(const std::string& path, uint64_t part) { return path + "." + std::to_string(part); }

std::vector<uint64_t> TapePartsOf(const std::string& path) {
  const std::filesystem::path whole(path);
  const std::filesystem::path folder = whole.has_parent_path() ? whole.parent_path() : ".";
  const std::string beginning = whole.filename().string() + ".";
  std::vector<uint64_t> parts;
  std::error_code error;
  for (std::filesystem::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    std::string_view left = name;
    uint64_t part = 0;
    if (TakeNumber(beginning, &left, &part) && left.empty() && part > 0) parts.push_back(part);
  }
  std::sort(parts.begin(), parts.end());
  return parts;
}

absl::StatusOr<std::vector<TapePlace>> TapesIn(const std::string& folder) {
  std::vector<TapePlace> places;
  std::error_code error;
  std::filesystem::directory_iterator entry(folder, error);
  for (const std::filesystem::directory_iterator end; !error && entry != end; entry.increment(error)) {
    if (const auto place = ReadTapeName(entry->path().filename().string())) places.push_back(*place);
  }
  if (error) {
    const std::string text = "the tapes in " + folder + " can't be read: " + error.message();
    if (error == std::errc::permission_denied) return absl::PermissionDeniedError(text);
    return absl::NotFoundError(text);
  }
  const auto key = [](const TapePlace& place) { return std::tie(place.rank, place.epoch, place.runtime); };
  std::sort(places.begin(), places.end(), [&](const auto& a, const auto& b) { return key(a) < key(b); });
  return places;
}

}  // namespace cohort::runtime
