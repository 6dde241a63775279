#include "cohort/launcher/report/job_record.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "cohort/launcher/control/describe.h"
#include "cohort/launcher/control/parts/program_of.h"
#include "cohort/launcher/report/json_parts.h"
#include "cohort/runtime/base/whole_file.h"
#include "google/protobuf/repeated_ptr_field.h"

namespace cohort::launcher {
namespace {

double Seconds(int64_t ns) { return static_cast<double>(ns) / 1e9; }

// As it was typed in mpirun's form, the ranks of each program apart.
std::vector<std::string> WholeCommand(const RankPrograms& programs) {
  std::vector<std::string> words;
  for (const v1::RankProgram& program : programs) {
    if (!words.empty()) words.emplace_back(":");
    words.insert(words.end(), program.command().begin(), program.command().end());
  }
  return words;
}

Json DescribeRank(const v1::RankExit& exit, const std::string& node, const std::string& program) {
  Json rank = {{"rank", exit.rank()},
               {"node", node},
               {"pid", exit.pid()},
               {"end", DescribeEnd(exit)},
               {"status", ExitCode(exit)},
               {"failed", IsFailure(exit)},
               {"by_dlaunch", exit.killed_by_us()}};
  if (!program.empty()) rank["program"] = program;
  if (exit.unix_time_ns() > 0) rank["time"] = static_cast<double>(exit.unix_time_ns()) / 1e9;
  if (exit.doing().present()) rank["call"] = DescribeLastCall(exit);
  if (!exit.frames().empty()) rank["python"] = std::vector<std::string>(exit.frames().begin(), exit.frames().end());
  if (!exit.state().empty()) rank["state"] = exit.state();
  if (std::string log = exit.log_path(); log.ends_with(".err")) {
    log.resize(log.size() - 4);
    rank["logs"] = {log + ".out", log + ".err"};
  }
  return rank;
}

// The ranks' ends, and the cause of a failure.
void AddEnd(const v1::JobReport& report, const std::map<uint32_t, std::string>& node_of, const RankPrograms& programs,
            Json* json) {
  std::vector<const v1::RankExit*> exits;
  for (const v1::RankExit& exit : report.exits()) exits.push_back(&exit);
  std::stable_sort(exits.begin(), exits.end(), [](const auto* a, const auto* b) { return a->rank() < b->rank(); });
  Json& ranks = (*json)["ranks"] = Json::array();
  for (const v1::RankExit* exit : exits) {
    const auto node = node_of.find(exit->rank());
    ranks.push_back(
        DescribeRank(*exit, node == node_of.end() ? "" : node->second, ProgramName(programs, exit->rank())));
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

using Nodes = google::protobuf::RepeatedPtrField<v1::JobNode>;

std::map<uint32_t, std::string> NodeNames(const Nodes& nodes) {
  std::map<uint32_t, std::string> node_of;
  for (const v1::JobNode& node : nodes) {
    for (uint32_t i = 0; i < node.rank_count(); ++i) node_of[node.first_rank() + i] = node.name();
  }
  return node_of;
}

}  // namespace

std::string FormatJobRecord(const v1::JobSnapshot& job) {
  const v1::JobReport& report = job.report();
  Json json = {{"format", kJsonFormat},
               {"job", job.job_id()},
               {"exit_code", report.exit_code()},
               {"started", Seconds(job.started_unix_ns())},
               {"seconds", Seconds(job.ended_unix_ns() - job.started_unix_ns())},
               {"command", WholeCommand(job.programs())},
               {"source", job.source()},
               {"nodes", Json::array()}};
  if (job.programs_size() > 1) json["programs"] = ProgramsJson(job.programs());
  for (const v1::JobNode& node : job.nodes()) {
    Json ranks = Json::array();
    for (uint32_t i = 0; i < node.rank_count(); ++i) ranks.push_back(node.first_rank() + i);
    json["nodes"].push_back({{"name", node.name()}, {"ranks", ranks}});
  }
  AddEnd(report, NodeNames(job.nodes()), job.programs(), &json);
  if (report.preempted_by() != 0) {
    json["preempted"] = {{"signal", SignalName(report.preempted_by())}, {"step", report.stop_step()}};
  }
  json["restarted_after"] = Json::array();
  for (const v1::FailedEpoch& failed : job.failed_epochs()) {
    Json epoch = {{"exit_code", failed.report().exit_code()}};
    AddEnd(failed.report(), NodeNames(failed.nodes()), job.programs(), &epoch);
    json["restarted_after"].push_back(epoch);
  }
  return JsonText(json);
}

absl::Status WriteJobRecord(const std::string& folder, const v1::JobSnapshot& job) {
  return runtime::WriteWholeFile(folder + "/report.json", FormatJobRecord(job));
}

}  // namespace cohort::launcher
