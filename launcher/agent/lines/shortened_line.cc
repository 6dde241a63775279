#include "cohort/launcher/agent/lines/shortened_line.h"

#include <algorithm>

namespace cohort::launcher {
namespace {

bool ContinuesCharacter(char byte) { return (static_cast<unsigned char>(byte) & 0xc0) == 0x80; }

// Without the beginning of a UTF-8 character at its end.
std::string_view WholeEnd(std::string_view text) {
  size_t start = text.size();
  while (start > 0 && text.size() - start < 3 && ContinuesCharacter(text[start - 1])) --start;
  if (start == 0) return text;
  const auto first = static_cast<unsigned char>(text[start - 1]);
  const size_t length = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : first >= 0xc0 ? 2 : 1;
  return length > text.size() - start + 1 ? text.substr(0, start - 1) : text;
}

// Without the end of a UTF-8 character at its beginning.
std::string_view WholeBeginning(std::string_view text) {
  size_t skip = 0;
  while (skip < 3 && skip < text.size() && ContinuesCharacter(text[skip])) ++skip;
  return text.substr(skip);
}

}  // namespace

void ShortenedLine::Append(std::string_view bytes) {
  while (!bytes.empty()) {
    const size_t end = bytes.find('\r');
    const std::string_view text = bytes.substr(0, end);
    if (!text.empty() && returned_) {
      Clear();
      drawn_over_ = true;
    }
    Keep(text);
    if (end == std::string_view::npos) return;
    returned_ = true;
    bytes.remove_prefix(end + 1);
  }
}

void ShortenedLine::Keep(std::string_view text) {
  const size_t of_head = std::min(text.size(), half_ - head_.size());
  head_.append(text.substr(0, of_head));
  text.remove_prefix(of_head);
  after_head_ += text.size();
  if (text.size() > half_) text.remove_prefix(text.size() - half_);
  tail_.append(text);
  if (tail_.size() > 2 * half_) tail_.erase(0, tail_.size() - half_);
}

std::string ShortenedLine::Text() const {
  if (after_head_ <= half_) return head_ + tail_;
  const std::string_view head = WholeEnd(head_);
  const std::string_view tail = WholeBeginning(std::string_view(tail_).substr(tail_.size() - half_));
  return std::string(head) + " ... [" + std::to_string(length() - head.size() - tail.size()) + " bytes left out] ... " +
         std::string(tail);
}

void ShortenedLine::Clear() {
  head_.clear();
  tail_.clear();
  after_head_ = 0;
  returned_ = drawn_over_ = false;
}

std::string ShortenMiddle(std::string_view text, size_t most) {
  ShortenedLine line(most);
  line.Append(text);
  return line.Text();
}

}  // namespace cohort::launcher
