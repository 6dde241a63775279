#include "cohort/launcher/jobs/job_words.h"

#include <algorithm>
#include <vector>

#include "absl/status/status.h"
#include "cohort/launcher/base/printable.h"
#include "cohort/launcher/jobs/running_jobs.h"
#include "cohort/launcher/options/rank_program.h"
#include "cohort/launcher/remedies/remedies.h"

namespace cohort::launcher {
namespace {

std::string RankNames(const v1::RankProgram& program) {
  std::vector<RankSpan> ranks;
  for (const v1::RankSpan& span : program.ranks()) {
    ranks.push_back({static_cast<int>(span.first()), static_cast<int>(span.last())});
  }
  return NameSpans(ranks);
}

}  // namespace

std::string Age(uint64_t ms) {
  const uint64_t s = ms / 1000;
  if (s < 120) return std::to_string(s) + " s";
  if (s < 7200) return std::to_string(s / 60) + " min";
  return std::to_string(s / 3600) + " h " + std::to_string(s / 60 % 60) + " min";
}

std::string Summary(const v1::JobSnapshot& job, pid_t pid) {
  std::string text = job.job_id() + "  " + job.phase() + (job.phase() == "running" ? " for " : ", started ") +
                     Age(job.age_ms()) + (job.phase() == "running" ? "" : " ago") + "  " +
                     std::to_string(job.world_size()) + (job.world_size() == 1 ? " rank on " : " ranks on ") +
                     Printable(job.source()) + "  dlaunch pid " + std::to_string(pid);
  if (job.max_restarts() > 0) {
    text += "  " + std::to_string(job.epoch() - 1) + " of " + std::to_string(job.max_restarts()) + " restarts";
  }
  text += "\n";
  constexpr int kMostPrograms = 8;
  for (int i = 0; i < std::min(job.programs_size(), kMostPrograms); ++i) {
    const v1::RankProgram& program = job.programs(i);
    text += " ";
    if (job.programs_size() > 1) text += " " + RankNames(program) + ":";
    for (const std::string& argument : program.command()) text += " " + Printable(argument);
    text += "\n";
  }
  if (job.programs_size() == 0) text += "\n";
  if (job.programs_size() > kMostPrograms) {
    text += "  and " + std::to_string(job.programs_size() - kMostPrograms) + " more programs\n";
  }
  if (!job.cause().empty()) {
    const bool restarted = job.phase() == "running" && job.epoch() > 1;
    text += std::string("  ") + (restarted ? "restarted after: " : "failed: ") + Printable(job.cause()) + "\n";
  }
  return text;
}

std::string DescribeSpares(const v1::JobSnapshot& job) {
  std::string names;
  for (const std::string& name : job.spares()) names += (names.empty() ? "" : ", ") + Printable(name);
  const uint32_t named = static_cast<uint32_t>(job.spares_size());
  if (job.spare_count() > named) names += ", and " + std::to_string(job.spare_count() - named) + " more";
  return names.empty() ? "" : (job.spare_count() == 1 ? "spare node: " : "spare nodes: ") + names;
}

absl::StatusOr<std::string> FindRunningJob(const std::string& typed) {
  const std::vector<std::string> ids = RunningJobIds();
  const std::vector<std::string> matching = typed.empty() ? ids : MatchJobIds(ids, typed);
  if (matching.size() == 1) return matching[0];
  if (ids.empty() && typed.empty())
    return WithRemedy(Remedy::kNoSuchJob, absl::NotFoundError("no job runs on this machine"));
  std::string known;
  for (const std::string& id : matching.empty() ? ids : matching) known += " " + id;
  if (matching.empty()) {
    return WithRemedy(Remedy::kNoSuchJob, absl::NotFoundError("no job '" + typed + "' runs on this machine" +
                                                              (known.empty() ? "" : "; these do:" + known)));
  }
  if (typed.empty())
    return WithRemedy(Remedy::kSeveralJobs, absl::NotFoundError("several jobs run here, name one of" + known));
  return WithRemedy(Remedy::kAmbiguousJob,
                    absl::NotFoundError("'" + typed + "' may be any of" + known + "; type more of it"));
}

}  // namespace cohort::launcher
