// Writes to standard output and error from a thread of its own, so that a terminal or a pipe that does not take any
// more never keeps dlaunch from its work. What is handed over at once stays together.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

namespace cohort::launcher {

class OutputPrinter {
 public:
  static constexpr size_t kHighWater = 4u << 20;

  struct Callbacks {
    // Both are called on the printer's thread, and never after Finish or the destructor has returned.
    std::function<void()> on_drained;  // there is room again after full() was true
    // Once a stream: it takes nothing any more, because of `error` (EPIPE: nobody reads it); what goes there is
    // dropped.
    std::function<void(int fd, int error)> on_closed;
  };
  explicit OutputPrinter(Callbacks callbacks);
  // Gives up what is not written yet.
  ~OutputPrinter();
  OutputPrinter(const OutputPrinter&) = delete;
  OutputPrinter& operator=(const OutputPrinter&) = delete;

  // Queues text for descriptor 1 or 2, in the order of the calls. Never blocks, never refuses.
  void Print(int fd, std::string_view text);
  bool full();
  // The errno for which descriptor 1 or 2 was closed, or 0.
  int error(int fd);
  // Waits until everything is written; false when the time was over first.
  bool Finish(std::chrono::milliseconds timeout);

 private:
  struct Shared;
  static void Run(const std::shared_ptr<Shared>& shared);

  std::shared_ptr<Shared> shared_;  // outlives the printer where its thread is stuck in a write
};

// "nobody reads the standard output", for people: what became of descriptor 1 or 2 with that errno.
std::string DescribeClosedStream(int fd, int error);

}  // namespace cohort::launcher
