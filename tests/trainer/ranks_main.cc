#include <iostream>
#include <utility>

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
  const int result = RUN_ALL_TESTS();
  cohort::trainer::world.reset();
  cohort::trainer::job.reset();
  return result;
}
