// The conventions that a rank and its agent share besides proto/cohort/v1/agent.proto.
#pragma once

#include <cstddef>
#include <cstdint>

namespace cohort::runtime {

// The version of the conversation: hello and welcome carry it.
inline constexpr uint32_t kAgentProtocol = 2;
// The longest message, in bytes.
inline constexpr size_t kMaxAgentPacket = 64 * 1024;

// A rank may finalize its runtime and open another one in the same epoch. The ranks' first runtimes meet in one
// segment, their second ones in another, and so on. A segment's number is the epoch, plus `reopened` << 32.
constexpr uint64_t SegmentEpoch(uint64_t epoch, uint64_t reopened) { return epoch | reopened << 32; }
constexpr uint64_t EpochOf(uint64_t segment_epoch) { return segment_epoch & 0xffffffff; }
constexpr uint64_t ReopenedOf(uint64_t segment_epoch) { return segment_epoch >> 32; }

// RankControl::state.
inline constexpr uint32_t kRankAbsent = 0;
inline constexpr uint32_t kRankAttached = 1;
inline constexpr uint32_t kRankFinalised = 2;
inline constexpr uint32_t kRankLost = 3;

}  // namespace cohort::runtime
