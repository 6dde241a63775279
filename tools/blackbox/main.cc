// blackbox: prints what each rank of a host was doing, whether the ranks run, are stopped, or are dead.
#include <fcntl.h>

#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "cohort/runtime/base/errno_status.h"
#include "cohort/runtime/base/file_descriptor.h"
#include "tools/blackbox/finder.h"
#include "tools/blackbox/segment_copy.h"
#include "tools/blackbox/table.h"
#include "tools/program/arguments.h"
#include "tools/program/program.h"

namespace cohort::blackbox {
namespace {

constexpr const char* kFooter =
    "Examples:\n"
    "  blackbox                       every job of this machine that you may look into\n"
    "  blackbox 4711                  the host's ranks of the job whose rank or agent has this pid\n"
    "  blackbox --job 5f3a --last 8   the last eight calls of each rank\n"
    "  blackbox 4711 --save hung.box  keep the records; later: blackbox --file hung.box\n"
    "\n"
    "A dead rank's calls can be read for as long as another rank of its host or the agent lives. The columns: the\n"
    "node's name, the rank's number on it, its pid, what the kernel says of that process, whether it has joined; then "
    "the call:\n"
    "under way (in), done or failed; its group, the rank's number there, the call's number in the group, bytes, and\n"
    "for how long it has run or how long ago it ended.\n";

struct Options {
  int pid = 0;
  std::string job;
  std::string file;
  std::string save;
  int last = 1;
  bool json = false;
};

int Fail(const std::string& why) {
  std::fprintf(stderr, "blackbox: %s\n", why.c_str());
  return 1;
}

absl::StatusOr<std::vector<Found>> Find(const Options& options) {
  std::vector<Found> found;
  if (!options.file.empty()) {
    Found one;
    one.fd = runtime::FileDescriptor(open(options.file.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));  // pipes
    if (!one.fd.valid()) return runtime::ErrnoStatus(errno, "cannot open " + options.file);
    found.push_back(std::move(one));
  } else if (options.pid > 0) {
    absl::StatusOr<Found> one = FindInProcess(options.pid);
    if (!one.ok()) return one.status();
    found.push_back(std::move(*one));
  } else if (!options.job.empty()) {
    return FindJob(options.job);
  } else {
    found = FindAll();
    if (found.empty()) return absl::NotFoundError("there is no job on this machine that you may look into");
  }
  return found;
}

int Main(int argc, char** argv) {
  Options options;
  CLI::App app("Prints what each rank of a host is doing, or was doing when it died.", "blackbox");
  app.footer(kFooter);
  CLI::Option* pid = app.add_option("pid", options.pid, "of a rank or an agent")->check(tools::Whole(1, 1 << 22));
  CLI::Option* job = app.add_option("--job", options.job,
                                    "all hosts' parts of this job on this machine; the beginning of its name is enough")
                         ->check(tools::NotEmpty("the name of a job"))
                         ->type_name("NAME");
  CLI::Option* file = app.add_option("--file", options.file, "read what --save has kept")->type_name("FILE");
  pid->excludes(job)->excludes(file);
  job->excludes(file);
  app.add_option("--save", options.save, "keep everything in this new file, instead of printing")
      ->check(tools::NotEmpty("the name of a file"))
      ->type_name("FILE");
  app.add_option("--last", options.last, "calls of each rank to print")
      ->check(tools::Whole(1, 512))
      ->capture_default_str();
  app.add_flag("--json", options.json, "print JSON, one document for each host of a job");
  if (const std::optional<int> status = tools::ParseCommandLine(app, argc, argv)) return *status;

  const absl::StatusOr<std::vector<Found>> found = Find(options);
  if (!found.ok()) return Fail(std::string(found.status().message()));
  if (!options.save.empty()) {
    if (found->size() != 1) return Fail("--save keeps one host's part: name a pid (there are several)");
    const absl::Status status = SaveSegment(found->front().fd.get(), options.save);
    return status.ok() ? 0 : Fail(std::string(status.message()));
  }
  for (const Found& one : *found) {
    const absl::StatusOr<SegmentCopy> copy = CopySegment(one.fd.get(), options.last);
    if (!copy.ok()) return Fail(std::string(copy.status().message()));
    const StateOfProcess state_of =
        options.file.empty() ? StateOfProcess(ProcessState) : [](int) { return std::string("saved"); };
    std::fputs((options.json ? JsonText(*copy, state_of) : TableText(*copy, state_of)).c_str(), stdout);
  }
  return 0;
}

}  // namespace
}  // namespace cohort::blackbox

int main(int argc, char** argv) {
  return cohort::tools::RunProgram("blackbox", [=] { return cohort::blackbox::Main(argc, argv); });
}
