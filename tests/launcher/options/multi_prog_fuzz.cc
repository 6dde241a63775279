// A file of --multi-prog, whatever it holds, is refused in words or gives programs that can be started.
//
//   - an error is kInvalidArgument and names the file;
//   - each program has a name, ranks or '*', and marks that are whole; no rank has two programs;
//   - ranks of any number get one program each, or a reason why not.
#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cohort/launcher/options/multi_prog.h"
#include "cohort/launcher/options/options.h"
#include "tests/support/fuzz_input.h"

namespace cohort::launcher {
namespace {

constexpr char kFile[] = "programs.conf";

void CheckProgram(const RankProgram& program) {
  FuzzCheck(!program.command.empty() && !program.command[0].empty());
  FuzzCheck(program.takes_others == program.ranks.empty());
  FuzzCheck(program.where.find(kFile) != std::string::npos);
  for (const RankSpan& span : program.ranks) {
    FuzzCheck(span.first >= 0 && span.first <= span.last && span.last < kMaxNodes * kMaxRanksPerNode);
  }
  for (const std::string& word : program.command) {
    for (size_t i = word.find('\0'); i != std::string::npos; i = word.find('\0', i + 1)) {
      FuzzCheck(i + 1 < word.size() && (word[i + 1] == 't' || (word[i + 1] == 'o' && !program.takes_others)));
    }
  }
}

void Give(std::vector<RankProgram> programs, int size) {
  const absl::Status given = GiveRanks(size, &programs);
  if (!given.ok()) return FuzzCheck(absl::IsInvalidArgument(given) && !given.message().empty());
  std::set<int> ranks;
  for (const RankProgram& program : programs) {
    for (const RankSpan& span : program.ranks) {
      for (int rank = span.first; rank <= span.last; ++rank) FuzzCheck(rank < size && ranks.insert(rank).second);
    }
  }
  FuzzCheck(ranks.size() == static_cast<size_t>(size));
}

void Try(const std::string& text) {
  const absl::StatusOr<std::vector<RankProgram>> programs = ReadMultiProg(text, kFile);
  if (!programs.ok()) {
    return FuzzCheck(absl::IsInvalidArgument(programs.status()) &&
                     programs.status().message().find(kFile) != std::string::npos);
  }
  FuzzCheck(!programs->empty());
  for (const RankProgram& program : *programs) CheckProgram(program);
  for (const int size : {1, 8, 100}) Give(*programs, size);
  if (const std::optional<int64_t> count = CountRanks(*programs); count && *count <= 1000) {
    Give(*programs, static_cast<int>(*count));
  }
}

}  // namespace
}  // namespace cohort::launcher

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  cohort::launcher::Try(std::string(reinterpret_cast<const char*>(data), size));
  return 0;
}
