// A program that nobody launched: rank 0 of 1.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <utility>

#include "cohort/runtime/base/errno_status.h"
#include "cohort/runtime/base/mutex.h"
#include "cohort/runtime/base/status_macros.h"
#include "cohort/runtime/bootstrap/alone.h"
#include "cohort/runtime/bootstrap/bootstrap.h"
#include "cohort/runtime/bootstrap/local_segment.h"

namespace cohort::runtime {

absl::StatusOr<std::unique_ptr<Segment>> CreateAndAttach(const Segment::Options& options) {
  COHORT_ASSIGN_OR_RETURN(const std::unique_ptr<Segment> created, Segment::Create(options));
  const int fd = fcntl(created->fd(), F_DUPFD_CLOEXEC, 3);
  if (fd < 0) return ErrnoStatus(errno, "cannot duplicate the node segment's descriptor");
  return Segment::Attach(fd, 0);
}

bool RankSet::contains(int rank) const {
  return everyone || std::find(ranks.begin(), ranks.end(), rank) != ranks.end();
}

namespace {

class WorldOfOne final : public BootstrapAlone {
 public:
  absl::StatusOr<Joined> Join(Deadline deadline) override {
    (void)deadline;
    Joined joined;
    joined.identity.job_id = "single-" + std::to_string(getpid());
    joined.identity.nodes = {NodeInfo{0, "localhost", 0, 1}};
    COHORT_ASSIGN_OR_RETURN(
        joined.segment,
        MakeSegment({.local_ranks = 1, .job_id = joined.identity.job_id, .node = joined.identity.nodes[0].name}));
    return joined;
  }

  absl::Status Put(std::string_view key, std::string_view value, Deadline deadline) override {
    (void)deadline;
    MutexLock lock(mutex_);
    if (!values_.emplace(key, value).second) {
      return absl::AlreadyExistsError("the key " + std::string(key) + " was put before; a key is written once");
    }
    changed_.NotifyAll();
    return absl::OkStatus();
  }

  absl::StatusOr<std::string> Get(std::string_view key, Deadline deadline) override {
    MutexLock lock(mutex_);
    while (true) {
      const auto found = values_.find(key);
      if (found != values_.end()) return found->second;
      if (deadline.passed()) return absl::NotFoundError("nobody has put the key " + std::string(key));
      changed_.Wait(mutex_, deadline);
    }
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  std::map<std::string, std::string, std::less<>> values_ COHORT_GUARDED_BY(mutex_);
};

}  // namespace

std::unique_ptr<Bootstrap> BootstrapWorldOfOne() { return std::make_unique<WorldOfOne>(); }

}  // namespace cohort::runtime
