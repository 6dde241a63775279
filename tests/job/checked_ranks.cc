// Trials of --check under dlaunch: `checked_ranks results|nan TRIALS`. Prints how many were right: the call was named,
// and the rank too, unless two copies leave that open. Exits with 1, and says what was wrong, where some were not.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "cohort/comm/communicator.h"
#include "cohort/runtime/runtime.h"
#include "tests/comm/check/trials.h"

namespace comm = cohort::comm;
namespace runtime = cohort::runtime;

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  auto runtime = runtime::Runtime::Init();
  if (!runtime.ok()) return std::fprintf(stderr, "%s\n", runtime.status().ToString().c_str()), 1;
  auto world = comm::Communicator::World(**runtime);
  if (!world.ok()) return std::fprintf(stderr, "%s\n", world.status().ToString().c_str()), 1;
  const bool results = std::string(argv[1]) == "results";
  const int64_t trials = std::strtoll(argv[2], nullptr, 10);
  int64_t right = 0, pairs = 0;
  for (int64_t trial = 0; trial < trials; ++trial) {
    const auto seed = static_cast<uint64_t>(trial * 1000 + (*world)->size());
    int copies = 0;
    const std::string wrong = results ? cohort::testing::DamageResult(**world, seed, &copies)
                                      : cohort::testing::PassNonFinite(**world, seed, &copies);
    if (!wrong.empty()) std::fprintf(stderr, "rank %d: %s\n", (*world)->rank(), wrong.c_str());
    int32_t all_right = wrong.empty() ? 1 : 0;
    const absl::Status met = (*world)->AllReduce({&all_right, 1}, {&all_right, 1}, comm::ReduceOp::kMin).Wait();
    if (!met.ok()) return std::fprintf(stderr, "%s\n", met.ToString().c_str()), 1;
    right += all_right;
    pairs += results && copies == 2 ? all_right : 0;
  }
  if ((*world)->rank() == 0) {
    std::printf("score: %lld of %lld %s right on all ranks, %lld of them with two copies alone\n",
                static_cast<long long>(right), static_cast<long long>(trials), results ? "flipped bits" : "first NaNs",
                static_cast<long long>(pairs));
  }
  return right == trials ? 0 : 1;
}
