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
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cohort/runtime/base/deadline.h"
#include "cohort/runtime/base/mutex.h"
#include "cohort/runtime/base/thread.h"
#include "cohort/runtime/bootstrap/bootstrap.h"

namespace cohort::runtime {

// Messages of a communicator under way in both directions. Nothing blocks. One thread at a time.
class MpiMail {
 public:
  // A message with the rank that sent it.
  struct Message {
    int from = 0;
    std::string text;
  };

  explicit MpiMail(MPI_Comm comm) : comm_(comm) {}
  // MPI may still use the memory of what is under way: it is left to it for good.
  ~MpiMail() {
    Sweep();
    for (std::list<UnderWay>* some : {&sent_, &coming_}) {
      if (!some->empty()) (void)new std::list<UnderWay>(std::move(*some));
    }
  }
  MpiMail(const MpiMail&) = delete;
  MpiMail& operator=(const MpiMail&) = delete;

  // `text` has less than 2 GiB.
  void Send(int to, int tag, std::string text) {
    UnderWay& message = sent_.emplace_back();
    message.text = std::move(text);
    MPI_Isend(message.text.data(), static_cast<int>(message.text.size()), MPI_BYTE, to, tag, comm_, &message.request);
  }

  // A message that has come whole.
  std::optional<Message> Receive(int from, int tag) {
    Sweep();
    int found = 0;
    MPI_Message matched;
    MPI_Status status;
    MPI_Improbe(from, tag, comm_, &found, &matched, &status);
    if (found != 0) {
      int size = 0;
      MPI_Get_count(&status, MPI_BYTE, &size);
      UnderWay& message = coming_.emplace_back();
      message.from = status.MPI_SOURCE;
      message.text.resize(static_cast<size_t>(size));
      MPI_Imrecv(message.text.data(), size, MPI_BYTE, &matched, &message.request);
    }
    const auto whole = std::find_if(coming_.begin(), coming_.end(), IsOver);
    if (whole == coming_.end()) return std::nullopt;
    Message message{whole->from, std::move(whole->text)};
    coming_.erase(whole);
    return message;
  }

  // Whether MPI still uses memory of messages.
  bool busy() const { return !sent_.empty() || !coming_.empty(); }
  // Frees what has been sent.
  void Sweep() { sent_.remove_if(IsOver); }

 private:
  struct UnderWay {
    std::string text;
    int from = 0;
    MPI_Request request = MPI_REQUEST_NULL;
  };
  static bool IsOver(UnderWay& message) {
    int over = 0;
    MPI_Test(&message.request, &over, MPI_STATUS_IGNORE);
    return over != 0;
  }

  const MPI_Comm comm_;
  std::list<UnderWay> sent_;
  std::list<UnderWay> coming_;
};

// A key-value store that a thread of rank 0 holds, reached by messages on a duplicate of the program's communicator.
// While nobody asks, that thread looks for messages every two milliseconds.
class MpiStore final : public KeyValueStore {
 public:
  // Collective over `comm`. kFailedPrecondition on all ranks where MPI_Init_thread gave one of them less than
  // MPI_THREAD_MULTIPLE. `leave_timeout`: how long the destructor waits for others.
  static absl::StatusOr<std::unique_ptr<MpiStore>> Make(
      MPI_Comm comm, std::chrono::milliseconds leave_timeout = std::chrono::seconds(60)) {
    int given = MPI_THREAD_SINGLE;
    MPI_Query_thread(&given);
    int multiple = given == MPI_THREAD_MULTIPLE ? 1 : 0;
    MPI_Allreduce(MPI_IN_PLACE, &multiple, 1, MPI_INT, MPI_MIN, comm);
    if (multiple == 0) {
      return absl::FailedPreconditionError(
          "MpiStore is used by several threads: initialize MPI by MPI_Init_thread with MPI_THREAD_MULTIPLE");
    }
    return std::unique_ptr<MpiStore>(new MpiStore(comm, leave_timeout));
  }

  // Collective. Comes after Runtime::Finalize and before MPI_Finalize. Rank 0 waits until all others have left, since
  // it answers them; the others wait for its answer. A rank that has waited for `leave_timeout` leaves all the same,
  // and does not free the communicator: the program then ends by MPI_Abort, because MPI_Finalize may wait for the same
  // ranks.
  ~MpiStore() override {
    const Deadline deadline = Deadline::After(leave_timeout_);
    bool orderly = true;
    if (rank_ == 0) {
      orderly = AwaitLeavers(deadline);
      give_up_ = true;
      server_.join();
    } else {
      orderly = Ask(kLeave, {}, {}, deadline).ok();
    }
    if (orderly && !mail_->busy()) MPI_Comm_free(&comm_);
  }
  MpiStore(const MpiStore&) = delete;
  MpiStore& operator=(const MpiStore&) = delete;

  // This process' rank in the communicator of Make, and the number of ranks there.
  int rank() const { return rank_; }
  int size() const { return size_; }

  // kDeadlineExceeded: rank 0 has not answered within a minute. It may have got the value or get it yet.
  absl::Status Put(std::string_view key, std::string_view value) override {
    if (key.size() + value.size() > kMostBytes) return absl::InvalidArgumentError("a key and value of more than 1 GiB");
    std::string answer(1, kDone);
    if (rank_ == 0) {
      if (!PutHere(key, value)) answer = kRefused;
    } else {
      absl::StatusOr<std::string> given = Ask(kPut, key, value, Deadline::After(kAnswerWithin));
      if (!given.ok()) return given.status();
      answer = *std::move(given);
    }
    return answer[0] == kDone ? absl::OkStatus() : absl::AlreadyExistsError(std::string(key));
  }

  // kDeadlineExceeded: nobody had put the key by then, or rank 0 has not answered.
  absl::StatusOr<std::string> Get(std::string_view key, Deadline deadline) override {
    if (key.size() > kMostBytes) return absl::InvalidArgumentError("a key of more than 1 GiB");
    // Rank 0 answers at once, whether there is a value or not; an answer that came later could find nobody waiting.
    for (auto pause = kShortPause;; pause = std::min(2 * pause, kLongPause)) {
      absl::StatusOr<std::string> answer = rank_ == 0 ? GetHere(key) : Ask(kGet, key, {}, deadline);
      if (!answer.ok()) return answer.status();
      if ((*answer)[0] == kDone) return answer->substr(1);
      if (deadline.passed()) return absl::DeadlineExceededError("nobody has put the key " + std::string(key));
      std::this_thread::sleep_for(pause);
    }
  }

 private:
  // The first byte of a message. In a request the length of the key follows in 8 bytes, then key and value.
  static constexpr char kPut = 'p';
  static constexpr char kGet = 'g';
  static constexpr char kLeave = 'l';
  static constexpr char kDone = 'd';
  static constexpr char kRefused = 'r';  // the key exists (Put) or does not yet (Get), or the request makes no sense
  static constexpr size_t kRequestHead = 1 + sizeof(uint64_t);

  static constexpr int kRequestTag = 1;
  static constexpr int kAnswerTag = 2;
  static constexpr size_t kMostBytes = 1u << 30;
  static constexpr std::chrono::microseconds kShortPause{100};
  static constexpr std::chrono::microseconds kLongPause{2000};
  static constexpr std::chrono::seconds kAnswerWithin{60};

  MpiStore(MPI_Comm comm, std::chrono::milliseconds leave_timeout) : leave_timeout_(leave_timeout) {
    MPI_Comm_dup(comm, &comm_);
    MPI_Comm_rank(comm_, &rank_);
    MPI_Comm_size(comm_, &size_);
    mail_ = std::make_unique<MpiMail>(comm_);
    if (rank_ == 0) server_ = StartThread("cohort-mpi", [this] { Serve(); });
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

  // Sends a request to rank 0 and returns the answer, which has at least one byte. One thread of a rank asks at a time,
  // and has one request under way: the answer to one whose time was over comes before the next is sent.
  absl::StatusOr<std::string> Ask(char request, std::string_view key, std::string_view value, Deadline deadline) {
    const absl::Status silent = absl::DeadlineExceededError(
        "rank 0 of the MPI program does not answer: it has ended, is stopped, or has destroyed its MpiStore");
    {
      const MutexLock lock(mutex_);
      while (asking_) {
        if (!asked_.Wait(mutex_, deadline)) return silent;
      }
      asking_ = true;
    }
    std::optional<std::string> answer;
    if (!unanswered_ || Answer(deadline).has_value()) {
      std::string message(1, request);
      const uint64_t length = key.size();
      message.append(reinterpret_cast<const char*>(&length), sizeof length).append(key).append(value);
      mail_->Send(0, kRequestTag, std::move(message));
      unanswered_ = true;
      answer = Answer(deadline);
    }
    const MutexLock lock(mutex_);
    asking_ = false;
    asked_.NotifyOne();
    if (!answer.has_value()) return silent;
    return *std::move(answer);
  }

  // The answer to the request under way.
  std::optional<std::string> Answer(Deadline deadline) {
    for (auto pause = kShortPause / 8;; pause = std::min(2 * pause, kLongPause)) {
      std::optional<MpiMail::Message> message = mail_->Receive(0, kAnswerTag);
      if (message.has_value() && !message->text.empty()) {
        unanswered_ = false;
        return std::move(message->text);
      }
      if (deadline.passed()) return std::nullopt;
      std::this_thread::sleep_for(pause);
    }
  }

  // Rank 0: answers until all others have left, or the destructor waits no longer.
  void Serve() {
    auto pause = kShortPause;
    for (int left = 1; left < size_ && !give_up_;) {
      const std::optional<MpiMail::Message> request = mail_->Receive(MPI_ANY_SOURCE, kRequestTag);
      if (!request.has_value()) {
        std::this_thread::sleep_for(pause);
        pause = std::min(2 * pause, kLongPause);
        continue;
      }
      pause = kShortPause;
      if (request->text.starts_with(kLeave)) ++left;
      mail_->Send(request->from, kAnswerTag, AnswerTo(request->text));
    }
    while (mail_->busy() && !give_up_) {
      std::this_thread::sleep_for(kShortPause);
      mail_->Sweep();
    }
    const MutexLock lock(mutex_);
    served_ = true;
    asked_.NotifyAll();
  }

  // Rank 0: whether all others have left by then.
  bool AwaitLeavers(Deadline deadline) {
    const MutexLock lock(mutex_);
    while (!served_) {
      if (!asked_.Wait(mutex_, deadline)) return served_;
    }
    return true;
  }

  std::string AnswerTo(std::string_view request) {
    if (request.starts_with(kLeave)) return std::string(1, kDone);
    uint64_t length = 0;
    if (request.size() < kRequestHead) return std::string(1, kRefused);
    std::memcpy(&length, request.data() + 1, sizeof length);
    const std::string_view rest = request.substr(kRequestHead);
    if (length > rest.size()) return std::string(1, kRefused);
    const std::string_view key = rest.substr(0, length);
    if (request[0] == kGet) return GetHere(key);
    return std::string(1, request[0] == kPut && PutHere(key, rest.substr(length)) ? kDone : kRefused);
  }

  const std::chrono::milliseconds leave_timeout_;
  MPI_Comm comm_ = MPI_COMM_NULL;
  int rank_ = 0;
  int size_ = 1;
  std::unique_ptr<MpiMail> mail_;  // of the server thread on rank 0, of the thread that asks on the others
  std::thread server_;             // only on rank 0
  std::atomic<bool> give_up_{false};
  bool unanswered_ = false;  // with asking_: a request is under way
  Mutex mutex_;
  CondVar asked_;                                                                     // asking_ or served_ has changed
  bool asking_ COHORT_GUARDED_BY(mutex_) = false;                                     // not on rank 0
  bool served_ COHORT_GUARDED_BY(mutex_) = false;                                     // only on rank 0
  std::map<std::string, std::string, std::less<>> values_ COHORT_GUARDED_BY(mutex_);  // only on rank 0
};

}  // namespace cohort::runtime
#endif
