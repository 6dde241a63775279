#include "cohort/launcher/jobs/running_jobs.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <fstream>
#include <iterator>
#include <set>

#include "cohort/launcher/jobs/job_socket.h"
#include "cohort/launcher/remedies/remedies.h"
#include "cohort/runtime/base/status_macros.h"

namespace cohort::launcher {
namespace {

// True when there is something to read, an end included.
bool WaitReadable(int fd, runtime::Deadline deadline) {
  for (;;) {
    pollfd readable{fd, POLLIN, 0};
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(
        std::min<std::chrono::nanoseconds>(deadline.left(), std::chrono::hours(1)));
    const int ready = ::poll(&readable, 1, static_cast<int>(left.count()));
    if (ready > 0) return true;
    if (ready == 0 && deadline.passed()) return false;
    if (ready < 0 && errno != EINTR) return false;
  }
}

// Only the lists of nodes, ranks and stacks go on from page to page; all else is as the latest page has it.
void Append(v1::JobSnapshot page, v1::JobSnapshot* all) {
  page.mutable_nodes()->Swap(all->mutable_nodes());
  page.mutable_ranks()->Swap(all->mutable_ranks());
  page.mutable_stacks()->Swap(all->mutable_stacks());
  page.mutable_nodes()->MergeFrom(all->nodes());
  page.mutable_ranks()->MergeFrom(all->ranks());
  page.mutable_stacks()->MergeFrom(all->stacks());
  if (all->stacks_number() != 0) page.mutable_stacks_missing()->Swap(all->mutable_stacks_missing());  // by the first
  if (page.spares().empty()) page.mutable_spares()->Swap(all->mutable_spares());  // with the first page
  *all = std::move(page);
}

bool IsWhole(const v1::JobSnapshot& all) {
  if (!all.ranks().empty()) return static_cast<uint32_t>(all.ranks_size()) >= all.world_size();
  return static_cast<uint32_t>(all.nodes_size()) >= all.node_count();
}

}  // namespace

std::vector<std::string> FindJobIds(std::string_view proc_net_unix) {
  const std::string_view prefix = kJobSocketPrefix;
  std::set<std::string> ids;
  for (size_t begin = 0; begin < proc_net_unix.size();) {
    const size_t end = std::min(proc_net_unix.find('\n', begin), proc_net_unix.size());
    const std::string_view line = proc_net_unix.substr(begin, end - begin);
    begin = end + 1;
    const size_t at = line.find(prefix);
    if (at == std::string_view::npos || at == 0 || line[at - 1] != ' ') continue;
    const std::string_view id = line.substr(at + prefix.size());
    const bool known = id.starts_with("job-") && id.size() > 4 && id.size() <= 64 &&
                       id.find_first_not_of("0123456789abcdef", 4) == std::string_view::npos;
    if (known) ids.emplace(id);
  }
  return {ids.begin(), ids.end()};
}

std::vector<std::string> RunningJobIds() {
  // The kernel gives the list in parts: while others come and go, two looks in 10,000 leave a socket out.
  constexpr int kLooks = 3;
  std::string sockets;
  for (int look = 0; look < kLooks; ++look) {
    std::ifstream file("/proc/net/unix");
    sockets.append(std::istreambuf_iterator<char>(file), {});
  }
  std::vector<std::string> ids = FindJobIds(sockets);
  std::erase_if(ids, [](const std::string& id) { return absl::IsPermissionDenied(JobConnection::Open(id).status()); });
  return ids;
}

std::vector<std::string> MatchJobIds(const std::vector<std::string>& ids, const std::string& typed) {
  constexpr std::string_view kPrefix = "job-";
  const std::string whole = typed.starts_with(kPrefix) ? typed : std::string(kPrefix) + typed;
  std::vector<std::string> matching;
  for (const std::string& id : ids) {
    if (whole.size() > kPrefix.size() && id.starts_with(whole)) matching.push_back(id);
  }
  return matching;
}

absl::StatusOr<JobConnection> JobConnection::Open(const std::string& job_id) {
  JobConnection connection;
  // Not blocking: a stopped dlaunch whose queue is full would hold us for ever.
  connection.fd_ = runtime::FileDescriptor(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  sockaddr_un name{};
  name.sun_family = AF_UNIX;
  const std::string address = kJobSocketPrefix + job_id;
  if (!connection.fd_.valid() || address.size() > sizeof name.sun_path) return absl::UnavailableError("no socket");
  std::memcpy(name.sun_path + 1, address.data() + 1, address.size() - 1);
  const socklen_t length = offsetof(sockaddr_un, sun_path) + address.size();
  if (::connect(connection.fd_.get(), reinterpret_cast<const sockaddr*>(&name), length) != 0) {
    return absl::UnavailableError("its dlaunch takes no question: " + std::string(std::strerror(errno)));
  }
  ucred credentials{};
  socklen_t size = sizeof credentials;
  if (::getsockopt(connection.fd_.get(), SOL_SOCKET, SO_PEERCRED, &credentials, &size) == 0) {
    connection.pid_ = credentials.pid;
    // Any user may take such a name, and root may look at any user's job.
    if (credentials.uid != ::geteuid() && ::geteuid() != 0) {
      return absl::PermissionDeniedError("it is another user's");
    }
  }
  return connection;
}

absl::StatusOr<v1::JobSnapshot> JobConnection::Ask(const v1::JobRequest& request, runtime::Deadline deadline) {
  COHORT_RETURN_IF_ERROR(Send(request));
  return Receive(deadline);
}

absl::Status JobConnection::Send(const v1::JobRequest& request) {
  const std::string packet = request.SerializeAsString();
  if (::send(fd_.get(), packet.data(), packet.size(), MSG_NOSIGNAL) >= 0) return absl::OkStatus();
  return absl::UnavailableError(Who() + " has gone: " + std::strerror(errno));
}

absl::StatusOr<v1::JobSnapshot> JobConnection::Receive(runtime::Deadline deadline) {
  const std::string who = Who();
  if (!WaitReadable(fd_.get(), deadline)) {
    return WithRemedy(Remedy::kJobSilent,
                      absl::DeadlineExceededError(
                          who + " does not answer; is it stopped? kill -CONT lets it go on, kill -9 ends it"));
  }
  std::string buffer(kMaxRankPacket, '\0');
  const ssize_t n = ::recv(fd_.get(), buffer.data(), buffer.size(), MSG_TRUNC);
  if (n <= 0) return absl::UnavailableError(who + " has gone");
  v1::JobAnswer answer;
  if (static_cast<size_t>(n) > buffer.size() || !answer.ParseFromArray(buffer.data(), static_cast<int>(n))) {
    return absl::InternalError(who + " sent what is no answer");
  }
  if (!answer.refused().empty()) return absl::PermissionDeniedError(who + " refuses: " + answer.refused());
  return std::move(*answer.mutable_snapshot());
}

absl::StatusOr<v1::JobSnapshot> JobConnection::AskForAll(v1::JobRequest request) {
  v1::JobSnapshot all;
  for (bool whole = false; !whole;) {
    if (request.stacks()) {
      request.set_first_rank(all.stacks().empty() ? 0 : all.stacks().rbegin()->rank() + 1);
    } else if (request.ranks()) {
      request.set_first_rank(static_cast<uint32_t>(all.ranks_size()));
    } else {
      request.set_first_node(static_cast<uint32_t>(all.nodes_size()));
    }
    COHORT_ASSIGN_OR_RETURN(v1::JobSnapshot page, Ask(request, runtime::Deadline::After(kAnswerTimeout)));
    const bool empty = page.nodes().empty() && page.ranks().empty() && page.stacks().empty();
    Append(std::move(page), &all);
    whole = empty || (!request.stacks() && IsWhole(all));
  }
  return all;
}

bool JobConnection::WaitForEnd(runtime::Deadline deadline) {
  char rest[256];
  while (WaitReadable(fd_.get(), deadline)) {
    const ssize_t n = ::recv(fd_.get(), rest, sizeof rest, 0);
    if (n == 0 || (n < 0 && errno != EINTR && errno != EAGAIN)) return true;
  }
  return false;
}

}  // namespace cohort::launcher
