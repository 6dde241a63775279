#include "cohort/trainer/transfer/communication_timer.h"

#include <atomic>
#include <chrono>
#include <cstdint>
#include <utility>

#include "absl/status/status.h"

namespace cohort::trainer {
namespace {

using Clock = std::chrono::steady_clock;

std::atomic<bool> timed{false};
std::atomic<int64_t> calling_ns{0}, waiting_ns{0};

// Adds the time that it lives.
class Span {
 public:
  explicit Span(std::atomic<int64_t>& sum) : sum_(sum) {}
  ~Span() {
    sum_.fetch_add(std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - start_).count(),
                   std::memory_order_relaxed);
  }
  Span(const Span&) = delete;
  Span& operator=(const Span&) = delete;

 private:
  std::atomic<int64_t>& sum_;
  const Clock::time_point start_ = Clock::now();
};

class TimedWait final : public runtime::WorkState {
 public:
  explicit TimedWait(runtime::Work inner) : inner_(std::move(inner)) { Reset(1); }

 private:
  void Wait(runtime::Deadline deadline) override {
    const Span span(waiting_ns);
    const absl::Status status = inner_.Wait(deadline);
    if (!done() && inner_.Done()) Complete(status);
  }
  runtime::Work inner_;
};

double Seconds(const std::atomic<int64_t>& sum) {
  return static_cast<double>(sum.load(std::memory_order_relaxed)) * 1e-9;
}

}  // namespace

CommunicationTimer::CommunicationTimer() {
  Reset();
  timed = true;
}

CommunicationTimer::~CommunicationTimer() { timed = false; }

double CommunicationTimer::calling() const { return Seconds(calling_ns); }

double CommunicationTimer::waiting() const { return Seconds(waiting_ns); }

void CommunicationTimer::Reset() {
  calling_ns = 0;
  waiting_ns = 0;
}

bool CommunicationIsTimed() { return timed.load(std::memory_order_relaxed); }

runtime::Work TimeCommunication(const std::function<runtime::Work()>& call) {
  const Span span(calling_ns);
  return runtime::Work::Adopt(new TimedWait(call()));
}

}  // namespace cohort::trainer
