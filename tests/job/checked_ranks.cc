// Trials of --check under dlaunch: `checked_ranks results|nan TRIALS`. Exits with 1 and what was wrong.
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
  for (int64_t trial = 0; trial < trials; ++trial) {
    const auto seed = static_cast<uint64_t>(trial * 1000 + (*world)->size());
    const std::string wrong =
        results ? cohort::testing::DamageResult(**world, seed) : cohort::testing::PassNonFinite(**world, seed);
    if (!wrong.empty()) return std::fprintf(stderr, "%s\n", wrong.c_str()), 1;
  }
  return 0;
}
