// Answers those who look at a running job from outside, and who may end it: `dlaunch status`, `top`, `stacks` and
// `kill` by its socket, Prometheus by its metrics.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cohort/launcher/base/event_loop.h"
#include "cohort/launcher/front_end/agent_processes.h"
#include "cohort/launcher/front_end/job_snapshot.h"
#include "cohort/launcher/jobs/job_socket.h"
#include "cohort/launcher/jobs/live_view.h"
#include "cohort/launcher/jobs/stack_view.h"
#include "cohort/launcher/metrics/metrics_server.h"
#include "cohort/v1/job.pb.h"
#include "cohort/v1/rendezvous.pb.h"

namespace cohort::launcher {

// To be used on the loop's thread.
class JobWatch {
 public:
  struct Callbacks {
    std::function<RunningJob()> job;         // as it is now
    std::function<void(bool at_once)> stop;  // what `dlaunch kill` asks for
    std::function<v1::TraceState(const v1::TraceRequest& request)> trace;
  };
  JobWatch(EventLoop* loop, AgentProcesses* agents, Callbacks callbacks);
  ~JobWatch() { loop_->Cancel(look_timer_); }
  JobWatch(const JobWatch&) = delete;
  JobWatch& operator=(const JobWatch&) = delete;

  // For `dlaunch status`, `top`, `stacks` and `kill`. kInternal where the address can't be had: nobody can ask then.
  absl::Status Listen(const std::string& job_id) { return asked_.Listen(job_id); }
  // Looks now and then who is waited for, for LongestWait.
  void WatchWaits() {
    if (look_timer_ == 0) look_timer_ = loop_->After(kCountWaitsRarely, [this] { CountWaits(kCountWaitsRarely); });
  }
  // The rank that was waited for longest, in words; empty: none stands out.
  std::string LongestWait() const { return live_.DescribeLongestWait(); }
  // For Prometheus. The URL where it listens. See MetricsServer::Start.
  absl::StatusOr<std::string> ServeMetrics(const std::string& address);

  void OnView(size_t agent, const v1::NodeView& view) { live_.OnView(agent, view, EventLoop::Clock::now()); }
  void OnStack(size_t agent, const v1::RankStack& stack) { stacks_.OnStack(agent, stack); }
  // The ranks are other processes from now on.
  void OnEpoch() {
    live_.Forget();
    stacks_.Forget();
  }

 private:
  static constexpr std::chrono::milliseconds kViewsComeWithin{150};
  static constexpr std::chrono::milliseconds kCountWaitsEvery{1000};  // for the metrics
  static constexpr std::chrono::milliseconds kCountWaitsRarely{10'000};

  v1::JobSnapshot Answer(const v1::JobRequest& request);
  void LookForMetrics();
  void CountWaits(std::chrono::milliseconds every);

  EventLoop* const loop_;
  const Callbacks callbacks_;
  LiveView live_;
  StackView stacks_;
  JobSocket asked_;
  EventLoop::TimerId look_timer_ = 0;
  std::unique_ptr<MetricsServer> metrics_;  // last, so that its threads end first
};

}  // namespace cohort::launcher
