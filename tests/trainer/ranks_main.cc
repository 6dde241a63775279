#include <iostream>
#include <optional>
#include <string_view>
#include <utility>

#include "cohort/trainer/transfer/collectives.h"
#include "tests/support/delayed_collectives.h"
#include "tests/trainer/ranks.h"

namespace cohort::trainer {
std::unique_ptr<runtime::Runtime> job;
std::unique_ptr<comm::Communicator> world;
}  // namespace cohort::trainer

int main(int argc, char** argv) {
  using cohort::comm::Communicator;
  using cohort::runtime::Runtime;
  testing::InitGoogleMock(&argc, argv);
  torch::set_num_threads(1);  // the ranks share the machine
  cohort::runtime::RuntimeOptions options;
  options.progress_thread = true;
  auto job = Runtime::Init(std::move(options));
  if (!job.ok()) {
    std::cerr << job.status() << "\n";
    return 1;
  }
  cohort::trainer::job = *std::move(job);
  auto world = Communicator::World(*cohort::trainer::job);
  if (!world.ok()) {
    std::cerr << world.status() << "\n";
    return 1;
  }
  cohort::trainer::world = *std::move(world);
  // --delay-collectives: every test with every transfer done as late as may be.
  std::optional<cohort::trainer::DelayedCollectives> delayed;
  if (argc > 1 && std::string_view(argv[1]) == "--delay-collectives") delayed.emplace();
  const int result = RUN_ALL_TESTS();
  if (delayed.has_value()) {
    std::cout << "held back " << delayed->calls() << " collectives\n";
    delayed.reset();
  }
  cohort::trainer::world.reset();
  cohort::trainer::job.reset();
  return result;
}
