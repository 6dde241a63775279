#include "cohort/launcher/agent/mpi/spawn/pmi1_spawn.h"

#include <algorithm>
#include <charconv>

#include "absl/status/status.h"

namespace cohort::launcher {
namespace {

// A decimal number, or `otherwise`.
int NumberIn(std::string_view text, int otherwise) {
  int number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && end == text.data() + text.size() ? number : otherwise;
}

}  // namespace

std::optional<absl::StatusOr<SpawnRequest>> Pmi1Spawn::OnLine(std::string_view line) {
  if (line != "endcmd") {
    TakeLine(line);
    return std::nullopt;
  }
  in_block_ = false;
  if (why_.empty()) TakeBlock();
  words_.clear();
  if (std::exchange(block_, 1) < std::exchange(blocks_, 1)) return std::nullopt;
  absl::StatusOr<SpawnRequest> result = std::move(request_);
  if (!why_.empty()) result = absl::InvalidArgumentError(why_);
  *this = Pmi1Spawn();
  return result;
}

// Which block of how many it is counts for a request that is too long as well: its answer comes after the last.
void Pmi1Spawn::TakeLine(std::string_view line) {
  const size_t equals = line.find('=');
  if (equals == std::string_view::npos) return;
  const std::string_view name = line.substr(0, equals), value = line.substr(equals + 1);
  if (name == "totspawns") blocks_ = NumberIn(value, 1);
  if (name == "spawnssofar") block_ = NumberIn(value, 1);
  bytes_ += line.size() + sizeof(Words::value_type);
  if (bytes_ > kMostBytes) {
    why_ = "the_request_is_longer_than_256_KiB";
  } else {
    words_.emplace_back(name, value);
  }
}

std::string_view Pmi1Spawn::Get(std::string_view name) const {
  const auto found =
      std::find_if(words_.begin(), words_.end(), [name](const auto& word) { return word.first == name; });
  return found == words_.end() ? std::string_view() : found->second;
}

Pmi1Spawn::Words Pmi1Spawn::PairsOf(const std::string& what) const {
  Words pairs;
  const auto words = static_cast<int>(words_.size());
  for (int i = 0; i < std::min(NumberIn(Get(what + "_num"), 0), words); ++i) {
    pairs.emplace_back(Get(what + "_key_" + std::to_string(i)), Get(what + "_val_" + std::to_string(i)));
  }
  return pairs;
}

void Pmi1Spawn::TakeBlock() {
  SpawnedProgram program;
  program.count = NumberIn(Get("nprocs"), 0);
  program.argv = {std::string(Get("execname"))};
  const int arguments = NumberIn(Get("argcnt"), 0);
  if (program.argv[0].empty() || program.count < 1 || arguments < 0 || arguments > static_cast<int>(words_.size())) {
    why_ = "execname_or_nprocs_or_argcnt_is_none";
    return;
  }
  if (request_.programs.size() == kMostPrograms) {
    why_ = "there_are_more_than_1024_programs";
    return;
  }
  for (int i = 1; i <= arguments; ++i) program.argv.emplace_back(Get("arg" + std::to_string(i)));
  for (const auto& [key, value] : PairsOf("info")) {
    if (key == "wdir") program.directory = value;
    if (key == "path") program.path = value;
  }
  if (request_.programs.empty()) request_.values = PairsOf("preput");
  request_.programs.push_back(std::move(program));
}

}  // namespace cohort::launcher
