#include "cohort/launcher/front_end/job_status.h"

#include <algorithm>
#include <cstdint>

#include "cohort/launcher/agent/lines/shortened_line.h"

namespace cohort::launcher {
namespace {

using std::chrono::milliseconds;

constexpr size_t kMaxCommandInStatus = 8u << 10;
constexpr size_t kMaxNameInStatus = 255;
constexpr size_t kMaxCauseInStatus = 2000;
constexpr size_t kMostSparesInStatus = 16;

}  // namespace

v1::JobStatus DescribeJob(const RunningJob& running) {
  const Job& job = *running.job;
  v1::JobStatus status;
  status.set_job_id(running.id);
  status.set_phase(running.ending ? "ending" : "running");
  status.set_epoch(running.restarts + 1);
  status.set_max_restarts(static_cast<uint32_t>(job.options.max_restarts));
  const auto age = std::chrono::system_clock::now() - running.started;
  status.set_age_ms(static_cast<uint64_t>(std::chrono::duration_cast<milliseconds>(age).count()));
  uint32_t ranks = 0;
  for (const v1::NodePlacement& member : *running.members.nodes) ranks += static_cast<uint32_t>(member.ranks_size());
  status.set_world_size(ranks);
  status.set_node_count(static_cast<uint32_t>(running.members.nodes->size()));
  status.set_spare_count(static_cast<uint32_t>(running.spares.size()));
  status.set_source(job.nodes.source);
  status.set_cause(ShortenMiddle(running.cause, kMaxCauseInStatus));
  status.set_grace_ms(static_cast<uint32_t>(job.options.grace.count()));
  status.add_command(job.program.path);
  for (size_t i = 1; i < job.options.command.size(); ++i) status.add_command(job.options.command[i]);
  if (status.ByteSizeLong() > kMaxCommandInStatus) status.clear_command();
  return status;
}

void AddNodes(const RunningJob& running, size_t first_node, size_t most, v1::JobStatus* status) {
  const std::vector<v1::NodePlacement>& members = *running.members.nodes;
  const size_t named = first_node == 0 ? std::min(running.spares.size(), kMostSparesInStatus) : 0;
  for (size_t i = 0; i < named; ++i) status->add_spares(running.spares[i].substr(0, kMaxNameInStatus));
  for (size_t i = first_node; i < members.size() && i - first_node < most; ++i) {
    v1::JobNode& node = *status->add_nodes();
    node.set_name(members[i].name().substr(0, kMaxNameInStatus));
    node.set_first_rank(members[i].ranks(0).rank());
    node.set_rank_count(static_cast<uint32_t>(members[i].ranks_size()));
    node.set_agent(running.agent_pid((*running.members.agents)[i]));
  }
}

}  // namespace cohort::launcher
