// collperf on device memory over the fake NCCL, whose ranks are threads of one process: every operation is checked, and
// spoilt results are counted.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cohort/runtime/base/mutex.h"
#include "cohort/runtime/base/status_macros.h"
#include "tests/support/fake_nccl/fake_nccl.h"
#include "tools/collperf/options.h"
#include "tools/collperf/point.h"
#include "tools/collperf/rank_session.h"

namespace cohort::collperf {
namespace {

class ThreadStore : public runtime::KeyValueStore {
 public:
  absl::Status Put(std::string_view key, std::string_view value) override {
    const runtime::MutexLock lock(mutex_);
    if (!values_.emplace(key, value).second) return absl::AlreadyExistsError(std::string(key));
    changed_.NotifyAll();
    return absl::OkStatus();
  }
  absl::StatusOr<std::string> Get(std::string_view key, runtime::Deadline deadline) override {
    const runtime::MutexLock lock(mutex_);
    while (true) {
      const auto found = values_.find(std::string(key));
      if (found != values_.end()) return found->second;
      if (!changed_.Wait(mutex_, deadline)) return absl::NotFoundError(std::string(key) + " is not there");
    }
  }

 private:
  runtime::Mutex mutex_;
  runtime::CondVar changed_;
  std::map<std::string, std::string> values_;
};

int LiveAllocations() {
  void* const fake = dlopen(COHORT_FAKE_NCCL, RTLD_NOW | RTLD_LOCAL);
  return reinterpret_cast<decltype(&FakeCudaLiveAllocations)>(dlsym(fake, "FakeCudaLiveAllocations"))();
}

Options OptionsOf(std::vector<const char*> arguments) {
  arguments.insert(arguments.begin(), {"collperf", "--memory", "cuda", "-n", "3", "-w", "1"});
  const Parsed parsed = ParseCommandLine(static_cast<int>(arguments.size()), arguments.data());
  EXPECT_FALSE(parsed.ends) << parsed.text;
  return parsed.options;
}

absl::Status MeasureAll(runtime::KeyValueStore* store, int rank, int ranks, const Options& options,
                        std::vector<Result>* results) {
  runtime::RuntimeOptions joining;
  joining.bootstrap = runtime::BootstrapFromStore(store, rank, ranks);
  COHORT_ASSIGN_OR_RETURN(std::unique_ptr<runtime::Runtime> runtime, runtime::Runtime::Init(std::move(joining)));
  COHORT_ASSIGN_OR_RETURN(const std::unique_ptr<RankSession> session,
                          RankSession::Start(std::move(runtime), "", options.memory));
  COHORT_RETURN_IF_ERROR(session->ConnectDevices(options.algorithm));
  EXPECT_NE(session->DescribeDevice().find(", NCCL 2.28.9"), std::string::npos) << session->DescribeDevice();
  for (const measure::Operation operation : options.operations) {
    COHORT_ASSIGN_OR_RETURN(const Buffers buffers, Buffers::Make(*session, options, operation, options.sizes.back()));
    for (const NamedType& type : options.types) {
      for (const NamedOp& op : options.ops) {
        COHORT_ASSIGN_OR_RETURN(const Result result,
                                Measure(*session, options, buffers, operation, type, op, options.sizes.back()));
        results->push_back(result);
      }
    }
  }
  return session->Finish();
}

// Rank 0's results.
std::vector<Result> RunRanks(int ranks, const Options& options) {
  ThreadStore store;
  std::vector<std::vector<Result>> results(static_cast<size_t>(ranks));
  std::vector<absl::Status> statuses(results.size());
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    const auto index = static_cast<size_t>(rank);
    threads.emplace_back(
        [&, rank, index] { statuses[index] = MeasureAll(&store, rank, ranks, options, &results[index]); });
  }
  for (std::thread& thread : threads) thread.join();
  for (const absl::Status& status : statuses) EXPECT_TRUE(status.ok()) << status;
  return results[0];
}

class CollperfDevice : public ::testing::Test {
 protected:
  void SetUp() override {
    setenv("COHORT_NCCL_LIBRARY", COHORT_FAKE_NCCL, 1);
    setenv("COHORT_CUDA_LIBRARY", COHORT_FAKE_NCCL, 1);
  }
  void TearDown() override { EXPECT_EQ(LiveAllocations(), 0); }
};

TEST_F(CollperfDevice, EveryOperationIsChecked) {
  for (const int ranks : {2, 3}) {
    for (const std::vector<const char*>& more :
         {std::vector<const char*>{}, {"--in-place"}, {"--batch", "600"}, {"-d", "half,int16", "-o", "sum,max"}}) {
      std::vector<const char*> arguments{"all", "-e", "4K", "-r", "1"};
      arguments.insert(arguments.end(), more.begin(), more.end());
      const Options options = OptionsOf(arguments);
      const std::vector<Result> results = RunRanks(ranks, options);
      EXPECT_EQ(results.size(), 9 * options.types.size() * options.ops.size());
      for (const Result& result : results) {
        EXPECT_EQ(result.wrong, 0) << measure::Name(result.operation) << " of " << ranks;
        EXPECT_EQ(result.algorithm, "nccl");
        EXPECT_GT(result.us.median, 0);
      }
    }
  }
}

TEST_F(CollperfDevice, DeterminismLevelsAreCompared) {
  for (const Result& result : RunRanks(2, OptionsOf({"all_reduce", "-e", "4K", "--determinism", "order_invariant"}))) {
    EXPECT_EQ(result.wrong, 0);
    EXPECT_GT(result.fast_us, 0);
  }
}

TEST_F(CollperfDevice, SpoiltElementsAreCounted) {
  for (const Result& result : RunRanks(2, OptionsOf({"all_reduce,all_to_all,send_recv", "-e", "4K", "--spoil"}))) {
    EXPECT_EQ(result.wrong, 4);  // one on each rank in each of two checked calls
  }
}

}  // namespace
}  // namespace cohort::collperf
