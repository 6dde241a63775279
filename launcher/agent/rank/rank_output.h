// The output of one rank: cut into lines, kept in files where that is wanted, its tail remembered, passed on; no faster
// than --log-rate permits.
#pragma once

#include <chrono>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "cohort/launcher/agent/rank/line_splitter.h"
#include "cohort/launcher/agent/rank/log_writer.h"
#include "cohort/launcher/agent/rank/output_rate.h"
#include "cohort/launcher/base/event_loop.h"
#include "cohort/runtime/base/file_descriptor.h"
#include "cohort/v1/rendezvous.pb.h"

namespace cohort::launcher {

class RankOutput {
 public:
  static constexpr size_t kTailLines = 60;        // a Python traceback has three for each call
  static constexpr size_t kTailLineBytes = 2000;  // of each remembered line

  struct Options {
    uint32_t rank = 0;
    LogWriter* logs = nullptr;  // needed with a folder; outlives this object
    std::string log_directory;  // empty: no files
    uint64_t epoch = 1;         // each has files of its own
    uint64_t log_rate = 0;      // bytes a second that are passed on; 0: all
    std::function<void(const v1::OutputLine&)> on_line;
  };

  // Reads from the two descriptors (non-blocking) as they become ready.
  RankOutput(EventLoop* loop, Options options, runtime::FileDescriptor output, runtime::FileDescriptor error);
  ~RankOutput();
  RankOutput(const RankOutput&) = delete;
  RankOutput& operator=(const RankOutput&) = delete;

  // The rank lives on: what it prints from now on belongs to another epoch, or rank.
  void GoOn(Options options);

  // Stops reading, so that the rank blocks when its pipe is full, and starts again.
  void Pause();
  void Resume();
  // Takes what is in the pipes now and passes on what the rate has held back. `final`: nothing more will come; an
  // unfinished line is passed on.
  void Drain(bool final);

  std::vector<std::string> tail() const { return {tail_.begin(), tail_.end()}; }
  const std::string& log_path() const { return streams_[1].log_path; }

 private:
  struct Stream {
    runtime::FileDescriptor fd;
    bool is_error = false;
    bool watched = false;
    LineSplitter splitter;
    std::string log_path;
    std::shared_ptr<LogWriter::File> log;
    EventLoop::TimerId progress_timer = 0;
    std::string shown = {};  // of an unfinished line
  };
  // While the log has no room its rank is not read, until the writer tells: or this often, since it does not tell that
  // the disk is stalled.
  static constexpr std::chrono::milliseconds kLookForRoom{100};
  static constexpr std::chrono::seconds kShowProgress{1};  // how often, of a bar that is drawn over itself

  void OpenLog(Stream* stream);
  void CloseLog(Stream* stream);
  void WriteLog(Stream* stream, std::string_view bytes);
  void AwaitRoom();
  void OnRoom();
  void WatchAgain();
  void OnLine(bool is_error, std::string_view text);
  void PassOn(bool is_error, std::string_view text);
  void ShowProgress(Stream* stream);
  // Reads once; false when there is nothing to read now or ever.
  bool ReadSome(Stream* stream);
  void SetWatched(Stream* stream, bool watched);
  void PassOnLater();
  bool LogsAreFull();

  EventLoop* loop_;
  Options options_;
  std::deque<std::string> tail_;
  OutputRate rate_;
  EventLoop::TimerId rate_timer_ = 0;
  EventLoop::TimerId room_timer_ = 0;  // set while a log has no room
  bool paused_ = false;
  std::vector<Stream> streams_;
};

}  // namespace cohort::launcher
