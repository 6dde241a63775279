#include "cohort/launcher/report/job_record.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>

#include "cohort/launcher/control/describe.h"
#include "cohort/runtime/base/whole_file.h"

namespace cohort::launcher {
namespace {

using Json = nlohmann::ordered_json;

double Seconds(std::chrono::system_clock::duration time) { return std::chrono::duration<double>(time).count(); }

Json DescribeRank(const v1::RankExit& exit, const std::string& node) {
  Json rank = {{"rank", exit.rank()},
               {"node", node},
               {"pid", exit.pid()},
               {"end", DescribeEnd(exit)},
               {"status", ExitCode(exit)},
               {"failed", IsFailure(exit)},
               {"by_dlaunch", exit.killed_by_us()}};
  if (exit.unix_time_ns() > 0) rank["time"] = static_cast<double>(exit.unix_time_ns()) / 1e9;
  if (exit.doing().present()) rank["call"] = DescribeCall(exit.doing());
  if (!exit.frames().empty()) rank["python"] = std::vector<std::string>(exit.frames().begin(), exit.frames().end());
  if (!exit.state().empty()) rank["state"] = exit.state();
  if (std::string log = exit.log_path(); log.ends_with(".err")) {
    log.resize(log.size() - 4);
    rank["logs"] = {log + ".out", log + ".err"};
  }
  return rank;
}

// The ranks' ends, and the cause of a failure.
void AddEnd(const v1::JobReport& report, const std::map<uint32_t, std::string>& node_of, Json* json) {
  std::vector<const v1::RankExit*> exits;
  for (const v1::RankExit& exit : report.exits()) exits.push_back(&exit);
  std::stable_sort(exits.begin(), exits.end(), [](const auto* a, const auto* b) { return a->rank() < b->rank(); });
  Json& ranks = (*json)["ranks"] = Json::array();
  for (const v1::RankExit* exit : exits) {
    const auto node = node_of.find(exit->rank());
    ranks.push_back(DescribeRank(*exit, node == node_of.end() ? "" : node->second));
  }
  if (report.headline().empty()) return;
  Json cause = {{"text", report.headline()},
                {"last_lines", std::vector<std::string>(report.last_lines().begin(), report.last_lines().end())},
                {"others", std::vector<std::string>(report.others().begin(), report.others().end())}};
  if (report.others_left_out() > 0) cause["others_left_out"] = report.others_left_out();
  if (report.culprit_rank() >= 0) cause["rank"] = report.culprit_rank();
  if (!report.last_words().empty()) cause["last_line"] = report.last_words();
  (*json)["cause"] = cause;
}

std::map<uint32_t, std::string> NodeNames(const std::vector<v1::NodePlacement>& nodes) {
  std::map<uint32_t, std::string> node_of;
  for (const v1::NodePlacement& node : nodes) {
    for (const v1::RankPlacement& rank : node.ranks()) node_of[rank.rank()] = node.name();
  }
  return node_of;
}

}  // namespace

std::string FormatJobRecord(const JobRecord& record) {
  const v1::JobReport& report = record.report;
  Json json = {{"job", record.job_id},
               {"exit_code", report.exit_code()},
               {"started", Seconds(record.started.time_since_epoch())},
               {"seconds", Seconds(record.ended - record.started)},
               {"command", record.command},
               {"source", record.source},
               {"nodes", Json::array()}};
  for (const v1::NodePlacement& node : record.nodes) {
    Json ranks = Json::array();
    for (const v1::RankPlacement& rank : node.ranks()) ranks.push_back(rank.rank());
    json["nodes"].push_back({{"name", node.name()}, {"ranks", ranks}});
  }
  AddEnd(report, NodeNames(record.nodes), &json);
  if (report.preempted_by() != 0) {
    json["preempted"] = {{"signal", SignalName(report.preempted_by())}, {"step", report.stop_step()}};
  }
  json["restarted_after"] = Json::array();
  for (const FailedEpoch& failed : record.failed_epochs) {
    Json epoch = {{"exit_code", failed.report.exit_code()}};
    AddEnd(failed.report, NodeNames(failed.nodes), &epoch);
    json["restarted_after"].push_back(epoch);
  }
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

absl::Status WriteJobRecord(const std::string& folder, const JobRecord& record) {
  return runtime::WriteWholeFile(folder + "/report.json", FormatJobRecord(record));
}

}  // namespace cohort::launcher
