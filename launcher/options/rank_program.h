// The programs of a job and the ranks that run them: one for all; mpirun's `server : -n 3 client`; or those of a file
// (multi_prog.h). Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"

namespace cohort::launcher {

// Ranks `first` to `last`.
struct RankSpan {
  int first = 0;
  int last = 0;
  bool operator==(const RankSpan&) const = default;
};

// The remedy where a ':' was taken for the end of a program: "expr abc : abc".
inline constexpr char kColonOfProgram[] =
    "where the ':' is the program's own argument: dlaunch [options] -- program ...";

struct RankProgram {
  // The program and its arguments, never empty. A byte 0 and a 't' in an argument stand for the rank that runs it, a
  // byte 0 and an 'o' for its place among `ranks`.
  std::vector<std::string> command = {};
  std::optional<int> count = {};     // -n of one of several: the next N ranks run it
  std::vector<RankSpan> ranks = {};  // those that run it: of a file's line as typed, of others since GiveRanks
  bool takes_others = false;         // a file's '*': the ranks that no other line names
  std::vector<std::pair<std::string, std::string>> environment = {};  // --env behind a ':'
  std::string where = {};  // "line 3 of FILE", "program 2 of 3": for messages; empty where it is the only one
  std::string found = {};  // how its name became a path: "in PATH"; empty: it had a slash
};

// "0-2,5". Nothing: it is no list of ranks.
std::optional<std::vector<RankSpan>> ReadRanks(const std::string& text);

// The place of the ':' behind which mpirun would begin another program, in the words from a program's name on. A ':'
// that may be an option's value ("cut -d :") is none, unless -n or --env and a program follow it. A ':' that nothing
// like a program follows is none either, unless it is `sure` that the line has several programs.
std::optional<size_t> FindColon(const std::vector<std::string>& words, bool sure);

// The number of ranks that the programs ask for: the sum of their counts, or one more than the highest rank of a file.
// Nothing where one program takes what the others leave.
std::optional<int64_t> CountRanks(const std::vector<RankProgram>& programs);

// Gives each of `size` ranks its program. An only program without ranks keeps none, which means all. kInvalidArgument:
// a rank has no program, or a program asks for ranks that the job does not have.
absl::Status GiveRanks(int size, std::vector<RankProgram>* programs);

// An argument as it was typed: with a '%' for the byte 0 of its marks.
std::string Typed(std::string argument);

// "rank 0", "ranks 1-3 and 5"; "no rank" for none.
std::string NameSpans(const std::vector<RankSpan>& ranks);

}  // namespace cohort::launcher
