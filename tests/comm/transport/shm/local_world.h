// Several ranks in one process, each with its own mapping of one segment and its own transport: deterministic, because
// the test decides whose turn it is.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "cohort/comm/transport/shm/shm_transport.h"
#include "cohort/runtime/base/deadline.h"
#include "cohort/runtime/segment/segment.h"

namespace cohort::comm::testing {

inline constexpr uint64_t kSignature = 0x1234567;

struct LocalRank {
  std::unique_ptr<runtime::Segment> segment;
  std::unique_ptr<ShmTransport> transport;
};

class LocalWorld {
 public:
  explicit LocalWorld(int ranks, ShmOptions options = {.private_reads = true}) {
    auto created = runtime::Segment::Create({.local_ranks = ranks, .job_id = "test"});
    EXPECT_TRUE(created.ok()) << created.status();
    agent_ = std::move(*created);
    for (int rank = 0; rank < ranks; ++rank) {
      auto segment = runtime::Segment::Attach(dup(agent_->fd()), rank);
      EXPECT_TRUE(segment.ok()) << segment.status();
      LocalRank local{.segment = std::move(*segment), .transport = nullptr};
      local.transport = std::make_unique<ShmTransport>(
          *local.segment, rank, [ranks](int peer) { return peer < ranks ? peer : -1; }, options);
      ranks_.push_back(std::move(local));
    }
  }

  runtime::Segment& agent() { return *agent_; }
  runtime::Segment& segment(int rank) { return *ranks_[static_cast<size_t>(rank)].segment; }
  ShmTransport& transport(int rank) { return *ranks_[static_cast<size_t>(rank)].transport; }

  std::unique_ptr<Link> Connect(int rank, int peer, uint64_t group = 1, uint16_t lane = 0) {
    auto link = transport(rank).Connect({.group = group, .epoch = 1, .peer_world_rank = peer, .lane = lane});
    EXPECT_TRUE(link.ok()) << link.status();
    return link.ok() ? std::move(*link) : nullptr;
  }
  std::unique_ptr<Fanout> ConnectFanout(int rank, int ranks, uint64_t group = 1) {
    FanoutSpec spec{.group = group, .epoch = 1, .group_rank = rank, .world_ranks = {}, .lane = 0};
    for (int member = 0; member < ranks; ++member) spec.world_ranks.push_back(member);
    auto fanout = transport(rank).ConnectFanout(spec);
    EXPECT_TRUE(fanout.ok()) << fanout.status();
    return fanout.ok() ? std::move(*fanout) : nullptr;
  }
  // `bytes` of memory in the rank's arena, such as a window has.
  std::byte* Window(int rank, size_t bytes) {
    auto block = segment(rank).Allocate(bytes);
    EXPECT_TRUE(block.ok()) << block.status();
    return static_cast<std::byte*>(*segment(rank).Map(*block));
  }

 private:
  std::unique_ptr<runtime::Segment> agent_;
  std::vector<LocalRank> ranks_;
};

inline std::vector<std::byte> Pattern(size_t bytes, uint64_t seed) {
  std::vector<std::byte> data(bytes);
  std::mt19937_64 random(seed);
  for (size_t i = 0; i < bytes; i += 8) {
    const uint64_t word = random();
    std::memcpy(data.data() + i, &word, std::min<size_t>(8, bytes - i));
  }
  return data;
}

inline SendOperation SendOf(const std::byte* data, size_t bytes, uint64_t signature = kSignature) {
  SendOperation operation;
  operation.data = data;
  operation.bytes = bytes;
  operation.signature = signature;
  return operation;
}
inline RecvOperation RecvOf(std::byte* data, size_t bytes, uint64_t signature = kSignature) {
  RecvOperation operation;
  operation.data = data;
  operation.bytes = bytes;
  operation.signature = signature;
  return operation;
}

// Calls the attempts in turn until each has said kDone; false when one fails or the deadline passes.
inline bool DriveAll(std::vector<std::function<Progress()>> attempts) {
  const auto deadline = runtime::Deadline::After(std::chrono::seconds(30));
  std::vector<bool> done(attempts.size());
  for (size_t left = attempts.size(); left > 0;) {
    bool moved = false;
    for (size_t i = 0; i < attempts.size(); ++i) {
      if (done[i]) continue;
      const Progress progress = attempts[i]();
      if (progress == Progress::kFailed) return false;
      if (progress != Progress::kBlocked) moved = true;
      if (progress == Progress::kDone) done[i] = true, --left;
    }
    if (!moved && deadline.passed()) return false;
  }
  return true;
}

// Sizes at and around every limit of the transport.
inline std::vector<size_t> EdgeSizes() {
  return {0,
          1,
          3,
          7,
          8,
          15,
          16,
          17,
          31,
          32,
          33,
          47,
          48,
          49,
          127,
          128,
          129,
          1000,
          1023,
          1024,
          1025,
          2047,
          2048,
          2049,
          4096,
          6143,
          6144,
          6145,
          8191,
          8192,
          8193,
          16384,
          32767,
          32768,
          32769,
          65536,
          131071,
          131073,
          (512 << 10) - 1,
          512 << 10,
          (512 << 10) + 1,
          (1 << 20) + 7};
}

// dst[i] = a[i] - b[i] of an unsigned type: not commutative, so that the order of the operands shows.
template <typename T>
void Subtract(void* dst, const void* a, const void* b, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    T left, right;
    std::memcpy(&left, static_cast<const std::byte*>(a) + i * sizeof(T), sizeof(T));
    std::memcpy(&right, static_cast<const std::byte*>(b) + i * sizeof(T), sizeof(T));
    const T result = static_cast<T>(left - right);
    std::memcpy(static_cast<std::byte*>(dst) + i * sizeof(T), &result, sizeof(T));
  }
}

}  // namespace cohort::comm::testing
