// A line of any length of which a bounded part is kept: its beginning and its end.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace cohort::launcher {

class ShortenedLine {
 public:
  // `most`: bytes that are kept. Only the number of those left out comes on top.
  explicit ShortenedLine(size_t most) : half_(most / 2) {}

  // The next bytes of the line, without its newline. What follows a carriage return takes the place of what was before
  // it, as on a terminal.
  void Append(std::string_view bytes);
  // The line so far: "beginning ... [4711 bytes left out] ... end". Returns at its end do not belong to it.
  std::string Text() const;
  // Begins the next line.
  void Clear();

  bool empty() const { return head_.empty(); }
  // The bytes of the line, also of what is left out.
  size_t length() const { return head_.size() + after_head_; }
  // It has taken the place of another text.
  bool drawn_over() const { return drawn_over_; }

 private:
  void Keep(std::string_view text);

  size_t half_;
  std::string head_;
  std::string tail_;       // of what comes after the head; twice as much as is shown at the most
  size_t after_head_ = 0;  // bytes
  bool returned_ = false;  // the latest byte was a carriage return
  bool drawn_over_ = false;
};

// `text` as a ShortenedLine of `most` bytes shows it.
std::string ShortenMiddle(std::string_view text, size_t most);

}  // namespace cohort::launcher
