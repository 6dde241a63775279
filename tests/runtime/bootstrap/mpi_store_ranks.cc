// The values and errors of MpiStore, asked for by all ranks of mpirun at once, from two threads each.
#include <mpi.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cohort/runtime/base/deadline.h"
#include "cohort/runtime/bootstrap/mpi_store.h"

namespace cohort::runtime {
namespace {

void Expect(bool right, const char* what) {
  if (right) return;
  std::fprintf(stderr, "wrong: %s\n", what);
  MPI_Abort(MPI_COMM_WORLD, 1);
}

std::string ValueOf(int rank, int index) {
  std::string value(static_cast<size_t>(index) * 1000, static_cast<char>('a' + rank));
  return value.append(1, '\0').append(std::to_string(index));
}

// All ranks put their keys and then read everybody's.
void Exchange(MpiStore& store, int first, int end) {
  const auto name = [](int rank, int index) { return "key/" + std::to_string(rank) + "/" + std::to_string(index); };
  for (int index = first; index < end; ++index) {
    Expect(store.Put(name(store.rank(), index), ValueOf(store.rank(), index)).ok(), "Put of a new key");
  }
  for (int rank = 0; rank < store.size(); ++rank) {
    for (int index = first; index < end; ++index) {
      const auto value = store.Get(name(rank, index), Deadline::After(std::chrono::seconds(60)));
      Expect(value.ok() && *value == ValueOf(rank, index), "Get of what another rank put");
    }
  }
}

void Run() {
  auto made = MpiStore::Make(MPI_COMM_WORLD);
  Expect(made.ok(), "Make with MPI_THREAD_MULTIPLE");
  MpiStore& store = **made;
  std::thread other([&] { Exchange(store, 24, 48); });
  Exchange(store, 0, 24);
  other.join();
  Expect(store.Put("key/" + std::to_string(store.rank()) + "/0", "again").code() == absl::StatusCode::kAlreadyExists,
         "the second Put of a key");
  Expect(store.Get("nobody's", Deadline::After(std::chrono::milliseconds(20))).status().code() ==
             absl::StatusCode::kDeadlineExceeded,
         "Get of a key that nobody puts");
}

}  // namespace
}  // namespace cohort::runtime

int main(int argc, char** argv) {
  int given = 0;
  const bool threads = argc == 1;
  MPI_Init_thread(&argc, &argv, threads ? MPI_THREAD_MULTIPLE : MPI_THREAD_FUNNELED, &given);
  if (threads) {
    cohort::runtime::Run();
  } else {
    const auto made = cohort::runtime::MpiStore::Make(MPI_COMM_WORLD);
    cohort::runtime::Expect(made.status().code() == absl::StatusCode::kFailedPrecondition, "Make without threads");
  }
  MPI_Finalize();
  return 0;
}
