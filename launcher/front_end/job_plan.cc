#include "cohort/launcher/front_end/job_plan.h"

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "cohort/launcher/base/process_environment.h"

namespace cohort::launcher {

bool NodesAreReplaceable(const Job& job) {
  const bool elastic = !job.spares.empty() || job.options.min_nodes.has_value();
  return (job.options.max_restarts > 0 && elastic) || job.options.standbys > 0;
}

ServedMpi ServedMpiOf(const Job& job) {
  ServedMpi served;
  const Mpi how = job.options.mpi;
  served.pmi1 = how == Mpi::kPmi1;
  if (how == Mpi::kPmix) served.pmix = v1::JobSpec::PMIX_REQUIRED;
  if (how != Mpi::kAuto) return served;
  const bool alone = job.placement.world_size == 1;  // MPI can do without
  for (const MpiLibrary library : job.mpi) {
    const bool either = library == MpiLibrary::kEither;
    if (library == MpiLibrary::kMpich || either) served.pmi1 = true;
    if (library == MpiLibrary::kOpenMpi && !alone) served.pmix = v1::JobSpec::PMIX_REQUIRED;
    if ((either || library == MpiLibrary::kOpenMpi) && served.pmix == v1::JobSpec::PMIX_NONE) {
      served.pmix = v1::JobSpec::PMIX_IF_PRESENT;
    }
  }
  return served;
}

void AddPrograms(const Job& job, bool to_show, google::protobuf::RepeatedPtrField<v1::RankProgram>* programs) {
  for (const RankProgram& program : job.options.programs) {
    v1::RankProgram& added = *programs->Add();
    for (const std::string& word : program.command) added.add_command(to_show ? Typed(word) : word);
    for (const RankSpan& span : program.ranks) {
      added.add_ranks()->set_first(static_cast<uint32_t>(span.first));
      added.mutable_ranks()->rbegin()->set_last(static_cast<uint32_t>(span.last));
    }
    if (to_show) continue;
    for (const auto& [name, value] : program.environment) added.add_environment(name + "=" + value);
  }
}

v1::JobPlan MakeJobPlan(const Job& job, const std::string& secret, std::chrono::milliseconds join_timeout) {
  v1::JobPlan plan;
  v1::JobSpec& spec = *plan.mutable_job();
  spec.set_job_id(job.id);
  AddPrograms(job, /*to_show=*/false, spec.mutable_programs());
  if (job.nodes.across_hosts) {
    for (std::string& variable : PortableEnvironment(InheritedEnvironment(), job.options.passed_variables)) {
      spec.add_environment(std::move(variable));
    }
  }
  for (const auto& [name, value] : job.options.environment) spec.add_environment(name + "=" + value);
  spec.set_working_directory(job.working_directory);
  spec.set_grace_ms(static_cast<uint32_t>(job.options.grace.count()));
  static constexpr const char* kOnFailure[] = {"end", "continue", "restart"};
  spec.set_on_failure(kOnFailure[static_cast<int>(job.options.on_failure)]);
  spec.set_max_restarts(static_cast<uint32_t>(job.options.max_restarts));
  spec.set_log_directory(job.log_directory);
  spec.set_log_rate(job.options.log_rate);
  spec.set_raw_output(!job.options.prefix);
  spec.set_input_to_first_rank(job.options.input == RankInputOption::kForwarded);
  spec.set_inherits_input(job.options.input == RankInputOption::kRedirected);
  const ServedMpi mpi = ServedMpiOf(job);
  spec.set_serves_pmi1(mpi.pmi1);
  spec.set_pmix(mpi.pmix);
  spec.set_waits_for_stopped(job.options.stopped == Stopped::kWait);
  spec.set_devices_per_rank(static_cast<uint32_t>(job.placement.devices_per_rank));
  spec.set_job_secret(secret);
  spec.set_nodes_share_host(job.nodes.share_host);
  *plan.mutable_placements() = {job.placement.nodes.begin(), job.placement.nodes.end()};
  *plan.mutable_spares() = {job.spares.begin(), job.spares.end()};
  plan.set_min_nodes(static_cast<uint32_t>(job.options.min_nodes.value_or(0)));
  plan.set_standbys(static_cast<uint32_t>(job.options.standbys));
  plan.mutable_job()->set_nodes_replaceable(NodesAreReplaceable(job));
  plan.set_join_timeout_ms(static_cast<uint32_t>(join_timeout.count()));
  return plan;
}

v1::NodeStart MakeNodeStart(const Job& job, size_t index, const TlsIdentity& identity) {
  v1::NodeStart start;
  start.set_node(static_cast<uint32_t>(index));
  start.set_name(job.nodes.nodes[index].name);
  start.set_host_rendezvous(index == 0);
  start.set_ca_certificate(identity.ca_certificate);
  start.set_certificate(identity.certificate);
  start.set_private_key(identity.private_key);
  start.set_across_hosts(job.nodes.across_hosts);
  if (job.nodes.across_hosts) start.set_interface(job.options.interface);  // others need no network
  const PortRange ports = job.options.ports.value_or(PortRange{});
  start.set_first_port(static_cast<uint32_t>(ports.first));
  start.set_last_port(static_cast<uint32_t>(ports.last));
  start.set_standbys(static_cast<uint32_t>(job.options.standbys));
  return start;
}

}  // namespace cohort::launcher
