#include "cohort/launcher/agent/stacks/stack_gatherer.h"

#include <algorithm>
#include <csignal>
#include <optional>
#include <string_view>
#include <utility>

#include "cohort/launcher/agent/stacks/python_frames.h"
#include "cohort/launcher/agent/stacks/thread_states.h"
#include "cohort/launcher/agent/watch/process_state.h"

namespace cohort::launcher {

void StackGatherer::Gather(Wish wish, std::shared_ptr<PythonHook> hook, pid_t program, Done done) {
  waiting_.push_back(std::move(done));
  if (waiting_.size() > 1) return;
  wish_ = wish;
  hook_ = std::move(hook);
  listeners_ = hook_ == nullptr ? std::vector<PythonHook::Listener>() : hook_->Listeners();
  processes_.clear();
  for (const PythonHook::Listener& listener : listeners_) processes_.push_back(listener.pid);
  const auto own = std::find(processes_.begin(), processes_.end(), program);
  if (own == processes_.end()) {
    processes_.insert(processes_.begin(), program);
  } else {
    std::rotate(processes_.begin(), own, own + 1);
  }
  next_ = 0;
  text_.clear();
  place_ = {};
  limit_ = EventLoop::Clock::now() + kLimit;
  AskNext();
}

// One after the other, since all write to one file.
void StackGatherer::AskNext() {
  const bool all = wish_ == Wish::kAll;
  while (next_ < processes_.size() && (all || place_.frames.empty())) {
    const pid_t pid = processes_[next_];
    const std::optional<ProcessState> state = ReadProcessState(pid);
    const std::vector<std::string> threads = DescribeThreads(pid, all ? kMaxThreadsDescribed : 1);
    for (const std::string& line : threads) text_ += "  " + line + "\n";
    if (place_.state.empty() && !threads.empty()) place_.state = DescribeThreads(pid, 1).front();
    const bool listens =
        std::any_of(listeners_.begin(), listeners_.end(), [pid](const auto& one) { return one.pid == pid; });
    const bool can_answer = state && !state->exiting && std::string_view("RSD").find(state->state) != std::string::npos;
    if (!state || state->state == 'Z') text_ += "  has ended\n";
    // Looked at again: it may have executed another program meanwhile, which the signal would kill.
    const bool catches = listens && can_answer && hook_->Catches(pid);
    const bool blocks = catches && !hook_->Takes(pid);
    if (blocks) text_ += "  no Python stack: all threads block the signal SIGRTMAX - 7\n";
    if (catches && !blocks) {
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

// The main thread of the process that was asked.
uint64_t StackGatherer::MainThread() const {
  const auto asked = std::find_if(listeners_.begin(), listeners_.end(),
                                  [this](const auto& one) { return one.pid == processes_[next_]; });
  return asked == listeners_.end() ? 0 : asked->main_thread;
}

bool StackGatherer::IsWhole(EventLoop::Clock::time_point now) const {
  const auto quiet = now - grew_;
  if (size_ == begin_ || quiet < kPlaceQuiet) return false;
  return quiet >= kQuiet || (wish_ == Wish::kPlace && HasThread(hook_->Read(begin_, kMaxDump), MainThread()));
}

void StackGatherer::Look() {
  const auto now = EventLoop::Clock::now();
  const off_t size = hook_->size();
  if (size != size_) grew_ = now;
  size_ = size;
  if (!IsWhole(now) && now < ask_until_ && ReadProcessState(processes_[next_])) {
    timer_ = loop_->After(kLook, [this] { Look(); });
    return;
  }
  const std::string dump = hook_->Read(begin_, kMaxDump);
  text_ += ReadDump(dump);
  if (size_ == begin_) text_ += "  no Python stack in time: it has ended, or does not run\n";
  if (place_.frames.empty()) place_.frames = InnermostFrames(dump, MainThread());
  ++next_;
  AskNext();
}

void StackGatherer::Finish() {
  if (hook_ != nullptr) hook_->Trim();
  if (text_.size() > kMaxText) {
    text_.resize(text_.rfind('\n', kMaxText) + 1);
    text_ += "  ... (cut)\n";
  }
  for (const Done& done : std::exchange(waiting_, {})) done(text_, place_);
}

}  // namespace cohort::launcher
