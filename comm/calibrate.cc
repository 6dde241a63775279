// Calibration: the figures of the cost model, measured between rank 0 and its nearest peers while the others wait.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "cohort/comm/communicator.h"
#include "cohort/comm/group/group.h"
#include "cohort/comm/reduce/reduce.h"
#include "cohort/comm/select/calibration.h"
#include "cohort/runtime/base/status_macros.h"

namespace cohort::comm {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kPerFigure(60);
constexpr int kMostTries = 2000;
constexpr int kFewestTries = 5;
constexpr auto kLargeBytes = static_cast<int64_t>(kCalibrationBytes);

double MicrosecondsSince(Clock::time_point begin) {
  return std::chrono::duration<double, std::micro>(Clock::now() - begin).count();
}

// A low quantile of tries for a while. Rank 0 counts them and tells its peer when to stop, in the message itself.
class Prober {
 public:
  Prober(Communicator& group, int peer) : group_(group), peer_(peer), data_(static_cast<size_t>(kLargeBytes)) {}

  // Rank 0's side: `bytes` there and one byte back, `burst` messages at a time; microseconds of a try.
  absl::StatusOr<double> Lead(int64_t bytes, int burst) {
    std::vector<double> samples;
    const Clock::time_point first = Clock::now();
    for (bool last = false; !last;) {
      const auto tries = static_cast<int>(samples.size()) + 1;
      last = tries >= kMostTries || (tries >= kFewestTries && Clock::now() - first > kPerFigure);
      data_[0] = last ? 1 : 0;
      const Clock::time_point begin = Clock::now();
      std::vector<Work> sends;
      for (int i = 0; i < burst; ++i) sends.push_back(group_.Send(ConstBuffer(data_.data(), bytes), peer_));
      for (Work& send : sends) COHORT_RETURN_IF_ERROR(send.Wait());
      COHORT_RETURN_IF_ERROR(group_.Recv(Buffer(&back_, 1), peer_).Wait());
      samples.push_back(MicrosecondsSince(begin));
    }
    return LowQuantile(samples);
  }

  absl::Status Follow(int64_t bytes, int burst) {
    for (bool last = false; !last;) {
      for (int i = 0; i < burst; ++i) {
        COHORT_RETURN_IF_ERROR(group_.Recv(Buffer(data_.data(), bytes), peer_).Wait());
        last = data_[0] == 1;
      }
      COHORT_RETURN_IF_ERROR(group_.Send(ConstBuffer(&back_, 1), peer_).Wait());
    }
    return absl::OkStatus();
  }

 private:
  Communicator& group_;
  const int peer_;
  std::vector<uint8_t> data_;
  uint8_t back_ = 0;
};

absl::Status MeasureLevel(Communicator& group, int peer, const std::string& name, bool ranks_take_turns,
                          Tuning* tuning) {
  Prober prober(group, group.rank() == 0 ? peer : 0);
  if (group.rank() != 0) {
    COHORT_RETURN_IF_ERROR(prober.Follow(8, 1));
    COHORT_RETURN_IF_ERROR(prober.Follow(8, kCalibrationBurst));
    return prober.Follow(kLargeBytes, 1);
  }
  LevelTimes times;
  COHORT_ASSIGN_OR_RETURN(times.round_trip, prober.Lead(8, 1));
  COHORT_ASSIGN_OR_RETURN(times.burst, prober.Lead(8, kCalibrationBurst));
  COHORT_ASSIGN_OR_RETURN(times.large, prober.Lead(kLargeBytes, 1));
  const std::string kept = Adopt(name, times, ranks_take_turns, tuning);
  if (!kept.empty()) {
    std::fprintf(stderr, "cohort: calibration: %s: can't be true; calibrate while the machine is idle\n", kept.c_str());
  }
  return absl::OkStatus();
}

// Gigabytes a second that a sum of floats combines, in memory that fits the caches.
double MeasureReduction() {
  constexpr size_t kCount = 1 << 16;
  const std::vector<float> a(kCount, 1.0f), b(kCount, 2.0f);
  std::vector<float> sum(kCount);
  const ReduceKernel kernel = FindReduceKernel(DataType::kFloat32, ReduceOp::kSum);
  std::vector<double> samples;
  for (int i = 0; i < 50; ++i) {
    const Clock::time_point begin = Clock::now();
    kernel(sum.data(), a.data(), b.data(), kCount);
    samples.push_back(MicrosecondsSince(begin));
  }
  return kCount * sizeof(float) / 1e3 / std::max(LowQuantile(samples), 0.1);
}

// As far as rank 0 can see: on its own host, or on one that plays several.
bool RanksTakeTurns(runtime::Runtime& runtime, const std::vector<int>& members) {
  const auto here = std::count_if(members.begin(), members.end(),
                                  [&](int member) { return runtime.node_of(member) == runtime.node_of(members[0]); });
  if (here > runtime.segment().cpus()) return true;
  return runtime.identity().nodes_share_host && static_cast<int64_t>(members.size()) > sysconf(_SC_NPROCESSORS_ONLN);
}

}  // namespace

absl::StatusOr<std::string> Calibrate(Communicator& group) {
  runtime::Runtime& runtime = group.group_->runtime();
  const auto node = [&](int rank) { return runtime.node_of(group.members()[static_cast<size_t>(rank)]); };
  int local = 0;  // the first peers of rank 0 on its own host and on another; 0: none
  int remote = 0;
  for (int rank = group.size() - 1; rank > 0; --rank) (node(rank) == node(0) ? local : remote) = rank;
  Tuning tuning = group.group_->context().tuning;
  COHORT_RETURN_IF_ERROR(group.Barrier().Wait());
  const auto takes_part = [&group](int peer) { return peer != 0 && (group.rank() == 0 || group.rank() == peer); };
  const bool turns = RanksTakeTurns(runtime, group.members());
  if (takes_part(local)) COHORT_RETURN_IF_ERROR(MeasureLevel(group, local, "local", turns, &tuning));
  if (takes_part(remote)) COHORT_RETURN_IF_ERROR(MeasureLevel(group, remote, "remote", turns, &tuning));
  if (group.rank() == 0) AdoptReduction(MeasureReduction(), &tuning);
  COHORT_RETURN_IF_ERROR(group.SetTuning(tuning.ToString()));
  return group.tuning();
}

}  // namespace cohort::comm
