#include "cohort/launcher/front_end/job_snapshot.h"

#include <algorithm>
#include <cstdint>

#include "cohort/launcher/agent/lines/shortened_line.h"

namespace cohort::launcher {
namespace {

using std::chrono::milliseconds;

constexpr size_t kMaxWords = 8u << 10;  // the command among them
constexpr size_t kMaxName = 255;
constexpr size_t kMaxCause = 2000;
constexpr size_t kMostSpares = 16;

}  // namespace

v1::JobSnapshot TakeSnapshot(const RunningJob& running) {
  const Job& job = *running.job;
  v1::JobSnapshot snapshot;
  snapshot.set_job_id(running.id);
  snapshot.set_phase(running.ending ? "ending" : "running");
  snapshot.set_epoch(running.restarts + 1);
  snapshot.set_max_restarts(static_cast<uint32_t>(job.options.max_restarts));
  const auto age = std::chrono::system_clock::now() - running.started;
  snapshot.set_age_ms(static_cast<uint64_t>(std::chrono::duration_cast<milliseconds>(age).count()));
  snapshot.set_started_unix_ns(std::chrono::nanoseconds(running.started.time_since_epoch()).count());
  uint32_t ranks = 0;
  for (const v1::NodePlacement& member : *running.members.nodes) ranks += static_cast<uint32_t>(member.ranks_size());
  snapshot.set_world_size(ranks);
  snapshot.set_node_count(static_cast<uint32_t>(running.members.nodes->size()));
  snapshot.set_spare_count(static_cast<uint32_t>(running.spares.size()));
  snapshot.set_source(job.nodes.source);
  snapshot.set_cause(running.cause);
  snapshot.set_grace_ms(static_cast<uint32_t>(job.options.grace.count()));
  AddPrograms(job, /*to_show=*/true, snapshot.mutable_programs());
  return snapshot;
}

v1::JobNode DescribeNode(const v1::NodePlacement& node) {
  v1::JobNode described;
  described.set_name(node.name());
  described.set_first_rank(node.ranks(0).rank());
  described.set_rank_count(static_cast<uint32_t>(node.ranks_size()));
  return described;
}

void AddNodes(const RunningJob& running, size_t first_node, size_t most, v1::JobSnapshot* snapshot) {
  const std::vector<v1::NodePlacement>& members = *running.members.nodes;
  const size_t named = first_node == 0 ? std::min(running.spares.size(), kMostSpares) : 0;
  for (size_t i = 0; i < named; ++i) snapshot->add_spares(running.spares[i]);
  for (size_t i = first_node; i < members.size() && i - first_node < most; ++i) {
    v1::JobNode& node = *snapshot->add_nodes() = DescribeNode(members[i]);
    node.set_agent(running.agents->pid((*running.members.agents)[i]));
  }
}

void FitIntoPacket(v1::JobSnapshot* snapshot) {
  snapshot->set_cause(ShortenMiddle(snapshot->cause(), kMaxCause));
  constexpr size_t kFraming = 8;
  size_t words = snapshot->cause().size() + snapshot->source().size();
  for (const v1::RankProgram& program : snapshot->programs()) {
    words += kFraming * (1 + 2 * static_cast<size_t>(program.ranks_size()));
    for (const std::string& word : program.command()) words += word.size() + kFraming;
  }
  if (words > kMaxWords) snapshot->clear_programs();
  for (std::string& name : *snapshot->mutable_spares()) name.resize(std::min(name.size(), kMaxName));
  for (v1::JobNode& node : *snapshot->mutable_nodes()) {
    node.mutable_name()->resize(std::min(node.name().size(), kMaxName));
  }
}

}  // namespace cohort::launcher
