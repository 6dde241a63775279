// MpiStore lets the ranks of an MPI program meet: `mpirun -n 4 ./program` joins them without dlaunch.
//
//   int given = 0;
//   MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &given);
//   auto store = cohort::runtime::MpiStore::Make(MPI_COMM_WORLD);
//   if (!store.ok()) ...
//   cohort::runtime::RuntimeOptions options;
//   options.bootstrap = BootstrapFromStore(store->get(), (*store)->rank(), (*store)->size());
//   auto runtime = cohort::runtime::Runtime::Init(std::move(options));
//   ...                                    // Runtime::Finalize, then the store's destructor, then MPI_Finalize
//
// Cohort itself does not use MPI. A program that includes this header compiles and links with MPI itself. Without mpi.h
// in its include path the header declares nothing.
#pragma once

#if __has_include(<mpi.h>)
#include <mpi.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cohort/runtime/base/deadline.h"
#include "cohort/runtime/base/mutex.h"
#include "cohort/runtime/bootstrap/bootstrap.h"

namespace cohort::runtime {

// A key-value store that a thread of rank 0 holds, reached by messages on a duplicate of the program's communicator.
// While nobody asks, that thread looks for messages every two milliseconds.
class MpiStore final : public KeyValueStore {
 public:
  // Collective over `comm`. kFailedPrecondition on all ranks where MPI_Init_thread gave one of them less than
  // MPI_THREAD_MULTIPLE.
  static absl::StatusOr<std::unique_ptr<MpiStore>> Make(MPI_Comm comm) {
    int given = MPI_THREAD_SINGLE;
    MPI_Query_thread(&given);
    int multiple = given == MPI_THREAD_MULTIPLE ? 1 : 0;
    MPI_Allreduce(MPI_IN_PLACE, &multiple, 1, MPI_INT, MPI_MIN, comm);
    if (multiple == 0) {
      return absl::FailedPreconditionError(
          "MpiStore is used by several threads: initialize MPI by MPI_Init_thread with MPI_THREAD_MULTIPLE");
    }
    return std::unique_ptr<MpiStore>(new MpiStore(comm));
  }

  // Collective: the last member may leave when all are here. Comes after Runtime::Finalize and before MPI_Finalize.
  ~MpiStore() override {
    if (rank_ == 0) {
      server_.join();
    } else {
      (void)Ask(kLeave, {}, {});
    }
    MPI_Barrier(comm_);
    MPI_Comm_free(&comm_);
  }
  MpiStore(const MpiStore&) = delete;
  MpiStore& operator=(const MpiStore&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }

  absl::Status Put(std::string_view key, std::string_view value) override {
    const bool done = rank_ == 0 ? PutHere(key, value) : Ask(kPut, key, value)[0] == kDone;
    return done ? absl::OkStatus() : absl::AlreadyExistsError(std::string(key));
  }

  absl::StatusOr<std::string> Get(std::string_view key, Deadline deadline) override {
    // Rank 0 answers at once, whether there is a value or not; an answer that came later could find nobody waiting.
    for (auto pause = kShortPause;; pause = std::min(2 * pause, kLongPause)) {
      std::string answer = rank_ == 0 ? GetHere(key) : Ask(kGet, key, {});
      if (answer[0] == kDone) return answer.substr(1);
      if (deadline.passed()) return absl::DeadlineExceededError("nobody has put the key " + std::string(key));
      std::this_thread::sleep_for(pause);
    }
  }

 private:
  // The first byte of a message.
  static constexpr char kPut = 'p';
  static constexpr char kGet = 'g';
  static constexpr char kLeave = 'l';
  static constexpr char kDone = 'd';
  static constexpr char kRefused = 'r';  // the key exists (Put) or does not yet (Get)

  static constexpr int kRequestTag = 1;
  static constexpr int kAnswerTag = 2;
  static constexpr std::chrono::microseconds kShortPause{100};
  static constexpr std::chrono::microseconds kLongPause{2000};

  explicit MpiStore(MPI_Comm comm) {
    MPI_Comm_dup(comm, &comm_);
    MPI_Comm_rank(comm_, &rank_);
    MPI_Comm_size(comm_, &size_);
    if (rank_ == 0) server_ = std::thread([this] { Serve(); });
  }

  bool PutHere(std::string_view key, std::string_view value) {
    const MutexLock lock(mutex_);
    return values_.emplace(key, value).second;
  }

  std::string GetHere(std::string_view key) {
    const MutexLock lock(mutex_);
    const auto found = values_.find(key);
    return found == values_.end() ? std::string(1, kRefused) : kDone + found->second;
  }

  // Sends a request to rank 0 and returns the answer, which has at least one byte. One thread of a rank asks at a time.
  std::string Ask(char request, std::string_view key, std::string_view value) {
    std::string message(1, request);
    message.append(key).append(1, '\0').append(value);  // keys are ASCII
    const MutexLock lock(mutex_);
    MPI_Send(message.data(), static_cast<int>(message.size()), MPI_BYTE, 0, kRequestTag, comm_);
    MPI_Message waiting;
    MPI_Status status;
    MPI_Mprobe(0, kAnswerTag, comm_, &waiting, &status);
    return Receive(&waiting, &status);
  }

  static std::string Receive(MPI_Message* waiting, MPI_Status* status) {
    int size = 0;
    MPI_Get_count(status, MPI_BYTE, &size);
    std::string message(static_cast<size_t>(size), '\0');
    MPI_Mrecv(message.data(), size, MPI_BYTE, waiting, MPI_STATUS_IGNORE);
    return message;
  }

  // Rank 0: answers until all others have left.
  void Serve() {
    auto pause = kShortPause;
    for (int left = 1; left < size_;) {
      int found = 0;
      MPI_Message waiting;
      MPI_Status status;
      MPI_Improbe(MPI_ANY_SOURCE, kRequestTag, comm_, &found, &waiting, &status);
      if (found == 0) {
        std::this_thread::sleep_for(pause);
        pause = std::min(2 * pause, kLongPause);
        continue;
      }
      pause = kShortPause;
      const int from = status.MPI_SOURCE;
      const std::string request = Receive(&waiting, &status);
      if (request[0] == kLeave) ++left;
      const std::string answer = Answer(request);
      MPI_Send(answer.data(), static_cast<int>(answer.size()), MPI_BYTE, from, kAnswerTag, comm_);
    }
  }

  std::string Answer(std::string_view request) {
    const size_t end = request.find('\0');
    const std::string_view key = request.substr(1, end - 1);
    if (request[0] == kGet) return GetHere(key);
    const bool done = request[0] == kLeave || PutHere(key, request.substr(end + 1));
    return std::string(1, done ? kDone : kRefused);
  }

  MPI_Comm comm_ = MPI_COMM_NULL;
  int rank_ = 0;
  int size_ = 1;
  std::thread server_;  // only on rank 0
  Mutex mutex_;         // guards values_ on rank 0; one question at a time on the others
  std::map<std::string, std::string, std::less<>> values_ COHORT_GUARDED_BY(mutex_);  // only on rank 0
};

}  // namespace cohort::runtime
#endif
