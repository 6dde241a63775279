// An MPI program that moves its hot all-reduce to Cohort: conjugate gradients for the Laplace equation on a line that
// is cut over the ranks. Two dot products an iteration are sums over all ranks; the values at the cuts still go by MPI.
//
//   mpicxx -std=c++20 -O2 mpi_gradient.cc -o mpi_gradient $(pkg-config --cflags --libs cohort)
//   mpirun -n 4 ./mpi_gradient            # or: dlaunch -n 4 ./mpi_gradient
//   mpi_gradient [points of a rank] [--mpi]      --mpi: the sums by MPI_Allreduce, as before the move
//
// The move is the class Sum and three lines: two in main that make and end it, and the one in Dot that calls it.
#include <mpi.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "cohort/comm/communicator.h"
#include "cohort/runtime/bootstrap/mpi_store.h"
#include "cohort/runtime/runtime.h"

namespace {

using cohort::comm::Buffer;
using cohort::comm::Communicator;
using cohort::comm::ConstBuffer;
using cohort::comm::ReduceOp;
using cohort::runtime::MpiStore;
using cohort::runtime::Runtime;

[[noreturn]] void Fail(const char* what, const absl::Status& status) {
  std::fprintf(stderr, "mpi_gradient: %s: %s\n", what, std::string(status.message()).c_str());
  MPI_Abort(MPI_COMM_WORLD, 1);
  std::abort();
}

// Sums over all ranks: by Cohort, whose ranks meet through MPI, or by MPI.
class Sum {
 public:
  explicit Sum(bool by_mpi) {
    if (by_mpi) return;
    absl::StatusOr<std::unique_ptr<MpiStore>> store = MpiStore::Make(MPI_COMM_WORLD);
    if (!store.ok()) Fail("store", store.status());
    store_ = *std::move(store);
    cohort::runtime::RuntimeOptions options;
    options.bootstrap = BootstrapFromStore(store_.get(), store_->rank(), store_->size());
    absl::StatusOr<std::unique_ptr<Runtime>> runtime = Runtime::Init(std::move(options));
    if (!runtime.ok()) Fail("init", runtime.status());
    runtime_ = *std::move(runtime);
    absl::StatusOr<std::unique_ptr<Communicator>> world = Communicator::World(*runtime_);
    if (!world.ok()) Fail("world", world.status());
    world_ = *std::move(world);
  }

  double operator()(double mine) const {
    if (world_ == nullptr) {
      double all = 0;
      MPI_Allreduce(&mine, &all, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
      return all;
    }
    const absl::Status status = world_->AllReduce(ConstBuffer(&mine, 1), Buffer(&mine, 1), ReduceOp::kSum).Wait();
    if (!status.ok()) Fail("all-reduce", status);
    return mine;
  }

  // Comes before MPI_Finalize.
  void End() {
    world_.reset();
    if (runtime_ == nullptr) return;
    const absl::Status status = runtime_->Finalize();
    if (!status.ok()) Fail("finalize", status);
    store_.reset();
  }

 private:
  std::unique_ptr<MpiStore> store_;
  std::unique_ptr<Runtime> runtime_;
  std::unique_ptr<Communicator> world_;
};

// The points of this rank, with one of each neighbour's at the ends.
using Line = std::vector<double>;

void ExchangeEnds(Line& line) {
  int rank = 0;
  int ranks = 1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  const int left = rank == 0 ? MPI_PROC_NULL : rank - 1;
  const int right = rank == ranks - 1 ? MPI_PROC_NULL : rank + 1;
  const size_t last = line.size() - 1;
  MPI_Sendrecv(&line[1], 1, MPI_DOUBLE, left, 0, &line[last], 1, MPI_DOUBLE, right, 0, MPI_COMM_WORLD,
               MPI_STATUS_IGNORE);
  MPI_Sendrecv(&line[last - 1], 1, MPI_DOUBLE, right, 0, &line[0], 1, MPI_DOUBLE, left, 0, MPI_COMM_WORLD,
               MPI_STATUS_IGNORE);
}

double Dot(const Line& a, const Line& b, const Sum& sum) {
  double mine = 0;
  for (size_t i = 1; i + 1 < a.size(); ++i) mine += a[i] * b[i];
  return sum(mine);
}

struct Solution {
  int iterations = 0;
  double residual = 0;
};

Solution Solve(int points, const Sum& sum) {
  const size_t size = static_cast<size_t>(points) + 2;
  Line x(size), direction(size), image(size);
  Line residual(size, 1.0);
  residual.front() = residual.back() = 0;
  direction = residual;
  double square = Dot(residual, residual, sum);
  Solution solution;
  while (square > 1e-16 && solution.iterations < 10000) {
    ExchangeEnds(direction);
    for (size_t i = 1; i + 1 < size; ++i) image[i] = 2 * direction[i] - direction[i - 1] - direction[i + 1];
    const double step = square / Dot(direction, image, sum);
    for (size_t i = 1; i + 1 < size; ++i) {
      x[i] += step * direction[i];
      residual[i] -= step * image[i];
    }
    const double next = Dot(residual, residual, sum);
    for (size_t i = 1; i + 1 < size; ++i) direction[i] = residual[i] + next / square * direction[i];
    square = next;
    ++solution.iterations;
  }
  solution.residual = std::sqrt(square);
  return solution;
}

}  // namespace

int main(int argc, char** argv) {
  int given = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &given);
  bool by_mpi = false;
  int points = 200;
  for (int i = 1; i < argc; ++i) {
    if (std::string_view(argv[i]) == "--mpi") {
      by_mpi = true;
    } else {
      points = std::atoi(argv[i]);
    }
  }
  if (points < 1) {
    std::fprintf(stderr, "usage: mpi_gradient [points of a rank] [--mpi]\n");
    MPI_Abort(MPI_COMM_WORLD, 2);
  }
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  Sum sum(by_mpi);
  const double begun = MPI_Wtime();
  const Solution solution = Solve(points, sum);
  const double took = MPI_Wtime() - begun;
  sum.End();
  if (rank == 0) {
    std::printf("%s: %d iterations, residual %.1e, %.1f us an iteration\n", by_mpi ? "MPI" : "Cohort",
                solution.iterations, solution.residual, took * 1e6 / solution.iterations);
  }
  MPI_Finalize();
  return 0;
}
