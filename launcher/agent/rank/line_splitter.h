// Cuts a stream of bytes into lines. A carriage return within a line begins it anew, as on a terminal: of a progress
// bar its latest state is the line.
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
  // `text` has no newline. partial: the line goes on in the next call, or the stream ended without a newline.
  using Sink = std::function<void(std::string_view text, bool partial)>;
  explicit LineSplitter(Sink sink) : sink_(std::move(sink)) {}

  void Append(std::string_view bytes);
  // The text of an unfinished line that has begun again at least once; empty: there is none.
  std::string_view progress() const;
  // The stream has ended.
  void Finish();

 private:
  // Forgets what the line showed before it began anew.
  void DropOverwritten();

  Sink sink_;
  std::string held_;  // the beginning of a line; a return at its end has overwritten nothing yet
  bool overwrote_ = false;
};

}  // namespace cohort::launcher
