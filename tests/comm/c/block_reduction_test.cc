// Reductions of blocks: calls that differ, and ranks that lack memory or time.
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "cohort/comm/c/cohort.h"
#include "cohort/runtime/base/sanitizer.h"
#include "tests/comm/c/c_ranks.h"
#include "tests/support/short_calls.h"

namespace cohort::testing {
namespace {

void Keep(void* out, const void* a, const void*, int64_t count, cohort_type type, void*) {
  std::memmove(out, a, static_cast<size_t>(count * cohort_type_bytes(type)));
}

// One rank's reduction.
struct Reduction {
  const char* name = "keep";
  int32_t commutative = 0;
  int64_t block_bytes = 24;
  int64_t blocks = 10;
  bool to_root = false;
  cohort_call_options options = COHORT_CALL_OPTIONS_INIT;
};

cohort_status Reduce(cohort_comm world, const Reduction& reduction) {
  cohort_op op = nullptr;
  cohort_status status = cohort_op_create(Keep, nullptr, reduction.name, reduction.commutative, &op);
  if (status != COHORT_OK) return status;
  std::vector<char> in(static_cast<size_t>(reduction.blocks * reduction.block_bytes));
  std::vector<char> out(in.size());
  const cohort_type type = COHORT_BLOCK(reduction.block_bytes);
  status =
      reduction.to_root
          ? cohort_reduce(world, in.data(), out.data(), reduction.blocks, type, op, 0, &reduction.options, nullptr)
          : cohort_all_reduce(world, in.data(), out.data(), reduction.blocks, type, op, &reduction.options, nullptr);
  (void)cohort_op_free(op);
  return status;
}

// Rank 0 makes one reduction and rank 1 the other.
void ExpectMismatch(const Reduction& one, const Reduction& other) {
  OnRanks(2, [&](ProcessRank& rank, cohort_runtime, cohort_comm world) -> std::string {
    cohort_status status = COHORT_OK;
    for (int i = 0; i < 2 && status == COHORT_OK; ++i) status = Reduce(world, rank.rank == 0 ? one : other);
    return status == COHORT_FAILED_PRECONDITION ? "" : "not noticed: " + Explained(status);
  });
}

TEST(CBlockReductionTest, ReductionsThatDifferFailTheGroup) {
  const Reduction keep;
  Reduction renamed;
  renamed.name = "kept";
  ExpectMismatch(keep, renamed);
  Reduction commutative;
  commutative.commutative = 1;
  ExpectMismatch(keep, commutative);
  Reduction halves;
  halves.block_bytes = 12;
  halves.blocks = 20;
  ExpectMismatch(keep, halves);
  Reduction many;
  many.blocks = 4000;
  Reduction to_root = many;
  to_root.to_root = true;
  ExpectMismatch(many, to_root);
}

TEST(CBlockReductionTest, AMismatchNamesTheReduction) {
  OnRanks(2, [](ProcessRank& rank, cohort_runtime, cohort_comm world) -> std::string {
    Reduction reduction;
    reduction.name = rank.rank == 0 ? "least" : "most";
    reduction.options.tag = uint64_t{7} << 32 | 3;
    cohort_status status = COHORT_OK;
    for (int i = 0; i < 2 && status == COHORT_OK; ++i) status = Reduce(world, reduction);
    const std::string text = cohort_last_error();
    const std::string own =
        "a part of cohort_all_reduce(" + std::string(reduction.name) + ", blocks of 24 bytes, tag 7/3)";
    return status == COHORT_FAILED_PRECONDITION && text.find(own) != std::string::npos ? "" : "no mismatch: " + text;
  });
}

// Rank 0 has 10 blocks of 24 bytes and rank 1 has 20 of 12, which are the same bytes. "" where both learn so, and rank
// 0 which blocks it has.
std::string OtherBlocks(ProcessRank& rank, const std::function<cohort_status(cohort_type, int64_t)>& call) {
  const bool first = rank.rank == 0;
  cohort_status status = COHORT_OK;
  for (int i = 0; i < 2 && status == COHORT_OK; ++i) {
    status = first ? call(COHORT_BLOCK(24), 10) : call(COHORT_BLOCK(12), 20);
  }
  const std::string text = cohort_last_error();
  if (status != COHORT_FAILED_PRECONDITION) return "not noticed: " + Explained(status);
  return text.find(first ? "blocks of 24 bytes, tag 7/3" : "blocks of 12 bytes, tag 7/3") != std::string::npos ? ""
                                                                                                               : text;
}

TEST(CBlockReductionTest, BlocksOfAnotherSizeAreNoMatchWhereTheyAreMoved) {
  for (const bool with_work : {false, true}) {
    OnRanks(2, [with_work](ProcessRank& rank, cohort_runtime, cohort_comm world) -> std::string {
      return OtherBlocks(rank, [&](cohort_type type, int64_t count) {
        static char in[240];
        static char out[480];
        cohort_call_options options = COHORT_CALL_OPTIONS_INIT;
        options.tag = uint64_t{7} << 32 | 3;
        cohort_work work = nullptr;
        cohort_status status = cohort_all_gather(world, in, out, count, type, &options, with_work ? &work : nullptr);
        if (work == nullptr) return status;
        status = cohort_work_wait(work, COHORT_FOREVER);
        (void)cohort_work_free(work);
        return status;
      });
    });
  }
}

TEST(CBlockReductionTest, AReceiveTakesNoBlocksOfAnotherSize) {
  OnRanks(2, [](ProcessRank& rank, cohort_runtime, cohort_comm world) -> std::string {
    char data[240] = {};
    if (rank.rank == 0) {
      (void)cohort_send(world, data, 10, COHORT_BLOCK(24), 1, nullptr, nullptr);
      return cohort_barrier(world, nullptr, nullptr) != COHORT_OK ? "" : "the group goes on";
    }
    const cohort_status status = cohort_receive(world, data, 20, COHORT_BLOCK(12), 0, nullptr, nullptr);
    return status == COHORT_FAILED_PRECONDITION ? "" : "not noticed: " + Explained(status);
  });
}

TEST(CBlockReductionTest, EmptyBlocksMayLieAnywhere) {
  OnRanks(2, [](ProcessRank& rank, cohort_runtime, cohort_comm world) -> std::string {
    cohort_op op = nullptr;
    if (cohort_op_create(Keep, nullptr, "keep", 0, &op) != COHORT_OK) return cohort_last_error();
    const int64_t counts[] = {1, 0};
    const int64_t places[] = {1, int64_t{1} << 60};
    const char in[48] = {};
    char out[24] = {1};
    const cohort_status status =
        cohort_reduce_scatter_v(world, in, counts, places, out, COHORT_BLOCK(24), op, nullptr, nullptr);
    (void)cohort_op_free(op);
    if (status != COHORT_OK) return Explained(status);
    return out[0] == (rank.rank == 0 ? 0 : 1) ? "" : "another result";
  });
}

TEST(CBlockReductionTest, AnAlgorithmIsRefused) {
  OnRanks(1, [](ProcessRank&, cohort_runtime, cohort_comm world) -> std::string {
    Reduction reduction;
    reduction.options.algorithm = "ring";
    return Reduce(world, reduction) == COHORT_INVALID_ARGUMENT ? "" : "accepted";
  });
}

TEST(CBlockReductionTest, ARankWithoutMemoryFailsItsGroup) {
  if (COHORT_ADDRESS_SANITIZER || COHORT_THREAD_SANITIZER) GTEST_SKIP() << "sanitizers end the process instead";
  OnRanks(2, [](ProcessRank& rank, cohort_runtime, cohort_comm world) -> std::string {
    constexpr int64_t kBlocks = 1'000'000;
    std::vector<char> data(kBlocks * 64);
    cohort_op op = nullptr;
    if (cohort_op_create(Keep, nullptr, "keep", 0, &op) != COHORT_OK) return cohort_last_error();
    if (!rank.meet("ready", 2)) return "a rank did not come";
    if (rank.rank == 1) {
      int64_t pages = 0;
      std::ifstream("/proc/self/statm") >> pages;
      const auto bytes = static_cast<rlim_t>(pages * sysconf(_SC_PAGESIZE) + (16 << 20));
      const rlimit limit = {bytes, bytes};
      if (setrlimit(RLIMIT_AS, &limit) != 0) return "no limit";
    }
    const cohort_status status =
        cohort_all_reduce(world, data.data(), data.data(), kBlocks, COHORT_BLOCK(64), op, nullptr, nullptr);
    const cohort_status expected = rank.rank == 1 ? COHORT_RESOURCE_EXHAUSTED : COHORT_ABORTED;
    return status == expected ? "" : Explained(status);
  });
}

// Time itself is tested: two parts are longer than the timeout.
constexpr std::chrono::milliseconds kPart(400);

TEST(CBlockReductionTest, ItsTwoCallsHaveTheTimeOfOne) {
  OnRanks(2, [](ProcessRank& rank, cohort_runtime, cohort_comm world) -> std::string {
    const auto slow = [](void* out, const void* a, const void* b, int64_t count, cohort_type type, void* given) {
      if (given != nullptr) std::this_thread::sleep_for(kPart);
      Keep(out, a, b, count, type, nullptr);
    };
    cohort_op op = nullptr;
    if (cohort_op_create(slow, rank.rank == 1 ? &rank : nullptr, "slow", 0, &op) != COHORT_OK) return "no op";
    std::vector<char> data(24 * 4000);
    cohort_call_options options = COHORT_CALL_OPTIONS_INIT;
    options.timeout_ns = 600'000'000;
    if (cohort_barrier(world, nullptr, nullptr) != COHORT_OK) return cohort_last_error();
    if (rank.rank == 1) std::this_thread::sleep_for(kPart);
    const cohort_status status = cohort_all_reduce(world, data.data(), data.data(), 4000, COHORT_BLOCK(24), op,
                                                   rank.rank == 0 ? &options : nullptr, nullptr);
    return rank.rank == 1 || status == COHORT_DEADLINE_EXCEEDED ? "" : "no timeout: " + Explained(status);
  });
}

TEST(CBlockReductionTest, BothOfItsCallsRepeatThoseOfTheReductionBefore) {
  OnRanks(2, [](ProcessRank&, cohort_runtime, cohort_comm world) -> std::string {
    std::shared_ptr<comm::Communicator> group;
    if (comm::c::Peek("test", world, &comm::c::CommunicatorObject::communicator, &group) != COHORT_OK)
      return "no group";
    Reduction reduction;
    reduction.blocks = 400;  // too many to be gathered whole
    for (int i = 0; i < 3; ++i) {
      if (Reduce(world, reduction) != COHORT_OK) return cohort_last_error();
    }
    const uint64_t before = ShortCallsOf(*group).all();
    constexpr uint64_t kMore = 20;
    for (uint64_t i = 0; i < kMore; ++i) {
      if (Reduce(world, reduction) != COHORT_OK) return cohort_last_error();
    }
    const uint64_t repeated = ShortCallsOf(*group).all() - before;
    return repeated == 2 * kMore ? "" : std::to_string(repeated) + " of " + std::to_string(2 * kMore);
  });
}

}  // namespace
}  // namespace cohort::testing
