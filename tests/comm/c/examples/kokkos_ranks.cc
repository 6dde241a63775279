// Kokkos views over Cohort: every function of kokkos_comm.h, behind kernels of the default execution space.
#include <cstdio>
#include <cstdlib>
#include <stdexcept>

#include "kokkos_comm.h"

namespace {

struct Place {
  double value;
  int rank;
  int step;
};

void Expect(bool right, const char* what) {
  if (right) return;
  std::fprintf(stderr, "wrong: %s\n", what);
  std::exit(1);
}

// An execution space of CUDA's, for the question which device it has.
struct OnDevice {
  int cuda_device() const { return 3; }
};

void Run(cohort_comm comm) {
  const kokkos_cohort::Communicator<> world(comm);
  const int rank = world.rank();
  const int size = world.size();
  const int n = 1000;
  const Kokkos::View<double*, Kokkos::HostSpace> part("part", n);
  const Kokkos::View<double*, Kokkos::HostSpace> sum("sum", n);
  Kokkos::parallel_for("fill", n, KOKKOS_LAMBDA(int i) { part(i) = i + rank; });
  kokkos_cohort::allreduce(world, part, sum, kokkos_cohort::Sum()).wait();
  Expect(sum(n - 1) == (n - 1) * size + size * (size - 1) / 2, "allreduce");

  const Kokkos::View<unsigned*, Kokkos::HostSpace> most("most", 1);
  most(0) = static_cast<unsigned>(rank) + 0x80000000u;
  kokkos_cohort::allreduce(world, most, most, kokkos_cohort::Max()).wait();
  Expect(most(0) == 0x80000000u + static_cast<unsigned>(size) - 1, "allreduce in place");

  const Kokkos::View<Place*, Kokkos::HostSpace> mine("mine", 1);
  const Kokkos::View<Place*, Kokkos::HostSpace> all("all", size);
  mine(0) = {rank * 0.5, rank, 1};
  kokkos_cohort::allgather(world, mine, all).wait();
  Expect(all(size - 1).rank == size - 1 && all(size - 1).value == (size - 1) * 0.5, "allgather of structs");

  const Kokkos::View<float**, Kokkos::LayoutRight, Kokkos::HostSpace> table("table", 4, 4);
  if (rank == 0) Kokkos::deep_copy(table, 3.0f);
  kokkos_cohort::broadcast(world, table, 0).wait();
  Expect(table(3, 3) == 3.0f, "broadcast");
  bool refused = false;
  try {
    kokkos_cohort::broadcast(world, Kokkos::subview(table, Kokkos::ALL(), 1), 0).wait();
  } catch (const std::invalid_argument&) {
    refused = true;
  }
  Expect(refused, "a view with gaps is refused");

  auto sent = kokkos_cohort::send(world, part, (rank + 1) % size);
  kokkos_cohort::receive(world, sum, (rank + size - 1) % size).wait();
  sent.wait();
  Expect(sum(0) == (rank + size - 1) % size, "send and receive");
  Expect(kokkos_cohort::device_of(OnDevice(), 0) == 3, "the device of an execution space");
  Expect(kokkos_cohort::device_of(Kokkos::DefaultHostExecutionSpace(), 0) == 0, "no device of a space of the host");
}

}  // namespace

int main(int argc, char** argv) {
  const Kokkos::ScopeGuard kokkos(argc, argv);
  cohort_runtime job = nullptr;
  cohort_comm world = nullptr;
  if (cohort_init(nullptr, &job) != COHORT_OK || cohort_world(job, nullptr, &world) != COHORT_OK) {
    std::fprintf(stderr, "%s\n", cohort_last_error());
    return 1;
  }
  Run(world);
  cohort_comm_free(world);
  return cohort_finalize(job) == COHORT_OK ? 0 : 1;
}
