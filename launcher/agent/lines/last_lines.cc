#include "cohort/launcher/agent/lines/last_lines.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "cohort/launcher/agent/lines/last_words.h"

namespace cohort::launcher {
namespace {

// The beginning of the last kLines lines in `bytes`, and of what follows them.
size_t BeginOfLast(std::string_view bytes) {
  size_t end = bytes.size();
  for (size_t newlines = 0; newlines <= LastLines::kLines; ++newlines) {
    if (end == 0) return 0;
    end = bytes.rfind('\n', end - 1);
    if (end == std::string_view::npos) return 0;
  }
  return end + 1;
}

}  // namespace

LastLines::Line LastLines::Stream::Unfinished() const {
  Line line = latest;
  line.text = open.Text();
  line.drawn_over = open.drawn_over();
  return line;
}

void LastLines::Append(bool is_error, std::string_view bytes, size_t other_waits, Clock::time_point now) {
  Stream& stream = streams_[is_error ? 1 : 0];
  printed_ += bytes.size();
  stream.latest.end_of_backlog = printed_ + other_waits;
  const bool is_behind = other_waits >= kBacklogBytes;
  const uint64_t place = printed_ + (is_behind ? other_waits : 0);
  if (place > stream.latest.place) {
    stream.latest.place = place;
    stream.latest.is_behind = is_behind;
  }
  stream.latest.at = now;
  if (const size_t begin = BeginOfLast(bytes); begin > 0) {  // a flood: what comes before is forgotten anyway
    stream.lines.clear();
    stream.open.Clear();
    bytes.remove_prefix(begin);
  }
  while (!bytes.empty()) {
    const size_t newline = bytes.find('\n');
    stream.open.Append(bytes.substr(0, newline));
    if (newline == std::string_view::npos) return;
    stream.lines.push_back(stream.Unfinished());
    stream.open.Clear();
    if (stream.lines.size() > kLines) stream.lines.pop_front();
    bytes.remove_prefix(newline + 1);
  }
}

void LastLines::Clear() {
  for (Stream& stream : streams_) stream = Stream();
}

std::vector<LastLines::Line> LastLines::LinesOf(const Stream& stream) const {
  std::vector<Line> lines(stream.lines.begin(), stream.lines.end());
  if (!stream.open.empty()) lines.push_back(stream.Unfinished());
  return lines;
}

std::vector<std::string> LastLines::Lines() const {
  struct Placed {
    Line line;
    bool is_error;
    bool kept;  // however many lines of the other stream follow
  };
  std::vector<Placed> all;
  for (const bool is_error : {false, true}) {
    std::vector<Line> lines = LinesOf(streams_[is_error ? 1 : 0]);
    for (size_t i = 0; i < lines.size(); ++i) {
      all.push_back({std::move(lines[i]), is_error, is_error && lines.size() - i <= kLinesOfError});
    }
  }
  std::stable_sort(all.begin(), all.end(), [](const Placed& a, const Placed& b) {
    return std::tuple(a.line.place, a.line.is_behind) < std::tuple(b.line.place, b.line.is_behind);
  });
  size_t spare = all.size() > kLines ? all.size() - kLines : 0;
  std::vector<std::string> texts;
  for (Placed& placed : all) {
    if (spare > 0 && !placed.kept) {
      --spare;
    } else {
      texts.push_back(std::move(placed.line.text));
    }
  }
  return texts;
}

const LastLines::Line* LastLines::LastThatSays(const std::vector<Line>& lines, std::string* words) {
  for (auto line = lines.rbegin(); line != lines.rend(); ++line) {
    *words = line->drawn_over ? MeaningOfDrawn(line->text) : Meaning(line->text);
    if (!words->empty()) return &*line;
  }
  return nullptr;
}

std::string LastLines::Words() const {
  if (const std::string exception = UncaughtException(Lines()); !exception.empty()) {
    return ShortenMiddle(exception, kWordsBytes);
  }
  const std::vector<Line> outputs = LinesOf(streams_[0]);
  const std::vector<Line> errors = LinesOf(streams_[1]);
  std::string of_output, of_error;
  const Line* const output = LastThatSays(outputs, &of_output);
  const Line* const error = LastThatSays(errors, &of_error);
  bool output_is_last = error == nullptr;
  if (output != nullptr && error != nullptr && errors.size() >= kLines) {
    output_is_last = output->end_of_backlog >= error->place;  // a log: the order counts
  } else if (output != nullptr && error != nullptr) {
    const bool clearly = output->is_behind || output->at - error->at > kTogether;
    output_is_last = output->place >= error->place && (clearly || IsRemark(of_error));
  }
  return ShortenMiddle(output_is_last ? of_output : of_error, kWordsBytes);
}

}  // namespace cohort::launcher
