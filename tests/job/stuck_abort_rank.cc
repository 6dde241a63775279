// Two ranks whose calls do not match on a device whose NCCL, the library given, never ends an abort on rank
// 0: its agent must kill that rank. Run as `dlaunch ... <this> LIBRARY`; rank 1 prints the error that it gets.
#include <dlfcn.h>
#include <unistd.h>

#include <cstdio>
#include <string>
#include <vector>

#include "cohort/comm/communicator.h"
#include "cohort/runtime/runtime.h"
#include "tests/support/fake_nccl/fake_nccl.h"

namespace comm = cohort::comm;

int main(int argc, char** argv) {
  void* fake = argc == 2 ? dlopen(argv[1], RTLD_NOW | RTLD_LOCAL) : nullptr;
  if (fake == nullptr) return 2;
  auto runtime = cohort::runtime::Runtime::Init();
  if (!runtime.ok()) return 3;
  auto world = comm::Communicator::World(**runtime);
  if (!world.ok()) return 4;
  const int rank = (*world)->rank();
  reinterpret_cast<decltype(&FakeNcclConfigure)>(dlsym(fake, "FakeNcclConfigure"))(kFakeAlone, 0, -1, rank == 0);
  std::vector<float> values(200, 1);
  const comm::Buffer buffer(values.data(), rank == 0 ? 200 : 100, comm::DataType::kFloat32, comm::MemoryKind::kCuda);
  const absl::Status status = (*world)->AllReduce(buffer, buffer, comm::ReduceOp::kSum).Wait();
  std::printf("rank %d: %s\n", rank, std::string(status.message()).c_str());
  std::fflush(stdout);
  if (rank == 0) ::sleep(60);  // until the agent's signal, which ends this
  return status.ok() ? 5 : 0;
}
