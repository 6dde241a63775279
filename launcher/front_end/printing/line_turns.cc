#include "cohort/launcher/front_end/printing/line_turns.h"

#include <unistd.h>

#include <algorithm>

#include "cohort/launcher/base/printable.h"

namespace cohort::launcher {

LineTurns::Surroundings LineTurns::Surroundings::Find(bool prefix) {
  Surroundings found{.prefix = prefix, .output_beside_error = OutputIsBesideError()};
  for (const int fd : {STDOUT_FILENO, STDERR_FILENO}) found.terminals[fd] = ::isatty(fd) == 1;
  return found;
}

LineTurns::LineTurns(EventLoop* loop, OutputPrinter* printer, const Surroundings& surroundings)
    : loop_(loop), printer_(printer), surroundings_(surroundings), screen_(surroundings.output_beside_error) {}

LineTurns::~LineTurns() {
  for (const Place& place : places_) loop_->Cancel(place.timer);
}

// Without prefixes a rank's own streams are as if there were no dlaunch.
bool LineTurns::MustWait(const Place& place, const RankLine& line) const {
  if (!place.turn) return false;
  const bool same_rank = place.turn->first == line.rank;
  return surroundings_.prefix ? *place.turn != Writer(line.rank, line.fd) : !same_rank;
}

void LineTurns::Print(RankLine line) {
  Place& place = PlaceOf(line.fd);
  if (!MustWait(place, line)) {
    Write(&place, line);
    return LetWaitingGoOn(&place);
  }
  place.waiting_bytes += sizeof line + line.text.size();
  place.waiting.push_back(std::move(line));
  if (place.waiting_bytes > kMostWaiting) return Leave(&place);
  if (place.timer == 0) AwaitRest(&place);
}

void LineTurns::AwaitRest(Place* place) {
  place->timer = loop_->After(place->line_bytes >= kLong ? kLongPatience : kPatience, [this, place] {
    place->timer = 0;
    if (!place->waiting.empty()) Leave(place);
  });
}

void LineTurns::Write(Place* place, const RankLine& line) {
  const Writer writer(line.rank, line.fd);
  const bool continues = place->in_line && place->latest == writer;
  const bool was_left = left_.erase(writer) > 0 && !continues;
  std::string text;
  if (surroundings_.prefix) {
    screen_.Add(line);
    if (was_left && line.text.empty() && !line.goes_on) return;
  }
  if (!continues) {
    const bool own = place->latest && place->latest->first == line.rank;
    const bool ends_other = surroundings_.prefix || (surroundings_.terminals[line.fd] && !own);
    if (place->in_line && ends_other) text += '\n';
    if (surroundings_.prefix) text += "[" + std::to_string(line.rank) + "] ";
  }
  text += line.text;
  if (!line.goes_on) text += '\n';
  printer_->Print(line.fd, text);
  place->latest = writer;
  if (!text.empty()) place->in_line = text.back() != '\n';
  place->turn = line.goes_on ? std::optional(writer) : std::nullopt;
  const size_t after_return = line.text.rfind('\r') + 1;
  if (!continues || !line.goes_on || after_return > 0) place->line_bytes = 0;
  if (line.goes_on) place->line_bytes += line.text.size() - after_return;
  // Short parts do not prolong the wait, or a rank that prints dots would keep the others from the screen.
  if (place->timer == 0 || (line.goes_on && line.text.size() < kLong)) return;
  loop_->Cancel(std::exchange(place->timer, 0));
  if (line.goes_on && !place->waiting.empty()) AwaitRest(place);
}

void LineTurns::Leave(Place* place) {
  if (place->turn) left_.insert(*std::exchange(place->turn, std::nullopt));
  LetWaitingGoOn(place);
}

void LineTurns::LetWaitingGoOn(Place* place) {
  for (;;) {
    const auto next = std::find_if(place->waiting.begin(), place->waiting.end(),
                                   [&](const RankLine& line) { return !MustWait(*place, line); });
    if (next == place->waiting.end()) break;
    const RankLine line = std::move(*next);
    place->waiting.erase(next);
    place->waiting_bytes -= sizeof line + line.text.size();
    Write(place, line);
  }
  if (!place->waiting.empty() && place->timer == 0) AwaitRest(place);
}

void LineTurns::FlushPlace(Place* place) {
  while (!place->waiting.empty()) Leave(place);
}

void LineTurns::Flush() {
  for (Place& place : places_) FlushPlace(&place);
}

void LineTurns::Say(std::string_view lines) {
  if (lines.empty()) return;
  Place& place = PlaceOf(STDERR_FILENO);
  FlushPlace(&place);
  if (place.turn) left_.insert(*std::exchange(place.turn, std::nullopt));
  printer_->Print(STDERR_FILENO, (place.in_line ? "\n" : "") + std::string(lines));
  place.in_line = false;
  place.latest.reset();
}

void LineTurns::Announce(std::string_view text) { Say("dlaunch: " + Printable(text) + "\n"); }

void LineTurns::OnEcho() {
  for (const int fd : {STDOUT_FILENO, STDERR_FILENO}) {
    if (surroundings_.terminals[fd]) PlaceOf(fd).in_line = false;
  }
}

}  // namespace cohort::launcher
