#include "cohort/launcher/agent/activity/process_activity.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <ctime>
#include <utility>

#include "cohort/launcher/agent/stacks/blocking_call.h"
#include "cohort/launcher/agent/stacks/kernel_file.h"
#include "cohort/launcher/agent/stacks/python_frames.h"
#include "cohort/launcher/agent/watch/process_state.h"
#include "cohort/launcher/base/printable.h"
#include "cohort/runtime/base/clock.h"

namespace cohort::launcher {
namespace {

constexpr uint64_t kOthersEveryNs = 1'000'000'000;
constexpr uint64_t kMostPythonPauseNs = 16'000'000'000;
constexpr uint64_t kPlaceEveryNs = 100'000'000;
constexpr uint64_t kShareOfPlaces = 50;  // of the time at the most: 2 %
constexpr size_t kMostObject = 120;
constexpr uint64_t kCountedWithinNs = 1'000'000'000;  // a time without a CPU

std::string FolderOf(pid_t process) { return "/proc/" + std::to_string(process); }

runtime::FileDescriptor Open(pid_t process, const char* name) {
  return runtime::FileDescriptor(::open((FolderOf(process) + name).c_str(), O_RDONLY | O_CLOEXEC));
}

// The CPU time of all its threads. 0 where the kernel does not tell.
uint64_t CpuOf(pid_t process) {
  clockid_t clock{};
  timespec used{};
  if (::clock_getcpuclockid(process, &clock) != 0 || ::clock_gettime(clock, &used) != 0) return 0;
  return static_cast<uint64_t>(used.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(used.tv_nsec);
}

// The name of an open file, which is not touched: its server may be gone.
std::string FileOf(pid_t process, uint64_t descriptor) {
  std::array<char, 4096> target{};
  const std::string link = FolderOf(process) + "/fd/" + std::to_string(descriptor);
  const ssize_t length = ::readlink(link.c_str(), target.data(), target.size());
  std::string name(target.data(), length < 0 ? 0 : static_cast<size_t>(length));
  if (name.size() > kMostObject) name = "..." + name.substr(name.size() - kMostObject);
  return Printable(name);
}

// By the place in the kernel: a sleep that a signal has interrupted goes on as a call that tells nothing.
Activity ActivityAt(const std::string& place) {
  const auto has = [&place](const char* word) { return place.find(word) != std::string::npos; };
  if (has("nanosleep")) return Activity::kSleeps;
  if (has("futex")) return Activity::kLocks;
  if (has("poll") || has("select")) return Activity::kReads;
  return Activity::kKernel;
}

uint64_t Since(uint64_t before, uint64_t now) { return now - std::min(before, now); }

// The kernel counts a time without a CPU, and a throttled one, when it is over: most of this one is counted nowhere
// yet.
bool AwaitsCounts(char state, const ProcessActivity::State& found) {
  const uint64_t counted_ns = found.computed_ns + found.queued_ns + found.throttled_ns;
  return state == 'R' && counted_ns < found.length_ns / 2 && found.length_ns < kCountedWithinNs;
}

}  // namespace

WatchedProcess ProcessOf(pid_t pid) {
  const std::optional<ProcessState> state = ReadProcessState(pid);
  return {.pid = pid, .start_time = state ? state->start_time : 0};
}

ProcessActivity::ProcessActivity(const WatchedProcess& process)
    : watched_(process),
      process_(process.pid),
      stat_(Open(process_, ("/task/" + std::to_string(process_) + "/stat").c_str())),
      schedule_(Open(process_, "/schedstat")),
      call_(Open(process_, "/syscall")) {}

// Empty where nothing is told, as by a process that has ended.
std::string ProcessActivity::Text(const runtime::FileDescriptor& file) const {
  std::array<char, 1024> text{};
  const ssize_t length = file.valid() ? ::pread(file.get(), text.data(), text.size(), 0) : -1;
  return std::string(text.data(), length < 0 ? 0 : static_cast<size_t>(length));
}

void ProcessActivity::LookForOthers(uint64_t now_ns) {
  if (others_at_ns_ != 0 && now_ns - others_at_ns_ < kOthersEveryNs) return;
  const bool was_limited = throttle_ && throttle_->limited();
  others_at_ns_ = now_ns;
  groups_ = ReadKernelFile(FolderOf(process_) + "/cgroup");
  throttle_.emplace(process_);
  if (throttle_->limited() != was_limited) before_.reset();  // the sum is of other groups
  if (python_ == nullptr && now_ns >= next_python_ns_) LookForPython(now_ns);
}

// To read the names of all that is mapped takes milliseconds where libtorch is. The pause doubles with every time that
// there is no Python.
void ProcessActivity::LookForPython(uint64_t now_ns) {
  python_ = PythonWatch::Of(process_);
  next_python_ns_ = now_ns + python_pause_ns_;
  python_pause_ns_ = std::min(2 * python_pause_ns_, kMostPythonPauseNs);
}

// A group that it was moved into since may be what keeps it from its CPUs. That one counts the time when it is over.
void ProcessActivity::FollowGroups() {
  std::string groups = ReadKernelFile(FolderOf(process_) + "/cgroup");
  if (groups == groups_) return;
  groups_ = std::move(groups);
  throttle_.emplace(process_);
  before_->throttled_ns = throttle_->TotalNs();
}

void ProcessActivity::FindPlace(uint64_t now_ns) {
  if (python_ == nullptr || now_ns < next_place_ns_) return;
  place_ = OwnFrame(python_->Threads(/*main_only=*/true));
  const uint64_t took_ns = Since(now_ns, runtime::SteadyNow());
  next_place_ns_ = now_ns + std::max(kPlaceEveryNs, kShareOfPlaces * took_ns);
}

// Whether the kernel has put some of its memory on a disk.
bool ProcessActivity::Swaps() const {
  const std::string status = ReadKernelFile(FolderOf(process_) + "/status");
  const size_t at = status.find("VmSwap:");
  return at != std::string::npos && std::strtoull(status.c_str() + at + 7, nullptr, 10) > 0;
}

void ProcessActivity::Name(char state, bool faulted, State* found) const {
  switch (state) {
    case 'R':
      found->activity =
          python_ != nullptr && python_->CollectsGarbage().value_or(false) ? Activity::kCollects : Activity::kComputes;
      return;
    case 'T':
      found->activity = Activity::kStopped;
      return;
    case 't':
      found->activity = TracerOf(process_) != 0 ? Activity::kDebugged : Activity::kUnknown;  // else by ourselves
      return;
    default:
      break;
  }
  if (const std::optional<BlockingCall> call = ParseBlockingCall(Text(call_))) {
    found->activity = call->activity;
    found->object = call->name;
    const std::string file = call->of_descriptor ? FileOf(process_, call->first_argument) : "";
    if (!file.empty()) found->object += " of " + file;
  } else if (state == 'D' && faulted) {
    found->activity = Swaps() ? Activity::kSwaps : Activity::kReads;
    found->object = found->activity == Activity::kReads ? "pages of files" : "";
  } else {
    const std::string place = ReadKernelFile(FolderOf(process_) + "/wchan");
    found->activity = ActivityAt(place);
    found->object = place == "0" ? "" : Printable(place.substr(0, kMostObject));
  }
}

// The kernel counts them apart, and a group's throttling for each of its CPUs.
void ProcessActivity::Count(const Counters& before, const Counters& now, State* found) {
  const uint64_t main_ns = Since(before.main_ns, now.main_ns);
  const uint64_t process_ns = Since(before.process_ns, now.process_ns);
  const bool has_main = now.main_ns > 0;
  const bool others_compute =
      found->activity == Activity::kLocks && process_ns > main_ns && process_ns - main_ns >= found->length_ns / 2;
  if (others_compute) {
    found->activity = Activity::kComputes;
    found->object.clear();
  }
  found->computed_ns = std::min(others_compute || !has_main ? process_ns : main_ns, found->length_ns);
  const uint64_t rest_ns = found->length_ns - found->computed_ns;
  const uint64_t waited_ns = std::min(Since(before.queued_ns, now.queued_ns), rest_ns);
  found->throttled_ns = std::min(Since(before.throttled_ns, now.throttled_ns), waited_ns);
  found->queued_ns = waited_ns - found->throttled_ns;
}

std::optional<ProcessActivity::State> ProcessActivity::Look(bool waits) {
  Counters now;
  now.at_ns = runtime::SteadyNow();
  const std::optional<ProcessState> state = runtime::ParseProcessStat(Text(stat_));
  const bool is_other = state && watched_.start_time != 0 && state->start_time != watched_.start_time;
  if (!state || state->ended() || is_other) {
    before_.reset();
    return std::nullopt;
  }
  LookForOthers(now.at_ns);
  now.faults = state->major_faults;
  now.process_ns = CpuOf(process_);
  now.throttled_ns = throttle_->TotalNs();
  const std::string schedule = Text(schedule_);
  char* end = nullptr;
  now.main_ns = std::strtoull(schedule.c_str(), &end, 10);
  now.queued_ns = std::strtoull(end, nullptr, 10);
  if (!before_) {
    before_ = now;
    uncounted_.reset();
    return std::nullopt;
  }
  State found;
  found.begin_ns = before_->at_ns;
  found.length_ns = Since(before_->at_ns, now.at_ns);
  Name(state->state, Since(before_->faults, now.faults) > 0, &found);
  Count(*before_, now, &found);
  if (AwaitsCounts(state->state, found)) {
    found.place = place_;
    if (!waits) uncounted_ = found;
    FollowGroups();
    return std::nullopt;
  }
  before_ = now;
  std::optional<State> uncounted = std::exchange(uncounted_, std::nullopt);
  const bool held = found.activity == Activity::kStopped || found.activity == Activity::kDebugged ||
                    found.activity == Activity::kSwaps || found.throttled_ns + found.queued_ns >= found.length_ns / 2;
  if (waits && !held) return uncounted;
  if (!waits) FindPlace(now.at_ns);
  if (!waits) found.place = place_;
  return found;
}

}  // namespace cohort::launcher
