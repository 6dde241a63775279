#include "cohort/launcher/commands/job_stacks.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cohort/launcher/base/printable.h"
#include "cohort/launcher/base/say.h"
#include "cohort/launcher/commands/job_json.h"
#include "cohort/launcher/jobs/job_questions.h"
#include "cohort/launcher/jobs/job_words.h"
#include "cohort/launcher/jobs/running_jobs.h"
#include "cohort/launcher/machine/placement.h"
#include "cohort/launcher/options/options.h"
#include "cohort/launcher/options/subcommand_line.h"
#include "cohort/launcher/remedies/remedies.h"

namespace cohort::launcher {
namespace {

constexpr size_t kMostRanks = 1000;  // that may be named

// "0-6,8" of ascending numbers.
std::string RankList(const std::vector<uint32_t>& ranks) {
  std::string text;
  for (size_t i = 0; i < ranks.size();) {
    size_t last = i;
    while (last + 1 < ranks.size() && ranks[last + 1] == ranks[last] + 1) ++last;
    text += (text.empty() ? "" : ",") + std::to_string(ranks[i]);
    if (last > i) text += "-" + std::to_string(ranks[last]);
    i = last + 1;
  }
  return text;
}

std::string NameRanks(const std::vector<uint32_t>& ranks) {
  return (ranks.size() == 1 ? "rank " : "ranks ") + RankList(ranks);
}

constexpr char kNativeStacks[] = "  native stacks:\n";
constexpr char kPythonStack[] = "Python thread";

// The part of a text that ranks at one place share. Native frames below Python's differ wherever ranks poll, so
// Python's count.
std::string PlaceOf(const std::string& text) {
  const size_t native = text.find(kNativeStacks);
  if (native == std::string::npos || text.find(kPythonStack) == std::string::npos) return text;
  size_t end = native + sizeof kNativeStacks - 1;
  while (text.compare(end, 4, "    ") == 0) end = std::min(text.find('\n', end), text.size() - 1) + 1;
  return text.substr(0, native) + text.substr(end);
}

SubcommandLine StacksLine(std::string* job, std::string* ranks, bool* json) {
  return {.name = "stacks",
          .summary =
              "Shows where every rank is: the stacks of its Python threads, the most recent call first, the system\n"
              "calls in which its threads sleep, and, where libdw is installed, their C and C++ frames. Ranks at the\n"
              "same place are shown together. The ranks go on.",
          .notes =
              "Examples:\n"
              "  dlaunch stacks              the only job that runs\n"
              "  dlaunch stacks --rank 3 4e  rank 3 of job-4e0c53a1f2b98d67\n",
          .hint = "LIST as in 0,8-11",
          .operand = {"JOB", "The beginning of its digits is enough, and none where one job runs", job},
          .flags = {{"--json", "Print JSON (schemas/stacks.schema.json)", json}},
          .values = {{"--rank", "LIST", "Only these ranks, as in 0,8-11", ranks}}};
}

}  // namespace

runtime::ManualCommand StacksManual() {
  std::string text;
  bool json = false;
  return ManualOf(StacksLine(&text, &text, &json));
}

std::string FormatStacks(const google::protobuf::RepeatedPtrField<v1::RankStack>& stacks) {
  std::vector<std::pair<std::string, std::vector<const v1::RankStack*>>> places;
  std::map<std::string, size_t> known;
  for (const v1::RankStack& stack : stacks) {
    const auto [at, fresh] = known.emplace(PlaceOf(stack.text()), places.size());
    if (fresh) places.push_back({stack.text(), {}});
    places[at->second].second.push_back(&stack);
  }
  // The place of most ranks comes first, the odd ones last.
  std::stable_sort(places.begin(), places.end(),
                   [](const auto& one, const auto& other) { return one.second.size() > other.second.size(); });
  std::string text;
  for (const auto& [place, at] : places) {
    std::vector<uint32_t> ranks;
    for (const v1::RankStack* stack : at) ranks.push_back(stack->rank());
    text += NameRanks(ranks);
    if (at.size() == 1 && at[0]->pid() != 0) text += " (pid " + std::to_string(at[0]->pid()) + ")";
    text += ":\n" + PrintableLines(place.empty() ? "  nothing is known\n" : place);
  }
  return text;
}

int RunStacksCommand(const std::vector<std::string>& arguments) {
  std::string job, list;
  bool json = false;
  const SubcommandLine line = StacksLine(&job, &list, &json);
  const absl::Status read = ReadSubcommandLine(arguments, line);
  if (!read.ok()) return Refuse(read, kExitUsage);
  std::vector<int> ranks;
  if (!list.empty()) {
    const absl::StatusOr<std::vector<int>> named = ParseCpuList(list);
    if (!named.ok() || named->size() > kMostRanks) {
      const std::string text =
          "--rank '" + Printable(list, 100) + "' is no list of ranks, 1000 at the most; use: " + UseOf(line);
      return Refuse(WithRemedy(Remedy::kListOfRanks, text), kExitUsage);
    }
    ranks = *named;
  }
  const absl::StatusOr<std::string> id = FindRunningJob(job);
  if (!id.ok()) return Refuse(id.status(), kExitNoSuchJob);
  const absl::StatusOr<v1::JobSnapshot> gathered = AskForStacks(*id, ranks);
  if (!gathered.ok()) return Refuse(Prefixed(*id + ": ", gathered.status()), kExitNoSuchJob);
  if (gathered->world_size() == 0)
    return Refuse(WithRemedy(Remedy::kNotPlaced, *id + " has not placed its ranks yet; ask again"), kExitNoSuchJob);
  for (const int rank : ranks) {
    if (rank < static_cast<int>(gathered->world_size())) continue;
    return Refuse("--rank " + std::to_string(rank) + ": " + *id + " has the ranks 0 to " +
                      std::to_string(gathered->world_size() - 1),
                  kExitUsage);
  }
  if (json) return Answer(StacksJson(*gathered, *id));
  std::string text = FormatStacks(gathered->stacks());
  if (!gathered->stacks_missing().empty()) {
    text += NameRanks({gathered->stacks_missing().begin(), gathered->stacks_missing().end()}) +
            ":\n  no answer within 4 s; the agent may be stopped, or the rank not started\n";
  }
  if (text.find(kPythonStack) == std::string::npos && text.find(kNativeStacks) == std::string::npos) {
    text +=
        "native stacks: none; they take an x86-64, libdw.so.1 (Debian's libdw1, Fedora's elfutils-libs) and ptrace on "
        "the rank's node; gdb -p PID shows them\n";
  }
  return Answer(text);
}

}  // namespace cohort::launcher
