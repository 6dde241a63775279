// Lines that ranks print after something has failed: held back until the cause is told, so that it comes first.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace cohort::launcher {

// A line of a rank, without its newline, or a part of one, for descriptor 1 or 2.
struct RankLine {
  int fd = 1;
  uint32_t rank = 0;
  std::string text;
  bool goes_on = false;  // the next one of that rank and descriptor belongs to the same line
};

class HeldOutput {
 public:
  // `print` is called with each line that is released.
  explicit HeldOutput(std::function<void(const RankLine&)> print) : print_(std::move(print)) {}

  // False once released: the line is the caller's to print.
  bool holding() const { return holding_; }
  bool empty() const { return lines_.empty(); }
  // Keeps a line; more than 8 MiB are released.
  void Keep(RankLine line);
  // Prints what is kept and holds nothing more.
  void Release();
  // Prints what is kept of one rank, and goes on holding.
  void ReleaseOf(uint32_t rank);
  // Holds again, for another failure.
  void Rearm() { holding_ = true; }

 private:
  static constexpr size_t kMaxBytes = 8u << 20;

  std::function<void(const RankLine&)> print_;
  std::vector<RankLine> lines_;
  size_t bytes_ = 0;
  bool holding_ = true;
};

}  // namespace cohort::launcher
