#include "cohort/trainer/transfer/communication_ledger.h"

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <vector>

#include "c10/util/Exception.h"
#include "cohort/runtime/base/mutex.h"
#include "cohort/trainer/base/bytes_text.h"

namespace cohort::trainer {
namespace {

using Entries = std::map<std::pair<comm::CollectiveKind, int>, LedgerEntry>;
using ByMembers = std::map<std::pair<comm::CollectiveKind, std::vector<int>>, LedgerEntry>;

std::atomic<bool> open{false};
runtime::Mutex mutex;
ByMembers& Book() COHORT_REQUIRES(mutex) {
  static auto* book = new ByMembers;  // for ever: threads may outlive main()
  return *book;
}

int64_t SentByGroup(comm::CollectiveKind kind, int ranks, int64_t bytes) {
  if (kind == comm::CollectiveKind::kSend) return bytes;
  if (kind == comm::CollectiveKind::kRecv) return 0;
  return (kind == comm::CollectiveKind::kAllReduce ? 2 : 1) * (ranks - 1) * bytes;
}

void Add(LedgerEntry& sum, const LedgerEntry& entry) {
  sum.calls += entry.calls;
  sum.bytes += entry.bytes;
  sum.sent_by_group += entry.sent_by_group;
  sum.sent_by_rank += entry.sent_by_rank;
}

// The axes along which the members of a group, ranks of the job, have different places.
std::string AxesOf(const std::vector<int>& members, const DeviceMesh& mesh) {
  const std::vector<int>& world = mesh.whole_world().members();
  std::vector<std::vector<int>> places;
  for (const int member : members) {
    const auto found = std::find(world.begin(), world.end(), member);
    if (found == world.end()) return "other";
    places.push_back(MeshCoordinate(static_cast<int>(found - world.begin()), mesh.shape()));
  }
  std::string axes;
  for (int dim = 0; dim < mesh.ndim(); ++dim) {
    const bool differ = std::any_of(places.begin(), places.end(),
                                    [&](const std::vector<int>& place) { return place[dim] != places.front()[dim]; });
    if (differ) axes += (axes.empty() ? "" : " x ") + mesh.dim_names()[dim];
  }
  return axes;
}

}  // namespace

CommunicationLedger::CommunicationLedger() {
  Reset();
  open = true;
}

CommunicationLedger::~CommunicationLedger() { open = false; }

Entries CommunicationLedger::entries() const {
  runtime::MutexLock lock(mutex);
  Entries entries;
  for (const auto& [key, entry] : Book()) Add(entries[{key.first, static_cast<int>(key.second.size())}], entry);
  return entries;
}

std::map<std::pair<std::string, comm::CollectiveKind>, LedgerEntry> CommunicationLedger::by_axis(
    const DeviceMesh& mesh) const {
  int ranks = 1;
  for (const int size : mesh.shape()) ranks *= size;
  TORCH_CHECK(ranks == mesh.whole_world().size(), "CommunicationLedger: the mesh (", mesh.Describe(),
              ") is a slice; give by_axis the whole mesh");
  runtime::MutexLock lock(mutex);
  std::map<std::pair<std::string, comm::CollectiveKind>, LedgerEntry> entries;
  for (const auto& [key, entry] : Book()) Add(entries[{AxesOf(key.second, mesh), key.first}], entry);
  return entries;
}

LedgerEntry CommunicationLedger::total() const {
  LedgerEntry sum;
  for (const auto& [key, entry] : entries()) {
    Add(sum, entry);
  }
  return sum;
}

std::string CommunicationLedger::Table() const {
  std::string table;
  for (const auto& [key, entry] : entries()) {
    char line[160];
    std::snprintf(line, sizeof line, "%-16s %3d ranks %6lld calls %12s  %12s sent by all of them\n",
                  std::string(comm::Name(key.first)).c_str(), key.second, static_cast<long long>(entry.calls),
                  BytesText(entry.bytes).c_str(), BytesText(entry.sent_by_group).c_str());
    table += line;
  }
  return table;
}

void CommunicationLedger::Reset() {
  runtime::MutexLock lock(mutex);
  Book().clear();
}

void EnterInLedger(comm::CollectiveKind kind, const comm::Communicator& group, int64_t bytes) {
  if (!open.load(std::memory_order_relaxed)) return;
  const int64_t sent = SentByGroup(kind, group.size(), bytes);
  runtime::MutexLock lock(mutex);
  Add(Book()[{kind, group.members()}],
      {.calls = 1,
       .bytes = bytes,
       .sent_by_group = sent,
       .sent_by_rank = kind == comm::CollectiveKind::kSend ? sent : sent / group.size()});
}

}  // namespace cohort::trainer
