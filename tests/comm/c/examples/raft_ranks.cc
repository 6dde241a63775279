// RAFT's comms_t over Cohort, on host memory: none of CUDA's functions is linked, and there is no device.
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <memory>
#include <vector>

#include "raft_comms.h"

extern "C" {
cudaError_t cudaStreamSynchronize(cudaStream_t /*stream*/) { std::abort(); }
cudaError_t cudaGetDevice(int* /*device*/) { return cudaErrorNoDevice; }
cudaError_t cudaMemcpyAsync(void* /*to*/, const void* /*from*/, size_t /*bytes*/, cudaMemcpyKind /*kind*/,
                            cudaStream_t /*stream*/) {
  std::abort();
}
}

namespace {

void Expect(bool right, const char* what) {
  if (right) return;
  std::fprintf(stderr, "wrong: %s\n", what);
  std::exit(1);
}

void Run(const raft::comms::comms_t& comms) {
  const int rank = comms.get_rank();
  const int size = comms.get_size();
  const float mine = static_cast<float>(rank + 1);
  float sum = 0;
  comms.allreduce(&mine, &sum, 1, raft::comms::op_t::SUM, nullptr);
  Expect(sum == static_cast<float>(size * (size + 1) / 2), "allreduce");

  int64_t told = rank == 1 ? 17 : 0;
  int64_t heard = 0;
  comms.bcast(&told, &heard, 1, 1, nullptr);
  Expect(heard == 17, "bcast");

  const std::vector<double> block(static_cast<size_t>(rank) + 1, rank);
  std::vector<size_t> counts;
  std::vector<size_t> places;
  size_t all = 0;
  for (int r = 0; r < size; ++r) {
    counts.push_back(static_cast<size_t>(r) + 1);
    places.push_back(all);
    all += counts.back();
  }
  std::vector<double> gathered(all);
  comms.allgatherv(block.data(), gathered.data(), counts.data(), places.data(), nullptr);
  Expect(gathered.back() == size - 1 && gathered.front() == 0, "allgatherv");
  std::vector<double> at_root(rank == 0 ? all : 0);
  comms.gatherv(block.data(), at_root.data(), block.size(), rank == 0 ? counts.data() : nullptr,
                rank == 0 ? places.data() : nullptr, 0, nullptr);
  Expect(rank != 0 || at_root == gathered, "gatherv");

  int passing = rank;
  int arrived = -1;
  raft::comms::request_t requests[2];
  comms.isend(&passing, 1, (rank + 1) % size, 5, &requests[0]);
  comms.irecv(&arrived, 1, (rank + size - 1) % size, 5, &requests[1]);
  comms.waitall(2, requests);
  Expect(arrived == (rank + size - 1) % size, "isend and irecv");
  comms.device_sendrecv(&passing, 1, (rank + 1) % size, &arrived, 1, (rank + size - 1) % size, nullptr);
  Expect(arrived == (rank + size - 1) % size, "device_sendrecv");

  const raft::comms::comms_t half(comms.comm_split(rank % 2, rank));
  half.barrier();
  Expect(half.get_rank() == rank / 2 && half.get_size() == (size + 1 - rank % 2) / 2, "comm_split");
  Expect(comms.sync_stream(nullptr) == raft::comms::status_t::SUCCESS, "sync_stream");
}

// A message that cannot be made, here for want of a device, leaves no group open in which calls would only be noted.
void ExpectNoOpenGroup(cohort_comm world) {
  const raft::comms::comms_t comms(std::make_unique<CohortComms>(world, COHORT_CUDA));
  char byte = 0;
  bool refused = false;
  try {
    comms.device_sendrecv(&byte, 1, 0, &byte, 1, 0, nullptr);
  } catch (const std::exception&) {
    refused = true;
  }
  const int64_t one = 1;
  int64_t sum = 0;
  const cohort_status added = cohort_all_reduce(world, &one, &sum, 1, COHORT_INT64, COHORT_SUM, nullptr, nullptr);
  Expect(refused && added == COHORT_OK && sum == comms.get_size(), "the call after a message that was refused");
}

}  // namespace

int main() {
  cohort_runtime job = nullptr;
  cohort_comm world = nullptr;
  if (cohort_init(nullptr, &job) != COHORT_OK || cohort_world(job, nullptr, &world) != COHORT_OK) {
    std::fprintf(stderr, "%s\n", cohort_last_error());
    return 1;
  }
  Run(raft::comms::comms_t(std::make_unique<CohortComms>(world, COHORT_HOST)));
  ExpectNoOpenGroup(world);
  cohort_comm_free(world);
  return cohort_finalize(job) == COHORT_OK ? 0 : 1;
}
