// The token of `dlaunch join`: where the job's first machine is, and the secret that lets one in. Pure.
#pragma once

#include <array>
#include <cstddef>
#include <string>

#include "absl/status/statusor.h"

namespace cohort::launcher {

// A secret that both sides hold, as a key: 32 bytes. Text of any length makes one.
using JoinKey = std::array<unsigned char, 32>;
JoinKey MakeJoinKey(const std::string& secret);

// Bytes that a stranger can't know, sent first and in the clear: they keep port scanners and browsers from costing a
// handshake. They tell nothing of the key.
inline constexpr size_t kKnockBytes = 16;
std::string KnockOf(const JoinKey& key);

struct JoinToken {
  std::string secret;
  std::string addresses;  // "10.0.0.1:4711,[fd00::1]:4711"
};

inline constexpr size_t kMaxToken = 64u << 10;  // bytes of the longest that is read

// One word of letters, digits, '-', '_' and '.', to be pasted into a shell.
std::string FormatToken(const JoinToken& token);
// kInvalidArgument: no token, or one that was cut or mistyped (it carries a check sum).
absl::StatusOr<JoinToken> ParseToken(const std::string& text);

}  // namespace cohort::launcher
