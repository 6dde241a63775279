#include "cohort/launcher/agent/evidence/native_stacks.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "cohort/launcher/agent/evidence/thread_snapshot.h"
#include "cohort/launcher/agent/evidence/unwinder.h"
#include "cohort/launcher/agent/evidence/unwound_stacks.h"
#include "cohort/launcher/agent/watch/process_state.h"
#include "cohort/launcher/base/bounded_call.h"
#include "cohort/runtime/base/deadline.h"
#include "cohort/runtime/base/file_descriptor.h"

namespace cohort::launcher {
namespace {

struct TracedRank {
  uint32_t rank = 0;
  pid_t pid = 0;
};

// The thread's end lets go of whatever did not stop in time. Empty also without a thread, or if it hangs.
ProcessSnapshot SnapshotOf(const TracedRank& rank, std::chrono::milliseconds limit) {
  const auto snapshot = std::make_shared<ProcessSnapshot>();
  const pid_t wrapped = WrappedProgram(rank.pid);
  BoundedCall call([snapshot, pid = wrapped != 0 ? wrapped : rank.pid] {
    *snapshot = TakeSnapshot(pid);
    return absl::OkStatus();
  });
  const std::optional<absl::Status> taken = call.Await(runtime::Deadline::After(limit));
  if (!taken || !taken->ok()) return {};
  snapshot->rank = rank.rank;
  return std::move(*snapshot);
}

bool SendSnapshot(int socket, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t sent = ::send(socket, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent <= 0) return false;
    bytes.remove_prefix(static_cast<size_t>(sent));
  }
  return true;
}

// The unwinder first: where libdw is missing, no rank is stopped.
void GatherNativeStacks(const std::vector<TracedRank>& ranks, std::chrono::milliseconds limit, int out) {
  int ends[2] = {-1, -1};
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) return;
  const runtime::FileDescriptor unwinder(ends[0]);
  runtime::FileDescriptor its_input(ends[1]);
  if (!StartUnwinder(its_input.get(), out, limit)) return;
  its_input.Close();
  pollfd ready{unwinder.get(), POLLIN, 0};
  char word = 0;
  if (::poll(&ready, 1, static_cast<int>(limit.count())) != 1 || ::read(unwinder.get(), &word, 1) != 1) return;
  for (const TracedRank& rank : ranks) {
    const ProcessSnapshot snapshot = SnapshotOf(rank, limit);
    if (!snapshot.threads.empty() && !SendSnapshot(unwinder.get(), WriteSnapshot(snapshot))) return;
  }
}

}  // namespace

bool NativeStacks::Ask(const EvidenceQuestion& question, Done done) {
  if (question.time != EvidenceTime::kLive || !OffersUnwinder()) return false;
  std::vector<TracedRank> ranks;
  for (const EvidenceRank& rank : question.ranks) {
    if (rank.program != 0 && rank.wanted) ranks.push_back({rank.rank, rank.program});
  }
  if (ranks.empty()) return false;
  const auto work = [ranks, limit = question.limit](int out) { GatherNativeStacks(ranks, limit, out); };
  return answer_.Begin(work, question.limit, [this, done = std::move(done)](const std::string& output) {
    std::vector<Evidence> found;
    for (UnwoundRank& rank : ReadUnwound(output)) {
      if (!rank.text.empty()) found.push_back({name_, rank.rank, std::move(rank.text), name_});
    }
    done(std::move(found));
  });
}

}  // namespace cohort::launcher
