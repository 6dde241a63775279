#include "cohort/launcher/options/rank_program.h"

#include <algorithm>
#include <cctype>

#include "cohort/launcher/base/whole_number.h"
#include "cohort/launcher/options/option_values.h"
#include "cohort/launcher/remedies/remedies.h"

namespace cohort::launcher {
namespace {

// A word that is no option and no punctuation: "client", "./b", "/opt/b".
bool LooksLikeProgram(const std::string& word) {
  return !word.empty() && (std::isalnum(static_cast<unsigned char>(word[0])) != 0 || word[0] == '_' ||
                           word.starts_with("./") || word.starts_with("../") || word.starts_with("/"));
}

bool IsCount(const std::string& word) {
  return !word.empty() && word.find_first_not_of("0123456789") == std::string::npos;
}

// How many words from `i` on are a program's own count or variable: "-n 3", "-np=3", "--env A=1"; 0: none are.
size_t OwnOption(const std::vector<std::string>& words, size_t i) {
  if (i >= words.size()) return 0;
  const std::string word = WithLongCount(words[i]);
  const bool value_follows = i + 1 < words.size();
  if (word == "--env") return value_follows && words[i + 1].find('=') != std::string::npos ? 2 : 0;
  if (word.starts_with("--env=")) return word.find('=', 6) != std::string::npos ? 1 : 0;
  if (word == "--np") return value_follows && IsCount(words[i + 1]) ? 2 : 0;
  return word.starts_with("--np=") && IsCount(word.substr(5)) ? 1 : 0;
}

// Whether options of a program's own and the program follow the ':' at `i`: "-n 3 client", "-m --env A=1 module".
bool OwnOptionsFollow(const std::vector<std::string>& words, size_t i) {
  bool follow = false;
  size_t next = i + 1;
  while (next < words.size()) {
    const size_t length = OwnOption(words, next);
    if (length == 0 && words[next] != "-m" && words[next] != "--module") break;
    follow = follow || length > 0;
    next += std::max<size_t>(length, 1);
  }
  return follow && next < words.size();
}

bool ProgramFollows(const std::vector<std::string>& words, size_t i) {
  if (i + 1 >= words.size()) return false;
  const std::string& next = words[i + 1];
  return LooksLikeProgram(next) || (next.size() > 1 && next[0] == '-' && i + 2 < words.size());
}

// The ranks from 0 to size - 1 that no span names; `named` is sorted, and no two overlap.
std::vector<RankSpan> Gaps(const std::vector<RankSpan>& named, int size) {
  std::vector<RankSpan> gaps;
  int next = 0;
  for (const RankSpan& span : named) {
    if (span.first > next) gaps.push_back({next, span.first - 1});
    next = span.last + 1;
  }
  if (next < size) gaps.push_back({next, size - 1});
  return gaps;
}

std::string CountedRanks(int64_t count) { return std::to_string(count) + (count == 1 ? " rank" : " ranks"); }

// mpirun's form.
absl::Status GiveCounts(int size, std::vector<RankProgram>* programs) {
  int64_t left = size;
  for (const RankProgram& program : *programs) left -= program.count.value_or(0);
  int next = 0;
  for (RankProgram& program : *programs) {
    if (!program.count && left < 1) {
      return InvalidArgumentError(
          Remedy::kProgramWithoutRanks,
          program.where + " (" + program.command[0] +
              ") has no -n and gets the ranks that the others leave, which are none of the job's " +
              std::to_string(size) + ": raise --nproc-per-node, or give it -n N; " + kColonOfProgram);
    }
    const int count = program.count.value_or(static_cast<int>(left));
    if (count > size - next) {  // the placement has given the ranks that were asked for
      return absl::InvalidArgumentError("the programs ask for more ranks than the job's " + std::to_string(size) +
                                        ": lower a program's -n");
    }
    program.ranks = {{next, next + count - 1}};
    next += count;
  }
  return absl::OkStatus();
}

constexpr int kHighestRank = kMaxNodes * kMaxRanksPerNode - 1;

}  // namespace

std::optional<std::vector<RankSpan>> ReadRanks(const std::string& text) {
  std::vector<RankSpan> ranks;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t comma = std::min(text.find(',', begin), text.size());
    const std::string span = text.substr(begin, comma - begin);
    const size_t dash = std::min(span.find('-'), span.size());
    const std::optional<int> first = ReadWholeNumber(span.substr(0, dash), 0, kHighestRank);
    const std::optional<int> last =
        dash == span.size() ? first : ReadWholeNumber(span.substr(dash + 1), 0, kHighestRank);
    if (!first || !last || *last < *first) return std::nullopt;
    ranks.push_back({*first, *last});
    begin = comma + 1;
  }
  return ranks;
}

std::optional<size_t> FindColon(const std::vector<std::string>& words, bool sure) {
  for (size_t i = sure ? 0 : 1; i < words.size(); ++i) {
    if (words[i] != ":") continue;
    const bool may_be_value = i > 0 && words[i - 1].starts_with("-");  // "sort -t : -n"
    if (may_be_value ? OwnOptionsFollow(words, i) : sure || ProgramFollows(words, i)) return i;
  }
  return std::nullopt;
}

std::optional<int64_t> CountRanks(const std::vector<RankProgram>& programs) {
  int64_t counts = 0, highest = -1;
  for (const RankProgram& program : programs) {
    if (program.takes_others || (!program.count && program.ranks.empty())) return std::nullopt;
    counts += program.count.value_or(0);
    for (const RankSpan& span : program.ranks) highest = std::max<int64_t>(highest, span.last);
  }
  return counts > 0 ? counts : highest + 1;
}

absl::Status GiveRanks(int size, std::vector<RankProgram>* programs) {
  std::vector<RankSpan> named;
  for (const RankProgram& program : *programs) named.insert(named.end(), program.ranks.begin(), program.ranks.end());
  const auto others = std::find_if(programs->begin(), programs->end(), [](const auto& it) { return it.takes_others; });
  if (named.empty() && others == programs->end()) {
    return programs->size() == 1 ? absl::OkStatus() : GiveCounts(size, programs);
  }
  for (const RankProgram& program : *programs) {
    for (const RankSpan& span : program.ranks) {
      if (span.last < size) continue;
      return InvalidArgumentError(Remedy::kRankOutOfJob,
                                  program.where + ": the job has " + CountedRanks(size) + ", from 0, and no rank " +
                                      std::to_string(std::max(span.first, size)) + "; give -n " +
                                      std::to_string(int64_t{span.last} + 1) + ", or correct the line");
    }
  }
  std::sort(named.begin(), named.end(), [](const RankSpan& a, const RankSpan& b) { return a.first < b.first; });
  const std::vector<RankSpan> gaps = Gaps(named, size);
  if (others != programs->end()) {
    others->ranks = gaps;
    return absl::OkStatus();
  }
  if (gaps.empty()) return absl::OkStatus();
  return InvalidArgumentError(Remedy::kRankWithoutProgram, "--multi-prog: no line names a program for " +
                                                               NameSpans(gaps) + " of " + CountedRanks(size) +
                                                               "; add one, or one that begins with * for all others");
}

std::string Typed(std::string argument) {
  std::replace(argument.begin(), argument.end(), '\0', '%');
  return argument;
}

std::string NameSpans(const std::vector<RankSpan>& ranks) {
  constexpr size_t kMost = 8;
  if (ranks.empty()) return "no rank";
  std::string text = ranks.size() == 1 && ranks[0].first == ranks[0].last ? "rank " : "ranks ";
  const size_t shown = std::min(ranks.size(), kMost);
  for (size_t i = 0; i < shown; ++i) {
    const bool last = i + 1 == ranks.size();
    if (i > 0) text += last ? " and " : ", ";
    text += std::to_string(ranks[i].first);
    if (ranks[i].last > ranks[i].first) text += "-" + std::to_string(ranks[i].last);
  }
  return text + (shown < ranks.size() ? " and others" : "");
}

}  // namespace cohort::launcher
