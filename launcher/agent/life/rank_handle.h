// A rank's processes and pipes. They may live on from one epoch into the next.
#pragma once

#include <sys/types.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "cohort/launcher/agent/life/stop_watch.h"
#include "cohort/launcher/agent/rank/error_file.h"
#include "cohort/launcher/agent/rank/rank_input.h"
#include "cohort/launcher/agent/rank/rank_output.h"
#include "cohort/launcher/agent/rank/rank_process.h"
#include "cohort/launcher/agent/watch/process_state.h"
#include "cohort/launcher/base/event_loop.h"

namespace cohort::launcher {

class RankHandle {
 public:
  // Also its process group. -1: there is none.
  pid_t pid() const { return process_.pid; }
  // The process that takes part: the program behind a wrapper, where there is one.
  pid_t program_pid() const { return program_ != 0 ? program_ : pid(); }
  // That behind a wrapper; 0: there is none, or it is not known.
  pid_t wrapped_program() const { return program_; }
  // The first process itself is none.
  void set_program(pid_t program) {
    if (program != pid()) program_ = program;
  }
  // The descriptor by which we will feed it; -1: there is none.
  int input_fd() const { return process_.input.get(); }
  // Null until Begin, or where there is none.
  RankOutput* output() const { return output_.get(); }
  RankInput* input() const { return input_.get(); }
  const ErrorFile& error_file() const { return error_file_; }

  // Adds to the environment of `command` where the program may write why it fails.
  absl::Status Fork(RankCommand* command);
  // Whether its program runs is not known yet.
  bool starting() const { return process_.exec_error.valid(); }
  // Calls `look` when it may be known, until EndStarting.
  void AwaitExec(EventLoop* loop, std::function<void()> look) const;
  std::optional<absl::Status> Outcome(const RankCommand& command) const { return ExecOutcome(process_, command); }
  void EndStarting(EventLoop* loop);
  // Its program runs: output and input begin, or go on in another epoch. `reads_input`: it gets dlaunch's.
  void Begin(EventLoop* loop, RankOutput::Options options, bool paused, bool reads_input, const RankInput::Want& want);

  // Its end may not have been read yet, on a machine that has other things to do.
  bool HasEndedByItself() const;
  // Whether the rank's process, or the program behind it, is stopped. `state`: of its process.
  StopWatch::State LookForStop(const ProcessState& state) const;
  // "gdb, pid 4711": the debugger that has stopped it, or empty.
  std::string HeldBy() const;
  // SIGKILL to its group.
  void Kill() const;

 private:
  RankProcess process_;
  pid_t program_ = 0;
  ErrorFile error_file_;
  std::unique_ptr<RankOutput> output_;
  std::unique_ptr<RankInput> input_;  // of the one that gets dlaunch's
};

}  // namespace cohort::launcher
