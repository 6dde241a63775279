#include "tests/comm/nccl/nccl_world.h"

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <thread>
#include <utility>

#include "cohort/runtime/base/mutex.h"
#include "cohort/runtime/engine/engine.h"
#include "cohort/runtime/segment/black_box.h"

namespace cohort::comm {
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
      if (!changed_.Wait(mutex_, deadline)) return absl::DeadlineExceededError(std::string(key) + " is not there");
    }
  }

 private:
  runtime::Mutex mutex_;
  runtime::CondVar changed_;
  std::map<std::string, std::string> values_;
};

}  // namespace

class NcclRank::Source : public runtime::ProgressSource {
 public:
  explicit Source(Provider* provider) : provider_(provider) {}
  bool Poll() override { return provider_->Poll(); }
  bool Active() const override { return provider_->Active(); }
  int Arm(bool*) override {
    provider_->Arm();
    return -1;
  }

 private:
  Provider* const provider_;
};

NcclRank::NcclRank(runtime::Runtime* runtime, std::vector<int> members, const NcclOptions& options, uint64_t id)
    : stream_(std::make_unique<FakeStream>()) {
  group_.id = id;
  group_.epoch = 1;
  group_.rank = static_cast<int>(std::find(members.begin(), members.end(), runtime->rank()) - members.begin());
  group_.size = static_cast<int>(members.size());
  group_.members = std::move(members);
  group_.runtime = runtime;
  group_.drive = [runtime](const std::function<bool()>& done, runtime::Deadline deadline) {
    return runtime->engine().DriveUntil([&done] { return done(); }, deadline);
  };
  group_.fail = [this](const absl::Status& status, int) {
    if (!failure_.ok()) return;
    failure_ = status;
    provider_->Fail(status);
  };
  absl::StatusOr<std::unique_ptr<Provider>> provider = MakeNcclProvider(&group_, options);
  if (!provider.ok()) {
    failure_ = provider.status();
    return;
  }
  provider_ = *std::move(provider);
  source_ = std::make_unique<Source>(provider_.get());
  const runtime::EngineLock lock(runtime->engine());
  runtime->engine().Add(source_.get());
}

NcclRank::~NcclRank() {
  const runtime::EngineLock lock(group_.runtime->engine());
  if (source_ != nullptr) group_.runtime->engine().Remove(source_.get());
  provider_.reset();
}

runtime::Work NcclRank::Launch(CollectiveRequest request, void* stream, std::chrono::nanoseconds timeout) {
  const runtime::EngineLock lock(group_.runtime->engine());
  request.memory = MemoryKind::kCuda;
  AcceptedCall call;
  call.request = request;
  call.timeout = timeout;
  call.stream = stream == nullptr ? stream_->get() : stream;
  call.record.signature.group = group_.id;
  call.record.signature.epoch = group_.epoch;
  call.record.signature.sequence = ++sequence_;
  call.record.signature.kind = static_cast<uint16_t>(request.kind);
  call.record.group_rank = group_.rank;
  call.record.group_size = group_.size;
  call.record.device = static_cast<int16_t>(request.device);
  const absl::StatusOr<ServicePlan> choice = provider_->Choose(request, "");
  if (!choice.ok()) return runtime::Work::Finished(choice.status());
  call.service = *choice;
  call.record.signature.tuning = choice->tuning;
  call.ticket = group_.runtime->segment().black_box().Start(call.record);
  return provider_->Launch(call);
}

absl::Status NcclRank::Run(const CollectiveRequest& request, std::chrono::nanoseconds timeout) {
  return Launch(request, nullptr, timeout).Wait(std::chrono::seconds(20));
}

namespace {

const char* FakeLibrary() {
  const char* chosen = std::getenv("COHORT_TEST_FAKE_NCCL");
  return chosen == nullptr ? COHORT_FAKE_NCCL : chosen;
}

}  // namespace

NcclOptions FakeOptions() { return {FakeLibrary(), FakeLibrary(), "", nullptr}; }

CollectiveRequest Barrier(int device) {
  CollectiveRequest request;
  request.kind = CollectiveKind::kBarrier;
  request.device = device;
  return request;
}

const FakeNccl& TheFake() {
  static const FakeNccl fake = [] {
    void* library = dlopen(FakeLibrary(), RTLD_NOW | RTLD_LOCAL);
    return FakeNccl{reinterpret_cast<decltype(&FakeNcclConfigure)>(dlsym(library, "FakeNcclConfigure")),
                    reinterpret_cast<decltype(&FakeNcclLiveCommunicators)>(dlsym(library, "FakeNcclLiveCommunicators")),
                    reinterpret_cast<decltype(&FakeNcclMade)>(dlsym(library, "FakeNcclMade")),
                    reinterpret_cast<decltype(&FakeCudaLiveAllocations)>(dlsym(library, "FakeCudaLiveAllocations")),
                    library};
  }();
  return fake;
}

FakeStream::FakeStream() {
  TheFake().Find<decltype(&cudaStreamCreateWithFlags)>("cudaStreamCreateWithFlags")(&stream_, 0);
}

FakeStream::~FakeStream() {
  TheFake().Find<decltype(&cudaStreamDestroy)>("cudaStreamDestroy")(stream_);
  for (cudaGraph_t graph : graphs_) TheFake().Find<decltype(&cudaGraphDestroy)>("cudaGraphDestroy")(graph);
}

void FakeStream::BeginCapture() {
  TheFake().Find<decltype(&cudaStreamBeginCapture)>("cudaStreamBeginCapture")(stream_, cudaStreamCaptureModeGlobal);
}

cudaGraphExec_t FakeStream::EndCapture() {
  cudaGraph_t graph = nullptr;
  TheFake().Find<decltype(&cudaStreamEndCapture)>("cudaStreamEndCapture")(stream_, &graph);
  graphs_.push_back(graph);
  return reinterpret_cast<cudaGraphExec_t>(graph);  // the fake's graphs are executable
}

void FakeStream::Replay(cudaGraphExec_t graph) {
  TheFake().Find<decltype(&cudaGraphLaunch)>("cudaGraphLaunch")(graph, stream_);
  TheFake().Find<decltype(&cudaStreamSynchronize)>("cudaStreamSynchronize")(stream_);
}

std::vector<std::string> RunNcclRanks(int size, const std::function<std::string(NcclRank&)>& body) {
  ThreadStore store;
  std::vector<std::string> problems(static_cast<size_t>(size));
  std::vector<int> members;
  for (int rank = 0; rank < size; ++rank) members.push_back(rank);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      std::string& problem = problems[static_cast<size_t>(rank)];
      runtime::RuntimeOptions options;
      options.bootstrap = runtime::BootstrapFromStore(&store, rank, size);
      absl::StatusOr<std::unique_ptr<runtime::Runtime>> runtime = runtime::Runtime::Init(std::move(options));
      if (!runtime.ok()) {
        problem = runtime.status().ToString();
        return;
      }
      NcclRank self(runtime->get(), members, FakeOptions());
      problem = self.failure().ok() ? body(self) : self.failure().ToString();
    });
  }
  for (std::thread& thread : threads) thread.join();
  return problems;
}

void ExpectNoProblem(const std::vector<std::string>& problems) {
  for (size_t rank = 0; rank < problems.size(); ++rank) EXPECT_EQ(problems[rank], "") << "rank " << rank;
}

}  // namespace cohort::comm
