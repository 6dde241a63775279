#include "tests/support/process_cluster.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <climits>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <memory>
#include <optional>
#include <utility>

namespace cohort::testing {
namespace {

using runtime::Deadline;
using Clock = std::chrono::steady_clock;

// Append-only, in memory that all processes share; waiting is a futex on the number of entries.
class SharedStore : public runtime::KeyValueStore {
 public:
  SharedStore() {
    void* memory =
        mmap(nullptr, sizeof(Table), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    table_ = memory == MAP_FAILED ? nullptr : new (memory) Table;
  }
  ~SharedStore() override {
    if (table_ != nullptr) munmap(table_, sizeof(Table));
  }
  bool ok() const { return table_ != nullptr; }

  absl::Status Put(std::string_view key, std::string_view value) override {
    const uint32_t index = table_->used.fetch_add(1);
    const uint32_t offset = table_->bytes_used.fetch_add(static_cast<uint32_t>(key.size() + value.size()));
    if (index >= kEntries || offset + key.size() + value.size() > kBytes) {
      return absl::ResourceExhaustedError("the test's store is full");
    }
    std::memcpy(table_->bytes + offset, key.data(), key.size());
    std::memcpy(table_->bytes + offset + key.size(), value.data(), value.size());
    Entry& entry = table_->entries[index];
    entry.offset = offset;
    entry.key_bytes = static_cast<uint32_t>(key.size());
    entry.value_bytes = static_cast<uint32_t>(value.size());
    entry.ready.store(1, std::memory_order_release);
    table_->puts.fetch_add(1, std::memory_order_release);
    syscall(SYS_futex, &table_->puts, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
    return absl::OkStatus();
  }

  absl::StatusOr<std::string> Get(std::string_view key, Deadline deadline) override {
    while (true) {
      const uint32_t puts = table_->puts.load(std::memory_order_acquire);
      if (std::optional<std::string> value = Find(key); value.has_value()) return *std::move(value);
      if (deadline.passed()) return absl::DeadlineExceededError("nobody has put " + std::string(key));
      WaitForPut(puts, deadline);
    }
  }

  // True once `count` processes have called it with this name.
  bool Meet(const std::string& name, int count, Deadline deadline) {
    if (!Put("meet/" + name, "").ok()) return false;
    while (true) {
      const uint32_t puts = table_->puts.load(std::memory_order_acquire);
      if (Count("meet/" + name) >= count) return true;
      if (deadline.passed()) return false;
      WaitForPut(puts, deadline);
    }
  }

 private:
  static constexpr uint32_t kEntries = 16384;
  static constexpr uint32_t kBytes = 8u << 20;
  struct Entry {
    std::atomic<uint32_t> ready{0};
    uint32_t offset = 0;
    uint32_t key_bytes = 0;
    uint32_t value_bytes = 0;
  };
  struct Table {
    std::atomic<uint32_t> used{0};
    std::atomic<uint32_t> bytes_used{0};
    std::atomic<uint32_t> puts{0};
    Entry entries[kEntries];
    char bytes[kBytes];
  };

  template <typename Function>
  void ForEach(std::string_view key, Function function) const {
    const uint32_t used = std::min(table_->used.load(std::memory_order_acquire), kEntries);
    for (uint32_t i = 0; i < used; ++i) {
      const Entry& entry = table_->entries[i];
      if (entry.ready.load(std::memory_order_acquire) == 0) continue;
      if (std::string_view(table_->bytes + entry.offset, entry.key_bytes) == key) function(entry);
    }
  }
  std::optional<std::string> Find(std::string_view key) const {
    std::optional<std::string> value;
    ForEach(key, [&](const Entry& entry) {
      value = std::string(table_->bytes + entry.offset + entry.key_bytes, entry.value_bytes);
    });
    return value;
  }
  int Count(std::string_view key) const {
    int count = 0;
    ForEach(key, [&](const Entry&) { ++count; });
    return count;
  }
  void WaitForPut(uint32_t seen, Deadline deadline) const {
    const auto left = std::min<std::chrono::nanoseconds>(deadline.left(), std::chrono::seconds(1));
    const timespec time{left.count() / 1'000'000'000, left.count() % 1'000'000'000};
    syscall(SYS_futex, &table_->puts, FUTEX_WAIT, seen, &time, nullptr, 0);
  }

  Table* table_;
};

// Makes one host into several by changing the host's name on its way into the store. A rank's report of its place
// decides which ranks share a host (BootstrapFromStore).
class NodesStore : public runtime::KeyValueStore {
 public:
  NodesStore(SharedStore* store, int rank, const ProcessClusterOptions& options) : store_(store) {
    const int per_node = (options.ranks + options.nodes - 1) / options.nodes;
    if (options.nodes > 1) prefix_ = "node" + std::to_string(rank / per_node) + "-";
  }
  absl::Status Put(std::string_view key, std::string_view value) override {
    const bool place = key.substr(0, 13) == "cohort/place/";
    return store_->Put(key, place ? prefix_ + std::string(value) : std::string(value));
  }
  absl::StatusOr<std::string> Get(std::string_view key, Deadline deadline) override {
    return store_->Get(key, deadline);
  }

 private:
  SharedStore* const store_;
  std::string prefix_;
};

std::string RunRank(const ProcessClusterOptions& options, SharedStore* store, int rank,
                    const std::function<std::string(ProcessRank&)>& program) {
  if (options.enter_node) {
    const int per_node = (options.ranks + options.nodes - 1) / options.nodes;
    if (std::string problem = options.enter_node(rank / per_node); !problem.empty()) return problem;
  }
  NodesStore nodes(store, rank, options);
  runtime::RuntimeOptions runtime_options;
  runtime_options.progress_thread = options.progress_thread;
  runtime_options.bootstrap = runtime::BootstrapFromStore(&nodes, rank, options.ranks);
  auto runtime = runtime::Runtime::Init(std::move(runtime_options));
  if (!runtime.ok()) return "init: " + std::string(runtime.status().message());
  auto world = comm::Communicator::World(**runtime);
  if (!world.ok()) return "world: " + std::string(world.status().message());
  ProcessRank self;
  self.rank = rank;
  self.size = options.ranks;
  self.runtime = runtime->get();
  self.world = world->get();
  self.meet = [store](const std::string& name, int count) {
    return store->Meet(name, count, Deadline::After(std::chrono::seconds(30)));
  };
  return program(self);
}

struct Child {
  pid_t pid = -1;
  int pipe = -1;  // its text comes here
  bool ended = false;
};

Child Fork(const ProcessClusterOptions& options, SharedStore* store, int rank, const std::vector<Child>& earlier,
           const std::function<std::string(ProcessRank&)>& program) {
  Child child;
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return child;
  const pid_t parent = getpid();
  std::fflush(nullptr);
  child.pid = fork();
  if (child.pid != 0) {
    close(ends[1]);
    child.pipe = ends[0];
    return child;
  }
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(3);
  const rlimit no_core{0, 0};
  setrlimit(RLIMIT_CORE, &no_core);
  close(ends[0]);
  for (const Child& other : earlier) close(other.pipe);
  const std::string text = RunRank(options, store, rank, program);
  for (size_t at = 0; at < text.size();) {
    const ssize_t written = write(ends[1], text.data() + at, text.size() - at);
    if (written < 0 && errno != EINTR) break;
    if (written > 0) at += static_cast<size_t>(written);
  }
  std::fflush(nullptr);
  _exit(0);
}

// Reads what has come; true at the end of the pipe, which is the end of the process.
bool Drain(Child& child, std::string* text) {
  char buffer[4096];
  const ssize_t bytes = read(child.pipe, buffer, sizeof buffer);
  if (bytes > 0) text->append(buffer, static_cast<size_t>(bytes));
  return bytes == 0;
}

void Reap(Child& child, RankResult* result) {
  int status = 0;
  while (waitpid(child.pid, &status, 0) < 0 && errno == EINTR) {
  }
  close(child.pipe);
  child.ended = true;
  result->exited = WIFEXITED(status) && WEXITSTATUS(status) == 0;
  result->signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
}

}  // namespace

std::vector<RankResult> RunProcesses(const ProcessClusterOptions& options,
                                     const std::function<std::string(ProcessRank&)>& program) {
  std::vector<RankResult> results(static_cast<size_t>(options.ranks));
  SharedStore store;
  if (!store.ok()) {
    for (RankResult& result : results) result.text = "no memory for the test's store";
    return results;
  }
  std::vector<Child> children;
  for (int rank = 0; rank < options.ranks; ++rank) {
    children.push_back(Fork(options, &store, rank, children, program));
    if (children.back().pid > 0) continue;
    results[static_cast<size_t>(rank)].text = "could not be forked";
    children.back().ended = true;
  }
  const auto deadline = Clock::now() + options.deadline;
  while (true) {
    std::vector<pollfd> waits;
    std::vector<size_t> ranks;
    for (size_t i = 0; i < children.size(); ++i) {
      if (children[i].ended) continue;
      waits.push_back({children[i].pipe, POLLIN, 0});
      ranks.push_back(i);
    }
    if (waits.empty()) return results;
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
    const int ready = poll(waits.data(), waits.size(), static_cast<int>(std::max<int64_t>(0, left)));
    for (size_t i = 0; i < waits.size(); ++i) {
      Child& child = children[ranks[i]];
      RankResult& result = results[ranks[i]];
      if (ready == 0) {
        result.hung = true;
        if (result.text.empty()) result.text = "it hung and was killed at the deadline";
        kill(child.pid, SIGKILL);
        Reap(child, &result);
      } else if (waits[i].revents != 0 && Drain(child, &result.text)) {
        Reap(child, &result);
      }
    }
  }
}

std::string WhyHostsCannotTalk() {
  ProcessClusterOptions options;
  options.ranks = options.nodes = 2;
  const std::vector<RankResult> results = RunProcesses(options, [](ProcessRank& rank) -> std::string {
    const absl::Status status = rank.world->Barrier().Wait();
    return status.code() == absl::StatusCode::kUnimplemented ? std::string(status.message()) : "";
  });
  return results[0].text;
}

}  // namespace cohort::testing
