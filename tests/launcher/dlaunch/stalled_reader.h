// For tests in which nobody reads what a job prints for a while: waiting without reading, as DlaunchProcess's own waits
// don't.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstddef>
#include <fstream>
#include <functional>
#include <string>
#include <thread>

namespace cohort::launcher {

inline constexpr std::chrono::seconds kSoon{30};

// False when the condition did not hold soon.
inline bool WaitUnread(const std::function<bool()>& condition) {
  const auto end = std::chrono::steady_clock::now() + kSoon;
  while (!condition()) {
    if (std::chrono::steady_clock::now() >= end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  return true;
}

// The bytes that the process has written so far, to any file.
inline size_t BytesWritten(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/io");
  std::string name;
  size_t value = 0;
  while (file >> name >> value) {
    if (name == "wchar:") return value;
  }
  return 0;
}

// Whether it writes, and then for a second nothing more.
inline bool IsStuck(pid_t pid) {
  size_t before = 0;
  auto since = std::chrono::steady_clock::now();
  return WaitUnread([&] {
    const size_t now = BytesWritten(pid);
    if (now != before) since = std::chrono::steady_clock::now();
    before = now;
    return now > (4u << 20) && std::chrono::steady_clock::now() - since > std::chrono::seconds(1);
  });
}

}  // namespace cohort::launcher
