// The environment as somebody else left it: what ranks read of theirs (runtime/env.h), and what dlaunch makes of its
// own for them. The input is a list of variables, NAME=VALUE, a line each.
//
//   - what a rank accepts is within the ranges that env.h promises, and what it refuses it names;
//   - what a rank gets is NAME=VALUE, each name once; nobody overrides who it is, and no other launcher's word remains.
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "cohort/launcher/base/process_environment.h"
#include "cohort/launcher/machine/rank_environment.h"
#include "cohort/runtime/env.h"
#include "tests/support/fuzz_input.h"

namespace cohort::launcher {
namespace {

std::vector<std::string> Lines(const std::string& text) {
  std::vector<std::string> lines;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    lines.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return lines;
}

size_t Count(const std::vector<std::string>& variables, const std::string& variable) {
  size_t count = 0;
  for (const std::string& other : variables) count += other == variable;
  return count;
}

void TryReading(const std::vector<std::string>& lines) {
  // In place of this process' own; setenv would keep every value for ever.
  std::vector<char*> entries;
  for (const std::string& line : lines) entries.push_back(const_cast<char*>(line.c_str()));
  entries.push_back(nullptr);
  environ = entries.data();
  const auto environment = runtime::Environment::Read();
  static char* none[] = {nullptr};
  environ = none;
  if (!environment.ok()) {
    FuzzCheck(std::string(environment.status().message()).find("COHORT_") != std::string::npos);
    return;
  }
  const std::string& agent = environment->agent;
  FuzzCheck(agent.empty() || (agent[0] == '@' && agent.size() >= 2 && agent.size() <= 107));
  FuzzCheck(!environment->local_rank || (*environment->local_rank >= 0 && *environment->local_rank < 1024));
  if (environment->init_timeout) {
    FuzzCheck(environment->init_timeout->count() >= 1 && environment->init_timeout->count() <= 86'400'000);
  }
  for (const std::string& name : environment->ucx_variables) FuzzCheck(name.starts_with("UCX_"));
}

void TryMaking(const std::vector<std::string>& lines) {
  v1::Assignment assignment;
  assignment.set_epoch(2);
  assignment.set_world_size(4);
  assignment.mutable_job()->set_job_id("job-1");
  assignment.set_master_address("10.0.0.1");
  assignment.set_master_port(4711);
  v1::RankPlacement& rank = *assignment.mutable_placement()->add_ranks();
  rank.set_rank(3);
  rank.set_local_rank(0);
  // Half of the lines were there before, the others are the job's own.
  std::vector<std::string> inherited;
  for (size_t i = 0; i < lines.size(); ++i) {
    if (i % 2 == 0) {
      inherited.push_back(lines[i]);
    } else {
      assignment.mutable_job()->add_environment(lines[i]);
    }
  }
  const std::vector<std::string> variables = BuildRankEnvironment(inherited, {.assignment = &assignment,
                                                                              .rank = &rank,
                                                                              .node = 1,
                                                                              .agent_address = "@cohort-agent",
                                                                              .cpu_share = 2,
                                                                              .torch_switch = "",
                                                                              .nccl_plugin = ""});
  std::set<std::string> names;
  for (const std::string& variable : variables) {
    FuzzCheck(variable.find('=') != std::string::npos);
    FuzzCheck(names.insert(variable.substr(0, variable.find('='))).second);
  }
  for (const char* own : {"COHORT_AGENT=@cohort-agent", "COHORT_LOCAL_RANK=0", "RANK=3", "WORLD_SIZE=4",
                          "MASTER_ADDR=10.0.0.1", "MASTER_PORT=4711", "COHORT_EPOCH=2"}) {
    FuzzCheck(Count(variables, own) == 1);
  }
  const std::vector<std::string> portable = PortableEnvironment(lines, {"HOME", "XDG_*"});
  FuzzCheck(portable.size() <= lines.size());
  for (const std::string& variable : portable) {
    FuzzCheck(!variable.starts_with("PMI_") && !variable.starts_with("SSH_") && !variable.starts_with("COHORT_AGENT"));
    FuzzCheck(variable.find('=') != std::string::npos && variable[0] != '=');
  }
}

}  // namespace
}  // namespace cohort::launcher

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::vector<std::string> lines =
      cohort::launcher::Lines(std::string(reinterpret_cast<const char*>(data), size));
  cohort::launcher::TryReading(lines);
  cohort::launcher::TryMaking(lines);
  return 0;
}
