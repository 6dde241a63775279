#include "cohort/launcher/commands/job_json.h"

#include <cstdint>

#include "absl/strings/str_split.h"

namespace cohort::launcher {
namespace {

double InSeconds(uint64_t ms) { return static_cast<double>(ms) / 1000; }

Json NodesJson(const v1::JobSnapshot& job) {
  Json nodes = Json::array();
  for (const v1::JobNode& node : job.nodes()) {
    Json ranks = Json::array();
    for (uint32_t i = 0; i < node.rank_count(); ++i) ranks.push_back(node.first_rank() + i);
    Json described = {{"name", node.name()}, {"ranks", ranks}};
    if (node.agent() != 0) described["agent_pid"] = node.agent();
    nodes.push_back(described);
  }
  return nodes;
}

std::string StateOf(const v1::JobRank& rank) {
  const v1::CallState& call = rank.view().doing();
  if (!rank.known()) return "unknown";
  if (rank.view().pid() == 0) return "ended";
  if (rank.view().stopped()) return "stopped";
  if (!call.present()) return call.joined() ? "no_call_yet" : call.in_mpi() ? "in_mpi" : "not_visible";
  return call.done() ? "outside_call" : "in_call";
}

Json CallJson(const v1::CallState& call, uint64_t ago_ms) {
  Json described = {{"call", call.call()},
                    {"site", call.site()},
                    {"group", std::to_string(call.group())},  // 64 bits, of which JSON keeps 53
                    {"number", call.sequence()},
                    {"done", call.done()},
                    {"failed", call.failed()},
                    {"seconds", InSeconds(call.age_ms() + ago_ms)}};
  return described;
}

// `cpu_percent`: see ShareSince.
Json RankJson(const v1::JobRank& rank, double cpu_percent) {
  const v1::RankView& view = rank.view();
  Json described = {{"rank", view.rank()}, {"node", rank.node()}, {"state", StateOf(rank)}};
  if (!rank.known()) return described;
  described["seen_seconds_ago"] = InSeconds(rank.ago_ms());
  if (view.pid() != 0) {
    described["pid"] = view.pid();
    described["processes"] = view.processes();
    described["cpu_percent"] = cpu_percent;
    described["memory_bytes"] = view.resident_bytes();
  }
  if (view.doing().present()) described["latest_call"] = CallJson(view.doing(), rank.ago_ms());
  if (!view.doing().held_by().empty()) described["held_by"] = view.doing().held_by();
  described["waited_for_by"] = rank.waiting_for();
  described["waited_for_seconds"] = InSeconds(rank.waited_for_ms());
  return described;
}

}  // namespace

Json SourcesJson(const std::vector<ExplainedSource>& sources) {
  Json listed = Json::array();
  for (const ExplainedSource& source : sources) {
    listed.push_back({{"name", source.name}, {"chosen", source.chosen}, {"because", source.because}});
  }
  return listed;
}

Json JobJson(const v1::JobSnapshot& job, pid_t pid, bool whole) {
  Json described = {{"job", job.job_id()},
                    {"phase", job.phase()},
                    {"seconds", InSeconds(job.age_ms())},
                    {"dlaunch_pid", pid},
                    {"ranks", job.world_size()},
                    {"node_count", job.node_count()},
                    {"source", job.source()},
                    {"restarts", job.epoch() > 0 ? job.epoch() - 1 : 0},
                    {"max_restarts", job.max_restarts()},
                    {"spare_count", job.spare_count()}};
  // A snapshot has none where the commands are too long for it.
  if (job.programs_size() > 0) described["programs"] = ProgramsJson(job.programs());
  if (!job.cause().empty()) described["cause"] = job.cause();
  if (!whole) return described;
  described["nodes"] = NodesJson(job);
  described["spares"] = std::vector<std::string>(job.spares().begin(), job.spares().end());
  return described;
}

std::string StatusJson(const std::vector<Json>& jobs, const std::vector<std::pair<std::string, std::string>>& silent) {
  Json document = {{"format", kJsonFormat}, {"jobs", jobs}, {"silent", Json::array()}};
  for (const auto& [id, why] : silent) document["silent"].push_back({{"job", id}, {"why", why}});
  return JsonText(document);
}

std::string FrameJson(const JobFrame& frame, const JobFrame* before) {
  Json document = {{"format", kJsonFormat}, {"job", JobJson(frame.job, frame.pid, true)}, {"ranks", Json::array()}};
  const RanksByNumber earlier = IndexRanks(before);
  for (const v1::JobRank& rank : frame.job.ranks()) {
    document["ranks"].push_back(RankJson(rank, ShareSince(frame, rank, before, earlier)));
  }
  return JsonLine(document);
}

std::string StacksJson(const v1::JobSnapshot& gathered, const std::string& job_id) {
  Json document = {{"format", kJsonFormat}, {"job", job_id}, {"ranks", Json::array()}};
  for (const v1::RankStack& stack : gathered.stacks()) {
    Json rank = {{"rank", stack.rank()}};
    if (stack.pid() != 0) rank["pid"] = stack.pid();
    rank["lines"] = std::vector<std::string>(absl::StrSplit(stack.text(), '\n', absl::SkipEmpty()));
    document["ranks"].push_back(rank);
  }
  document["missing"] = std::vector<uint32_t>(gathered.stacks_missing().begin(), gathered.stacks_missing().end());
  return JsonText(document);
}

}  // namespace cohort::launcher
