// Writes the files of --log-dir from a thread of its own, so that a file system that takes nothing (a server that is
// gone) never keeps an agent's loop from its leases and its ranks. What waits of a file is bounded; what does not fit
// is left out, and the file says how much, at the place where it is missing.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "cohort/launcher/base/event_loop.h"

namespace cohort::launcher {

class LogWriter {
 public:
  static constexpr size_t kFileBytes = 2u << 20;  // that wait of one file; a rank has two in each epoch
  static constexpr size_t kAllBytes = 64u << 20;  // that wait of all
  // Above it a caller that can should wait until there is room, unless the disk is stalled: so a disk that is merely
  // slow slows ranks down, as a pipe does, and nothing is lost.
  static constexpr size_t kHighWater = 512u << 10;
  static constexpr std::chrono::seconds kStalledAfter{1};  // without any progress

  class File;
  // For the user: path, cause and what follows. Once a file and cause.
  using OnProblem = std::function<void(const std::string&)>;

  // Problems are told on the loop's thread, or by Finish.
  LogWriter(EventLoop* loop, OnProblem on_problem);
  // Gives up what is not written yet.
  ~LogWriter();
  LogWriter(const LogWriter&) = delete;
  LogWriter& operator=(const LogWriter&) = delete;

  // Empties the file, or makes it and its folder. None of these calls blocks, whatever the disk does.
  // `on_room`: called on the loop's thread when a file that was full() no longer is; not where its disk is stalled, and
  // not after Close.
  std::shared_ptr<File> Open(const std::string& path, std::function<void()> on_room = {});
  void Write(const std::shared_ptr<File>& file, std::string_view bytes);
  void Close(const std::shared_ptr<File>& file);

  // Whether kHighWater is reached, or half of kAllBytes, and waiting helps.
  bool full(const std::shared_ptr<File>& file);
  // Whether something waits, and the disk is getting on with it.
  bool working() const;

  // At the end: waits until everything is written, tells problems that were not told yet, and what is missing where
  // the time was over first.
  void Finish(std::chrono::milliseconds timeout);

 private:
  struct Shared;
  struct Piece;
  static void Run(const std::shared_ptr<Shared>& shared);
  static std::string Perform(const Piece& piece);
  void Put(Piece piece);
  void TellProblems();

  std::shared_ptr<Shared> shared_;  // outlives the writer where its thread is stuck in a call
  OnProblem on_problem_;
};

}  // namespace cohort::launcher
