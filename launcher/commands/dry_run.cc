#include "cohort/launcher/commands/dry_run.h"

#include <vector>

#include "cohort/launcher/base/process_environment.h"
#include "cohort/launcher/base/say.h"
#include "cohort/launcher/commands/job_json.h"
#include "cohort/launcher/commands/job_programs.h"
#include "cohort/launcher/machine/placement.h"
#include "cohort/launcher/nodes/node_source.h"
#include "cohort/launcher/report/json_parts.h"
#include "cohort/launcher/spawn/spawner.h"

namespace cohort::launcher {
namespace {

// As --bind takes it.
std::string NameOf(Bind bind) {
  if (bind == Bind::kNone) return "none";
  return bind == Bind::kNuma ? "numa" : "core";
}

std::string DescribeBinding(Bind bind) {
  const std::string option = " (--bind " + NameOf(bind) + ")";
  if (bind == Bind::kNone) return "not bound to any CPUs" + option;
  return (bind == Bind::kNuma ? "its share of the node's NUMA nodes" : "its share of the node's cores") + option;
}

// Names of the variables that ranks on other hosts get.
std::vector<std::string> PassedVariables(const Options& options) {
  std::vector<std::string> names;
  for (const std::string& variable : PortableEnvironment(InheritedEnvironment(), options.passed_variables)) {
    names.push_back(variable.substr(0, variable.find('=')));
  }
  return names;
}

std::string DescribeOrder(const Options& options) {
  if (options.rank_order == RankOrder::kFile) return "as in " + options.rank_order_file;
  return options.rank_order == RankOrder::kNatural ? "by name" : "as the source has them";
}

// How it came to the plan.
std::string Explanation(const Job& job) {
  std::string text =
      "sources of nodes, the first that applies is used (*):\n" + ExplainSources(ListSources(job.options));
  text += "agents are started by: " + SpawnerName(job.nodes.spawner) + "\n";
  text += "order of the nodes: ";
  text += DescribeOrder(job.options) + "\n";
  text += "CPUs of a rank: " + DescribeBinding(job.options.bind) + "\n";
  if (job.nodes.across_hosts) {
    text += "variables of this shell that all ranks get:";
    for (const std::string& name : PassedVariables(job.options)) text += " " + name;
    text += "\n";
  }
  return text;
}

Json RankJson(const v1::RankPlacement& rank) {
  Json described = {{"rank", rank.rank()}, {"local_rank", rank.local_rank()}, {"devices", Json::array()}};
  for (const v1::Device& device : rank.devices()) {
    const bool simulated = device.kind() == v1::Device::KIND_SIMULATED;
    described["devices"].push_back(
        {{"kind", simulated ? "simulated" : "cuda"}, {"index", device.node_index()}, {"id", device.id()}});
  }
  described["cpus"] = rank.cpus();
  return described;
}

std::string DryRunJson(const Job& job) {
  google::protobuf::RepeatedPtrField<v1::RankProgram> programs;
  AddPrograms(job, /*to_show=*/true, &programs);
  Json document = {{"format", kJsonFormat},
                   {"source", job.nodes.source},
                   {"spawner", SpawnerName(job.nodes.spawner)},
                   {"ranks", job.placement.world_size},
                   {"devices_per_rank", job.placement.devices_per_rank},
                   {"programs", ProgramsJson(programs)},
                   {"nodes", Json::array()},
                   {"spares", Json::array()}};
  for (const v1::NodePlacement& node : job.placement.nodes) {
    Json described = {{"name", node.name()}, {"ranks", Json::array()}};
    for (const v1::RankPlacement& rank : node.ranks()) described["ranks"].push_back(RankJson(rank));
    document["nodes"].push_back(described);
  }
  for (const v1::SpareNode& spare : job.spares) document["spares"].push_back(spare.name());
  if (!job.options.explain) return JsonText(document);
  document["rank_order"] = DescribeOrder(job.options);
  document["bind"] = NameOf(job.options.bind);
  if (job.nodes.across_hosts) document["variables"] = PassedVariables(job.options);
  document["sources"] = SourcesJson(ListSources(job.options));
  return JsonText(document);
}

}  // namespace

std::string Summary(const Job& job) {
  std::string text = Plural(job.placement.world_size, "rank") + " on " + job.nodes.source;
  if (job.placement.devices_per_rank > 0) {
    const bool simulated = job.options.simulate_gpus.has_value();
    text += ", " + Plural(job.placement.devices_per_rank, simulated ? "simulated GPU" : "GPU") + " a rank";
  }
  if (!job.spares.empty()) text += ", " + Plural(job.spares.size(), "node") + " of them spare";
  return text + ": " + DescribePrograms(job.options.programs);
}

std::string DescribeDryRun(const Job& job) {
  if (job.options.json) return DryRunJson(job);
  const std::string why = job.options.explain ? Explanation(job) : "";
  return why + "dry run, nothing is started: " + Summary(job) + "\n\n" + FormatPlacement(job.placement);
}

}  // namespace cohort::launcher
