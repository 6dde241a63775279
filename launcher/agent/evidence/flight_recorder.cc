#include "cohort/launcher/agent/evidence/flight_recorder.h"

#include <sys/stat.h>
#include <unistd.h>

#include <utility>

namespace cohort::launcher {
namespace {

constexpr char kDumpHeading[] =
    "c10d's flight recorder left dumps (read them with PyTorch's torchfrtrace, and only if you trust the program)";

void WriteAll(int out, const std::string& text) {
  for (size_t at = 0; at < text.size();) {
    const ssize_t written = ::write(out, text.data() + at, text.size() - at);
    if (written <= 0) return;
    at += static_cast<size_t>(written);
  }
}

}  // namespace

std::vector<std::string> DumpPaths(const EvidenceRank& rank) {
  std::vector<std::string> prefixes;
  for (const char* const name : {"TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"}) {
    const std::string prefix = ValueIn(rank.environment, name);
    if (prefix.empty() || !prefixes.empty()) continue;
    prefixes.push_back(prefix.front() == '/' ? prefix : rank.working_directory + "/" + prefix);
  }
  if (prefixes.empty()) {
    constexpr char kInCache[] = "/torch/comm_lib_trace_rank_";
    const std::string cache = ValueIn(rank.environment, "XDG_CACHE_HOME");
    const std::string home = ValueIn(rank.environment, "HOME");
    if (!cache.empty()) prefixes.push_back(cache + kInCache);
    if (!home.empty()) prefixes.push_back(home + "/.cache" + kInCache);
    prefixes.push_back("/tmp/nccl_trace_rank_");
  }
  for (std::string& prefix : prefixes) prefix += std::to_string(rank.rank);
  return prefixes;
}

std::string DescribeDump(const std::string& path, uint32_t rank, std::chrono::system_clock::time_point since) {
  struct stat file{};
  // A link may lead anywhere: others can make one in /tmp.
  if (::lstat(path.c_str(), &file) != 0 || !S_ISREG(file.st_mode) || file.st_uid != ::geteuid()) return "";
  const auto written = std::chrono::seconds(file.st_mtim.tv_sec) + std::chrono::nanoseconds(file.st_mtim.tv_nsec);
  if (written < since.time_since_epoch() || file.st_size == 0) return "";
  return path + ": " + std::to_string(file.st_size) + " bytes, of rank " + std::to_string(rank);
}

bool FlightRecorder::Ask(const EvidenceQuestion& question, Done done) {
  if (question.time == EvidenceTime::kBeforeEnd) return false;
  std::vector<EvidenceRank> ranks = question.ranks;
  std::erase_if(ranks, [](const EvidenceRank& rank) { return !rank.wanted; });
  if (ranks.empty()) return false;
  const uint32_t first = ranks.front().rank;
  const auto work = [ranks = std::move(ranks), begun = question.begun](int out) {
    for (const EvidenceRank& rank : ranks) {
      for (const std::string& path : DumpPaths(rank)) {
        const std::string line = DescribeDump(path, rank.rank, begun);
        if (!line.empty()) WriteAll(out, line + "\n");
      }
    }
  };
  return answer_.Begin(work, question.limit, [this, done = std::move(done), first](const std::string& lines) {
    std::vector<Evidence> found;
    if (!lines.empty()) found.push_back({name_, first, lines, kDumpHeading});
    done(std::move(found));
  });
}

}  // namespace cohort::launcher
