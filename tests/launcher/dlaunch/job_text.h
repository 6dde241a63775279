// Shell commands of several tests, and how the output of jobs is read.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <fstream>
#include <ios>
#include <iterator>
#include <string>

namespace cohort::launcher {

// A shell's script: each rank has a child in its session, one in a session of its own, and an orphan.
inline constexpr char kFamily[] = "(sleep 1000 &); setsid sleep 1000 & sleep 1000 & echo up; wait";

inline bool Succeeds(const std::string& command) { return std::system(command.c_str()) == 0; }

// The whole file; empty when it cannot be read.
inline std::string ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// How often `part`, which is not empty, is in `text` without overlap.
inline size_t CountOf(const std::string& text, const std::string& part) {
  size_t count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + part.size())) ++count;
  return count;
}

}  // namespace cohort::launcher
