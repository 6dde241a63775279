#include "cohort/launcher/commands/trace/unjoined_ranks.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <set>
#include <utility>

#include "absl/status/statusor.h"
#include "cohort/launcher/base/printable.h"
#include "cohort/launcher/jobs/job_questions.h"
#include "cohort/launcher/jobs/job_socket.h"
#include "cohort/launcher/jobs/running_jobs.h"
#include "cohort/runtime/base/deadline.h"
#include "cohort/runtime/base/status_macros.h"

namespace cohort::launcher {
namespace {

using runtime::Deadline;
using std::chrono::milliseconds;

constexpr milliseconds kAgentsLook{100};  // agents answer dlaunch meanwhile
constexpr milliseconds kAgentsTell{2000};
constexpr size_t kMostDescribed = 4;  // ranks
constexpr size_t kMostLines = 12;     // of each
constexpr char kNativeStacks[] = "native stacks:";

// The ranks of a job after the agents were asked to look.
struct RanksNow {
  v1::JobSnapshot job;
  milliseconds since_asked{0};  // at least
};

// All ranks as they are now; those of agents that are silent as they were. Asks nothing of the agents where `known`
// ranks are all.
absl::StatusOr<RanksNow> LookAtRanks(const std::string& job_id, size_t known) {
  COHORT_ASSIGN_OR_RETURN(JobConnection connection, JobConnection::Open(job_id));
  v1::JobRequest request;
  request.set_protocol(kJobProtocol);
  RanksNow now;
  COHORT_ASSIGN_OR_RETURN(now.job, connection.Ask(request, Deadline::After(kAnswerTimeout)));
  if (now.job.world_size() <= known) return now;
  const Deadline deadline = Deadline::After(kAgentsTell);
  const auto asked = Deadline::Clock::now();
  COHORT_ASSIGN_OR_RETURN(now.job, AskForRanks(&connection));
  const auto is_news = [&now](const v1::JobRank& rank) { return IsNews(rank, now.since_asked); };
  do {
    if (connection.WaitForEnd(Deadline::After(kAgentsLook))) break;
    const auto since = std::chrono::floor<milliseconds>(Deadline::Clock::now() - asked);
    COHORT_ASSIGN_OR_RETURN(now.job, AskForRanks(&connection));
    now.since_asked = since;
  } while (!std::all_of(now.job.ranks().begin(), now.job.ranks().end(), is_news) && !deadline.passed());
  return now;
}

void Describe(const std::string& job_id, std::vector<UnjoinedRank>* ranks) {
  std::vector<int> asked;
  for (size_t i = 0; i < std::min(ranks->size(), kMostDescribed); ++i) {
    asked.push_back(static_cast<int>((*ranks)[i].rank));
  }
  const absl::StatusOr<v1::JobSnapshot> job = AskForStacks(job_id, asked);
  if (!job.ok()) return;
  for (const v1::RankStack& stack : job->stacks()) {
    for (UnjoinedRank& its : *ranks) {
      if (its.rank == stack.rank()) its.doing = DoingOf(stack.text());
    }
  }
}

}  // namespace

std::vector<std::string> DoingOf(const std::string& stacks) {
  std::vector<std::string> lines;
  for (size_t begin = 0; begin < stacks.size();) {
    const size_t end = std::min(stacks.find('\n', begin), stacks.size());
    const size_t from = stacks.find_first_not_of(' ', begin);
    const size_t indent = from < end ? std::min<size_t>(from - begin, 2) : 0;  // of every line
    const std::string line = Printable(stacks.substr(begin + indent, end - begin - indent));
    begin = end + 1;
    if (line == kNativeStacks) break;
    if (lines.size() == kMostLines) {
      lines.push_back("...");
      break;
    }
    if (!line.empty()) lines.push_back(line);
  }
  return lines;
}

bool IsNews(const v1::JobRank& rank, milliseconds since_asked) {
  return rank.known() && rank.ago_ms() < static_cast<uint64_t>(since_asked.count());
}

std::vector<UnjoinedRank> FindUnjoinedRanks(const std::string& job_id, const std::vector<TracedCall>& calls) {
  std::set<uint32_t> callers;
  for (const TracedCall& call : calls) callers.insert(call.rank);
  const absl::StatusOr<RanksNow> now = LookAtRanks(job_id, callers.size());
  if (!now.ok()) return {};
  const v1::JobSnapshot& job = now->job;
  std::vector<UnjoinedRank> unjoined;
  bool any_joined = false;
  for (const v1::JobRank& rank : job.ranks()) {
    const bool joined = rank.view().doing().joined() || rank.view().doing().present();
    any_joined = any_joined || joined;
    const bool tells = IsNews(rank, now->since_asked) && rank.view().pid() != 0;
    if (joined || !tells || callers.contains(rank.view().rank())) continue;
    UnjoinedRank its{.rank = rank.view().rank(), .node = "", .pid = rank.view().pid()};
    if (rank.node() < static_cast<uint32_t>(job.nodes_size())) {
      its.node = job.nodes(static_cast<int>(rank.node())).name();
    }
    unjoined.push_back(std::move(its));
  }
  if (!any_joined) return {};
  if (!unjoined.empty()) Describe(job_id, &unjoined);
  return unjoined;
}

}  // namespace cohort::launcher
