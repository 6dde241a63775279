// The output of one rank: cut into lines, kept in files where that is wanted, its last lines remembered, passed on; no
// faster than --log-rate permits.
#pragma once

#include <algorithm>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "cohort/launcher/agent/lines/last_lines.h"
#include "cohort/launcher/agent/rank/line_splitter.h"
#include "cohort/launcher/agent/rank/log_writer.h"
#include "cohort/launcher/agent/rank/output_rate.h"
#include "cohort/launcher/base/event_loop.h"
#include "cohort/runtime/base/file_descriptor.h"
#include "cohort/v1/rendezvous.pb.h"

namespace cohort::launcher {

class RankOutput {
 public:
  struct Options {
    uint32_t rank = 0;
    LogWriter* logs = nullptr;  // needed with a folder; outlives this object
    std::string log_directory;  // empty: no files
    uint64_t epoch = 1;         // each has files of its own
    uint64_t log_rate = 0;      // bytes a second that are passed on; 0: all
    bool raw = false;           // byte for byte: nothing is left out, and no newline is added
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

  // Nobody holds the other ends of the pipes any more, and all that they held has been read.
  bool over() const {
    return std::none_of(streams_.begin(), streams_.end(), [](const Stream& stream) { return stream.fd.valid(); });
  }

  const LastLines& last_lines() const { return last_lines_; }
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
    EventLoop::TimerId text_timer = 0;
    std::string shown = {};  // the latest state of progress that was passed on, as a line
    bool goes_on = false;    // a part of a line was passed on, and not its end
    bool ended = false;
  };
  // While the log has no room its rank is not read, until the writer tells: or this often, since it does not tell that
  // the disk is stalled.
  static constexpr std::chrono::milliseconds kLookForRoom{100};
  static constexpr std::chrono::seconds kShowProgress{1};    // how often, of a bar that is drawn over itself
  static constexpr std::chrono::milliseconds kShowText{50};  // after which an unfinished line, a prompt, is passed on

  void OpenLog(Stream* stream);
  void CloseLog(Stream* stream);
  void WriteLog(Stream* stream, std::string_view bytes);
  void AwaitRoom();
  void OnRoom();
  void WatchAgain();
  void OnText(bool is_error, std::string_view text, bool partial);
  void PassOn(Stream* stream, std::string_view text, bool goes_on);
  // Sees to it that an unfinished line is shown in time.
  void ShowUnfinished(Stream* stream);
  void ShowProgress(Stream* stream);
  void FinishLine(Stream* stream);
  size_t BytesWaitingBeside(const Stream& stream) const;
  // Reads once; false when there is nothing to read now or ever.
  bool ReadSome(Stream* stream);
  void SetWatched(Stream* stream, bool watched);
  void PassOnLater();
  bool LogsAreFull();

  EventLoop* loop_;
  Options options_;
  LastLines last_lines_;
  OutputRate rate_;
  EventLoop::TimerId rate_timer_ = 0;
  EventLoop::TimerId room_timer_ = 0;  // set while a log has no room
  bool paused_ = false;
  std::vector<Stream> streams_;
};

}  // namespace cohort::launcher
