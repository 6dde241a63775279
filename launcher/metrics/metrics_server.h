// Serves a running job to Prometheus: `dlaunch --metrics [ADDRESS:]PORT` answers GET /metrics with its agents' current
// reports on nodes and ranks. It runs only on request. Anybody who reaches the port can read it; nobody can change
// anything.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "cohort/v1/job.pb.h"

namespace cohort::launcher {

// The series, all gauges but those whose name ends in _total; {rank, node} name a rank, {node} a node:
//
//   cohort_job_info{job_id,source,version}  1
//   cohort_job_start_time_seconds           since 1970
//   cohort_job_nodes, cohort_job_ranks      in this epoch
//   cohort_job_restarts_total               so far
//   cohort_job_ending                       1 once it has been told to end or has failed
//   cohort_node_up                          1 while the node's agent lives
//   cohort_rank_up                          1 while the rank's process lives
//   cohort_rank_stopped                     1 while a signal has stopped it
//   cohort_rank_processes                   that live in its process group
//   cohort_rank_cpu_seconds_total           that those have used
//   cohort_rank_resident_memory_bytes       that they hold
//   cohort_rank_in_call                     1 inside a collective call
//   cohort_rank_call_seconds                how long it has been in that call; 0 outside
//   cohort_rank_waiting_ranks               ranks that wait for it in their calls, directly or through others
//   cohort_rank_waited_for_seconds_total    time during which others waited for it, by looks once a second
//
// A rank that its agent has not reported has no series.
class MetricsServer {
 public:
  // Listens at "127.0.0.1:9400" or "[::1]:0" (port 0: any free one), from its own threads. Each scrape calls `wanted`
  // on such a thread. It waits at most a second for the next Publish and answers with the latest. kUnavailable: nobody
  // can listen there, with the reason. kUnimplemented: built without prometheus-cpp.
  static absl::StatusOr<std::unique_ptr<MetricsServer>> Start(const std::string& address, std::function<void()> wanted);
  // Stops calling `wanted`. The port stays taken and gives empty answers until the process ends.
  virtual ~MetricsServer() = default;

  // Publishes the present state of the job, with all of its nodes and ranks. Any thread may call it.
  virtual void Publish(v1::JobSnapshot job) = 0;
  virtual int port() const = 0;
};

}  // namespace cohort::launcher
