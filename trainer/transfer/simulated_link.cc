#include "cohort/trainer/transfer/simulated_link.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "cohort/runtime/base/mutex.h"

namespace cohort::trainer {
namespace {

// The one link that transfers share, if there is one.
struct Link {
  double latency = 0, seconds_per_byte = 0;
  double now = 0, free = 0;  // of the clock; when what was called so far is through
  double computed = 0, communicated = 0, exposed = 0;
};
runtime::Mutex link_mutex;
Link link COHORT_GUARDED_BY(link_mutex);

// A call that is through at some time of the link's clock.
class TimedCall final : public runtime::WorkState {
 public:
  TimedCall(runtime::Work inner, double sent_bytes) : inner_(std::move(inner)) {
    Reset(1);
    runtime::MutexLock lock(link_mutex);
    const double takes = link.latency + link.seconds_per_byte * sent_bytes;
    link.communicated += takes;
    link.free = std::max(link.free, link.now) + takes;
    through_ = link.free;
  }

 private:
  void Wait(runtime::Deadline deadline) override {
    const absl::Status status = inner_.Wait(deadline);
    if (done() || !inner_.Done()) return;
    {
      runtime::MutexLock lock(link_mutex);
      link.exposed += std::max(0.0, through_ - link.now);
      link.now = std::max(link.now, through_);
    }
    Complete(status);
  }
  runtime::Work inner_;
  double through_ = 0;
};

}  // namespace

SimulatedLink::SimulatedLink(double latency, double seconds_per_byte) {
  before_ = ExchangeCallObserver(this);
  runtime::MutexLock lock(link_mutex);
  link = {.latency = latency, .seconds_per_byte = seconds_per_byte};
}

SimulatedLink::~SimulatedLink() { ExchangeCallObserver(before_); }

void SimulatedLink::Compute(double seconds) {
  runtime::MutexLock lock(link_mutex);
  link.now += seconds;
  link.computed += seconds;
}

double SimulatedLink::computed() const {
  runtime::MutexLock lock(link_mutex);
  return link.computed;
}

double SimulatedLink::communicated() const {
  runtime::MutexLock lock(link_mutex);
  return link.communicated;
}

double SimulatedLink::exposed() const {
  runtime::MutexLock lock(link_mutex);
  return link.exposed;
}

void SimulatedLink::Reset() {
  runtime::MutexLock lock(link_mutex);
  link = {.latency = link.latency, .seconds_per_byte = link.seconds_per_byte};
}

runtime::Work SimulatedLink::OnCall(const ObservedCall& call, std::function<runtime::Work()> start) {
  return runtime::Work::Adopt(new TimedCall(start(), call.sent_bytes));
}

}  // namespace cohort::trainer
