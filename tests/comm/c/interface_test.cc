// The promises of cohort.h about handles, threads, lifetime and ends, one by one.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "cohort/cohort.h"
#include "cohort/comm/c/objects.h"
#include "tests/comm/c/c_ranks.h"
#include "tests/support/process_cluster.h"

namespace cohort::testing {
namespace {

// A world of one that joins and leaves by the interface.
struct Alone {
  Alone() {
    EXPECT_EQ(cohort_init(nullptr, &runtime), COHORT_OK) << cohort_last_error();
    EXPECT_EQ(cohort_world(runtime, nullptr, &world), COHORT_OK) << cohort_last_error();
  }
  ~Alone() {
    EXPECT_TRUE(world == nullptr || cohort_comm_free(world) == COHORT_OK) << cohort_last_error();
    EXPECT_TRUE(runtime == nullptr || cohort_finalize(runtime) == COHORT_OK) << cohort_last_error();
  }
  Alone(const Alone&) = delete;
  Alone& operator=(const Alone&) = delete;

  cohort_runtime runtime = nullptr;
  cohort_comm world = nullptr;
};

void Keep(void* out, const void* a, const void*, int64_t count, cohort_type type, void*) {
  std::memmove(out, a, static_cast<size_t>(count * cohort_type_bytes(type)));
}

TEST(CInterfaceTest, AWorldOfOneServesEveryCall) {
  const Alone alone;
  cohort_runtime_info info = COHORT_RUNTIME_INFO_INIT;
  ASSERT_EQ(cohort_get_info(alone.runtime, &info), COHORT_OK);
  EXPECT_EQ(info.world_size, 1);
  EXPECT_EQ(info.nodes, 1);
  double value = 2.5;
  EXPECT_EQ(cohort_all_reduce(alone.world, &value, &value, 1, COHORT_FLOAT64, COHORT_SUM, nullptr, nullptr), COHORT_OK);
  EXPECT_EQ(value, 2.5);
  cohort_work work = nullptr;
  int32_t sent = 4;
  int32_t received = 0;
  ASSERT_EQ(cohort_send(alone.world, &sent, 1, COHORT_INT32, 0, nullptr, &work), COHORT_OK) << cohort_last_error();
  ASSERT_EQ(cohort_receive(alone.world, &received, 1, COHORT_INT32, 0, nullptr, nullptr), COHORT_OK);
  EXPECT_EQ(received, 4);
  EXPECT_EQ(cohort_work_wait(work, COHORT_FOREVER), COHORT_OK);
  EXPECT_EQ(cohort_work_free(work), COHORT_OK);
}

TEST(CInterfaceTest, VersionAndFeaturesAreThoseOfTheHeader) {
  EXPECT_EQ(cohort_c_version(), 10000 * COHORT_C_MAJOR + COHORT_C_MINOR);
  EXPECT_STREQ(cohort_version(), COHORT_VERSION);
  EXPECT_EQ(cohort_has_feature("blocks"), 1);
  EXPECT_EQ(cohort_has_feature("window"), 1);
  EXPECT_EQ(cohort_has_feature("telepathy"), 0);
  EXPECT_EQ(cohort_has_feature(nullptr), 0);
  EXPECT_STREQ(cohort_status_name(COHORT_BUSY), "busy");
  EXPECT_STREQ(cohort_status_name(-5), "unknown status");
  EXPECT_EQ(cohort_type_bytes(COHORT_FLOAT16), 2);
  EXPECT_EQ(cohort_type_bytes(COHORT_BLOCK(40)), 40);
  EXPECT_EQ(cohort_type_bytes(77), 0);
}

TEST(CInterfaceTest, ErrorsHaveATextForEachThreadAlone) {
  const Alone alone;
  EXPECT_EQ(cohort_comm_size(nullptr, nullptr), COHORT_INVALID_HANDLE);
  EXPECT_STREQ(cohort_last_error(), "cohort_comm_size: the communicator is null");
  std::thread([] { EXPECT_STREQ(cohort_last_error(), ""); }).join();
  EXPECT_EQ(cohort_comm_size(alone.world, nullptr), COHORT_INVALID_ARGUMENT);
  EXPECT_STREQ(cohort_last_error(), "cohort_comm_size: size is null");
}

TEST(CInterfaceTest, ErrorsHaveATextUntilTheirThreadHasEnded) {
  static std::string seen;
  struct Last {
    int calls = 0;
    ~Last() {
      (void)cohort_comm_size(nullptr, nullptr);
      seen = cohort_last_error();
    }
  };
  std::thread([] {
    thread_local Last last;  // ends after all thread-local objects that are made later
    last.calls += cohort_comm_free(nullptr);
  }).join();
  EXPECT_EQ(seen, "cohort_comm_size: the communicator is null");
}

TEST(CInterfaceTest, ABlockOfAWrongSizeIsNoType) {
  for (const uint64_t bytes : {uint64_t{0}, uint64_t{16777217}, (uint64_t{1} << 32) + 24, ~uint64_t{0}}) {
    EXPECT_EQ(cohort_type_bytes(COHORT_BLOCK(bytes)), 0) << bytes;
  }
  EXPECT_EQ(cohort_type_bytes(COHORT_BLOCK(16777216)), 16777216);
}

TEST(CInterfaceTest, ReservedOptionsAreZero) {
  const Alone alone;
  cohort_comm_options options = COHORT_COMM_OPTIONS_INIT;
  options.reserved = 1;
  cohort_comm none = nullptr;
  EXPECT_EQ(cohort_world(alone.runtime, &options, &none), COHORT_INVALID_ARGUMENT);
  EXPECT_STREQ(cohort_last_error(), "cohort_world: options->reserved is not 0");
}

TEST(CInterfaceTest, ARefusedCallRefusesItsBatch) {
  const Alone alone;
  int32_t sum = 7;
  int32_t out = 0;
  const auto add = [&] {
    return cohort_all_reduce(alone.world, &sum, &out, 1, COHORT_INT32, COHORT_SUM, nullptr, nullptr);
  };
  ASSERT_EQ(cohort_batch_begin(alone.world), COHORT_OK);
  EXPECT_EQ(add(), COHORT_OK);
  EXPECT_EQ(cohort_send(alone.world, &sum, 1, 77, 0, nullptr, nullptr), COHORT_INVALID_ARGUMENT);
  EXPECT_EQ(cohort_barrier(alone.world, nullptr, nullptr), COHORT_UNIMPLEMENTED);
  EXPECT_EQ(add(), COHORT_OK);
  cohort_work work = nullptr;
  EXPECT_EQ(cohort_batch_end(alone.world, &work), COHORT_INVALID_ARGUMENT);
  const std::string text = cohort_last_error();
  const std::string begin =
      "cohort_batch_end: nothing was started, since a call was refused: cohort_send: the type is 77";
  EXPECT_EQ(text.find(begin), 0u) << text;
  EXPECT_EQ(work, nullptr);
  EXPECT_EQ(out, 0);
  ASSERT_EQ(cohort_batch_begin(alone.world), COHORT_OK) << "the refusal is over";
  EXPECT_EQ(add(), COHORT_OK);
  EXPECT_EQ(cohort_batch_end(alone.world, nullptr), COHORT_OK);
  EXPECT_EQ(out, 7);
}

TEST(CInterfaceTest, ACallWithoutAPlaceForItsWorkDoesNotBegin) {
  const Alone alone;
  auto& works = comm::c::Table<cohort_work>();
  std::vector<uint64_t> numbers;
  while (const uint64_t number = works.Add({})) numbers.push_back(number);
  cohort_work work = nullptr;
  int32_t first = 1;
  int32_t second = 2;
  int32_t received = 0;
  EXPECT_EQ(cohort_send(alone.world, &first, 1, COHORT_INT32, 0, nullptr, &work), COHORT_RESOURCE_EXHAUSTED);
  EXPECT_EQ(work, nullptr);
  for (const uint64_t number : numbers) {
    comm::c::Held<cohort_work> held;
    ASSERT_EQ(works.Hold(number, &held), comm::c::Lookup::kFound);
    (void)held.Take();
  }
  ASSERT_EQ(cohort_send(alone.world, &second, 1, COHORT_INT32, 0, nullptr, &work), COHORT_OK) << cohort_last_error();
  ASSERT_EQ(cohort_receive(alone.world, &received, 1, COHORT_INT32, 0, nullptr, nullptr), COHORT_OK);
  EXPECT_EQ(received, 2);
  EXPECT_EQ(cohort_work_wait(work, 20'000'000'000), COHORT_OK);
  EXPECT_EQ(cohort_work_free(work), COHORT_OK);
}

TEST(CInterfaceTest, EmptyBlocksMayLieAnywhere) {
  OnRanks(2, [](ProcessRank& rank, cohort_runtime, cohort_comm world) -> std::string {
    const int64_t counts[] = {1, 0};
    const int64_t places[] = {1, int64_t{1} << 60};
    int32_t out[2] = {0, 0};
    const int32_t in = 5;
    const cohort_status gathered =
        cohort_all_gather_v(world, rank.rank == 0 ? &in : nullptr, out, counts, places, COHORT_INT32, nullptr, nullptr);
    return gathered != COHORT_OK ? Explained(gathered) : out[1] == 5 ? "" : "not gathered";
  });
}

TEST(CInterfaceTest, MessagesNameThePlaceOfTheOptions) {
  const Alone alone;
  float value = 0;
  cohort_call_options options = COHORT_CALL_OPTIONS_INIT;
  options.file = "src/solver.c";
  options.line = 42;
  EXPECT_EQ(cohort_broadcast(alone.world, &value, 1, COHORT_FLOAT32, 3, &options, nullptr), COHORT_INVALID_ARGUMENT);
  EXPECT_STREQ(cohort_last_error(), "broadcast at solver.c:42: root is 3; the group's ranks are 0 to 0");
}

TEST(CInterfaceTest, AFreedHandleIsDetectedWhenItsPlaceIsUsedAgain) {
  const Alone alone;
  cohort_comm first = nullptr;
  cohort_comm second = nullptr;
  ASSERT_EQ(cohort_duplicate(alone.world, &first), COHORT_OK);
  ASSERT_EQ(cohort_comm_free(first), COHORT_OK);
  ASSERT_EQ(cohort_duplicate(alone.world, &second), COHORT_OK);
  EXPECT_EQ(cohort_barrier(first, nullptr, nullptr), COHORT_INVALID_HANDLE);
  EXPECT_STREQ(cohort_last_error(), "cohort_barrier: the communicator has been freed");
  EXPECT_EQ(cohort_comm_free(first), COHORT_INVALID_HANDLE);
  EXPECT_EQ(cohort_barrier(second, nullptr, nullptr), COHORT_OK);
  EXPECT_EQ(cohort_comm_free(second), COHORT_OK);
}

TEST(CInterfaceTest, ObjectsOutliveTheirRuntimeAndRefuseCalls) {
  Alone alone;
  cohort_window window = nullptr;
  void* memory = nullptr;
  ASSERT_EQ(cohort_window_allocate(alone.world, 64, nullptr, &window), COHORT_OK);
  ASSERT_EQ(cohort_window_memory(window, &memory, nullptr), COHORT_OK);
  ASSERT_EQ(cohort_finalize(alone.runtime), COHORT_OK);
  alone.runtime = nullptr;
  EXPECT_EQ(cohort_barrier(alone.world, nullptr, nullptr), COHORT_FAILED_PRECONDITION);
  EXPECT_EQ(cohort_comm_free(alone.world), COHORT_OK);
  alone.world = nullptr;
  std::memset(memory, 1, 64);
  EXPECT_EQ(cohort_window_free(window), COHORT_OK);
}

TEST(CInterfaceTest, AProcessJoinsSeveralTimesAtOnceAndInTurn) {
  for (int i = 0; i < 3; ++i) {
    const Alone one;
    const Alone another;
    int32_t value = 5;
    EXPECT_EQ(cohort_all_reduce(one.world, &value, &value, 1, COHORT_INT32, COHORT_SUM, nullptr, nullptr), COHORT_OK);
    EXPECT_EQ(cohort_all_reduce(another.world, &value, &value, 1, COHORT_INT32, COHORT_SUM, nullptr, nullptr),
              COHORT_OK);
  }
}

TEST(CInterfaceTest, ASecondThreadOnACommunicatorGetsBusyAndTheFirstItsGroup) {
  OnRanks(2, [](ProcessRank& rank, cohort_runtime, cohort_comm world) -> std::string {
    cohort_comm half = nullptr;
    if (rank.rank == 1) {
      if (!rank.meet("busy", 2)) return "rank 0 never saw a thread that is busy";
      return Explained(cohort_split(world, 0, 0, &half));
    }
    cohort_status split = COHORT_INTERNAL;
    std::thread first([&] {
      do {  // the other thread's refused calls hold the communicator as well, for a moment
        split = cohort_split(world, 0, 0, &half);
      } while (split == COHORT_BUSY);
    });
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    cohort_status second = COHORT_OK;
    cohort_comm none = nullptr;
    while (second != COHORT_BUSY && std::chrono::steady_clock::now() < end) {
      second = cohort_subgroup(world, nullptr, 0, &none);  // which is wrong: it changes nothing before or after
      std::this_thread::yield();
    }
    const std::string text = cohort_last_error();
    int32_t size = 0;
    const cohort_status asked = cohort_comm_size(world, &size);
    const cohort_status freed = cohort_comm_free(world);
    const bool met = rank.meet("busy", 2);
    first.join();
    if (second != COHORT_BUSY || text.find("another thread") == std::string::npos) return "not busy: " + text;
    if (freed != COHORT_BUSY) return "freed amid a call";
    if (asked != COHORT_OK || size != 2) return "a question was refused";
    return met ? Explained(split) : "rank 1 did not come";
  });
}

TEST(CInterfaceTest, AWaitGivesUpAtItsTimeAndTheOperationGoesOn) {
  OnRanks(2, [](ProcessRank& rank, cohort_runtime, cohort_comm world) -> std::string {
    cohort_work work = nullptr;
    if (rank.rank == 1 && !rank.meet("waited", 2)) return "rank 0 waits for ever";
    if (cohort_barrier(world, nullptr, &work) != COHORT_OK) return cohort_last_error();
    if (rank.rank == 0) {
      if (cohort_work_test(work) != COHORT_PENDING) return "done without rank 1";
      if (cohort_work_wait(work, 1'000'000) != COHORT_PENDING) return "did not give up";
      if (cohort_work_wait_all(&work, 1, 1'000'000) != COHORT_PENDING) return "did not give up on the list";
      if (!rank.meet("waited", 2)) return "rank 1 did not come";
    }
    const cohort_status ended = cohort_work_wait(work, COHORT_FOREVER);
    return ended != COHORT_OK ? Explained(ended) : Explained(cohort_work_free(work));
  });
}

TEST(CInterfaceTest, AnAbortEndsABlockingCallOfAnotherThread) {
  OnRanks(2, [](ProcessRank& rank, cohort_runtime, cohort_comm world) -> std::string {
    cohort_status ended = COHORT_OK;
    if (rank.rank == 1) {
      if (!rank.meet("aborted", 2)) return "rank 0 did not abort";
      // The last message of rank 0 before its abort may complete one call.
      cohort_status status = cohort_barrier(world, nullptr, nullptr);
      if (status == COHORT_OK) status = cohort_barrier(world, nullptr, nullptr);
      return status == COHORT_ABORTED ? "" : "rank 1 is not told of the abort: " + Explained(status);
    }
    std::string text;
    std::thread waiting([&] {
      ended = cohort_barrier(world, nullptr, nullptr);
      text = cohort_last_error();
    });
    const cohort_status aborted = cohort_comm_abort(world, "a watchdog's patience");
    waiting.join();
    if (!rank.meet("aborted", 2)) return "rank 1 did not come";
    if (aborted != COHORT_OK || ended != COHORT_ABORTED) return Explained(ended);
    return text.find("a watchdog's patience") != std::string::npos ? "" : text;
  });
}

// Both kinds of reductions of the caller's: in the layers below, and of blocks.
void ExpectOnlyAbort(cohort_type type) {
  OnRanks(2, [type](ProcessRank&, cohort_runtime, cohort_comm world) -> std::string {
    struct Context {
      cohort_comm world;
      std::string wrong;
    } context{world, ""};
    const auto abort_inside = [](void* out, const void* a, const void* b, int64_t count, cohort_type kind,
                                 void* given) {
      auto& inside = *static_cast<Context*>(given);
      int32_t size = 0;
      if (cohort_comm_size(inside.world, &size) != COHORT_OK || size != 2) inside.wrong = "no size";
      if (cohort_barrier(inside.world, nullptr, nullptr) != COHORT_BUSY) inside.wrong = "a call was begun";
      if (cohort_comm_free(inside.world) != COHORT_BUSY) inside.wrong = "freed";
      if (cohort_comm_abort(inside.world, "bad data") != COHORT_OK) inside.wrong = "not aborted";
      Keep(out, a, b, count, kind, nullptr);
    };
    cohort_op op = nullptr;
    if (cohort_op_create(abort_inside, &context, "aborts", 1, &op) != COHORT_OK) return cohort_last_error();
    std::vector<char> data(240);
    cohort_status status = COHORT_OK;
    for (int i = 0; i < 100 && status == COHORT_OK; ++i) {
      status = cohort_all_reduce(world, data.data(), data.data(), 10, type, op, nullptr, nullptr);
    }
    (void)cohort_op_free(op);
    if (!context.wrong.empty()) return context.wrong;
    return status == COHORT_ABORTED ? "" : "not aborted: " + Explained(status);
  });
}

TEST(CInterfaceTest, AReductionFunctionMayAbortAndMakesNoCalls) {
  ExpectOnlyAbort(COHORT_FLOAT32);
  ExpectOnlyAbort(COHORT_BLOCK(24));
}

TEST(CInterfaceTest, AReductionFunctionThatThrowsFailsItsGroup) {
  for (const cohort_type type : {cohort_type{COHORT_FLOAT32}, COHORT_BLOCK(24)}) {
    OnRanks(2, [type](ProcessRank&, cohort_runtime, cohort_comm world) -> std::string {
      cohort_op op = nullptr;
      const auto thrower = [](void*, const void*, const void*, int64_t, cohort_type, void*) {
        throw std::runtime_error("no such value");
      };
      if (cohort_op_create(thrower, nullptr, "throws", 1, &op) != COHORT_OK) return cohort_last_error();
      std::vector<char> data(240);
      cohort_status status = COHORT_OK;
      for (int i = 0; i < 100 && status == COHORT_OK; ++i) {
        status = cohort_all_reduce(world, data.data(), data.data(), 10, type, op, nullptr, nullptr);
      }
      (void)cohort_op_free(op);
      return status == COHORT_INTERNAL || status == COHORT_ABORTED ? "" : Explained(status);
    });
  }
}

TEST(CInterfaceTest, WorksOutliveTheirCommunicatorAndEndCancelled) {
  OnRanks(2, [](ProcessRank& rank, cohort_runtime, cohort_comm world) -> std::string {
    cohort_comm group = nullptr;
    if (cohort_duplicate(world, &group) != COHORT_OK) return cohort_last_error();
    if (rank.rank == 1) {
      (void)rank.meet("cancelled", 2);
      return Explained(cohort_comm_free(group));
    }
    cohort_work work = nullptr;
    if (cohort_barrier(group, nullptr, &work) != COHORT_OK) return cohort_last_error();
    if (cohort_comm_free(group) != COHORT_OK) return cohort_last_error();
    const cohort_status ended = cohort_work_wait(work, COHORT_FOREVER);
    if (!rank.meet("cancelled", 2)) return "rank 1 did not come";
    if (cohort_work_free(work) != COHORT_OK) return cohort_last_error();
    return ended == COHORT_CANCELLED ? "" : Explained(ended);
  });
}

TEST(CInterfaceTest, CallsThatDifferNameBothPlaces) {
  OnRanks(2, [](ProcessRank& rank, cohort_runtime, cohort_comm world) -> std::string {
    int64_t values[8] = {};
    cohort_call_options options = COHORT_CALL_OPTIONS_INIT;
    options.file = "solver.c";
    options.line = 100 + rank.rank;
    options.timeout_ns = 20'000'000'000;
    cohort_status status = COHORT_OK;
    for (int i = 0; i < 2 && status == COHORT_OK; ++i) {
      status = cohort_all_reduce(world, values, values, 4 + rank.rank, COHORT_INT64, COHORT_SUM, &options, nullptr);
    }
    const std::string text = cohort_last_error();
    if (status != COHORT_FAILED_PRECONDITION) return Explained(status);
    const bool both = text.find("solver.c:100") != std::string::npos && text.find("solver.c:101") != std::string::npos;
    return both ? "" : text;
  });
}

// Makes calls in a child of fork: 0 when each is refused and the handles can be freed, else the number of the call.
int ServedInAChild(cohort_comm world, cohort_work work) {
  const pid_t child = fork();
  if (child == 0) {
    int64_t value = 0;
    cohort_comm group = nullptr;
    cohort_window window = nullptr;
    const cohort_status refused[] = {cohort_work_test(work),
                                     cohort_work_wait(work, 1'000'000),
                                     cohort_work_wait_all(&work, 1, 1'000'000),
                                     cohort_work_wait_on_stream(work, nullptr),
                                     cohort_broadcast(world, &value, 1, COHORT_INT64, 0, nullptr, nullptr),
                                     cohort_duplicate(world, &group),
                                     cohort_window_allocate(world, 8, nullptr, &window),
                                     cohort_batch_begin(world),
                                     cohort_comm_state(world),
                                     cohort_comm_abort(world, "a child's wish")};
    int number = 0;
    for (const cohort_status status : refused) {
      ++number;
      if (status != COHORT_FAILED_PRECONDITION) _exit(number);
    }
    int32_t size = 0;
    const bool asked = cohort_comm_size(world, &size) == COHORT_OK && size > 0;
    _exit(asked && cohort_work_free(work) == COHORT_OK && cohort_comm_free(world) == COHORT_OK ? 0 : 100);
  }
  int status = -1;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 200;
}

TEST(CInterfaceTest, AWrongHandleOfAListDoesNotEndTheWaitForTheOthers) {
  const Alone alone;
  int32_t sent = 6;
  int32_t received = 0;
  cohort_work works[] = {nullptr, nullptr};
  ASSERT_EQ(cohort_receive(alone.world, &received, 1, COHORT_INT32, 0, nullptr, &works[1]), COHORT_OK);
  EXPECT_EQ(cohort_work_wait_all(works, 2, 1'000'000), COHORT_PENDING);
  EXPECT_EQ(cohort_send(alone.world, &sent, 1, COHORT_INT32, 0, nullptr, nullptr), COHORT_OK);
  EXPECT_EQ(cohort_work_wait_all(works, 2, 20'000'000'000), COHORT_INVALID_HANDLE);
  EXPECT_STREQ(cohort_last_error(), "cohort_work_wait_all: the work is null (number 0 of the list)");
  EXPECT_EQ(received, 6);
  EXPECT_EQ(cohort_work_free(works[1]), COHORT_OK);
}

TEST(CInterfaceTest, AWindowIsRefusedInABatchAndOfDeviceMemory) {
  const Alone alone;
  cohort_window window = nullptr;
  cohort_call_options options = COHORT_CALL_OPTIONS_INIT;
  options.memory = COHORT_CUDA;
  EXPECT_EQ(cohort_window_allocate(alone.world, 64, &options, &window), COHORT_INVALID_ARGUMENT);
  ASSERT_EQ(cohort_batch_begin(alone.world), COHORT_OK);
  EXPECT_EQ(cohort_window_allocate(alone.world, 64, nullptr, &window), COHORT_FAILED_PRECONDITION);
  EXPECT_EQ(window, nullptr);
  EXPECT_EQ(cohort_batch_cancel(alone.world), COHORT_OK);
}

TEST(CInterfaceTest, AForkedChildMovesNothingOfItsParents) {
  OnRanks(2, [](ProcessRank& rank, cohort_runtime, cohort_comm world) -> std::string {
    constexpr int64_t kAll[] = {1, 2, 3};
    int64_t values[] = {0, 0, 0};
    if (rank.rank == 1) {
      if (!rank.meet("receiving", 2)) return "rank 0 did not come";
      const cohort_status sent = cohort_send(world, kAll, 3, COHORT_INT64, 0, nullptr, nullptr);
      if (!rank.meet("sent", 2)) return "rank 0 did not come again";
      return sent != COHORT_OK ? Explained(sent) : Explained(cohort_barrier(world, nullptr, nullptr));
    }
    cohort_work work = nullptr;
    if (cohort_receive(world, values, 3, COHORT_INT64, 1, nullptr, &work) != COHORT_OK) return cohort_last_error();
    if (!rank.meet("receiving", 2) || !rank.meet("sent", 2)) return "rank 1 did not come";
    // The message is there: who drives the operation takes it.
    const int served = ServedInAChild(world, work);
    const cohort_status ended = cohort_work_wait(work, 20'000'000'000);
    if (ended != COHORT_OK || cohort_work_free(work) != COHORT_OK) return Explained(ended);
    if (served != 0) return "the child was served by call " + std::to_string(served);
    if (std::memcmp(values, kAll, sizeof values) != 0) return "another message";
    return Explained(cohort_barrier(world, nullptr, nullptr));
  });
}

TEST(CInterfaceTest, AForkedChildOfAWorldOfOneIsRefusedToo) {
  const Alone alone;
  int32_t sent = 3;
  int32_t received = 0;
  cohort_work work = nullptr;
  ASSERT_EQ(cohort_receive(alone.world, &received, 1, COHORT_INT32, 0, nullptr, &work), COHORT_OK);
  EXPECT_EQ(ServedInAChild(alone.world, work), 0);
  EXPECT_EQ(cohort_send(alone.world, &sent, 1, COHORT_INT32, 0, nullptr, nullptr), COHORT_OK);
  EXPECT_EQ(cohort_work_wait(work, 20'000'000'000), COHORT_OK);
  EXPECT_EQ(cohort_work_free(work), COHORT_OK);
  EXPECT_EQ(received, 3);
}

}  // namespace
}  // namespace cohort::testing
