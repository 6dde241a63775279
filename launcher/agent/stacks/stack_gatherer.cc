#include "cohort/launcher/agent/stacks/stack_gatherer.h"

#include <algorithm>
#include <csignal>
#include <optional>
#include <string_view>
#include <utility>

#include "absl/strings/str_split.h"
#include "cohort/launcher/agent/stacks/thread_states.h"
#include "cohort/launcher/agent/watch/process_state.h"

namespace cohort::launcher {

std::string ReadDump(const std::string& dump) {
  std::string text;
  const std::vector<std::string> lines = absl::StrSplit(dump, '\n', absl::SkipEmpty());
  for (std::string_view line : lines) {
    const size_t thread = line.find("hread 0x");
    if (thread == std::string_view::npos || thread > sizeof "Current " || line[0] == ' ') {
      text += "    " + std::string(line) + "\n";
      continue;
    }
    // "Current thread 0x00007f83d8f4c740 [name] (most recent call first):"
    line.remove_prefix(thread + std::string_view("hread ").size());
    const size_t rest = line.find(' ');
    text += "  Python thread" + std::string(rest == std::string_view::npos ? ":" : line.substr(rest)) + "\n";
  }
  return text;
}

void StackGatherer::Gather(std::shared_ptr<const PythonHook> hook, pid_t program, Done done) {
  waiting_.push_back(std::move(done));
  if (waiting_.size() > 1) return;
  hook_ = std::move(hook);
  listeners_ = hook_ == nullptr ? std::vector<pid_t>() : hook_->Listeners();
  processes_ = listeners_;
  if (std::find(processes_.begin(), processes_.end(), program) == processes_.end()) {
    processes_.insert(processes_.begin(), program);
  }
  next_ = 0;
  text_.clear();
  limit_ = EventLoop::Clock::now() + kLimit;
  AskNext();
}

// One after the other, since all write to one file.
void StackGatherer::AskNext() {
  while (next_ < processes_.size()) {
    const pid_t pid = processes_[next_];
    const std::optional<ProcessState> state = ReadProcessState(pid);
    for (const std::string& line : DescribeThreads(pid)) text_ += "  " + line + "\n";
    const bool listens = std::find(listeners_.begin(), listeners_.end(), pid) != listeners_.end();
    const bool can_answer = state && !state->exiting && std::string_view("RSD").find(state->state) != std::string::npos;
    if (!state || state->state == 'Z') text_ += "  has ended\n";
    // Looked at again: it may have executed another program meanwhile, which the signal would kill.
    const auto still_listens = [&] {
      const std::vector<pid_t> now = hook_->Listeners();
      return std::find(now.begin(), now.end(), pid) != now.end();
    };
    if (listens && can_answer && still_listens()) {
      begin_ = size_ = hook_->size();
      grew_ = EventLoop::Clock::now();
      ask_until_ = grew_ + (limit_ - grew_) / static_cast<int>(processes_.size() - next_);
      if (::kill(pid, StackSignal()) == 0) {
        timer_ = loop_->After(kLook, [this] { Look(); });
        return;
      }
    }
    ++next_;
  }
  Finish();
}

void StackGatherer::Look() {
  const auto now = EventLoop::Clock::now();
  const off_t size = hook_->size();
  if (size != size_) grew_ = now;
  size_ = size;
  const bool whole = size_ > begin_ && now - grew_ >= kQuiet;
  if (!whole && now < ask_until_ && ReadProcessState(processes_[next_])) {
    timer_ = loop_->After(kLook, [this] { Look(); });
    return;
  }
  text_ += ReadDump(hook_->Read(begin_, kMaxText));
  if (size_ == begin_) text_ += "  no Python stack in time: it has ended, blocks the signal, or does not run\n";
  ++next_;
  AskNext();
}

void StackGatherer::Finish() {
  if (hook_ != nullptr) hook_->Trim();
  if (text_.size() > kMaxText) {
    text_.resize(text_.rfind('\n', kMaxText) + 1);
    text_ += "  ... (cut)\n";
  }
  for (const Done& done : std::exchange(waiting_, {})) done(text_);
}

}  // namespace cohort::launcher
