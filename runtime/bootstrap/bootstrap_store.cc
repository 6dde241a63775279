// Ranks with a launcher of their own: a key-value store that the program brings along introduces them, and the ranks of
// a node look after each other through its segment.
#include <fcntl.h>
#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <set>
#include <sstream>
#include <thread>
#include <utility>

#include "cohort/runtime/base/clock.h"
#include "cohort/runtime/base/errno_status.h"
#include "cohort/runtime/base/mutex.h"
#include "cohort/runtime/base/status_macros.h"
#include "cohort/runtime/bootstrap/bootstrap.h"
#include "cohort/runtime/bootstrap/host_identity.h"
#include "cohort/runtime/bootstrap/local_deadlocks.h"
#include "cohort/runtime/bootstrap/local_segment.h"
#include "cohort/runtime/bootstrap/peer_watch.h"
#include "cohort/runtime/segment/agent_protocol.h"
#include "cohort/runtime/segment/call_compare.h"
#include "cohort/runtime/segment/call_names.h"
#include "cohort/runtime/segment/notice_board.h"

namespace cohort::runtime {
namespace {

constexpr size_t kSecretBytes = 32;
// How long a rank that waits for another one asks the store before it looks whether that one lives, and rests after an
// answer that came at once.
constexpr std::chrono::milliseconds kPeerCheck(200);
constexpr std::chrono::milliseconds kRest(5);

std::string ToHex(std::string_view bytes) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string hex;
  for (const char byte : bytes) {
    hex += kDigits[static_cast<unsigned char>(byte) >> 4];
    hex += kDigits[static_cast<unsigned char>(byte) & 15];
  }
  return hex;
}

absl::StatusOr<std::string> FromHex(const std::string& hex) {
  const auto digit = [](char c) { return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1; };
  std::string bytes;
  for (size_t i = 0; i + 1 < hex.size(); i += 2) {
    if (digit(hex[i]) < 0 || digit(hex[i + 1]) < 0) break;
    bytes += static_cast<char>(digit(hex[i]) * 16 + digit(hex[i + 1]));
  }
  if (bytes.size() != kSecretBytes || hex.size() != 2 * kSecretBytes) {
    return absl::InvalidArgumentError("the store holds no secret of this job; is it another job's store?");
  }
  return bytes;
}

absl::StatusOr<std::string> NewSecret() {
  char bytes[kSecretBytes];
  if (getrandom(bytes, sizeof bytes, 0) != static_cast<ssize_t>(sizeof bytes)) {
    return ErrnoStatus(errno, "no random numbers for the job's secret");
  }
  return std::string(bytes, sizeof bytes);
}

class StoreBootstrap final : public Bootstrap {
 public:
  StoreBootstrap(KeyValueStore* store, int rank, int world_size)
      : store_(store), rank_(rank), world_size_(world_size) {}
  ~StoreBootstrap() override { watch_.Stop(); }

  absl::StatusOr<Joined> Join(Deadline deadline) override;
  absl::Status Put(std::string_view key, std::string_view value, Deadline deadline) override;
  absl::StatusOr<std::string> Get(std::string_view key, Deadline deadline) override;
  bool Poll(BootstrapListener& listener) override;
  void ReportStall(uint64_t group, uint64_t epoch, uint64_t sequence, const RankSet& members, bool expired) override;
  void ReportWait(uint64_t group, uint64_t epoch, const RankSet& members) override;
  void ReportGroupFailure(const GroupFailure& failure) override;
  void Goodbye() override;

 private:
  struct Loss {
    int rank = 0;
    std::string text;
  };

  absl::Status MeetRanks(Identity* identity, Deadline deadline);
  absl::StatusOr<std::unique_ptr<Segment>> MakeSegment(Deadline deadline);
  absl::Status AwaitAttached(int rank, Deadline deadline);
  absl::StatusOr<std::unique_ptr<Segment>> JoinSegment(Deadline deadline);
  void OnPeerEnd(int local_rank, const std::string& cause);
  void TellSelf() COHORT_EXCLUDES(mutex_);
  std::vector<CallView> InspectMembers(uint64_t group, uint64_t epoch, uint64_t sequence, const RankSet& members);
  // all_here: every member is on this node.
  absl::Status Judge(const CallVerdict& verdict, const std::vector<CallView>& views, const std::set<int>& finalised,
                     bool expired, bool all_here);
  std::string Describe(int rank) const;
  void Hear(GroupFailure failure) COHORT_EXCLUDES(mutex_);

  KeyValueStore* const store_;
  const int rank_;
  const int world_size_;
  std::string job_id_;
  std::vector<RankPlace> places_;
  NodeInfo node_;
  int local_rank_ = 0;
  Segment* segment_ = nullptr;
  RankControl* control_ = nullptr;
  uint32_t seen_events_ = 0;
  std::vector<uint64_t> seen_notices_;  // by local rank
  std::unique_ptr<LocalDeadlocks> deadlocks_;
  PeerWatch watch_;

  Mutex mutex_;
  std::set<int> lost_ COHORT_GUARDED_BY(mutex_);
  std::vector<Loss> losses_ COHORT_GUARDED_BY(mutex_);
  std::vector<GroupFailure> failures_ COHORT_GUARDED_BY(mutex_);
};

// --- joining --------------------------------------------------------------------------------------------------------

absl::StatusOr<Bootstrap::Joined> StoreBootstrap::Join(Deadline deadline) {
  if (world_size_ < 1 || rank_ < 0 || rank_ >= world_size_) {
    return absl::InvalidArgumentError("rank " + std::to_string(rank_) + " of a world of " +
                                      std::to_string(world_size_));
  }
  Joined joined;
  COHORT_RETURN_IF_ERROR(MeetRanks(&joined.identity, deadline));
  if (local_rank_ == 0) {
    COHORT_ASSIGN_OR_RETURN(joined.segment, MakeSegment(deadline));
  } else {
    COHORT_ASSIGN_OR_RETURN(joined.segment, JoinSegment(deadline));
  }
  segment_ = joined.segment.get();
  control_ = &segment_->control(local_rank_);
  deadlocks_ = std::make_unique<LocalDeadlocks>(segment_, node_.first_rank);
  seen_notices_.resize(static_cast<size_t>(node_.rank_count));
  std::vector<int> pids;
  for (int local = 0; local < node_.rank_count; ++local) {
    pids.push_back(local == local_rank_ ? 0 : places_[static_cast<size_t>(node_.first_rank + local)].pid);
  }
  COHORT_RETURN_IF_ERROR(
      watch_.Start(pids, [this](int local_rank, const std::string& cause) { OnPeerEnd(local_rank, cause); }));
  return joined;
}

// Exchanges places, and rank 0's secret.
absl::Status StoreBootstrap::MeetRanks(Identity* identity, Deadline deadline) {
  const std::string prefix = "cohort/place/";
  COHORT_RETURN_IF_ERROR(store_->Put(prefix + std::to_string(rank_), FormatPlace(ThisPlace())));
  if (rank_ == 0) {
    COHORT_ASSIGN_OR_RETURN(const std::string secret, NewSecret());
    COHORT_RETURN_IF_ERROR(store_->Put("cohort/secret", ToHex(secret)));
  }
  for (int rank = 0; rank < world_size_; ++rank) {
    const absl::StatusOr<std::string> text = store_->Get(prefix + std::to_string(rank), deadline);
    if (!text.ok()) {
      // To a store that a deadline ended, "not there" and "no answer in time" are the same.
      const absl::StatusCode code =
          absl::IsNotFound(text.status()) ? absl::StatusCode::kDeadlineExceeded : text.status().code();
      return absl::Status(code, "rank " + std::to_string(rank) + " of " + std::to_string(world_size_) +
                                    " has not come: " + std::string(text.status().message()) +
                                    "; start all ranks, with one store and one world size");
    }
    COHORT_ASSIGN_OR_RETURN(RankPlace place, ParsePlace(*text));
    places_.push_back(std::move(place));
  }
  COHORT_ASSIGN_OR_RETURN(const std::string hex, store_->Get("cohort/secret", deadline));
  COHORT_ASSIGN_OR_RETURN(identity->job_secret, FromHex(hex));
  // Not a part of the secret itself: the job's name is printed.
  job_id_ = "store-" + std::to_string(places_[0].pid) + "-" + places_[0].name;
  identity->job_id = job_id_;
  identity->rank = rank_;
  identity->world_size = world_size_;
  identity->nodes = NodesOf(places_);
  identity->nodes_share_host = NodesShareHost(places_, identity->nodes);
  for (const NodeInfo& node : identity->nodes) {
    if (rank_ >= node.first_rank && rank_ < node.first_rank + node.rank_count) node_ = node;
  }
  local_rank_ = rank_ - node_.first_rank;
  identity->node = node_.index;
  identity->local_rank = local_rank_;
  identity->local_world_size = node_.rank_count;
  return absl::OkStatus();
}

absl::Status StoreBootstrap::AwaitAttached(int rank, Deadline deadline) {
  const std::string key = "cohort/attached/" + std::to_string(rank);
  while (true) {
    const bool dead = IsExiting(places_[static_cast<size_t>(rank)].pid);  // asked before the look
    const absl::Status status = store_->Get(key, Earlier(deadline, Deadline::After(kPeerCheck))).status();
    if (!absl::IsNotFound(status) && !absl::IsDeadlineExceeded(status)) return status;
    if (dead) return absl::UnavailableError(Describe(rank) + " ended before it had joined its node");
    if (deadline.passed()) {
      return absl::DeadlineExceededError(
          Describe(rank) +
          " has not joined its node in time (COHORT_INIT_TIMEOUT_MS): " + std::string(status.message()));
    }
    std::this_thread::sleep_for(kRest);
  }
}

// The first rank of a node: makes the segment and keeps its descriptor open until all have it.
absl::StatusOr<std::unique_ptr<Segment>> StoreBootstrap::MakeSegment(Deadline deadline) {
  COHORT_ASSIGN_OR_RETURN(
      std::unique_ptr<Segment> segment,
      CreateAndAttach({.local_ranks = node_.rank_count, .epoch = 1, .job_id = job_id_, .node = node_.name}));
  COHORT_RETURN_IF_ERROR(store_->Put("cohort/segment/" + std::to_string(rank_),
                                     std::to_string(getpid()) + " " + std::to_string(segment->fd())));
  for (int local = 1; local < node_.rank_count; ++local) {
    COHORT_RETURN_IF_ERROR(AwaitAttached(rank_ + local, deadline));
  }
  return segment;
}

absl::StatusOr<std::unique_ptr<Segment>> StoreBootstrap::JoinSegment(Deadline deadline) {
  COHORT_ASSIGN_OR_RETURN(const std::string text,
                          store_->Get("cohort/segment/" + std::to_string(node_.first_rank), deadline));
  std::istringstream fields(text);
  int pid = 0;
  int number = -1;
  if (!(fields >> pid >> number) || pid != places_[static_cast<size_t>(node_.first_rank)].pid || number < 0) {
    return absl::InvalidArgumentError("the store says of the node segment: \"" + text.substr(0, 200) + "\"");
  }
  const std::string path = "/proc/" + std::to_string(pid) + "/fd/" + std::to_string(number);
  const int fd = open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (fd < 0) {
    return ErrnoStatus(errno, "cannot open the node segment of " + Describe(node_.first_rank) + " at " + path +
                                  "; ranks of a node must run as one user with /proc mounted and be dumpable");
  }
  COHORT_ASSIGN_OR_RETURN(std::unique_ptr<Segment> segment, Segment::Attach(fd, local_rank_));
  if (segment->local_ranks() != node_.rank_count) {
    return absl::InvalidArgumentError("the node segment of " + Describe(node_.first_rank) + " was made for " +
                                      std::to_string(segment->local_ranks()) + " ranks, but its node has " +
                                      std::to_string(node_.rank_count) + "; is the store another job's?");
  }
  COHORT_RETURN_IF_ERROR(store_->Put("cohort/attached/" + std::to_string(rank_), "1"));
  return segment;
}

// --- the store ------------------------------------------------------------------------------------------------------

absl::Status StoreBootstrap::Put(std::string_view key, std::string_view value, Deadline deadline) {
  (void)deadline;
  return store_->Put("cohort/kv/" + std::string(key), value);
}

absl::StatusOr<std::string> StoreBootstrap::Get(std::string_view key, Deadline deadline) {
  absl::StatusOr<std::string> value = store_->Get("cohort/kv/" + std::string(key), deadline);
  if (!absl::IsDeadlineExceeded(value.status())) return value;
  return absl::NotFoundError("nobody has put the key " + std::string(key));
}

// --- news -----------------------------------------------------------------------------------------------------------

std::string StoreBootstrap::Describe(int rank) const {
  const RankPlace& place = places_[static_cast<size_t>(rank)];
  return "rank " + std::to_string(rank) + " (" + place.name + ", pid " + std::to_string(place.pid) + ")";
}

// Makes the engine's owner call Poll.
void StoreBootstrap::TellSelf() {
  control_->events.fetch_add(1, std::memory_order_release);
  segment_->Wake(local_rank_);
}

// In the watching thread, or in the engine's owner, who may see it first.
void StoreBootstrap::OnPeerEnd(int local_rank, const std::string& cause) {
  uint32_t attached = kRankAttached;
  RankControl& control = segment_->control(local_rank);
  control.state.compare_exchange_strong(attached, kRankLost);
  if (attached == kRankFinalised) return;
  const int rank = node_.first_rank + local_rank;
  {
    MutexLock lock(mutex_);
    if (!lost_.insert(rank).second) return;
    losses_.push_back(Loss{rank, Describe(rank) + " " + cause});
  }
  TellSelf();
}

bool StoreBootstrap::Poll(BootstrapListener& listener) {
  const uint32_t events = control_->events.load(std::memory_order_relaxed);
  if (events == seen_events_) [[likely]]
    return false;
  std::atomic_thread_fence(std::memory_order_acquire);
  seen_events_ = events;
  std::vector<Loss> losses;
  std::vector<GroupFailure> failures;
  {
    MutexLock lock(mutex_);
    losses.swap(losses_);
    failures.swap(failures_);
  }
  for (int local = 0; local < node_.rank_count; ++local) {
    if (local == local_rank_) continue;
    for (const Notice& notice : ReadNotices(segment_->notices(local), &seen_notices_[static_cast<size_t>(local)])) {
      if (!notice.members.test(static_cast<size_t>(local_rank_))) continue;
      GroupFailure failure;
      failure.group = notice.group;
      failure.epoch = notice.epoch;
      for (int member = 0; member < node_.rank_count; ++member) {
        if (notice.members.test(static_cast<size_t>(member)))
          failure.members.ranks.push_back(node_.first_rank + member);
      }
      const bool known = notice.code >= 1 && notice.code <= 16;
      failure.status =
          absl::Status(known ? static_cast<absl::StatusCode>(notice.code) : absl::StatusCode::kUnknown, notice.text);
      failure.blamed_rank = notice.blamed_rank;
      failure.from_rank = notice.from_rank;
      failures.push_back(std::move(failure));
    }
  }
  for (const Loss& loss : losses) listener.OnRanksLost({loss.rank}, loss.text);
  for (const GroupFailure& failure : failures) listener.OnGroupFailure(failure);
  return !losses.empty() || !failures.empty();
}

// --- reports --------------------------------------------------------------------------------------------------------

std::vector<CallView> StoreBootstrap::InspectMembers(uint64_t group, uint64_t epoch, uint64_t sequence,
                                                     const RankSet& members) {
  std::vector<CallView> views;
  for (int local = 0; local < node_.rank_count; ++local) {
    const int rank = node_.first_rank + local;
    if (!members.contains(rank)) continue;
    CallView view =
        InspectCall(segment_->black_box_of(local), rank, node_.name, group, static_cast<uint32_t>(epoch), sequence);
    // Teardown of a large process may delay its pidfd by a second: an absent one is looked at here.
    const uint32_t state = segment_->control(local).state.load(std::memory_order_acquire);
    const int pid = places_[static_cast<size_t>(rank)].pid;
    if (!view.seen && local != local_rank_ && state == kRankAttached && IsExiting(pid)) OnPeerEnd(local, "is exiting");
    views.push_back(std::move(view));
  }
  return views;
}

// The failure that follows from a verdict, or OK while there is still hope.
absl::Status StoreBootstrap::Judge(const CallVerdict& verdict, const std::vector<CallView>& views,
                                   const std::set<int>& finalised, bool expired, bool all_here) {
  switch (verdict.kind) {
    case CallVerdict::Kind::kMismatch:
      return absl::FailedPreconditionError(verdict.text);
    case CallVerdict::Kind::kResults:
      // More results may come, by which the rank is found.
      if (!verdict.majority && !expired && verdict.results < views.size()) break;
      return absl::DataLossError(verdict.text);
    case CallVerdict::Kind::kAbsent:
      for (int rank : verdict.blamed) {
        if (finalised.contains(rank)) {
          return absl::UnavailableError(Describe(rank) + " has already finalised; " + verdict.text);
        }
      }
      return expired ? absl::DeadlineExceededError(verdict.text +
                                                   "; given up at the end of its timeout (CallOptions::timeout)")
                     : absl::OkStatus();
    case CallVerdict::Kind::kNone:
      break;
  }
  for (const CallView& view : views) {
    if (!view.seen || (view.done && !view.failed) || !finalised.contains(view.rank)) continue;
    return absl::UnavailableError(Describe(view.rank) +
                                  " has finalised before the call was complete that others wait "
                                  "in: " +
                                  view.call + (view.site.empty() ? "" : " at " + view.site) +
                                  "; wait for a call's Work before Runtime::Finalize");
  }
  // If members are on other nodes, the caller knows better: it can name the ranks whose messages it lacks.
  return expired && all_here
             ? absl::DeadlineExceededError("the operation's time is over; all members have made the same call")
             : absl::OkStatus();
}

void StoreBootstrap::ReportStall(uint64_t group, uint64_t epoch, uint64_t sequence, const RankSet& members,
                                 bool expired) {
  // Before their black boxes are read: what is in the box of one that had finalised then is the last word.
  std::set<int> finalised;
  for (int local = 0; local < node_.rank_count; ++local) {
    const uint32_t state = segment_->control(local).state.load(std::memory_order_acquire);
    if (state == kRankFinalised) finalised.insert(node_.first_rank + local);
  }
  const std::vector<CallView> views = InspectMembers(group, epoch, sequence, members);
  const CallVerdict verdict = CompareCalls(group, sequence, views);
  GroupFailure failure;
  const bool all_here = !members.everyone && views.size() == members.ranks.size();
  failure.status = Judge(verdict, views, finalised, expired, all_here);
  if (failure.status.ok()) return ReportWait(group, epoch, members);
  failure.group = group;
  failure.epoch = epoch;
  failure.members = members;
  const bool guilty = verdict.majority || verdict.kind == CallVerdict::Kind::kAbsent;
  failure.blamed_rank = guilty && verdict.blamed.size() == 1 ? verdict.blamed[0] : -1;
  failure.from_rank = rank_;
  if (absl::IsDeadlineExceeded(failure.status)) {
    failure.sequence = sequence;  // it may be complete by the time of the answer
  } else {
    ReportGroupFailure(failure);
  }
  Hear(std::move(failure));
}

void StoreBootstrap::Hear(GroupFailure failure) {
  {
    MutexLock lock(mutex_);
    failures_.push_back(std::move(failure));
  }
  TellSelf();
}

// Each of the ranks in a deadlock tells all members of all groups in it: the first word counts.
void StoreBootstrap::ReportWait(uint64_t group, uint64_t epoch, const RankSet& members) {
  if (!members.everyone) deadlocks_->NoteGroup(group, members.ranks);
  for (const Deadlock& deadlock : deadlocks_->Look(SteadyNow())) {
    if (std::find(deadlock.ranks.begin(), deadlock.ranks.end(), rank_) == deadlock.ranks.end()) continue;
    for (const Deadlock::BrokenGroup& broken : deadlock.groups) {
      GroupFailure failure;
      failure.group = broken.group;
      failure.epoch = epoch;
      failure.members.ranks = deadlocks_->MembersOf(broken.group);
      failure.status = absl::FailedPreconditionError(deadlock.text);
      failure.from_rank = rank_;
      ReportGroupFailure(failure);
      Hear(std::move(failure));
    }
  }
}

void StoreBootstrap::ReportGroupFailure(const GroupFailure& failure) {
  Notice notice;
  notice.group = failure.group;
  notice.epoch = failure.epoch;
  notice.code = static_cast<int32_t>(failure.status.code());
  notice.blamed_rank = failure.blamed_rank;
  notice.from_rank = failure.from_rank;
  for (int local = 0; local < node_.rank_count; ++local) {
    if (failure.members.contains(node_.first_rank + local)) notice.members.set(static_cast<size_t>(local));
  }
  const std::string text(failure.status.message());
  std::memcpy(notice.text, text.data(), std::min(text.size(), sizeof notice.text - 1));
  PostNotice(segment_->notices(local_rank_), notice);
  for (int local = 0; local < node_.rank_count; ++local) {
    if (local == local_rank_ || !notice.members.test(static_cast<size_t>(local))) continue;
    segment_->control(local).events.fetch_add(1, std::memory_order_release);
    segment_->Wake(local);
  }
}

void StoreBootstrap::Goodbye() {
  control_->state.store(kRankFinalised, std::memory_order_release);
  watch_.Stop();
}

}  // namespace

std::unique_ptr<Bootstrap> BootstrapFromStore(KeyValueStore* store, int rank, int world_size) {
  return std::make_unique<StoreBootstrap>(store, rank, world_size);
}

}  // namespace cohort::runtime
