// A rank of an MPI library in a comparison: compiled against Open MPI and against MPICH.
// The libraries' C++ interface, long gone from the standard, is not used.
#define OMPI_SKIP_MPICXX 1
#define MPICH_SKIP_MPICXX 1
#include <mpi.h>

#include <cstdlib>
#include <vector>

#include "tools/measure/system_rank.h"

namespace cohort::collperf {
namespace {

using measure::Operation;
using measure::SystemCall;

class Mpi final : public measure::SystemRank {
 public:
  Mpi() {
    MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks_);
  }
  int rank() const override { return rank_; }
  int ranks() const override { return ranks_; }
  std::string Run(const SystemCall& call) override { return Call(call) == MPI_SUCCESS ? "" : "an MPI call has failed"; }
  void Progress() override {
    int found = 0;
    MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &found, MPI_STATUS_IGNORE);
  }

 private:
  int Stream(const SystemCall& call) const {
    std::vector<MPI_Request> requests(static_cast<size_t>(2 * call.messages));
    const int count = static_cast<int>(call.count);
    for (int i = 0; i < call.messages; ++i) {
      MPI_Irecv(call.out, count, MPI_FLOAT, (rank_ + ranks_ - 1) % ranks_, 0, MPI_COMM_WORLD, &requests[2 * i]);
      MPI_Isend(call.in, count, MPI_FLOAT, (rank_ + 1) % ranks_, 0, MPI_COMM_WORLD, &requests[2 * i + 1]);
    }
    return MPI_Waitall(2 * call.messages, requests.data(), MPI_STATUSES_IGNORE);
  }

  static int BesideComputing(const SystemCall& call) {
    MPI_Request request = MPI_REQUEST_NULL;
    const int status =
        MPI_Iallreduce(call.in, call.out, static_cast<int>(call.count), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD, &request);
    if (status != MPI_SUCCESS) return status;
    measure::Compute(call.compute_us);
    return MPI_Wait(&request, MPI_STATUS_IGNORE);
  }

  int Call(const SystemCall& call) const {
    if (call.messages > 1) return Stream(call);
    if (call.compute_us > 0) return BesideComputing(call);
    const int count = static_cast<int>(call.count);
    const MPI_Comm world = MPI_COMM_WORLD;
    switch (call.operation) {
      case Operation::kBroadcast:
        return MPI_Bcast(call.out != nullptr ? call.out : const_cast<float*>(call.in), count, MPI_FLOAT, call.root,
                         world);
      case Operation::kReduce:
        return MPI_Reduce(call.in, call.out, count, MPI_FLOAT, MPI_SUM, call.root, world);
      case Operation::kAllReduce:
        return MPI_Allreduce(call.in, call.out, count, MPI_FLOAT, MPI_SUM, world);
      case Operation::kGather:
        return MPI_Gather(call.in, count, MPI_FLOAT, call.out, count, MPI_FLOAT, call.root, world);
      case Operation::kScatter:
        return MPI_Scatter(call.in, count, MPI_FLOAT, call.out, count, MPI_FLOAT, call.root, world);
      case Operation::kAllGather:
        return MPI_Allgather(call.in, count, MPI_FLOAT, call.out, count, MPI_FLOAT, world);
      case Operation::kReduceScatter:
        return MPI_Reduce_scatter_block(call.in, call.out, count, MPI_FLOAT, MPI_SUM, world);
      case Operation::kAllToAll:
        return MPI_Alltoall(call.in, count, MPI_FLOAT, call.out, count, MPI_FLOAT, world);
      case Operation::kSendRecv:
        return MPI_Sendrecv(call.in, count, MPI_FLOAT, (rank_ + 1) % ranks_, 0, call.out, count, MPI_FLOAT,
                            (rank_ + ranks_ - 1) % ranks_, 0, world, MPI_STATUS_IGNORE);
      case Operation::kBarrier:
        return MPI_Barrier(world);
    }
    return MPI_ERR_OTHER;
  }

  int rank_ = 0;
  int ranks_ = 1;
};

}  // namespace
}  // namespace cohort::collperf

// mpi_rank SESSION RANKS PLACE
int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int code = 2;
  if (argc == 4) {
    cohort::collperf::Mpi system;
    code = cohort::measure::Serve(system, argv[1], std::atoi(argv[2]), std::atoi(argv[3]));
  }
  MPI_Finalize();
  return code;
}
