// Ranks that make random calls of cohort.h, right and wrong ones, from seeds: right calls give the results of a serial
// computation, wrong ones an error, and neither a crash.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "cohort/comm/c/cohort.h"
#include "tests/comm/c/c_ranks.h"
#include "tests/comm/c/wrong_calls.h"
#include "tests/support/nightly.h"
#include "tests/support/process_cluster.h"

namespace cohort::testing {
namespace {

// x -> a x + b, on numbers that wrap around: associative, and not commutative.
struct Affine {
  uint64_t a = 1;
  uint64_t b = 0;
  uint64_t calls = 1;  // that were combined
  bool operator==(const Affine&) const = default;
};

Affine After(const Affine& x, const Affine& y) { return {x.a * y.a, x.b * y.a + y.b, x.calls + y.calls}; }

void Compose(void* out, const void* a, const void* b, int64_t count, cohort_type, void* context) {
  ++*static_cast<int64_t*>(context);
  for (int64_t i = 0; i < count; ++i) {
    static_cast<Affine*>(out)[i] = After(static_cast<const Affine*>(a)[i], static_cast<const Affine*>(b)[i]);
  }
}

// The larger of two numbers of 8 bytes, or of blocks of 8 bytes.
void Larger(void* out, const void* a, const void* b, int64_t count, cohort_type type, void* context) {
  if (type != COHORT_UINT64 && type != COHORT_BLOCK(8)) *static_cast<int64_t*>(context) = -1;
  for (int64_t i = 0; i < count; ++i) {
    static_cast<uint64_t*>(out)[i] = std::max(static_cast<const uint64_t*>(a)[i], static_cast<const uint64_t*>(b)[i]);
  }
}

constexpr cohort_type kAffine = COHORT_BLOCK(sizeof(Affine));

// One rank's program of one seed. All ranks draw the same calls from `shared_`, and wrong ones of their own.
class Caller {
 public:
  Caller(cohort_runtime runtime, uint64_t seed) : shared_(seed) { handles_.runtime = runtime; }

  std::string Run(int steps) {
    std::string wrong = Begin();
    for (int step = 0; step < steps && wrong.empty(); ++step) {
      step_ = step;
      for (uint64_t i = own_() % 4; i > 0 && wrong.empty(); --i) {
        wrong = MakeWrongCall(static_cast<int>(own_() % static_cast<uint64_t>(WrongCalls())), handles_, own_);
      }
      if (wrong.empty()) wrong = MakeRightCall();
      if (!wrong.empty()) wrong = "step " + std::to_string(step) + ", rank " + std::to_string(rank_) + ": " + wrong;
    }
    return wrong.empty() ? End() : wrong;
  }

 private:
  static std::string Text(cohort_status status) {
    return status == COHORT_OK ? "" : std::string(cohort_status_name(status)) + ": " + cohort_last_error();
  }

  std::string Begin() {
    cohort_status status = cohort_world(handles_.runtime, nullptr, &handles_.comm);
    if (status == COHORT_OK) status = cohort_comm_rank(handles_.comm, &rank_);
    if (status == COHORT_OK) status = cohort_comm_size(handles_.comm, &size_);
    if (status == COHORT_OK) status = cohort_op_create(Compose, &composed_, "compose", 0, &handles_.op);
    if (status == COHORT_OK) status = cohort_op_create(Larger, &larger_, "larger", 1, &handles_.freed_op);
    if (status == COHORT_OK) status = cohort_duplicate(handles_.comm, &handles_.freed_comm);
    if (status == COHORT_OK) status = cohort_barrier(handles_.comm, nullptr, &handles_.freed_work);
    if (status == COHORT_OK) status = cohort_work_wait(handles_.freed_work, COHORT_FOREVER);
    if (status == COHORT_OK) status = cohort_window_allocate(handles_.comm, 100, nullptr, &handles_.freed_window);
    if (status == COHORT_OK) status = cohort_comm_free(handles_.freed_comm);
    if (status == COHORT_OK) status = cohort_work_free(handles_.freed_work);
    if (status == COHORT_OK) status = cohort_window_free(handles_.freed_window);
    if (status == COHORT_OK) status = cohort_op_free(handles_.freed_op);
    if (status == COHORT_OK) status = FreeRuntime();
    own_.seed(shared_() * 31 + static_cast<uint64_t>(rank_));
    return Text(status);
  }

  // cohort_finalize would end the rank's part in the job.
  cohort_status FreeRuntime() {
    const cohort_status given = comm::c::Give<cohort_runtime>("init", {}, &handles_.freed_runtime);
    comm::c::Held<cohort_runtime> held;
    const cohort_status found = given == COHORT_OK ? comm::c::Hold("init", handles_.freed_runtime, &held) : given;
    if (found == COHORT_OK) (void)held.Take();
    return found;
  }

  std::string End() {
    cohort_status status = cohort_barrier(handles_.comm, nullptr, nullptr);
    if (status == COHORT_OK) status = cohort_comm_free(handles_.comm);
    if (status == COHORT_OK) status = cohort_op_free(handles_.op);
    if (status == COHORT_OK && larger_ < 0) return "a function was given a wrong type";
    return Text(status);
  }

  std::string MakeRightCall() {
    switch (shared_() % 9) {
      case 0:
        return SumOfNumbers();
      case 1:
        return ReduceBlocks();
      case 2:
        return ScatterBlocks();
      case 3:
        return Broadcast();
      case 4:
        return GatherUnequal();
      case 5:
        return Exchange();
      case 6:
        return Batch();
      case 7:
        return OwnNumbers();
      default:
        return Groups();
    }
  }

  int64_t Value(int rank, int64_t i) const { return step_ * 131 + rank * 17 + i * 3; }
  Affine BlockOf(int rank, int64_t i) const {
    return {static_cast<uint64_t>(Value(rank, i)) * 2 + 1, static_cast<uint64_t>(Value(rank, i)), 1};
  }
  std::vector<Affine> Blocks(int rank, int64_t count) const {
    std::vector<Affine> blocks;
    for (int64_t i = 0; i < count; ++i) blocks.push_back(BlockOf(rank, i));
    return blocks;
  }
  Affine Composed(int64_t i) const {
    Affine all = BlockOf(0, i);
    for (int r = 1; r < size_; ++r) all = After(all, BlockOf(r, i));
    return all;
  }
  int64_t Count() {  // few, or many
    return static_cast<int64_t>(shared_() % 3 == 0 ? shared_() % 5000 : shared_() % 20);
  }
  int32_t Root() { return static_cast<int32_t>(shared_() % static_cast<uint64_t>(size_)); }
  // How a call is made, as all ranks decide alike: by a work (which may be null) or at once.
  cohort_work* Ask(cohort_work* work) { return shared_() % 2 == 0 ? work : nullptr; }

  // Waits for a call's work, in one of several ways, and frees it. `work` is set by the time that this runs.
  cohort_status Finish(cohort_status called, const cohort_work& work) {
    if (called != COHORT_OK || work == nullptr) return called;
    cohort_status ended = COHORT_PENDING;
    if (own_() % 2 == 0) {
      while (ended == COHORT_PENDING) ended = cohort_work_test(work);
    } else {
      ended = cohort_work_wait_all(&work, 1, COHORT_FOREVER);
    }
    handles_.freed_work = work;
    const cohort_status freed = cohort_work_free(work);
    return ended == COHORT_OK ? freed : ended;
  }

  std::string SumOfNumbers() {
    std::vector<int64_t> values;
    const int64_t count = Count();
    for (int64_t i = 0; i < count; ++i) values.push_back(Value(rank_, i));
    cohort_call_options options = COHORT_CALL_OPTIONS_INIT;
    options.tag = shared_();
    cohort_work work = nullptr;
    const cohort_status status = Finish(cohort_all_reduce(handles_.comm, values.data(), values.data(), count,
                                                          COHORT_INT64, COHORT_SUM, &options, Ask(&work)),
                                        work);
    if (status != COHORT_OK) return Text(status);
    for (int64_t i = 0; i < count; ++i) {
      int64_t expected = 0;
      for (int r = 0; r < size_; ++r) expected += Value(r, i);
      if (values[static_cast<size_t>(i)] != expected) return "a sum of numbers is wrong at " + std::to_string(i);
    }
    return "";
  }

  std::string ReduceBlocks() {
    const int64_t count = Count();
    const int32_t root = Root();
    const bool to_all = shared_() % 2 == 0;
    std::vector<Affine> in = Blocks(rank_, count);
    std::vector<Affine> out(in.size());
    cohort_work work = nullptr;
    cohort_work* const asked = Ask(&work);
    const cohort_status called =
        to_all ? cohort_all_reduce(handles_.comm, in.data(), out.data(), count, kAffine, handles_.op, nullptr, asked)
               : cohort_reduce(handles_.comm, in.data(), rank_ == root ? out.data() : nullptr, count, kAffine,
                               handles_.op, root, nullptr, asked);
    if (const cohort_status status = Finish(called, work); status != COHORT_OK) return Text(status);
    if (in != Blocks(rank_, count)) return "the input of a reduction of blocks has changed";
    for (int64_t i = 0; i < count && (to_all || rank_ == root); ++i) {
      if (!(out[static_cast<size_t>(i)] == Composed(i))) return "a block is wrong at " + std::to_string(i);
    }
    return "";
  }

  std::string ScatterBlocks() {
    const bool unequal = shared_() % 2 == 0;
    std::vector<int64_t> counts;
    std::vector<int64_t> begins;
    int64_t all = 0;
    for (int r = 0; r < size_; ++r) {
      if (r == 0 || unequal) counts.push_back(static_cast<int64_t>(shared_() % 200));
      if (r > 0 && !unequal) counts.push_back(counts[0]);
      begins.push_back(all);
      all += counts.back();
    }
    const auto mine = static_cast<size_t>(rank_);
    std::vector<Affine> in = Blocks(rank_, all);
    std::vector<Affine> out(static_cast<size_t>(counts[mine]));
    cohort_work work = nullptr;
    cohort_work* const asked = Ask(&work);
    const cohort_status called = unequal ? cohort_reduce_scatter_v(handles_.comm, in.data(), counts.data(), nullptr,
                                                                   out.data(), kAffine, handles_.op, nullptr, asked)
                                         : cohort_reduce_scatter(handles_.comm, in.data(), out.data(), counts[0],
                                                                 kAffine, handles_.op, nullptr, asked);
    if (const cohort_status status = Finish(called, work); status != COHORT_OK) return Text(status);
    for (size_t i = 0; i < out.size(); ++i) {
      if (!(out[i] == Composed(begins[mine] + static_cast<int64_t>(i)))) return "a scattered block is wrong";
    }
    return "";
  }

  std::string Broadcast() {
    const int64_t count = Count();
    const int32_t root = Root();
    std::vector<Affine> blocks = Blocks(rank_, count);
    cohort_work work = nullptr;
    const cohort_status status =
        Finish(cohort_broadcast(handles_.comm, blocks.data(), count, kAffine, root, nullptr, Ask(&work)), work);
    if (status != COHORT_OK) return Text(status);
    return blocks == Blocks(root, count) ? "" : "a broadcast is wrong";
  }

  std::string GatherUnequal() {
    std::vector<int64_t> counts;
    std::vector<int64_t> places(static_cast<size_t>(size_));
    int64_t end = 0;
    for (int r = 0; r < size_; ++r) counts.push_back(static_cast<int64_t>(shared_() % 50));
    for (int r = size_ - 1; r >= 0; --r) {  // in the opposite order, with gaps
      places[static_cast<size_t>(r)] = end + 2;
      end += counts[static_cast<size_t>(r)] + 2;
    }
    const std::vector<Affine> in = Blocks(rank_, counts[static_cast<size_t>(rank_)]);
    std::vector<Affine> out(static_cast<size_t>(end));
    cohort_work work = nullptr;
    const cohort_status status = Finish(cohort_all_gather_v(handles_.comm, in.data(), out.data(), counts.data(),
                                                            places.data(), kAffine, nullptr, Ask(&work)),
                                        work);
    if (status != COHORT_OK) return Text(status);
    for (int r = 0; r < size_; ++r) {
      const auto at = out.begin() + places[static_cast<size_t>(r)];
      const std::vector<Affine> expected = Blocks(r, counts[static_cast<size_t>(r)]);
      if (!std::equal(expected.begin(), expected.end(), at)) return "a gathered block is wrong";
    }
    return "";
  }

  std::string Exchange() {
    const auto all = static_cast<int64_t>(size_);
    const int64_t count = Count();
    std::vector<int64_t> in(static_cast<size_t>(all * count));
    std::vector<int64_t> out(in.size());
    for (size_t i = 0; i < in.size(); ++i) in[i] = Value(rank_, static_cast<int64_t>(i));
    cohort_work work = nullptr;
    const cohort_status status = Finish(
        cohort_all_to_all(handles_.comm, in.data(), out.data(), count, COHORT_BLOCK(8), nullptr, Ask(&work)), work);
    if (status != COHORT_OK) return Text(status);
    for (int64_t i = 0; i < all * count; ++i) {
      if (out[static_cast<size_t>(i)] != Value(static_cast<int>(i / count), rank_ * count + i % count)) {
        return "an exchange is wrong";
      }
    }
    return "";
  }

  // Sends around the ring, and a sum beside them; or the same batch given up.
  std::string Batch() {
    const bool cancels = shared_() % 4 == 0;
    const int32_t next = (rank_ + 1) % size_;
    const int32_t previous = (rank_ + size_ - 1) % size_;
    const std::vector<Affine> sent = Blocks(rank_, 10);
    std::vector<Affine> received(10);
    int64_t sum = rank_;
    cohort_status status = cohort_batch_begin(handles_.comm);
    if (status != COHORT_OK) return Text(status);
    if (cohort_barrier(handles_.comm, nullptr, nullptr) != COHORT_UNIMPLEMENTED) return "a barrier in a batch";
    cohort_work work = nullptr;
    if (cohort_all_reduce(handles_.comm, &sum, &sum, 1, COHORT_INT64, COHORT_SUM, nullptr, &work) !=
        COHORT_INVALID_ARGUMENT) {
      return "a work in a batch";
    }
    if (cohort_batch_end(handles_.comm, nullptr) != COHORT_UNIMPLEMENTED) return "a batch with a refused call";
    status = cohort_batch_begin(handles_.comm);
    if (status != COHORT_OK) return Text(status);
    status = cohort_send(handles_.comm, sent.data(), 10, kAffine, next, nullptr, nullptr);
    if (status == COHORT_OK) {
      status = cohort_receive(handles_.comm, received.data(), 10, kAffine, previous, nullptr, nullptr);
    }
    if (status == COHORT_OK) {
      status = cohort_all_reduce(handles_.comm, &sum, &sum, 1, COHORT_INT64, COHORT_SUM, nullptr, nullptr);
    }
    if (status != COHORT_OK) return Text(status);
    if (cancels) return Text(cohort_batch_cancel(handles_.comm));
    cohort_work* const asked = Ask(&work);
    status = Finish(cohort_batch_end(handles_.comm, asked), work);
    if (status != COHORT_OK) return Text(status);
    return received == Blocks(previous, 10) && sum == size_ * (size_ - 1) / 2 ? "" : "a batch is wrong";
  }

  // A function of the caller's on numbers and on blocks of 8 bytes, whose handle is freed at once.
  std::string OwnNumbers() {
    cohort_op larger = nullptr;
    cohort_status status = cohort_op_create(Larger, &larger_, "larger", 1, &larger);
    if (status != COHORT_OK) return Text(status);
    const cohort_type type = shared_() % 2 == 0 ? COHORT_BLOCK(8) : COHORT_UINT64;
    const int64_t count = Count();
    std::vector<uint64_t> values(static_cast<size_t>(count), static_cast<uint64_t>(rank_ + step_));
    cohort_work work = nullptr;
    const cohort_status called =
        cohort_all_reduce(handles_.comm, values.data(), values.data(), count, type, larger, nullptr, Ask(&work));
    handles_.freed_op = larger;
    status = cohort_op_free(larger);
    if (status != COHORT_OK) return Text(status);
    status = Finish(called, work);
    if (status != COHORT_OK) return Text(status);
    const auto expected = static_cast<uint64_t>(size_ - 1 + step_);
    return std::all_of(values.begin(), values.end(), [=](uint64_t value) { return value == expected; })
               ? ""
               : "not the largest";
  }

  // A group, a window on it, a sum in the window, and the end of both in either order.
  std::string Groups() {
    cohort_comm group = nullptr;
    cohort_status status = cohort_split(handles_.comm, rank_ % 2, -rank_, &group);
    int32_t size = 0;
    cohort_window window = nullptr;
    void* memory = nullptr;
    size_t bytes = 0;
    if (status == COHORT_OK) status = cohort_comm_size(group, &size);
    if (status == COHORT_OK) status = cohort_window_allocate(group, 800, nullptr, &window);
    if (status == COHORT_OK) status = cohort_window_memory(window, &memory, &bytes);
    if (status != COHORT_OK) return Text(status);
    if (bytes != 800) return "a window has another size";
    std::fill_n(static_cast<int32_t*>(memory), 200, 1);
    status = cohort_all_reduce(group, memory, memory, 200, COHORT_INT32, COHORT_SUM, nullptr, nullptr);
    if (status != COHORT_OK) return Text(status);
    if (static_cast<int32_t*>(memory)[199] != size) return "a sum in a window is wrong";
    handles_.freed_comm = group;
    handles_.freed_window = window;
    const bool group_first = own_() % 2 == 0;
    status = group_first ? cohort_comm_free(group) : cohort_window_free(window);
    if (status == COHORT_OK) status = group_first ? cohort_window_free(window) : cohort_comm_free(group);
    return Text(status);
  }

  std::mt19937_64 shared_;
  std::mt19937_64 own_;
  Handles handles_;
  int32_t rank_ = 0;
  int32_t size_ = 1;
  int step_ = 0;
  int64_t composed_ = 0;
  int64_t larger_ = 0;
};

void ExpectAllWell(int ranks, int nodes, int64_t seed, int steps) {
  ProcessClusterOptions options;
  options.ranks = ranks;
  options.nodes = nodes;
  const auto program = [&](ProcessRank& rank) -> std::string {
    cohort_runtime handle = nullptr;
    if (GiveRuntime(rank, &handle) != COHORT_OK) return cohort_last_error();
    return Caller(handle, static_cast<uint64_t>(seed)).Run(steps);
  };
  for (const RankResult& result : RunProcesses(options, program)) {
    EXPECT_EQ(result.text, "") << "seed " << seed << ", " << ranks << " ranks";
    EXPECT_EQ(result.signal, 0);
    EXPECT_FALSE(result.hung);
  }
}

TEST(RandomCallsTest, RightCallsGiveResultsAndWrongOnesErrorsInOneProcess) {
  for (int64_t seed = 1; seed <= Trials(2, 20); ++seed) ExpectAllWell(1, 1, seed, 400);
}

TEST(RandomCallsTest, RightCallsGiveResultsAndWrongOnesErrorsOnOneHost) {
  for (int64_t seed = 1; seed <= Trials(3, 60); ++seed) {
    ExpectAllWell(2 + static_cast<int>(seed % 3), 1, seed, 150);
  }
}

TEST(RandomCallsTest, RightCallsGiveResultsAndWrongOnesErrorsBetweenHosts) {
  if (const std::string why = WhyHostsCannotTalk(); !why.empty()) GTEST_SKIP() << why;
  for (int64_t seed = 1; seed <= Trials(1, 20); ++seed) ExpectAllWell(4, 2, seed, 100);
}

}  // namespace
}  // namespace cohort::testing
