#include "cohort/launcher/commands/top_table.h"

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <iterator>
#include <set>
#include <utility>
#include <vector>

#include "cohort/launcher/base/printable.h"
#include "cohort/launcher/control/describe.h"
#include "cohort/launcher/jobs/job_words.h"

namespace cohort::launcher {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kShortestDifference{50};  // below it the kernel's ticks of 10 ms tell nothing
constexpr uint64_t kOldMs = 3000;                // a view is said to be old

std::string Memory(uint64_t bytes) {
  static constexpr const char* kUnits[] = {"KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes) / 1024;
  size_t unit = 0;
  for (; value >= 1000 && unit + 1 < std::size(kUnits); ++unit) value /= 1024;
  char text[32];
  std::snprintf(text, sizeof text, value < 10 && unit > 0 ? "%.1f %s" : "%.0f %s", value, kUnits[unit]);
  return text;
}

std::string Duration(uint64_t ms) { return ms >= 120'000 ? Age(ms) : DescribeDuration(ms); }

// Cohort does not see its calls.
bool IsInMpi(const v1::CallState& call) { return !call.present() && !call.joined() && call.in_mpi(); }

bool IsInCall(const v1::RankView& view) { return view.pid() != 0 && view.doing().present() && !view.doing().done(); }

// Whether the ranks' calls are of more than one group.
bool CallsOfManyGroups(const v1::JobSnapshot& job) {
  std::set<uint64_t> groups;
  for (const v1::JobRank& rank : job.ranks()) {
    if (rank.view().doing().present()) groups.insert(rank.view().doing().group());
  }
  return groups.size() > 1;
}

std::string Doing(const v1::JobRank& rank, bool name_group) {
  if (!rank.known()) return "not told yet";
  const v1::RankView& view = rank.view();
  const v1::CallState& call = view.doing();
  if (view.pid() == 0) return "has ended";
  std::string text = view.stopped() ? "stopped by a signal; " : "";
  if (!call.present()) {
    text += call.joined() ? "no collective call yet" : IsInMpi(call) ? "in MPI" : "has not joined Cohort";
  } else if (!call.done()) {
    text += "in " + Printable(NameCall(call, name_group)) + " for " + Duration(call.age_ms() + rank.ago_ms());
  } else {
    text += (call.failed() ? "after the failed " : "after ") + Printable(NameCall(call, name_group)) + ", for " +
            Duration(call.age_ms() + rank.ago_ms());
  }
  return rank.ago_ms() < kOldMs ? text : text + " (as told " + Duration(rank.ago_ms()) + " ago)";
}

std::string Percent(double share) { return std::to_string(static_cast<int64_t>(share + 0.5)); }

struct Sum {
  double cpu = 0;
  uint64_t bytes = 0;
};

std::string RanksOf(const v1::JobNode& node) {
  const std::string first = std::to_string(node.first_rank());
  if (node.rank_count() == 1) return "rank " + first;
  return "ranks " + first + "-" + std::to_string(node.first_rank() + node.rank_count() - 1);
}

std::string NodeName(const v1::JobSnapshot& job, uint32_t node) {
  if (node >= static_cast<uint32_t>(job.nodes_size())) return "node " + std::to_string(node);
  return Printable(std::string(job.nodes(static_cast<int>(node)).name()));
}

// "3 ranks wait for rank 2, after all_reduce #41 at train.cc:88, for 4.5 s": those that most wait for come first.
std::vector<std::string> WaitedFor(const v1::JobSnapshot& job, bool name_group) {
  constexpr size_t kShown = 3;
  std::vector<const v1::JobRank*> waited_for;
  for (const v1::JobRank& rank : job.ranks()) {
    if (rank.waiting_for() > 0) waited_for.push_back(&rank);
  }
  std::stable_sort(waited_for.begin(), waited_for.end(),
                   [](const v1::JobRank* a, const v1::JobRank* b) { return a->waiting_for() > b->waiting_for(); });
  std::vector<std::string> lines;
  for (size_t i = 0; i < std::min(waited_for.size(), kShown); ++i) {
    const v1::JobRank& rank = *waited_for[i];
    const uint32_t waiting = rank.waiting_for();
    lines.push_back(std::to_string(waiting) + (waiting == 1 ? " rank waits" : " ranks wait") + " for rank " +
                    std::to_string(rank.view().rank()) + ", " + Doing(rank, name_group));
  }
  if (waited_for.size() > kShown) {
    lines.push_back("and for " + std::to_string(waited_for.size() - kShown) + " more ranks");
  }
  return lines;
}

// The lines that concern the whole job.
std::vector<std::string> Head(const JobFrame& frame, const std::vector<double>& shares, bool name_group) {
  const v1::JobSnapshot& job = frame.job;
  size_t calling = 0, in_mpi = 0, outside = 0, ended = 0, unknown = 0;
  const v1::JobRank* longest = nullptr;
  Sum all;
  std::vector<Sum> by_node(static_cast<size_t>(job.nodes_size()));
  for (int i = 0; i < job.ranks_size(); ++i) {
    const v1::JobRank& rank = job.ranks(i);
    size_t& not_in_call = IsInMpi(rank.view().doing()) ? in_mpi : outside;
    ++(!rank.known() ? unknown : rank.view().pid() == 0 ? ended : IsInCall(rank.view()) ? calling : not_in_call);
    for (Sum* sum : {&all, rank.node() < by_node.size() ? &by_node[rank.node()] : nullptr}) {
      if (sum == nullptr) continue;
      sum->cpu += shares[static_cast<size_t>(i)];
      sum->bytes += rank.view().resident_bytes();
    }
    const bool longer = longest == nullptr || rank.view().doing().age_ms() > longest->view().doing().age_ms();
    if (rank.known() && IsInCall(rank.view()) && longer) longest = &rank;
  }
  std::string counts;
  const std::pair<size_t, const char*> kinds[] = {{calling, " in calls"},
                                                  {in_mpi, " in MPI"},
                                                  {outside, " outside calls"},
                                                  {ended, " ended"},
                                                  {unknown, " not told yet"}};
  for (const auto& [count, words] : kinds) {
    if (count > 0) counts += (counts.empty() ? "" : ", ") + std::to_string(count) + words;
  }
  std::vector<std::string> lines = {"ranks: " + counts + "; " + Percent(all.cpu) + " % CPU, " + Memory(all.bytes) +
                                    " of memory"};
  const std::vector<std::string> waited_for = WaitedFor(job, name_group);
  lines.insert(lines.end(), waited_for.begin(), waited_for.end());
  if (longest != nullptr && waited_for.empty()) {
    lines.push_back("longest in its call: rank " + std::to_string(longest->view().rank()) + ", " +
                    Doing(*longest, name_group));
  }
  for (size_t i = 0; i < by_node.size() && by_node.size() > 1; ++i) {
    const v1::JobNode& node = job.nodes(static_cast<int>(i));
    lines.push_back(Printable(std::string(node.name())) + ": " + RanksOf(node) + ", " + Percent(by_node[i].cpu) +
                    " % CPU, " + Memory(by_node[i].bytes) + (node.agent() == 0 ? "; its agent has ended" : ""));
  }
  if (const std::string spares = DescribeSpares(job); !spares.empty()) lines.push_back(spares);
  return lines;
}

// Numbers to the right, words to the left.
std::vector<std::string> Table(const std::vector<std::vector<std::string>>& rows) {
  static constexpr bool kRight[] = {true, false, true, true, true, false};
  std::vector<size_t> widths(rows[0].size());
  for (const auto& row : rows) {
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::vector<std::string> lines;
  for (const auto& row : rows) {
    std::string line;
    for (size_t i = 0; i < row.size(); ++i) {
      const std::string padding(widths[i] - row[i].size(), ' ');
      const bool last = i + 1 == row.size();
      line += kRight[i] ? padding + row[i] : row[i] + (last ? "" : padding);
      if (!last) line += "  ";
    }
    lines.push_back(std::move(line));
  }
  return lines;
}

// Does not cut a character of several bytes in the middle.
std::string CutLine(const std::string& line, size_t columns) {
  if (columns == 0 || line.size() <= columns) return line;
  size_t end = columns;
  while (end > 0 && (static_cast<unsigned char>(line[end]) & 0xc0) == 0x80) --end;
  return line.substr(0, end);
}

}  // namespace

RanksByNumber IndexRanks(const JobFrame* frame) {
  RanksByNumber ranks;
  if (frame == nullptr) return ranks;
  for (const v1::JobRank& rank : frame->job.ranks()) ranks[rank.view().rank()] = &rank;
  return ranks;
}

double ShareSince(const JobFrame& frame, const v1::JobRank& rank, const JobFrame* before,
                  const RanksByNumber& earlier) {
  if (rank.view().pid() == 0) return 0;
  const auto found = earlier.find(rank.view().rank());
  const v1::JobRank* const then = before == nullptr || found == earlier.end() ? nullptr : found->second;
  if (then != nullptr && then->known() && then->view().pid() == rank.view().pid()) {
    const auto passed = std::chrono::duration_cast<milliseconds>(frame.at - before->at) - milliseconds(rank.ago_ms()) +
                        milliseconds(then->ago_ms());
    if (passed >= kShortestDifference) {
      const uint64_t used = rank.view().cpu_ms() - std::min(rank.view().cpu_ms(), then->view().cpu_ms());
      return 100.0 * static_cast<double>(used) / static_cast<double>(passed.count());
    }
  }
  return 100.0 * static_cast<double>(rank.view().cpu_ms()) /
         static_cast<double>(std::max<uint64_t>(1, rank.view().age_ms()));
}

std::string FormatJobFrame(const JobFrame& frame, const JobFrame* before, const PageSize& page) {
  const RanksByNumber earlier = IndexRanks(before);
  const bool name_group = CallsOfManyGroups(frame.job);
  std::vector<double> shares;
  std::vector<std::vector<std::string>> rows = {{"RANK", "NODE", "PID", "CPU %", "MEMORY", "DOING"}};
  for (const v1::JobRank& rank : frame.job.ranks()) {
    shares.push_back(ShareSince(frame, rank, before, earlier));
    const bool lives = rank.view().pid() != 0;
    rows.push_back({std::to_string(rank.view().rank()), NodeName(frame.job, rank.node()),
                    lives ? std::to_string(rank.view().pid()) : "-", lives ? Percent(shares.back()) : "-",
                    lives ? Memory(rank.view().resident_bytes()) : "-", Doing(rank, name_group)});
  }
  std::vector<std::string> lines = Head(frame, shares, name_group);
  lines.emplace_back();
  const std::string summary = Summary(frame.job, frame.pid);
  const auto summary_lines = static_cast<size_t>(std::count(summary.begin(), summary.end(), '\n'));
  const size_t used = lines.size() + summary_lines + 1;  // and the table's head
  const size_t ranks = rows.size() - 1;
  size_t shown = ranks;
  if (page.rows > 0 && used + ranks > page.rows) shown = page.rows > used + 1 ? page.rows - used - 1 : 0;
  rows.resize(1 + shown);
  const std::vector<std::string> table = Table(rows);
  const bool no_room = shown == 0 && ranks > 0;
  if (!no_room) lines.insert(lines.end(), table.begin(), table.end());
  if (no_room) lines.push_back("no room for the table of " + std::to_string(ranks) + (ranks > 1 ? " ranks" : " rank"));
  if (!no_room && shown < ranks) lines.push_back("and " + std::to_string(ranks - shown) + " more ranks");
  std::string text;
  for (size_t begin = 0; begin < summary.size();) {
    const size_t end = summary.find('\n', begin);
    text += CutLine(summary.substr(begin, end - begin), page.columns) + "\n";
    begin = end + 1;
  }
  for (const std::string& line : lines) text += CutLine(line, page.columns) + "\n";
  return text;
}

}  // namespace cohort::launcher
