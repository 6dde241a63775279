// One rank of a job that loses its last rank, shrinks, and is preempted: `shrink_preemption_ranks HOW FOLDER`. All
// ranks take part in each step. The remaining ranks print the step that they stopped before, and their number.
//
//   told    the last rank dies when it has said its step, and before rank 0 has got the notice
//   before  the last rank dies before there is a notice; the others say "goes on" when they have shrunk
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <thread>

#include "cohort/comm/communicator.h"
#include "cohort/runtime/runtime.h"

namespace cohort::testing {
namespace {

using std::chrono::milliseconds;

constexpr uint64_t kLastWhole = 2;  // the step in which a rank is lost

class Rank {
 public:
  Rank(runtime::Runtime& runtime, comm::Communicator& world, bool told, const std::string& folder)
      : runtime_(runtime), world_(world), told_(told), dying_(folder + "/dying") {}

  // Until the job is preempted; "" or what is wrong.
  std::string Run() {
    for (;;) {
      bool stopped = false;
      const absl::Status status = Step(&stopped);
      if (stopped) return "";
      if (status.ok()) {
        ++step_;
      } else if (std::string wrong = Recover(status); !wrong.empty()) {
        return wrong;
      }
    }
  }

 private:
  comm::Communicator& group() { return shrunk_ != nullptr ? *shrunk_ : world_; }

  absl::Status Step(bool* stopped) {
    const absl::StatusOr<bool> stop = runtime_.OnPreemption(step_);
    if (!stop.ok()) return stop.status();
    if (*stop) {
      if (const absl::Status saved = group().Barrier().Wait(); !saved.ok()) return saved;
      std::printf("stopped before step %llu among %d\n", static_cast<unsigned long long>(step_), group().size());
      *stopped = true;
      return absl::OkStatus();
    }
    if (step_ == kLastWhole && shrunk_ == nullptr) Lose();
    int64_t sum = 1;
    const comm::Buffer buffer(&sum, 1);
    if (const absl::Status status = group().AllReduce(buffer, buffer, comm::ReduceOp::kSum).Wait(); !status.ok()) {
      return status;
    }
    std::this_thread::sleep_for(std::chrono::microseconds(100));  // a step's work
    return sum == group().size() ? absl::OkStatus() : absl::DataLossError("wrong sum");
  }

  void Lose() {
    std::printf("under way\n");
    std::fflush(stdout);
    if (world_.rank() == world_.size() - 1) {
      while (told_ && !absl::IsDeadlineExceeded(runtime_.OnPreemption(step_, milliseconds(10)).status())) {
      }
      std::ofstream(dying_) << "now";
      kill(getpid(), SIGKILL);
    }
    // Does not look at its messages meanwhile, so that the ranks can't agree.
    while (world_.rank() == 0 && !std::filesystem::exists(dying_)) std::this_thread::sleep_for(milliseconds(1));
  }

  // Goes back to the earliest step that one of those left has not ended.
  std::string Recover(const absl::Status& status) {
    if (!absl::IsUnavailable(status)) return "not kUnavailable: " + status.ToString();
    while (group().status().ok()) (void)group().Barrier().Wait();  // OnPreemption may have seen the loss first
    auto shrunk = group().Shrink();
    if (!shrunk.ok()) return shrunk.status().ToString();
    shrunk_ = *std::move(shrunk);
    const comm::Buffer buffer(&step_, 1);
    const absl::Status agreed = shrunk_->AllReduce(buffer, buffer, comm::ReduceOp::kMin).Wait();
    if (!agreed.ok()) return "after the shrink: " + agreed.ToString();
    std::printf("goes on\n");
    std::fflush(stdout);
    return "";
  }

  runtime::Runtime& runtime_;
  comm::Communicator& world_;
  const bool told_;
  const std::string dying_;
  std::unique_ptr<comm::Communicator> shrunk_;
  uint64_t step_ = 0;
};

int Main(int argc, char** argv) {
  if (argc != 3) return 2;
  auto runtime = runtime::Runtime::Init();
  if (!runtime.ok()) {
    std::fprintf(stderr, "init: %s\n", runtime.status().ToString().c_str());
    return 1;
  }
  auto world = comm::Communicator::World(**runtime);
  const std::string wrong =
      !world.ok() ? world.status().ToString() : Rank(**runtime, **world, argv[1] == std::string("told"), argv[2]).Run();
  if (!wrong.empty()) std::fprintf(stderr, "wrong: %s\n", wrong.c_str());
  return wrong.empty() ? 0 : 1;
}

}  // namespace
}  // namespace cohort::testing

int main(int argc, char** argv) { return cohort::testing::Main(argc, argv); }
