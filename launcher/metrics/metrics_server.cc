#include "cohort/launcher/metrics/metrics_server.h"

#include <prometheus/collectable.h>
#include <prometheus/exposer.h>
#include <prometheus/metric_family.h>

#include <chrono>
#include <cstdint>
#include <exception>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "cohort/launcher/remedies/remedies.h"
#include "cohort/runtime/base/deadline.h"
#include "cohort/runtime/base/mutex.h"

namespace cohort::launcher {
namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;

constexpr std::chrono::seconds kFreshWithin{1};

// Labels must be UTF-8, or the whole answer is refused.
std::string LabelText(const std::string& text) {
  std::string label;
  for (const char c : text)
    label += static_cast<unsigned char>(c) < 32 || static_cast<unsigned char>(c) > 126 ? '?' : c;
  return label;
}

class Family {
 public:
  Family(std::string name, std::string help, MetricType type = MetricType::Gauge) {
    family_.name = std::move(name);
    family_.help = std::move(help);
    family_.type = type;
  }
  void Add(double value, std::vector<ClientMetric::Label> labels = {}) {
    ClientMetric metric;
    metric.label = std::move(labels);
    (family_.type == MetricType::Counter ? metric.counter.value : metric.gauge.value) = value;
    family_.metric.push_back(std::move(metric));
  }
  MetricFamily Take() { return std::move(family_); }

 private:
  MetricFamily family_;
};

std::vector<MetricFamily> JobFamilies(const v1::JobSnapshot& job) {
  Family info("cohort_job_info", "The job, as labels");
  info.Add(1, {{"job_id", LabelText(job.job_id())},
               {"source", LabelText(std::string(job.source()))},
               {"version", COHORT_VERSION}});
  Family started("cohort_job_start_time_seconds", "When the job began, since 1970");
  const double now = std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  started.Add(now - static_cast<double>(job.age_ms()) / 1000);
  Family nodes("cohort_job_nodes", "Nodes of the job in this epoch");
  nodes.Add(job.node_count());
  Family ranks("cohort_job_ranks", "Ranks of the job in this epoch");
  ranks.Add(job.world_size());
  Family restarts("cohort_job_restarts_total", "Restarts of all ranks so far", MetricType::Counter);
  restarts.Add(static_cast<double>(job.epoch() - 1));
  Family ending("cohort_job_ending", "1 once the job has been told to end or has failed");
  ending.Add(job.phase() == "running" ? 0 : 1);
  Family up("cohort_node_up", "1 while the node's agent lives");
  for (const v1::JobNode& node : job.nodes()) {
    up.Add(node.agent() != 0 ? 1 : 0, {{"node", LabelText(std::string(node.name()))}});
  }
  std::vector<MetricFamily> families;
  for (Family* family : {&info, &started, &nodes, &ranks, &restarts, &ending, &up}) families.push_back(family->Take());
  return families;
}

std::vector<MetricFamily> RankFamilies(const v1::JobSnapshot& job) {
  Family up("cohort_rank_up", "1 while the rank's process lives");
  Family stopped("cohort_rank_stopped", "1 while a signal has stopped the rank");
  Family processes("cohort_rank_processes", "Processes that live in the rank's process group");
  Family cpu("cohort_rank_cpu_seconds_total", "CPU time of those processes", MetricType::Counter);
  Family memory("cohort_rank_resident_memory_bytes", "Memory that those processes hold");
  Family in_call("cohort_rank_in_call", "1 while the rank is inside a collective call");
  Family waited("cohort_rank_call_seconds", "How long the rank has been in its collective call; 0 outside");
  Family waiting("cohort_rank_waiting_ranks", "Ranks that wait for this one, directly or through others");
  Family waited_for("cohort_rank_waited_for_seconds_total", "Time during which other ranks waited for this one",
                    MetricType::Counter);
  for (const v1::JobRank& rank : job.ranks()) {
    if (!rank.known()) continue;
    const bool named = rank.node() < static_cast<uint32_t>(job.nodes_size());
    const std::string node = named ? LabelText(std::string(job.nodes(static_cast<int>(rank.node())).name())) : "";
    const std::vector<ClientMetric::Label> labels = {{"rank", std::to_string(rank.view().rank())}, {"node", node}};
    const v1::RankView& view = rank.view();
    const bool lives = view.pid() != 0;
    const bool calling = lives && view.doing().present() && !view.doing().done();
    up.Add(lives ? 1 : 0, labels);
    stopped.Add(lives && view.stopped() ? 1 : 0, labels);
    processes.Add(view.processes(), labels);
    cpu.Add(static_cast<double>(view.cpu_ms()) / 1000, labels);
    memory.Add(static_cast<double>(view.resident_bytes()), labels);
    in_call.Add(calling ? 1 : 0, labels);
    waiting.Add(rank.waiting_for(), labels);
    waited_for.Add(static_cast<double>(rank.waited_for_ms()) / 1000, labels);
    waited.Add(calling ? static_cast<double>(view.doing().age_ms() + rank.ago_ms()) / 1000 : 0, labels);
  }
  std::vector<MetricFamily> families;
  for (Family* family : {&up, &stopped, &processes, &cpu, &memory, &in_call, &waited, &waiting, &waited_for}) {
    families.push_back(family->Take());
  }
  return families;
}

// The latest job, and the scrapes that wait for it.
class LatestJob : public prometheus::Collectable {
 public:
  explicit LatestJob(std::function<void()> wanted) : wanted_(std::move(wanted)) {}

  std::vector<MetricFamily> Collect() const override {
    const auto deadline = runtime::Deadline::After(kFreshWithin);
    v1::JobSnapshot job;
    {
      const runtime::MutexLock lock(mutex_);
      if (ending_) return {};
      const uint64_t seen = published_;
      wanted_();  // under the lock, so that it is not called after End
      while (published_ == seen && !ending_ && changed_.Wait(mutex_, deadline)) {
      }
      if (published_ == 0) return {};
      job = latest_;
    }
    std::vector<MetricFamily> families = JobFamilies(job);
    for (MetricFamily& family : RankFamilies(job)) families.push_back(std::move(family));
    return families;
  }

  void Publish(v1::JobSnapshot job) {
    {
      const runtime::MutexLock lock(mutex_);
      latest_ = std::move(job);
      ++published_;
    }
    changed_.NotifyAll();
  }
  void End() {
    {
      const runtime::MutexLock lock(mutex_);
      ending_ = true;
    }
    changed_.NotifyAll();
  }

 private:
  std::function<void()> wanted_;
  mutable runtime::Mutex mutex_;
  mutable runtime::CondVar changed_;
  v1::JobSnapshot latest_ COHORT_GUARDED_BY(mutex_);
  uint64_t published_ COHORT_GUARDED_BY(mutex_) = 0;
  bool ending_ COHORT_GUARDED_BY(mutex_) = false;
};

class PrometheusServer : public MetricsServer {
 public:
  PrometheusServer(std::unique_ptr<prometheus::Exposer> exposer, std::function<void()> wanted)
      : job_(std::make_shared<LatestJob>(std::move(wanted))), exposer_(std::move(exposer)) {
    exposer_->RegisterCollectable(job_);
  }
  // Its threads look up every two seconds, for which no job should wait: they end with the process. What they had of us
  // is gone by then.
  ~PrometheusServer() override {
    job_->End();
    static auto* const ended = new std::vector<prometheus::Exposer*>();
    ended->push_back(exposer_.release());
  }
  void Publish(v1::JobSnapshot job) override { job_->Publish(std::move(job)); }
  int port() const override {
    const std::vector<int> ports = exposer_->GetListeningPorts();
    return ports.empty() ? 0 : ports[0];
  }

 private:
  std::shared_ptr<LatestJob> job_;
  std::unique_ptr<prometheus::Exposer> exposer_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<MetricsServer>> MetricsServer::Start(const std::string& address,
                                                                    std::function<void()> wanted) {
  // Strangers get a worker for two seconds; twenty wait, no more are taken.
  const std::vector<std::string> options = {"listening_ports",    address, "num_threads",      "2",
                                            "request_timeout_ms", "2000",  "connection_queue", "20"};
  try {
    auto exposer = std::make_unique<prometheus::Exposer>(options);
    return std::make_unique<PrometheusServer>(std::move(exposer), std::move(wanted));
  } catch (const std::exception&) {  // of civetweb, which does not say why
    return WithRemedy(
        Remedy::kMetricsPort,
        absl::UnavailableError("--metrics " + address +
                               ": can't listen there; is the port in use, or the address another machine's? Name "
                               "another, or 0 for any free port"));
  }
}

}  // namespace cohort::launcher
