// The values and errors of MpiStore, asked for by all ranks of mpirun at once, from two threads each. In the other
// modes, named by the argument, one side of two ranks is played by hand.
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

constexpr int kRequestTag = 1;
constexpr int kAnswerTag = 2;

// Does what Make does with other ranks. Returns the communicator of the store whose other side is here.
MPI_Comm MeetStore() {
  int multiple = 1;
  MPI_Comm comm = MPI_COMM_NULL;
  MPI_Allreduce(MPI_IN_PLACE, &multiple, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
  MPI_Comm_dup(MPI_COMM_WORLD, &comm);
  return comm;
}

std::string Receive(int from, int tag, MPI_Comm comm) {
  std::string text(1000, '\0');
  MPI_Status status;
  int size = 0;
  MPI_Recv(text.data(), 1000, MPI_BYTE, from, tag, comm, &status);
  MPI_Get_count(&status, MPI_BYTE, &size);
  return text.substr(0, static_cast<size_t>(size));
}

void Send(const std::string& text, int to, int tag, MPI_Comm comm) {
  MPI_Send(text.data(), static_cast<int>(text.size()), MPI_BYTE, to, tag, comm);
}

// Rank 0 answers late, and not at all when rank 1 leaves.
void RunWithASilentServer(int rank) {
  if (rank == 0) {
    MPI_Comm comm = MeetStore();
    (void)Receive(1, 0, MPI_COMM_WORLD);  // rank 1's time is over
    for (const char* answer : {"dtoo late", "dvalue"}) {
      Expect(Receive(1, kRequestTag, comm).at(0) == 'g', "a request of Get");
      Send(answer, 1, kAnswerTag, comm);
    }
    Expect(Receive(1, kRequestTag, comm).at(0) == 'l', "a request to leave");
    (void)Receive(1, 0, MPI_COMM_WORLD);  // rank 1 has left
    return;
  }
  {
    auto store = MpiStore::Make(MPI_COMM_WORLD, std::chrono::milliseconds(100));
    Expect(store.ok(), "Make");
    const absl::Status late = (*store)->Get("key", Deadline::After(std::chrono::milliseconds(50))).status();
    Expect(late.code() == absl::StatusCode::kDeadlineExceeded, "Get that nobody answers in time");
    Send("", 0, 0, MPI_COMM_WORLD);
    const auto value = (*store)->Get("key", Deadline::After(std::chrono::seconds(60)));
    Expect(value.ok() && *value == "value", "Get after one whose answer came late");
  }
  Send("", 0, 0, MPI_COMM_WORLD);
}

// Rank 1 sends nonsense, and never leaves.
void RunWithAnOddClient(int rank) {
  if (rank == 0) {
    {
      const auto store = MpiStore::Make(MPI_COMM_WORLD, std::chrono::milliseconds(100));
      Expect(store.ok(), "Make");
      (void)Receive(1, 0, MPI_COMM_WORLD);
    }
    Send("", 1, 0, MPI_COMM_WORLD);
    return;
  }
  MPI_Comm comm = MeetStore();
  for (const std::string& request :
       {std::string(), std::string("g"), std::string("g\377\377\377\377\377\377\377\377key"),
        std::string("x\0\0\0\0\0\0\0\0", 9)}) {
    Send(request, 0, kRequestTag, comm);
    Expect(Receive(0, kAnswerTag, comm) == "r", "nonsense is refused");
  }
  Send("", 0, 0, MPI_COMM_WORLD);
  (void)Receive(0, 0, MPI_COMM_WORLD);  // rank 0 has left
}

}  // namespace
}  // namespace cohort::runtime

int main(int argc, char** argv) {
  int given = 0;
  const std::string mode = argc == 1 ? "" : argv[1];
  const bool threads = mode != "without_threads";
  MPI_Init_thread(&argc, &argv, threads ? MPI_THREAD_MULTIPLE : MPI_THREAD_FUNNELED, &given);
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  if (mode == "silent_server") {
    cohort::runtime::RunWithASilentServer(rank);
  } else if (mode == "odd_client") {
    cohort::runtime::RunWithAnOddClient(rank);
  } else if (threads) {
    cohort::runtime::Run();
  } else {
    const auto made = cohort::runtime::MpiStore::Make(MPI_COMM_WORLD);
    cohort::runtime::Expect(made.status().code() == absl::StatusCode::kFailedPrecondition, "Make without threads");
  }
  MPI_Finalize();
  return 0;
}
