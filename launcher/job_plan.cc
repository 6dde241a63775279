#include "launcher/job_plan.h"

#include <cstdint>
#include <utility>
#include <vector>

#include "launcher/environment/process_environment.h"

namespace cohort::launcher {

v1::JobPlan MakeJobPlan(const Job& job, const std::string& job_id, const std::string& secret,
                        std::chrono::milliseconds join_timeout) {
  v1::JobPlan plan;
  v1::JobSpec& spec = *plan.mutable_job();
  spec.set_job_id(job_id);
  spec.add_command(job.program.path);
  for (size_t i = 1; i < job.options.command.size(); ++i) spec.add_command(job.options.command[i]);
  if (job.nodes.across_hosts) {
    for (std::string& variable : PortableEnvironment(InheritedEnvironment(), job.options.passed_variables)) {
      spec.add_environment(std::move(variable));
    }
  }
  for (const auto& [name, value] : job.options.environment) spec.add_environment(name + "=" + value);
  spec.set_working_directory(job.working_directory);
  spec.set_grace_ms(static_cast<uint32_t>(job.options.grace.count()));
  spec.set_on_failure(job.options.on_failure == OnFailure::kEnd ? "end" : "continue");
  spec.set_log_directory(job.log_directory);
  spec.set_devices_per_rank(static_cast<uint32_t>(job.placement.devices_per_rank));
  spec.set_job_secret(secret);
  spec.set_nodes_share_host(job.nodes.share_host);
  *plan.mutable_placements() = {job.placement.nodes.begin(), job.placement.nodes.end()};
  plan.set_join_timeout_ms(static_cast<uint32_t>(join_timeout.count()));
  return plan;
}

}  // namespace cohort::launcher
