// One rank of a job that loses a process or a node (loss_trials.py). It has no communicator: what it hears of a loss it
// has from its node's agent, a wake-up after the agent knew.
//
// Lines: "ready" once it has joined; "lost <CLOCK_MONOTONIC in ns> <rank>..." with the first news; "nothing" when none
// came for a minute.
#include <time.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <future>
#include <string>
#include <utility>
#include <vector>

#include "runtime/runtime.h"

namespace cohort {
namespace {

constexpr std::chrono::seconds kLongest{60};

int64_t MonotonicNow() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

class News : public runtime::MembershipListener {
 public:
  void OnRanksLost(const std::vector<int>& ranks, const std::string&) override {
    if (told_) return;
    told_ = true;
    std::string line = "lost " + std::to_string(MonotonicNow());
    for (const int rank : ranks) line += " " + std::to_string(rank);
    line_.set_value(line);
  }
  void OnGroupFailure(const runtime::GroupFailure&) override {}
  std::string Await() {
    std::future<std::string> line = line_.get_future();
    return line.wait_for(kLongest) == std::future_status::ready ? line.get() : "nothing";
  }

 private:
  bool told_ = false;
  std::promise<std::string> line_;
};

int Run() {
  runtime::RuntimeOptions options;
  options.progress_thread = true;  // which hears of it
  auto job = runtime::Runtime::Init(std::move(options));
  if (!job.ok()) {
    std::fprintf(stderr, "%s\n", job.status().ToString().c_str());
    return 2;
  }
  News news;
  (*job)->AddListener(&news);
  std::printf("ready\n");
  std::fflush(stdout);
  std::printf("%s\n", news.Await().c_str());
  (*job)->RemoveListener(&news);
  (*job)->Finalize().IgnoreError();  // it knows of the loss
  return 0;
}

}  // namespace
}  // namespace cohort

int main() { return cohort::Run(); }
