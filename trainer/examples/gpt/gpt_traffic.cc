#include "cohort/trainer/examples/gpt/gpt_traffic.h"

#include <cstdio>
#include <map>
#include <vector>

#include "cohort/trainer/base/bytes_text.h"
#include "cohort/trainer/state/checkpoint/checkpoint.h"

namespace cohort::examples {
namespace {

std::string Line(const std::string& axis, comm::CollectiveKind kind, const trainer::LedgerEntry& entry) {
  char line[200];
  std::snprintf(line, sizeof line, "%-28s %-16s %6lld %14s %14s", axis.c_str(), std::string(comm::Name(kind)).c_str(),
                static_cast<long long>(entry.calls), trainer::BytesText(entry.bytes).c_str(),
                trainer::BytesText(entry.sent_by_rank).c_str());
  return line;
}

// The lines of this rank. Receives are their senders' to count, and groups of one rank send nothing.
std::string OwnLines(const Training& training, const trainer::CommunicationLedger& ledger) {
  std::string lines;
  if (training.mesh == nullptr) {
    for (const auto& [key, entry] : ledger.entries()) {
      if (key.second > 1 && entry.sent_by_rank > 0) lines += Line("all ranks", key.first, entry) + "\n";
    }
    return lines;
  }
  for (const auto& [key, entry] : ledger.by_axis(*training.mesh)) {
    if (!key.first.empty() && entry.sent_by_rank > 0) lines += Line(key.first, key.second, entry) + "\n";
  }
  return lines;
}

}  // namespace

std::string TrafficTable(const Training& training, const trainer::CommunicationLedger& ledger) {
  const std::string mine = OwnLines(training, ledger);
  std::map<std::string, std::string> ranks_of;  // by line
  std::vector<std::string> order;
  const auto texts = trainer::GatherTexts(*training.world, mine, "gathering the ranks' traffic");
  for (size_t rank = 0; rank < texts.size(); ++rank) {
    for (size_t begin = 0; begin < texts[rank].size();) {
      const size_t end = texts[rank].find('\n', begin);
      const std::string line = texts[rank].substr(begin, end - begin);
      const auto [ranks, added] = ranks_of.try_emplace(line);
      if (added) order.push_back(line);
      ranks->second += (added ? "" : ",") + std::to_string(rank);
      begin = end + 1;
    }
  }
  char head[200];
  std::snprintf(head, sizeof head, "%-28s %-16s %6s %14s %14s  ranks\n", "traffic of the last step", "operation",
                "calls", "whole vectors", "sent by each");
  std::string table = head;
  for (const std::string& line : order) table += line + "  " + ranks_of.at(line) + "\n";
  return table;
}

}  // namespace cohort::examples
