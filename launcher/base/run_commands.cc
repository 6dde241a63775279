#include "cohort/launcher/base/run_commands.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <utility>

#include "cohort/launcher/base/piped_process.h"
#include "cohort/launcher/remedies/remedies.h"
#include "cohort/runtime/process/process_watch.h"

namespace cohort::launcher {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kMaxKept = 1u << 20;

struct Running {
  size_t index = 0;
  PipedProcess process;
  runtime::ProcessWatch end;
  Clock::time_point start;
  Clock::time_point deadline;
};

// Reads all that is there; closes the descriptor at its end.
void ReadAll(runtime::FileDescriptor* fd, std::string* text) {
  char buffer[16u << 10];
  while (fd->valid()) {
    const ssize_t n = ::read(fd->get(), buffer, sizeof buffer);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) return;
    if (n <= 0) return fd->Close();
    text->append(buffer, std::min(static_cast<size_t>(n), kMaxKept - std::min(kMaxKept, text->size())));
  }
}

void Kill(const Running& running) {
  ::kill(-running.process.pid, SIGKILL);
  ::kill(running.process.pid, SIGKILL);
  ::waitpid(running.process.pid, nullptr, 0);
}

class CommandRunner {
 public:
  CommandRunner(const std::vector<std::vector<std::string>>& commands, const RunCommandsOptions& options)
      : commands_(commands), options_(options), results_(commands.size()) {}

  std::vector<CommandResult> Run() {
    while (!Cancelled() && (next_ < commands_.size() || !running_.empty())) {
      while (!Cancelled() && next_ < commands_.size() && running_.size() < options_.at_once) StartNext();
      if (!Cancelled() && !running_.empty()) WaitForSome();
    }
    for (const Running& running : running_) {
      const auto ran = std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - running.start);
      results_[running.index].cancelled_after = ran;
      Kill(running);
    }
    return std::move(results_);
  }

 private:
  bool Cancelled() const { return refused_ && Clock::now() >= may_cancel_; }

  void StartNext() {
    const size_t index = next_++;
    auto started = StartPiped(commands_[index], {.error_pipe = true, .death_signal = SIGKILL});
    if (!started.ok()) {
      results_[index].error = TextOf(started.status());
      return Tell(index);
    }
    started->input.Close();
    for (const runtime::FileDescriptor* fd : {&started->output, &started->error}) {
      ::fcntl(fd->get(), F_SETFL, ::fcntl(fd->get(), F_GETFL) | O_NONBLOCK);
    }
    runtime::ProcessWatch end(started->pid);
    const Clock::time_point now = Clock::now();
    running_.push_back({index, *std::move(started), std::move(end), now, now + options_.limit});
  }

  void WaitForSome() {
    std::vector<pollfd> polled;
    long long longest_ms = 1000;
    Clock::time_point first = refused_ ? may_cancel_ : Clock::time_point::max();
    for (const Running& running : running_) {
      polled.push_back({running.process.output.get(), POLLIN, 0});  // -1, once closed, is passed over
      polled.push_back({running.process.error.get(), POLLIN, 0});
      polled.push_back({running.end.fd(), POLLIN, 0});
      if (running.end.fd() < 0) longest_ms = runtime::ProcessWatch::kLook.count();
      first = std::min(first, running.deadline);
    }
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(first - Clock::now()).count();
    ::poll(polled.data(), polled.size(), static_cast<int>(std::clamp<long long>(left, 0, longest_ms)));
    for (size_t i = 0; i < running_.size() && !Cancelled();) {
      Running& running = running_[i];
      CommandResult& result = results_[running.index];
      const bool ended = ::waitpid(running.process.pid, &result.wait_status, WNOHANG) == running.process.pid;
      ReadAll(&running.process.output, &result.output);
      ReadAll(&running.process.error, &result.error);
      if (!ended && Clock::now() < running.deadline) {
        ++i;
        continue;
      }
      result.ended = ended;
      if (!ended) Kill(running);
      const size_t index = running.index;
      running_.erase(running_.begin() + static_cast<ptrdiff_t>(i));
      Tell(index);
    }
  }

  void Tell(size_t index) {
    if (options_.on_end && !options_.on_end(index, results_[index])) refused_ = true;
  }

  const std::vector<std::vector<std::string>>& commands_;
  const RunCommandsOptions& options_;
  std::vector<CommandResult> results_;
  std::vector<Running> running_;
  size_t next_ = 0;
  const Clock::time_point may_cancel_ = Clock::now() + options_.cancels_after;
  bool refused_ = false;  // by on_end
};

}  // namespace

std::vector<CommandResult> RunCommands(const std::vector<std::vector<std::string>>& commands,
                                       const RunCommandsOptions& options) {
  return CommandRunner(commands, options).Run();
}

}  // namespace cohort::launcher
