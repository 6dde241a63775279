// The conventions that a rank and its agent share besides proto/cohort/v1/agent.proto.
#pragma once

#include <cstddef>
#include <cstdint>

namespace cohort::runtime {

// The version of the conversation: hello and welcome carry it.
inline constexpr uint32_t kAgentProtocol = 2;
// The longest message, in bytes.
inline constexpr size_t kMaxAgentPacket = 64 * 1024;

// RankControl::state.
inline constexpr uint32_t kRankAbsent = 0;
inline constexpr uint32_t kRankAttached = 1;
inline constexpr uint32_t kRankFinalised = 2;
inline constexpr uint32_t kRankLost = 3;

}  // namespace cohort::runtime
