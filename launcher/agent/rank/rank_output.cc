#include "cohort/launcher/agent/rank/rank_output.h"

#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

namespace cohort::launcher {

RankOutput::RankOutput(EventLoop* loop, Options options, runtime::FileDescriptor output, runtime::FileDescriptor error)
    : loop_(loop), options_(std::move(options)), rate_(options_.log_rate, OutputRate::Clock::now()) {
  streams_.reserve(2);
  const auto returns = options_.raw ? LineSplitter::Returns::kKeep : LineSplitter::Returns::kBeginAnew;
  for (runtime::FileDescriptor* fd : {&output, &error}) {
    const bool is_error = fd == &error;
    streams_.push_back(
        {.fd = std::move(*fd),
         .is_error = is_error,
         .watched = false,
         .splitter = LineSplitter(
             [this, is_error](std::string_view text, bool partial) { OnText(is_error, text, partial); }, returns),
         .log_path = "",
         .log = nullptr});
    if (!options_.log_directory.empty()) OpenLog(&streams_.back());
  }
  for (Stream& stream : streams_) SetWatched(&stream, true);
}

RankOutput::~RankOutput() {
  loop_->Cancel(rate_timer_);
  loop_->Cancel(room_timer_);
  for (Stream& stream : streams_) {
    loop_->Cancel(stream.progress_timer);
    loop_->Cancel(stream.text_timer);
    SetWatched(&stream, false);
    CloseLog(&stream);
  }
}

void RankOutput::GoOn(Options options) {
  rate_.Finish(options_.on_line);
  for (Stream& stream : streams_) CloseLog(&stream);
  options_ = std::move(options);
  last_lines_.Clear();
  for (Stream& stream : streams_) {
    stream.ended = !stream.fd.valid();
    stream.log_path.clear();
    if (!options_.log_directory.empty()) OpenLog(&stream);
  }
}

void RankOutput::OpenLog(Stream* stream) {
  stream->log_path = options_.log_directory + "/rank-" + std::to_string(options_.rank);
  if (options_.epoch > 1) stream->log_path += ".restart-" + std::to_string(options_.epoch - 1);
  stream->log_path += stream->is_error ? ".err" : ".out";
  stream->log = options_.logs->Open(stream->log_path, [this] { OnRoom(); });
}

void RankOutput::CloseLog(Stream* stream) {
  if (stream->log) options_.logs->Close(stream->log);
  stream->log.reset();
}

void RankOutput::WriteLog(Stream* stream, std::string_view bytes) {
  if (!stream->log) return;
  options_.logs->Write(stream->log, bytes);
  if (room_timer_ == 0 && LogsAreFull()) AwaitRoom();
}

bool RankOutput::LogsAreFull() {
  for (const Stream& stream : streams_) {
    if (stream.log && options_.logs->full(stream.log)) return true;
  }
  return false;
}

void RankOutput::AwaitRoom() {
  for (Stream& stream : streams_) SetWatched(&stream, false);
  room_timer_ = loop_->After(kLookForRoom, [this] {
    room_timer_ = 0;
    if (LogsAreFull()) return AwaitRoom();
    WatchAgain();
  });
}

void RankOutput::OnRoom() {
  if (room_timer_ == 0 || LogsAreFull()) return;
  loop_->Cancel(std::exchange(room_timer_, 0));
  WatchAgain();
}

void RankOutput::WatchAgain() {
  if (paused_ || room_timer_ != 0) return;
  for (Stream& stream : streams_) SetWatched(&stream, true);
}

void RankOutput::OnText(bool is_error, std::string_view text, bool partial) {
  Stream& stream = streams_[is_error ? 1 : 0];
  const bool goes_on = partial && (options_.raw || !stream.ended);
  const std::string shown = std::exchange(stream.shown, "");
  const std::string_view visible = text.substr(0, text.find_last_not_of('\r') + 1);
  if (!shown.empty() && !goes_on && !stream.goes_on && visible == shown) return;  // it stands there, as a line
  PassOn(&stream, text, goes_on);
}

void RankOutput::ShowUnfinished(Stream* stream) {
  ShowProgress(stream);
  if (!stream->splitter.holds_text()) return loop_->Cancel(std::exchange(stream->text_timer, 0));
  if (stream->text_timer != 0) return;
  stream->text_timer = loop_->After(kShowText, [this, stream] {
    stream->text_timer = 0;
    if (!paused_) stream->splitter.PassOnText();
  });
}

// Again while there is more of it.
void RankOutput::ShowProgress(Stream* stream) {
  if (stream->progress_timer != 0 || stream->splitter.progress().empty()) return;
  stream->progress_timer = loop_->After(kShowProgress, [this, stream] {
    stream->progress_timer = 0;
    const std::string_view text = stream->splitter.progress();
    if (paused_ || text.empty() || text == stream->shown) return;
    stream->shown = text;
    PassOn(stream, text, false);
  });
}

void RankOutput::PassOn(Stream* stream, std::string_view text, bool goes_on) {
  v1::OutputLine line;
  line.set_rank(options_.rank);
  line.set_standard_error(stream->is_error);
  line.set_text(text.data(), text.size());
  line.set_goes_on(goes_on);
  stream->goes_on = goes_on;
  rate_.Take(std::move(line), OutputRate::Clock::now(), options_.on_line);
  PassOnLater();
}

void RankOutput::FinishLine(Stream* stream) {
  stream->ended = true;
  loop_->Cancel(std::exchange(stream->text_timer, 0));
  stream->splitter.Finish();
  if (stream->goes_on && !options_.raw) PassOn(stream, "", false);
}

// Nothing where that stream has ended.
size_t RankOutput::BytesWaitingBeside(const Stream& stream) const {
  const Stream& other = streams_[stream.is_error ? 0 : 1];
  int bytes = 0;
  if (!other.fd.valid() || ::ioctl(other.fd.get(), FIONREAD, &bytes) != 0) return 0;
  return static_cast<size_t>(std::max(bytes, 0));
}

void RankOutput::PassOnLater() {
  if (rate_timer_ != 0 || paused_ || !rate_.waiting()) return;
  rate_timer_ = loop_->After(rate_.next() - OutputRate::Clock::now(), [this] {
    rate_timer_ = 0;
    if (!paused_) rate_.PassOn(OutputRate::Clock::now(), options_.on_line);
    PassOnLater();
  });
}

bool RankOutput::ReadSome(Stream* stream) {
  if (!stream->fd.valid()) return false;
  char buffer[64u << 10];
  const ssize_t n = ::read(stream->fd.get(), buffer, sizeof buffer);
  if (n > 0) {
    const std::string_view bytes(buffer, static_cast<size_t>(n));
    WriteLog(stream, bytes);
    last_lines_.Append(stream->is_error, bytes, BytesWaitingBeside(*stream));
    stream->splitter.Append(bytes);
    ShowUnfinished(stream);
    return true;
  }
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return false;
  SetWatched(stream, false);
  stream->fd.Close();
  FinishLine(stream);
  return false;
}

void RankOutput::SetWatched(Stream* stream, bool watched) {
  if (!stream->fd.valid() || stream->watched == watched) return;
  stream->watched = watched;
  if (watched) {
    loop_->Watch(stream->fd.get(), EPOLLIN, [this, stream](uint32_t) { ReadSome(stream); });
  } else {
    loop_->Unwatch(stream->fd.get());
  }
}

void RankOutput::Pause() {
  if (std::exchange(paused_, true)) return;
  for (Stream& stream : streams_) SetWatched(&stream, false);
}

void RankOutput::Resume() {
  if (!std::exchange(paused_, false)) return;
  WatchAgain();
  for (Stream& stream : streams_) ShowUnfinished(&stream);
  PassOnLater();
}

void RankOutput::Drain(bool final) {
  for (Stream& stream : streams_) {
    // A process that outlives the rank may write for ever: take what a pipe can hold, not more.
    for (int reads = 0; reads < 32 && ReadSome(&stream);) ++reads;
    if (final) FinishLine(&stream);
  }
  rate_.Finish(options_.on_line);
}

}  // namespace cohort::launcher
