// scaler_trace SCRIPT OUTPUT: does with GradScaler what a script says, on every rank of a job, and writes what came of
// each line to OUTPUT.<rank>. pytorch_scaler_trace.py does the same with PyTorch's, and explains both files.
#include <cmath>
#include <cstdio>
#include <fstream>
#include <limits>
#include <memory>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "cohort/trainer/state/grad_scaler.h"
#include "cohort/trainer/transfer/job.h"
#include "torch/torch.h"

namespace cohort::trainer {
namespace {

constexpr int kOptimizers = 2;

// A run from one "new" to the next.
struct Run {
  GradScaler scaler;
  std::vector<at::Tensor> weights;
  std::vector<std::unique_ptr<torch::optim::SGD>> optimizers;

  Run(const GradScalerOptions& options, Job& job) : scaler(options, {&job.world()}) {
    for (int i = 0; i < kOptimizers; ++i) {
      weights.push_back((torch::ones({3}) * (1 + i + job.rank())).requires_grad_());
      optimizers.push_back(
          std::make_unique<torch::optim::SGD>(std::vector<at::Tensor>{weights[i]}, torch::optim::SGDOptions(0.125)));
    }
  }
};

at::Tensor GradientOf(const std::string& kind) {
  const float infinity = std::numeric_limits<float>::infinity();
  if (kind == "finite") return torch::tensor({0.5f, -0.25f, 0.125f});
  if (kind == "infinite") return torch::tensor({0.5f, -infinity, 0.125f});
  if (kind == "nan") return torch::tensor({0.5f, -0.25f, std::nanf("")});
  if (kind == "large") return torch::tensor({1e34f, -0.25f, 0.125f});  // overflows when it is scaled by 32768 or more
  throw std::invalid_argument("no gradient is " + kind);
}

void Execute(Run& run, const std::string& operation, std::istringstream& rest, int rank) {
  if (operation == "update") {
    double scale = 0;
    run.scaler.update(rest >> scale ? std::optional<double>(scale) : std::nullopt);
    return;
  }
  int which = 0;
  rest >> which;
  torch::optim::SGD& optimizer = *run.optimizers.at(which);
  if (operation == "unscale") {
    run.scaler.unscale_(optimizer);
  } else if (operation == "step") {
    run.scaler.step(optimizer);
  } else if (operation == "backward") {
    std::string kind;
    for (int i = 0; i <= rank; ++i) rest >> kind;
    optimizer.zero_grad();
    run.scaler.scale((run.weights[which] * GradientOf(kind)).sum()).backward();
  } else {
    throw std::invalid_argument("no operation is " + operation);
  }
}

void Report(std::FILE* file, int line, bool refused, const Run& run) {
  std::fprintf(file, "%d %s scale %.9g tracker %s", line, refused ? "refused" : "done", run.scaler.get_scale(),
               run.scaler.state_dict().at("grad_scaler.growth_tracker").c_str());
  for (int i = 0; i < kOptimizers; ++i) {
    const std::optional<bool> found = run.scaler.found_inf(*run.optimizers[i]);
    std::fprintf(file, " found %s weights", !found.has_value() ? "unknown" : *found ? "yes" : "no");
    for (int k = 0; k < 3; ++k) std::fprintf(file, " %.9g", run.weights[i][k].item<double>());
  }
  std::fprintf(file, "\n");
}

void Trace(const std::string& script, const std::string& output) {
  Job job;
  std::ifstream lines(script);
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(
      std::fopen((output + "." + std::to_string(job.rank())).c_str(), "w"), &std::fclose);
  TORCH_CHECK(lines && file != nullptr, "can't open ", script, " or ", output);
  std::unique_ptr<Run> run;
  std::string text;
  for (int line = 1; std::getline(lines, text); ++line) {
    std::istringstream rest(text);
    std::string operation;
    rest >> operation;
    bool refused = false;
    if (operation == "new") {
      GradScalerOptions options;
      rest >> options.init_scale >> options.growth_factor >> options.backoff_factor >> options.growth_interval;
      run = std::make_unique<Run>(options, job);
    } else {
      try {
        Execute(*run, operation, rest, job.rank());
      } catch (const c10::Error&) {
        refused = true;
      }
    }
    Report(file.get(), line, refused, *run);
  }
}

}  // namespace
}  // namespace cohort::trainer

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: scaler_trace SCRIPT OUTPUT\n");
    return 2;
  }
  return cohort::trainer::RunRank("scaler_trace", [&] { cohort::trainer::Trace(argv[1], argv[2]); });
}
