#include "cohort/launcher/jobs/job_questions.h"

#include <chrono>
#include <cstdint>

#include "absl/status/status.h"
#include "cohort/launcher/jobs/job_socket.h"
#include "cohort/launcher/remedies/remedies.h"
#include "cohort/runtime/base/deadline.h"
#include "cohort/runtime/base/status_macros.h"

namespace cohort::launcher {
namespace {

using runtime::Deadline;
using std::chrono::milliseconds;

constexpr milliseconds kPause{50};         // between two questions whether all have answered
constexpr milliseconds kAgentsHave{4000};  // of which they need two seconds at the most

}  // namespace

absl::StatusOr<v1::JobSnapshot> AskForRanks(JobConnection* connection) {
  v1::JobRequest request;
  request.set_protocol(kJobProtocol);
  COHORT_ASSIGN_OR_RETURN(v1::JobSnapshot job, connection->AskForAll(request));
  request.set_ranks(true);
  COHORT_ASSIGN_OR_RETURN(v1::JobSnapshot ranks, connection->AskForAll(request));
  job.mutable_ranks()->Swap(ranks.mutable_ranks());
  return job;
}

absl::StatusOr<v1::JobSnapshot> AskForStacks(const std::string& job_id, const std::vector<int>& ranks) {
  COHORT_ASSIGN_OR_RETURN(JobConnection connection, JobConnection::Open(job_id));
  v1::JobRequest request;
  request.set_protocol(kJobProtocol);
  request.set_stacks(true);
  for (const int rank : ranks) request.add_stack_ranks(static_cast<uint32_t>(rank));
  const Deadline deadline = Deadline::After(kAgentsHave);
  v1::JobSnapshot job;
  do {
    COHORT_ASSIGN_OR_RETURN(job, connection.Ask(request, Deadline::After(kAnswerTimeout)));
    request.set_stacks_number(job.stacks_number());
  } while (!job.stacks_missing().empty() && !deadline.passed() && !connection.WaitForEnd(Deadline::After(kPause)));
  if (job.stacks_number() != 0) {
    COHORT_ASSIGN_OR_RETURN(job, connection.AskForAll(request));
  }
  if (job.stacks_number() == 0)
    return WithRemedy(Remedy::kRanksRestarted,
                      absl::UnavailableError("its ranks were started again meanwhile; ask again"));
  return job;
}

}  // namespace cohort::launcher
