#include "cohort/launcher/options/multi_prog.h"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <string_view>
#include <utility>

#include "cohort/launcher/base/printable.h"
#include "cohort/launcher/base/whole_number.h"
#include "cohort/launcher/options/options.h"
#include "cohort/launcher/options/python_program.h"
#include "cohort/launcher/remedies/remedies.h"
#include "cohort/runtime/base/status_macros.h"

namespace cohort::launcher {
namespace {

constexpr size_t kMostShown = 60;  // characters of a word that is not understood

absl::Status WrongFile(const std::string& where, const std::string& text) {
  return absl::InvalidArgumentError(where + ": " + text);
}

// Cuts a line into words as srun does: single quotes and backslashes keep what follows, double quotes mean nothing.
class WordReader {
 public:
  explicit WordReader(std::string_view line) : line_(line) {}

  // The next word; nothing at the end of the line, or in an open quote.
  std::optional<std::string> Next() {
    while (!line_.empty() && IsBlank(line_[0])) line_.remove_prefix(1);
    if (line_.empty()) return std::nullopt;
    std::string word;
    double_quotes_ = 0;
    for (; !line_.empty() && (in_quote_ || !IsBlank(line_[0])); Take(&word)) {
    }
    return in_quote_ ? std::nullopt : std::optional(std::move(word));
  }
  bool in_quote() const { return in_quote_; }
  // Whether the word has a double quote without its fellow: what a shell would take for one word came apart.
  bool halves_quote() const { return double_quotes_ % 2 == 1; }

 private:
  static bool IsBlank(char character) {
    return std::string_view(" \t\r\v\f\n").find(character) != std::string_view::npos;
  }

  void Take(std::string* word) {
    const char character = line_[0];
    const char next = line_.size() > 1 ? line_[1] : '\0';
    if (character == '\'') {
      in_quote_ = !in_quote_;
      return line_.remove_prefix(1);
    }
    if (!in_quote_ && character == '%' && (next == 't' || next == 'o')) {
      *word += '\0';
      *word += next;
      return line_.remove_prefix(2);
    }
    const bool escapes = !in_quote_ && character == '\\' && line_.size() > 1;
    if (!in_quote_ && character == '"') ++double_quotes_;
    *word += escapes ? next : character;
    line_.remove_prefix(escapes ? 2 : 1);
  }

  std::string_view line_;
  bool in_quote_ = false;
  size_t double_quotes_ = 0;  // of the word, that were not escaped
};

void ReplacePlaces(std::string* word) {
  for (size_t i = 0; i + 1 < word->size(); ++i) {
    if ((*word)[i] == '\0') (*word)[i + 1] = 't';
  }
}

absl::StatusOr<RankProgram> ReadLine(std::string_view line, const std::string& where) {
  WordReader reader(line);
  RankProgram program;
  program.where = where;
  std::optional<std::string> word = reader.Next();
  const std::string ranks = Typed(word.value_or(""));
  if (ranks == "*") {
    program.takes_others = true;
  } else if (std::optional<std::vector<RankSpan>> spans = ReadRanks(ranks)) {
    program.ranks = *std::move(spans);
  } else {
    return WrongFile(where,
                     "'" + Printable(ranks, kMostShown) +
                         "' are no ranks: a line begins with numbers and ranges such as 0-2,5, or with * for all "
                         "others; then come the program and its arguments");
  }
  while ((word = reader.Next())) {
    if (reader.halves_quote()) {
      return WrongFile(where, "double quotes mean nothing here, as for srun, and '" +
                                  Printable(Typed(*std::move(word)), kMostShown) +
                                  "' has one alone: put what belongs together into single quotes, or a \\ before it");
    }
    program.command.push_back(*std::move(word));
    // srun's place of a rank in a line of '*' is the rank.
    if (program.takes_others) ReplacePlaces(&program.command.back());
  }
  if (reader.in_quote()) return WrongFile(where, "a quote is not closed; close it, or put a \\ before it");
  if (program.command.empty() || program.command[0].empty()) {
    return InvalidArgumentError(Remedy::kLineWithoutProgram, where + ": there is no program behind the ranks " + ranks +
                                                                 "; give one, or leave the line out");
  }
  program.command[0] = Typed(std::move(program.command[0]));
  program.command = AsPythonProgram(std::move(program.command), /*is_module=*/false);
  return program;
}

// Refuses ranks that two lines, or one line twice, give a program to.
absl::Status CheckTwice(const std::vector<RankProgram>& programs) {
  std::vector<std::pair<RankSpan, const std::string*>> spans;
  const std::string* others = nullptr;
  for (const RankProgram& program : programs) {
    for (const RankSpan& span : program.ranks) spans.emplace_back(span, &program.where);
    if (!program.takes_others) continue;
    if (others != nullptr) {
      return InvalidArgumentError(Remedy::kOthersTwice, program.where + ": * stands for all other ranks already in " +
                                                            *others + "; leave one of them out");
    }
    others = &program.where;
  }
  std::stable_sort(spans.begin(), spans.end(),
                   [](const auto& a, const auto& b) { return a.first.first < b.first.first; });
  for (size_t i = 1; i < spans.size(); ++i) {
    if (spans[i].first.first > spans[i - 1].first.last) continue;
    return InvalidArgumentError(Remedy::kRankTwice, *spans[i].second + ": rank " +
                                                        std::to_string(spans[i].first.first) + " has its program by " +
                                                        *spans[i - 1].second + " already; name each rank once");
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<RankProgram>> ReadMultiProg(const std::string& text, const std::string& file) {
  if (text.find('\0') != std::string::npos)
    return InvalidArgumentError(Remedy::kMultiProgNoText,
                                file + ": it is no text; give a file of lines such as 0-2 ./client");
  std::vector<RankProgram> programs;
  int number = 0;
  for (size_t begin = 0; begin < text.size();) {
    const int first_number = number + 1;
    std::string line;
    for (bool goes_on = true; goes_on && begin < text.size(); ++number) {
      const size_t end = std::min(text.find('\n', begin), text.size());
      line += text.substr(begin, end - begin);
      begin = end + 1;
      if (line.ends_with('\r')) line.pop_back();
      goes_on = line.ends_with('\\');
      if (goes_on) line.pop_back();  // as srun joins them: without a blank
    }
    const size_t content = line.find_first_not_of(" \t\r\v\f");
    if (content == std::string::npos || line[content] == '#') continue;
    COHORT_ASSIGN_OR_RETURN(RankProgram program,
                            ReadLine(line, "line " + std::to_string(first_number) + " of " + file));
    programs.push_back(std::move(program));
  }
  if (programs.empty()) {
    return InvalidArgumentError(Remedy::kMultiProgEmpty,
                                file + ": it names no program; give lines such as 0 ./server and 1-3 ./client");
  }
  COHORT_RETURN_IF_ERROR(CheckTwice(programs));
  return programs;
}

}  // namespace cohort::launcher
