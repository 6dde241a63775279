#include "cohort/launcher/commands/dry_run.h"

#include <vector>

#include "cohort/launcher/base/process_environment.h"
#include "cohort/launcher/base/say.h"
#include "cohort/launcher/commands/job_programs.h"
#include "cohort/launcher/machine/placement.h"
#include "cohort/launcher/nodes/node_source.h"
#include "cohort/launcher/report/json_parts.h"
#include "cohort/launcher/spawn/spawner.h"

namespace cohort::launcher {
namespace {

std::string DescribeBinding(Bind bind) {
  if (bind == Bind::kNone) return "not bound to any CPUs (--bind none)";
  if (bind == Bind::kNuma) return "its share of the node's NUMA nodes (--bind numa)";
  return "its share of the node's cores (--bind core)";
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
    std::string names;
    for (const std::string& variable : PortableEnvironment(InheritedEnvironment(), job.options.passed_variables)) {
      names += " " + variable.substr(0, variable.find('='));
    }
    text += "variables of this shell that all ranks get:" + names + "\n";
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
  document["sources"] = Json::array();
  for (const ExplainedSource& source : ListSources(job.options)) {
    document["sources"].push_back({{"name", source.name}, {"chosen", source.chosen}, {"because", source.because}});
  }
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
