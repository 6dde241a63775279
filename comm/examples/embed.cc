// cohort::comm inside a program that is no cohort program: it links the installed package and adds up one number a
// rank. Under dlaunch it is a rank of the job; started alone it is its own launcher: it forks four ranks that meet
// through a key-value store of its own (here a directory; MPI's or a scheduler's would do as well).
//
//   embed [ranks]
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "cohort/comm/communicator.h"
#include "cohort/runtime/bootstrap/bootstrap.h"
#include "cohort/runtime/runtime.h"

namespace {

using cohort::comm::Buffer;
using cohort::comm::CallOptions;
using cohort::comm::Communicator;
using cohort::comm::ConstBuffer;
using cohort::comm::ReduceOp;
using cohort::runtime::Deadline;
using cohort::runtime::KeyValueStore;
using cohort::runtime::Runtime;
using cohort::runtime::RuntimeOptions;

// A key is a file: written under another name and renamed, so that readers see all of it or nothing.
class DirectoryStore : public KeyValueStore {
 public:
  explicit DirectoryStore(std::filesystem::path directory) : directory_(std::move(directory)) {}

  absl::Status Put(std::string_view key, std::string_view value) override {
    const std::filesystem::path path = PathOf(key);
    std::filesystem::path fresh = path;
    fresh += ".new";
    std::ofstream out(fresh, std::ios::binary);
    out.write(value.data(), static_cast<std::streamsize>(value.size()));
    out.close();
    std::error_code error;
    if (out.good()) std::filesystem::rename(fresh, path, error);
    if (!out.good() || error) return absl::UnavailableError("can't write " + path.string());
    return absl::OkStatus();
  }

  absl::StatusOr<std::string> Get(std::string_view key, Deadline deadline) override {
    const std::filesystem::path path = PathOf(key);
    while (!std::filesystem::exists(path)) {
      if (deadline.passed()) return absl::DeadlineExceededError("nobody has put " + std::string(key));
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    std::ifstream in(path, std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(in), {});
  }

 private:
  std::filesystem::path PathOf(std::string_view key) const {
    std::string name(key);
    for (char& c : name) {
      if (c == '/') c = '_';
    }
    return directory_ / name;
  }
  std::filesystem::path directory_;
};

int Fail(const char* what, const absl::Status& status) {
  std::fprintf(stderr, "%s: %s\n", what, std::string(status.message()).c_str());
  return 1;
}

// Runs one rank, however it was started.
int RunRank(RuntimeOptions options) {
  absl::StatusOr<std::unique_ptr<Runtime>> runtime = Runtime::Init(std::move(options));
  if (!runtime.ok()) return Fail("init", runtime.status());
  absl::StatusOr<std::unique_ptr<Communicator>> world = Communicator::World(**runtime);
  if (!world.ok()) return Fail("world", world.status());

  const int64_t count = 1000;
  std::vector<float> in(count, static_cast<float>((*runtime)->rank() + 1));
  std::vector<float> out(count);
  const CallOptions call_options = {.timeout = std::chrono::minutes(1)};  // ten, unless it is set
  const absl::Status status =
      (*world)
          ->AllReduce(ConstBuffer(in.data(), count), Buffer(out.data(), count), ReduceOp::kSum, call_options)
          .Wait();
  if (!status.ok()) return Fail("all_reduce", status);

  const int size = (*world)->size();
  const auto expected = static_cast<float>(size * (size + 1) / 2);
  for (const float value : out) {
    if (value != expected) return Fail("all_reduce", absl::InternalError("wrong sum " + std::to_string(value)));
  }
  if ((*world)->rank() == 0) std::printf("sum over %d ranks: %g\n", size, static_cast<double>(expected));
  world->reset();
  const absl::Status end = (*runtime)->Finalize();
  return end.ok() ? 0 : Fail("finalize", end);
}

int RunJob(int ranks) {
  std::error_code error;
  const std::filesystem::path folder = std::filesystem::temp_directory_path(error);
  if (error) {
    std::fprintf(stderr, "embed: no folder for temporary files: %s; set TMPDIR\n", error.message().c_str());
    return 1;
  }
  std::string directory = (folder / "embed-XXXXXX").string();
  if (mkdtemp(directory.data()) == nullptr) {
    std::perror("mkdtemp");
    return 1;
  }
  std::vector<pid_t> children;
  for (int rank = 0; rank < ranks; ++rank) {
    const pid_t child = fork();
    if (child == 0) {
      DirectoryStore store(directory);
      RuntimeOptions options;
      options.bootstrap = cohort::runtime::BootstrapFromStore(&store, rank, ranks);
      const int code = RunRank(std::move(options));
      std::fflush(nullptr);
      _exit(code);
    }
    children.push_back(child);
  }
  int failed = 0;
  for (const pid_t child : children) {
    int status = 0;
    if (child < 0 || waitpid(child, &status, 0) != child || status != 0) ++failed;
  }
  std::filesystem::remove_all(directory);
  if (failed > 0) std::fprintf(stderr, "%d of %d ranks failed\n", failed, ranks);
  return failed == 0 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  if (std::getenv("COHORT_AGENT") != nullptr) return RunRank({});
  const int ranks = argc > 1 ? std::atoi(argv[1]) : 4;
  if (ranks < 1 || ranks > 64) {
    std::fprintf(stderr, "usage: embed [ranks], 1 to 64\n");
    return 2;
  }
  return RunJob(ranks);
}
