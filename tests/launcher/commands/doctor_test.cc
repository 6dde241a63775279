// Findings of dlaunch doctor about a machine.
#include "cohort/launcher/commands/doctor.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace cohort::launcher {
namespace {

using Level = Finding::Level;

MachineFacts GoodMachine() {
  MachineFacts facts;
  facts.cpus = 8;
  facts.cpus_paid = 8;
  facts.open_files = 1 << 20;
  facts.processes = ~0ULL;
  facts.addresses = {"192.0.2.7"};
  facts.loopback = facts.memfd = facts.pidfd = facts.ssh = true;
  facts.ucx.version = "1.13.1";
  facts.nccl.version = "2.28.9";
  return facts;
}

// The one finding that is not good.
Finding OnlyProblem(const MachineFacts& facts) {
  const std::vector<Finding> findings = Judge(facts);
  const auto is_problem = [](const Finding& finding) { return finding.level != Level::kGood; };
  EXPECT_EQ(std::count_if(findings.begin(), findings.end(), is_problem), 1);
  const auto found = std::find_if(findings.begin(), findings.end(), is_problem);
  return found == findings.end() ? Finding() : *found;
}

TEST(Doctor, FindsNothingAmissInAGoodMachine) {
  for (const Finding& finding : Judge(GoodMachine())) {
    EXPECT_EQ(finding.level, Level::kGood) << finding.subject << ": " << finding.text;
    EXPECT_FALSE(finding.text.empty()) << finding.subject;
    EXPECT_TRUE(finding.remedy.empty()) << finding.subject;
  }
}

TEST(Doctor, JsonHasEveryFindingAndSource) {
  MachineFacts facts = GoodMachine();
  facts.open_files = 64;
  const std::vector<Finding> findings = Judge(facts);
  const auto read =
      nlohmann::json::parse(DoctorJson(findings, {{"ssh", false, "no --hosts"}, {"local", true, "always"}}));
  EXPECT_EQ(read["findings"].size(), findings.size());
  EXPECT_FALSE(read["jobs_run"]);
  EXPECT_EQ(read["findings"][1]["level"], "bad");
  EXPECT_EQ(read["findings"][1]["remedy"], findings[1].remedy);
  EXPECT_EQ(read["findings"][1]["id"], "descriptor-limit");
  EXPECT_FALSE(read["findings"][0].contains("remedy"));
  EXPECT_FALSE(read["findings"][0].contains("id"));
  EXPECT_EQ(read["sources"][1]["name"], "local");
  EXPECT_TRUE(read["sources"][1]["chosen"]);
}

TEST(Doctor, NamesLimitsThatAreTooLow) {
  MachineFacts facts = GoodMachine();
  facts.open_files = 1024;
  EXPECT_EQ(OnlyProblem(facts).level, Level::kWarning);
  EXPECT_NE(OnlyProblem(facts).text.find("1024"), std::string::npos);
  EXPECT_NE(OnlyProblem(facts).remedy.find("ulimit -n"), std::string::npos);
  facts.open_files = 64;
  EXPECT_EQ(OnlyProblem(facts).level, Level::kBad);
  facts = GoodMachine();
  facts.processes = 10;
  EXPECT_EQ(OnlyProblem(facts).level, Level::kBad);
  EXPECT_NE(OnlyProblem(facts).remedy.find("ulimit -u"), std::string::npos);
}

TEST(Doctor, NamesFeaturesThatTheKernelLacks) {
  MachineFacts facts = GoodMachine();
  facts.pidfd = false;
  EXPECT_EQ(OnlyProblem(facts).level, Level::kWarning);
  EXPECT_NE(OnlyProblem(facts).text.find("pidfd_open"), std::string::npos);
  facts = GoodMachine();
  facts.memfd = false;
  EXPECT_EQ(OnlyProblem(facts).level, Level::kBad);
  EXPECT_NE(OnlyProblem(facts).text.find("memfd_create"), std::string::npos);
}

TEST(Doctor, NamesCallsThatTheKernelLacksAndJobsCanDoWithout) {
  MachineFacts facts = GoodMachine();
  facts.slower_without = {"close_range", "clone3"};
  const std::vector<Finding> findings = Judge(facts);
  const auto kernel =
      std::find_if(findings.begin(), findings.end(), [](const Finding& one) { return one.subject == "kernel"; });
  ASSERT_NE(kernel, findings.end());
  EXPECT_EQ(kernel->level, Level::kGood);
  EXPECT_NE(kernel->text.find("without close_range and clone3"), std::string::npos) << kernel->text;
}

TEST(Doctor, NamesALoopbackThatIsDown) {
  MachineFacts facts = GoodMachine();
  facts.loopback = false;
  facts.addresses.clear();  // as in a new network namespace
  EXPECT_EQ(OnlyProblem(facts).level, Level::kBad);
  EXPECT_NE(OnlyProblem(facts).remedy.find("ip link set lo up"), std::string::npos);
  EXPECT_EQ(OnlyProblem(facts).id, Remedy::kLoopbackDown);
}

TEST(Doctor, WarnsOfShortcomingsThatRanksCanDoWithout) {
  MachineFacts facts = GoodMachine();
  facts.ptrace_scope = 2;
  EXPECT_EQ(OnlyProblem(facts).level, Level::kWarning);
  facts = GoodMachine();
  facts.ssh = false;
  EXPECT_EQ(OnlyProblem(facts).level, Level::kWarning);
  facts = GoodMachine();
  facts.addresses.clear();
  EXPECT_EQ(OnlyProblem(facts).level, Level::kWarning);
}

TEST(Doctor, NamesLibrariesThatRanksWouldMiss) {
  MachineFacts facts = GoodMachine();
  facts.ucx = {.version = "", .error = "libucp.so.0: cannot open shared object file"};
  EXPECT_EQ(OnlyProblem(facts).level, Level::kWarning);
  EXPECT_EQ(OnlyProblem(facts).subject, "UCX");
  EXPECT_NE(OnlyProblem(facts).text.find("use TCP"), std::string::npos);
  facts = GoodMachine();
  facts.nccl = {.version = "", .error = "libnccl.so.2: cannot open shared object file"};
  for (const Finding& finding : Judge(facts)) EXPECT_EQ(finding.level, Level::kGood);  // there is no GPU
  facts.gpus = 8;
  EXPECT_EQ(OnlyProblem(facts).subject, "NCCL");
}

TEST(Doctor, SummarizesTheFindings) {
  MachineFacts facts = GoodMachine();
  EXPECT_EQ(VerdictOn(Judge(facts)), "jobs run on this machine");
  facts.ssh = false;
  EXPECT_EQ(VerdictOn(Judge(facts)), "jobs run on this machine, with 1 warning");
  facts.memfd = false;
  EXPECT_EQ(VerdictOn(Judge(facts)), "1 thing to mend before jobs run well on this machine, and 1 warning");
}

TEST(Doctor, AMachineThatCanTakeNoPartIsBad) {
  MachineFacts facts = GoodMachine();
  facts.node_error = "CUDA_VISIBLE_DEVICES names a GPU that is not there";
  EXPECT_EQ(OnlyProblem(facts).level, Level::kBad);
  EXPECT_EQ(OnlyProblem(facts).text, facts.node_error);
}

}  // namespace
}  // namespace cohort::launcher
