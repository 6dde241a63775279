// What every algorithm takes at every point of a grid of operations and sizes, in turn; a rank of a dlaunch job. Rank 0
// prints a line of CSV for each point: what the selector chose, what was best, and all medians.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "comm/algorithm/registry.h"
#include "comm/communicator.h"
#include "runtime/runtime.h"
#include "tools/program/program.h"

namespace cohort::bench {
namespace {

using comm::AlgorithmInfo;
using comm::Buffer;
using comm::CollectiveKind;
using comm::Communicator;
using comm::ConstBuffer;
using comm::ReduceOp;

struct Options {
  std::string transport = "shm";  // a label
  std::vector<int64_t> sizes;
  int rounds = 7;
};

void Require(const absl::Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "tuner_grid: %s\n", std::string(status.message()).c_str());
  std::exit(1);
}

class Grid {
 public:
  Grid(Communicator& world, const Options& options) : world_(world), options_(options) {
    const int64_t most = *std::max_element(options.sizes.begin(), options.sizes.end());
    in_.resize(static_cast<size_t>(most * world.size()) / sizeof(float) + 1, 1.0f);
    out_.resize(in_.size(), 0.0f);
  }

  void Run() {
    if (world_.rank() == 0) std::printf("op,transport,ranks,bytes,chosen,chosen_us,best,best_us,ratio,medians\n");
    for (int kind = 1; kind <= static_cast<int>(CollectiveKind::kBarrier); ++kind) {
      for (const int64_t bytes : options_.sizes) {
        Point(static_cast<CollectiveKind>(kind), bytes);
        if (static_cast<CollectiveKind>(kind) == CollectiveKind::kBarrier) break;
      }
    }
  }

 private:
  struct Candidate {
    const AlgorithmInfo* algorithm;
    std::vector<uint64_t> samples = {};  // nanoseconds of the slowest rank
    double median_us = 0;
  };

  absl::Status Call(CollectiveKind kind, int64_t count, const comm::CallOptions& options) {
    const int64_t all = count * world_.size();
    const auto in = [&](int64_t elements) { return ConstBuffer(in_.data(), elements); };
    const auto out = [&](int64_t elements) { return Buffer(out_.data(), elements); };
    switch (kind) {
      case CollectiveKind::kBroadcast:
        return world_.Broadcast(out(count), 0, options).Wait();
      case CollectiveKind::kReduce:
        return world_.Reduce(in(count), out(count), ReduceOp::kSum, 0, options).Wait();
      case CollectiveKind::kAllReduce:
        return world_.AllReduce(in(count), out(count), ReduceOp::kSum, options).Wait();
      case CollectiveKind::kGather:
        return world_.Gather(in(count), out(all), 0, options).Wait();
      case CollectiveKind::kScatter:
        return world_.Scatter(in(all), out(count), 0, options).Wait();
      case CollectiveKind::kAllGather:
        return world_.AllGather(in(count), out(all), options).Wait();
      case CollectiveKind::kReduceScatter:
        return world_.ReduceScatter(in(all), out(count), ReduceOp::kSum, options).Wait();
      case CollectiveKind::kAllToAll:
        return world_.AllToAll(in(all), out(all), options).Wait();
      default:
        return world_.Barrier(options).Wait();
    }
  }

  void Measure(CollectiveKind kind, int64_t bytes, int calls, Candidate* candidate) {
    using Clock = std::chrono::steady_clock;
    comm::CallOptions options;
    options.algorithm = std::string(candidate->algorithm->name);
    const int64_t count = bytes / static_cast<int64_t>(sizeof(float));
    std::vector<uint64_t> times;
    Require(Call(kind, count, options));
    for (int i = 0; i < calls; ++i) {
      Require(world_.Barrier().Wait());
      const Clock::time_point begin = Clock::now();
      Require(Call(kind, count, options));
      times.push_back(static_cast<uint64_t>((Clock::now() - begin).count()));
    }
    std::vector<uint64_t> slowest(times.size());
    const auto samples = static_cast<int64_t>(times.size());
    Require(
        world_.AllReduce(ConstBuffer(times.data(), samples), Buffer(slowest.data(), samples), ReduceOp::kMax).Wait());
    candidate->samples.insert(candidate->samples.end(), slowest.begin(), slowest.end());
  }

  // The name behind the star of Explain's list.
  std::string Chosen(CollectiveKind kind, int64_t bytes) {
    const std::string text =
        world_.Explain(kind, bytes / static_cast<int64_t>(sizeof(float)), comm::DataType::kFloat32);
    const size_t star = text.find("  * ");
    if (star == std::string::npos) return "";
    const size_t end = text.find(' ', star + 4);
    return text.substr(star + 4, end - star - 4);
  }

  void Point(CollectiveKind kind, int64_t bytes) {
    std::vector<Candidate> candidates;
    for (const AlgorithmInfo& algorithm : comm::Algorithms()) {
      if (algorithm.kind != kind || !comm::CheckRequirements(algorithm, world_.size()).ok()) continue;
      candidates.push_back({&algorithm});
    }
    const int calls = bytes <= 4096 ? 40 : bytes <= 65536 ? 15 : bytes <= 1 << 20 ? 4 : 2;
    for (int round = 0; round < options_.rounds; ++round) {
      for (Candidate& candidate : candidates) Measure(kind, bytes, calls, &candidate);
    }
    if (world_.rank() != 0) return;
    const std::string chosen = Chosen(kind, bytes);
    const Candidate* best = nullptr;
    double chosen_us = 0;
    std::string medians;
    for (Candidate& candidate : candidates) {
      auto middle = candidate.samples.begin() + static_cast<int64_t>(candidate.samples.size() / 2);
      std::nth_element(candidate.samples.begin(), middle, candidate.samples.end());
      candidate.median_us = static_cast<double>(*middle) / 1e3;
      if (best == nullptr || candidate.median_us < best->median_us) best = &candidate;
      if (candidate.algorithm->name == chosen) chosen_us = candidate.median_us;
      char text[96];
      std::snprintf(text, sizeof text, "%s%s=%.2f", medians.empty() ? "" : " ",
                    std::string(candidate.algorithm->name).c_str(), candidate.median_us);
      medians += text;
    }
    std::printf(
        "%s,%s,%d,%lld,%s,%.2f,%s,%.2f,%.3f,%s\n", std::string(comm::Name(kind)).c_str(), options_.transport.c_str(),
        world_.size(), static_cast<long long>(kind == CollectiveKind::kBarrier ? 0 : bytes), chosen.c_str(), chosen_us,
        std::string(best->algorithm->name).c_str(), best->median_us, chosen_us / best->median_us, medians.c_str());
    std::fflush(stdout);
  }

  Communicator& world_;
  const Options& options_;
  std::vector<float> in_, out_;
};

int Main(int argc, char** argv) {
  CLI::App app("Times every algorithm on a grid of operations and sizes; a rank of a dlaunch job.");
  Options options;
  bool brief = false;
  bool calibrate = false;
  app.add_option("--transport", options.transport, "label for the lines");
  app.add_option("--sizes", options.sizes, "bytes of the block")->check(CLI::Range(4, 1 << 28));
  app.add_option("--rounds", options.rounds, "turns of each algorithm")->check(CLI::Range(1, 1000));
  app.add_flag("--short", brief, "few sizes and turns");
  app.add_flag("--calibrate", calibrate, "use the table of a calibration run, and print it first");
  if (const std::optional<int> status = tools::ParseCommandLine(app, argc, argv)) return *status;
  if (options.sizes.empty()) {
    options.sizes = brief ? std::vector<int64_t>{8, 4096, 262144}
                          : std::vector<int64_t>{8, 512, 4096, 16384, 65536, 262144, 1 << 20, 4 << 20};
  }
  if (brief) options.rounds = std::min(options.rounds, 3);
  auto runtime = runtime::Runtime::Init();
  Require(runtime.status());
  auto world = Communicator::World(**runtime);
  Require(world.status());
  if (calibrate) {
    const absl::StatusOr<std::string> table = comm::Calibrate(**world);
    Require(table.status());
    if ((*world)->rank() == 0) std::printf("# %s\n", table->c_str());
  }
  Grid(**world, options).Run();
  world->reset();
  Require((*runtime)->Finalize());
  return 0;
}

}  // namespace
}  // namespace cohort::bench

int main(int argc, char** argv) {
  return cohort::tools::RunProgram("tuner_grid", [=] { return cohort::bench::Main(argc, argv); });
}
