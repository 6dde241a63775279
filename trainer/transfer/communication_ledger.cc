#include "cohort/trainer/transfer/communication_ledger.h"

#include <atomic>
#include <cstdio>

#include "cohort/runtime/base/mutex.h"
#include "cohort/trainer/base/bytes_text.h"

namespace cohort::trainer {
namespace {

using Entries = std::map<std::pair<comm::CollectiveKind, int>, LedgerEntry>;

std::atomic<bool> open{false};
runtime::Mutex mutex;
Entries& Book() COHORT_REQUIRES(mutex) {
  static auto* book = new Entries;  // for ever: threads may outlive main()
  return *book;
}

int64_t SentByGroup(comm::CollectiveKind kind, int ranks, int64_t bytes) {
  if (kind == comm::CollectiveKind::kSend) return bytes;
  if (kind == comm::CollectiveKind::kRecv) return 0;
  return (kind == comm::CollectiveKind::kAllReduce ? 2 : 1) * (ranks - 1) * bytes;
}

}  // namespace

CommunicationLedger::CommunicationLedger() {
  Reset();
  open = true;
}

CommunicationLedger::~CommunicationLedger() { open = false; }

Entries CommunicationLedger::entries() const {
  runtime::MutexLock lock(mutex);
  return Book();
}

LedgerEntry CommunicationLedger::total() const {
  LedgerEntry sum;
  for (const auto& [key, entry] : entries()) {
    sum.calls += entry.calls;
    sum.bytes += entry.bytes;
    sum.sent_by_group += entry.sent_by_group;
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

void EnterInLedger(comm::CollectiveKind kind, int ranks, int64_t bytes) {
  if (!open.load(std::memory_order_relaxed)) return;
  runtime::MutexLock lock(mutex);
  LedgerEntry& entry = Book()[{kind, ranks}];
  ++entry.calls;
  entry.bytes += bytes;
  entry.sent_by_group += SentByGroup(kind, ranks, bytes);
}

}  // namespace cohort::trainer
