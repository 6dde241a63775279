#include "tools/blackbox/table.h"

#include <algorithm>
#include <cstdio>

#include "cohort/runtime/segment/agent_protocol.h"
#include "cohort/runtime/segment/call_names.h"
#include "tools/measure/text.h"

namespace cohort::blackbox {
namespace {

using measure::JsonString;
using runtime::CallRecord;
using runtime::CallState;

std::string RankState(const RankCopy& rank) {
  switch (rank.state) {
    case runtime::kRankAbsent:
      return rank.pid == 0 ? "absent" : "recorded";  // by NCCL's profiler plug-in
    case runtime::kRankAttached:
      return "joined";
    case runtime::kRankFinalised:
      return "finished";
    case runtime::kRankLost:
      return "lost";
    default:
      return "?";
  }
}

std::string CallStateName(CallState state) {
  switch (state) {
    case CallState::kStarted:
      return "in";
    case CallState::kDone:
      return "done";
    case CallState::kFailed:
      return "failed";
    case CallState::kEmpty:
      break;
  }
  return "?";
}

// How long ago, in seconds: a running call's start, else its end. Clocks of a hostile segment may lie ahead.
double Age(const SegmentCopy& segment, const CallRecord& record) {
  const uint64_t since = record.state == CallState::kStarted ? record.start_ns : record.end_ns;
  return since >= segment.now_ns ? 0 : static_cast<double>(segment.now_ns - since) / 1e9;
}

std::string AgeText(double seconds) {
  char text[32];
  std::snprintf(text, sizeof text, seconds < 10 ? "%.3f s" : "%.0f s", seconds);
  return text;
}

std::string Hex(uint64_t value) {
  char text[20];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(value));
  return text;
}

// The call site without bytes that could break a terminal or JSON.
std::string Site(const CallRecord& record) {
  std::string site = runtime::SiteOf(record);
  for (char& c : site) {
    if (static_cast<unsigned char>(c) >= 0x7f) c = '?';
  }
  return site;
}

std::string RecordText(const SegmentCopy& segment, const CallRecord& record) {
  char text[480];
  std::snprintf(text, sizeof text, "%-6s %-16s %4d/%-4d %10llu %-14s %-9s %12llu %-10s %s",
                CallStateName(record.state).c_str(), Hex(record.signature.group).c_str(), record.group_rank,
                record.group_size, static_cast<unsigned long long>(record.signature.sequence),
                std::string(runtime::CallKindName(record.signature.kind)).c_str(),
                std::string(runtime::DataTypeName(record.signature.dtype)).c_str(),
                static_cast<unsigned long long>(record.bytes), AgeText(Age(segment, record)).c_str(),
                Site(record).c_str());
  return text;
}

}  // namespace

std::string TableText(const SegmentCopy& segment, const StateOfProcess& state_of) {
  char line[720];
  const std::string node = segment.node.empty() ? "-" : segment.node;
  const int width = std::max(4, static_cast<int>(node.size()));
  std::string text = "job " + (segment.job_id.empty() ? "-" : segment.job_id) + ", epoch " +
                     std::to_string(segment.epoch) + ", " + std::to_string(segment.ranks.size()) + " local ranks of " +
                     node + "\n";
  std::snprintf(line, sizeof line, "%-*s %5s %8s %-8s %-8s %-6s %-16s %9s %10s %-14s %-9s %12s %-10s %s\n", width,
                "node", "local", "pid", "process", "state", "call", "group", "as", "sequence", "kind", "type", "bytes",
                "since", "site");
  text += line;
  for (const RankCopy& rank : segment.ranks) {
    std::snprintf(line, sizeof line, "%-*s %5d %8d %-8s %-8s ", width, node.c_str(), rank.local_rank, rank.pid,
                  state_of(rank.pid).c_str(), RankState(rank).c_str());
    const std::string head = line;
    if (rank.records.empty()) text += head + "no call\n";
    for (const CallRecord& record : rank.records) text += head + RecordText(segment, record) + "\n";
  }
  return text;
}

std::string JsonText(const SegmentCopy& segment, const StateOfProcess& state_of) {
  std::string json = "{\"job\": " + JsonString(segment.job_id) + ", \"node\": " + JsonString(segment.node) +
                     ", \"epoch\": " + std::to_string(segment.epoch) + ", \"ranks\": [";
  for (const RankCopy& rank : segment.ranks) {
    json += std::string(rank.local_rank == 0 ? "" : ",") + "\n  {\"local_rank\": " + std::to_string(rank.local_rank) +
            ", \"pid\": " + std::to_string(rank.pid) + ", \"process\": " + JsonString(state_of(rank.pid)) +
            ", \"state\": " + JsonString(RankState(rank)) + ", \"calls\": [";
    bool first = true;
    for (const CallRecord& record : rank.records) {
      json +=
          std::string(first ? "" : ",") + "\n    {\"state\": " + JsonString(CallStateName(record.state)) +
          ", \"group\": \"" + Hex(record.signature.group) + "\", \"group_rank\": " + std::to_string(record.group_rank) +
          ", \"group_size\": " + std::to_string(record.group_size) +
          ", \"sequence\": " + std::to_string(record.signature.sequence) +
          ", \"kind\": " + JsonString(runtime::CallKindName(record.signature.kind)) +
          ", \"type\": " + JsonString(runtime::DataTypeName(record.signature.dtype)) +
          ", \"bytes\": " + std::to_string(record.bytes) + ", \"seconds\": " + measure::Fixed(Age(segment, record), 6) +
          ", \"site\": " + JsonString(Site(record)) + "}";
      first = false;
    }
    json += "]}";
  }
  return json + "\n]}\n";
}

}  // namespace cohort::blackbox
