#include "cohort/launcher/base/piped_process.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <utility>

#include "absl/status/status.h"
#include "cohort/launcher/base/open_files.h"
#include "cohort/launcher/base/pipe.h"
#include "cohort/launcher/remedies/remedies.h"
#include "cohort/runtime/process/open_descriptors.h"

namespace cohort::launcher {
namespace {

[[noreturn]] void RunChild(pid_t parent, int input, int output, int error, const PipedProcessOptions& options,
                           const rlimit& open_files, char* const* argv) {
  ::setpgid(0, 0);
  if (options.death_signal != 0) ::prctl(PR_SET_PDEATHSIG, options.death_signal);
  if (::getppid() != parent) ::_exit(1);
  sigset_t none;
  ::sigemptyset(&none);
  if (!options.keep_blocked) ::sigprocmask(SIG_SETMASK, &none, nullptr);
  // Out of the way of all that follows.
  const int inherited = options.inherited >= 0 ? ::fcntl(options.inherited, F_DUPFD_CLOEXEC, 16) : -1;
  ::dup2(input, STDIN_FILENO);
  ::dup2(output, STDOUT_FILENO);
  if (error >= 0) ::dup2(error, STDERR_FILENO);
  if (inherited >= 0) ::dup2(inherited, kInheritedDescriptor);
  if (options.run) {
    runtime::CloseFrom(inherited >= 0 ? kInheritedDescriptor + 1 : kInheritedDescriptor);
    const int status = options.run();
    std::fflush(nullptr);
    ::_exit(status);
  }
  ::setrlimit(RLIMIT_NOFILE, &open_files);
  ::execvp(options.program.empty() ? argv[0] : options.program.c_str(), argv);
  ::_exit(127);
}

}  // namespace

absl::StatusOr<PipedProcess> StartPiped(std::vector<std::string> arguments, const PipedProcessOptions& options) {
  Pipe input, output, error;
  if (!input.Open() || !output.Open() || (options.error_pipe && !error.Open())) {
    return WithRemedy(
        Remedy::kDescriptorLimit,
        absl::ResourceExhaustedError(std::string("no descriptors: ") + std::strerror(errno) + "; raise ulimit -n"));
  }
  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  if (options.run) std::fflush(nullptr);  // or both would write what is in the buffers
  const pid_t parent = ::getpid();
  const rlimit open_files = UsersOpenFileLimit();
  const pid_t pid = ::fork();
  if (pid == 0) {
    RunChild(parent, input.read_end.get(), output.write_end.get(), error.write_end.get(), options, open_files,
             argv.data());
  }
  if (pid < 0) {
    return WithRemedy(Remedy::kProcessLimit, absl::ResourceExhaustedError(std::string("no process: ") +
                                                                          std::strerror(errno) + "; raise ulimit -u"));
  }
  ::setpgid(pid, pid);
  return PipedProcess{pid, std::move(input.write_end), std::move(output.read_end), std::move(error.read_end)};
}

}  // namespace cohort::launcher
