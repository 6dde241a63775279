// One rank of a job that loses a process or a node (loss_trials.py). It has no communicator: its
// node's agent tells it of a loss, a wake-up after the agent knew.
//
// Lines: "ready" once it has joined; "lost <CLOCK_MONOTONIC in ns> <rank>..." with the first news; "nothing" when none
// came in 50 s.
#include <time.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "cohort/runtime/base/deadline.h"
#include "cohort/runtime/runtime.h"

namespace cohort {
namespace {

constexpr std::chrono::seconds kLongest{50};

int64_t MonotonicNow() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

class News : public runtime::MembershipListener {
 public:
  void OnRanksLost(const std::vector<int>& ranks, const std::string&) override {
    if (told_) return;
    line_ = "lost " + std::to_string(MonotonicNow());
    for (const int rank : ranks) line_ += " " + std::to_string(rank);
    told_ = true;
  }
  void OnGroupFailure(const runtime::GroupFailure&) override {}
  bool told() const { return told_; }
  const std::string& line() const { return line_; }

 private:
  std::atomic<bool> told_{false};
  std::string line_ = "nothing";
};

int Run() {
  auto job = runtime::Runtime::Init();
  if (!job.ok()) {
    std::fprintf(stderr, "%s\n", job.status().ToString().c_str());
    return 2;
  }
  News news;
  (*job)->AddListener(&news);
  std::printf("ready\n");
  std::fflush(stdout);
  (*job)->engine().DriveUntil([&] { return news.told(); }, runtime::Deadline::After(kLongest));
  std::printf("%s\n", news.line().c_str());
  (*job)->RemoveListener(&news);
  (*job)->Finalize().IgnoreError();  // it knows of the loss
  return 0;
}

}  // namespace
}  // namespace cohort

int main() { return cohort::Run(); }
