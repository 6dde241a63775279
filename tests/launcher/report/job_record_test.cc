// report.json, read back by a parser.
#include "cohort/launcher/report/job_record.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

namespace cohort::launcher {
namespace {

using nlohmann::json;

v1::JobSnapshot FailedJob() {
  v1::JobSnapshot record;
  record.set_job_id("job-7");
  record.set_source("2 hosts");
  v1::RankProgram& program = *record.add_programs();
  program.add_command("/bin/train");
  program.add_command("odd \xff argument");
  record.set_started_unix_ns(1000'000'000'000);
  record.set_ended_unix_ns(1002'500'000'000);
  for (const uint32_t rank : {0u, 1u}) {
    v1::JobNode& node = *record.add_nodes();
    node.set_name("host" + std::to_string(rank));
    node.set_first_rank(rank);
    node.set_rank_count(1);
  }
  record.mutable_report()->set_exit_code(137);
  record.mutable_report()->set_culprit_rank(1);
  record.mutable_report()->set_headline("rank 1 (host1, pid 12) killed by SIGKILL");
  record.mutable_report()->add_last_lines("step 3");
  record.mutable_report()->add_others("rank 0 (host0): in no collective call");
  for (const int rank : {1, 0}) {
    v1::RankExit* exit = record.mutable_report()->add_exits();
    exit->set_rank(rank);
    exit->set_pid(11 + rank);
    exit->set_started(true);
    exit->set_signal(rank == 1 ? 9 : 15);
    exit->set_killed_by_us(rank == 0);
    exit->set_unix_time_ns(1001'500'000'000);
  }
  return record;
}

TEST(JobRecord, NamesTheProgramOfEachRankWhereThereAreSeveral) {
  v1::JobSnapshot job = FailedJob();
  EXPECT_FALSE(json::parse(FormatJobRecord(job)).contains("programs"));
  job.mutable_programs(0)->add_ranks();  // rank 0
  v1::RankProgram& second = *job.add_programs();
  second.add_command("/bin/serve");
  v1::RankSpan& ranks = *second.add_ranks();
  ranks.set_first(1);
  ranks.set_last(1);
  const json read = json::parse(FormatJobRecord(job));
  EXPECT_EQ(read["command"][2], ":");
  EXPECT_EQ(read["command"][3], "/bin/serve");
  EXPECT_EQ(read["programs"][1]["ranks"], json::parse("[[1, 1]]"));
  EXPECT_EQ(read["ranks"][0]["program"], "train");
  EXPECT_EQ(read["ranks"][1]["program"], "serve");
}

TEST(JobRecord, NamesTheFirstFailureWithItsRankAndTime) {
  const json read = json::parse(FormatJobRecord(FailedJob()));
  EXPECT_EQ(read["exit_code"], 137);
  EXPECT_EQ(read["started"], 1000);
  EXPECT_EQ(read["seconds"], 2.5);
  EXPECT_EQ(read["nodes"][1]["name"], "host1");
  EXPECT_EQ(read["nodes"][1]["ranks"], json({1}));
  EXPECT_EQ(read["cause"]["rank"], 1);
  EXPECT_EQ(read["cause"]["text"], "rank 1 (host1, pid 12) killed by SIGKILL");
  EXPECT_EQ(read["cause"]["last_lines"], json({"step 3"}));
  ASSERT_EQ(read["ranks"].size(), 2u);
  EXPECT_EQ(read["ranks"][0]["rank"], 0) << "in the order of the ranks";
  EXPECT_EQ(read["ranks"][0]["by_dlaunch"], true);
  EXPECT_EQ(read["ranks"][0]["failed"], false);
  EXPECT_EQ(read["ranks"][1]["end"], "killed by SIGKILL");
  EXPECT_EQ(read["ranks"][1]["status"], 137);
  EXPECT_EQ(read["ranks"][1]["node"], "host1");
  EXPECT_DOUBLE_EQ(read["ranks"][1]["time"].get<double>(), 1001.5);
}

TEST(JobRecord, ARecordOfASuccessfulJobHasNoCause) {
  v1::JobSnapshot record = FailedJob();
  record.clear_report();
  const json read = json::parse(FormatJobRecord(record));
  EXPECT_EQ(read["exit_code"], 0);
  EXPECT_FALSE(read.contains("cause"));
}

TEST(JobRecord, ARecordOfAPreemptedJobHasTheSignalAndTheStep) {
  v1::JobSnapshot record = FailedJob();
  record.clear_report();
  EXPECT_FALSE(json::parse(FormatJobRecord(record)).contains("preempted"));
  record.mutable_report()->set_preempted_by(10);
  record.mutable_report()->set_stop_step(87);
  EXPECT_EQ(json::parse(FormatJobRecord(record))["preempted"], json({{"signal", "SIGUSR1"}, {"step", 87}}));
}

TEST(JobRecord, AFolderThatCanNotBeWrittenIsAnError) {
  const absl::Status status = WriteJobRecord("/proc/no-such-folder", FailedJob());
  EXPECT_FALSE(status.ok());
  EXPECT_NE(std::string(status.message()).find("/proc/no-such-folder/report.json"), std::string::npos) << status;
}

}  // namespace
}  // namespace cohort::launcher
