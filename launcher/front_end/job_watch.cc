#include "cohort/launcher/front_end/job_watch.h"

#include <limits>
#include <utility>

#include "cohort/runtime/base/status_macros.h"

namespace cohort::launcher {

JobWatch::JobWatch(EventLoop* loop, AgentProcesses* agents, Callbacks callbacks)
    : loop_(loop),
      callbacks_(std::move(callbacks)),
      live_([agents](size_t agent, uint64_t look) {
        v1::ToNode message;
        message.set_look(look);
        agents->Send(agent, message);
      }),
      stacks_([agents](size_t agent, const v1::StacksWanted& wanted) {
        v1::ToNode message;
        *message.mutable_stacks() = wanted;
        agents->Send(agent, message);
      }),
      asked_(loop,
             {.snapshot = [this](const v1::JobRequest& request) { return Answer(request); }, .stop = callbacks_.stop}) {
}

v1::JobSnapshot JobWatch::Answer(const v1::JobRequest& request) {
  const RunningJob job = callbacks_.job();
  v1::JobSnapshot snapshot = TakeSnapshot(job);
  if (request.has_trace()) {
    *snapshot.mutable_trace() = callbacks_.trace(request.trace());
  } else if (request.stacks()) {
    stacks_.Answer(job.members, request, JobSocket::kBytesOfRanks, &snapshot);
  } else if (request.ranks()) {
    const auto now = EventLoop::Clock::now();
    live_.Refresh(job.members, now);
    live_.AddRanks(job.members, request.first_rank(), JobSocket::kBytesOfRanks, now, &snapshot);
  } else {
    AddNodes(job, request.first_node(), JobSocket::kNodesPerAnswer, &snapshot);
  }
  FitIntoPacket(&snapshot);
  return snapshot;
}

absl::StatusOr<std::string> JobWatch::ServeMetrics(const std::string& address) {
  const auto wanted = [this] { loop_->Post([this] { LookForMetrics(); }); };
  COHORT_ASSIGN_OR_RETURN(metrics_, MetricsServer::Start(address, wanted));
  loop_->Cancel(look_timer_);  // that looks more rarely
  CountWaits(kCountWaitsEvery);
  return "http://" + address.substr(0, address.rfind(':') + 1) + std::to_string(metrics_->port()) + "/metrics";
}

void JobWatch::CountWaits(std::chrono::milliseconds every) {
  live_.Refresh(callbacks_.job().members, EventLoop::Clock::now());
  look_timer_ = loop_->After(every, [this, every] { CountWaits(every); });
}

void JobWatch::LookForMetrics() {
  live_.Refresh(callbacks_.job().members, EventLoop::Clock::now());
  loop_->After(kViewsComeWithin, [this] {
    const RunningJob job = callbacks_.job();
    v1::JobSnapshot snapshot = TakeSnapshot(job);
    AddNodes(job, 0, job.members.nodes->size(), &snapshot);
    live_.AddRanks(job.members, 0, std::numeric_limits<size_t>::max(), EventLoop::Clock::now(), &snapshot);
    metrics_->Publish(std::move(snapshot));
  });
}

}  // namespace cohort::launcher
