// Cuts a stream of bytes into lines, and long ones into parts. A carriage return within a line begins it again, as on a
// terminal, unless returns are kept: then lines and parts together are the stream, byte for byte.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>

namespace cohort::launcher {

// A longer line is passed on in parts of this size.
inline constexpr size_t kMaxLineBytes = 64u << 10;

class LineSplitter {
 public:
  enum class Returns {
    kBeginAnew,  // the latest state of a progress bar is the line
    kKeep,
  };
  // `text` has no newline. partial: the line goes on in the next call, or the stream ended without a newline.
  using Sink = std::function<void(std::string_view text, bool partial)>;
  explicit LineSplitter(Sink sink, Returns returns = Returns::kBeginAnew) : sink_(std::move(sink)), returns_(returns) {}

  void Append(std::string_view bytes);
  // The text of an unfinished line that has begun again at least once; empty: there is none.
  std::string_view progress() const;
  // Whether text of an unfinished line is held back that is no progress: a prompt, or the first part of a line.
  bool holds_text() const { return !held_.empty() && progress().empty(); }
  // Passes that on, as a part.
  void PassOnText();
  // The stream has ended.
  void Finish();

 private:
  void Give(std::string_view text, bool partial);
  // Forgets what the line showed before it began again; what was passed on of it becomes a line.
  void DropOverwritten();

  Sink sink_;
  const Returns returns_;
  std::string held_;  // the beginning of a line, or its next part; a return at its end has overwritten nothing yet
  bool overwrote_ = false;
  bool given_ = false;  // a part of this line was passed on
};

}  // namespace cohort::launcher
