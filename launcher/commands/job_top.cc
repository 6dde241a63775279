#include "cohort/launcher/commands/job_top.h"

#include <poll.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "cohort/launcher/base/exit_status.h"
#include "cohort/launcher/base/say.h"
#include "cohort/launcher/commands/job_json.h"
#include "cohort/launcher/commands/top_keys.h"
#include "cohort/launcher/commands/top_table.h"
#include "cohort/launcher/jobs/job_questions.h"
#include "cohort/launcher/jobs/job_words.h"
#include "cohort/launcher/jobs/running_jobs.h"
#include "cohort/launcher/options/option_values.h"
#include "cohort/launcher/options/subcommand_line.h"
#include "cohort/launcher/remedies/remedies.h"
#include "cohort/runtime/base/status_macros.h"

namespace cohort::launcher {
namespace {

using runtime::Deadline;
using std::chrono::milliseconds;

constexpr milliseconds kUsualInterval{1000};
constexpr milliseconds kLeastInterval{200};
// Agents answer dlaunch meanwhile, so that a page shows what is and not what was one interval ago.
constexpr milliseconds kSettle{80};
constexpr milliseconds kFirstViews{1000};  // then a page shows who has not told yet

// All pages of what dlaunch tells now; the agents are asked to look again.
absl::StatusOr<JobFrame> Fetch(JobConnection* connection) {
  JobFrame frame;
  frame.pid = connection->pid();
  COHORT_ASSIGN_OR_RETURN(frame.job, AskForRanks(connection));
  frame.at = std::chrono::steady_clock::now();
  return frame;
}

bool EveryoneIsKnown(const JobFrame& frame) {
  for (const v1::JobRank& rank : frame.job.ranks()) {
    if (!rank.known()) return false;
  }
  return true;
}

// A frame of now. Nothing: the job has ended.
absl::StatusOr<std::optional<JobFrame>> FetchNow(JobConnection* connection, milliseconds wait_for_all) {
  const Deadline deadline = Deadline::After(wait_for_all);
  absl::StatusOr<JobFrame> frame = Fetch(connection);  // has the agents look
  do {
    if (connection->WaitForEnd(Deadline::After(kSettle))) return std::optional<JobFrame>();
    frame = Fetch(connection);
  } while (frame.ok() && !EveryoneIsKnown(*frame) && !deadline.passed());
  if (absl::IsUnavailable(frame.status())) return std::optional<JobFrame>();
  if (!frame.ok()) return frame.status();
  return std::optional<JobFrame>(*std::move(frame));
}

// Over the page before, without a flicker.
std::string OnTerminal(const std::string& page) {
  std::string drawn = "\x1b[H";
  for (const char c : page) drawn += c == '\n' ? std::string("\x1b[K\n") : std::string(1, c);
  return drawn + "\x1b[J";
}

bool Print(const std::string& text) {
  return std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0;
}

PageSize SizeOfTerminal() {
  winsize size{};
  if (::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_row == 0) return {24, 80};
  return {size.ws_row, size.ws_col};
}

enum class Pause { kOver, kEnded, kQuit };

// Until the deadline, the job's end or q.
Pause Await(JobConnection* connection, TopKeys* keys, Deadline deadline) {
  while (!deadline.passed()) {
    pollfd ready[] = {{connection->fd(), POLLIN, 0}, {keys->fd(), POLLIN, 0}};
    const auto left = std::chrono::ceil<milliseconds>(deadline.left());
    if (::poll(ready, 2, static_cast<int>(left.count())) <= 0) continue;
    if (ready[1].revents != 0 && keys->AskedToQuit()) return Pause::kQuit;
    if (ready[0].revents != 0 && connection->WaitForEnd(Deadline::After(milliseconds(0)))) return Pause::kEnded;
  }
  return Pause::kOver;
}

int Watch(const std::string& job_id, std::optional<milliseconds> interval, bool json) {
  const bool terminal = !json && ::isatty(STDOUT_FILENO) == 1;
  absl::StatusOr<JobConnection> connection = JobConnection::Open(job_id);
  if (!connection.ok()) return Refuse(Prefixed(job_id + ": ", connection.status()), kExitNoSuchJob);
  std::optional<JobFrame> before;
  std::optional<TopKeys> keys;
  if (terminal) keys.emplace();
  if (terminal && !Print("\x1b[2J")) return kExitLauncher;
  for (;;) {
    const milliseconds patience = before ? milliseconds(0) : kFirstViews;
    absl::StatusOr<std::optional<JobFrame>> frame = FetchNow(&*connection, patience);
    if (!frame.ok()) return Refuse(Prefixed(job_id + ": ", frame.status()), kExitNoSuchJob);
    if (!frame->has_value()) break;
    // The last row stays free, or the terminal would scroll.
    PageSize page = terminal ? SizeOfTerminal() : PageSize();
    if (page.rows > 0) --page.rows;
    const JobFrame* const earlier = before ? &*before : nullptr;
    const std::string text = json ? FrameJson(**frame, earlier) : FormatJobFrame(**frame, earlier, page);
    const bool follows = before && !json;
    if (!Print(terminal ? OnTerminal(text) : (follows ? "\n" : "") + text)) {
      return Refuse("can't write the standard output", kExitLauncher);
    }
    if (!terminal && !interval) return 0;
    before = *std::move(*frame);
    const Deadline next = Deadline::After(interval.value_or(kUsualInterval));
    const Pause pause =
        keys ? Await(&*connection, &*keys, next) : (connection->WaitForEnd(next) ? Pause::kEnded : Pause::kOver);
    if (pause == Pause::kQuit) return 0;
    if (pause == Pause::kEnded) break;
  }
  return json || Print(job_id + " has ended\n") ? 0 : kExitLauncher;
}

SubcommandLine TopLine(std::string* job, std::string* interval, bool* json) {
  return {.name = "top",
          .summary =
              "A live view of a job: what every rank does, for how long, its CPU and memory. q leaves it; the job\n"
              "goes on.",
          .notes =
              "Examples:\n"
              "  dlaunch top                     the only job that runs\n"
              "  dlaunch top --interval 5 4e     job-4e0c53a1f2b98d67, every five seconds\n",
          .hint = "dlaunch status lists the jobs of this machine",
          .operand = {"JOB", "The beginning of its digits is enough, and none where one job runs", job},
          .flags = {{"--json", "Print JSON, a line for each look (schemas/top.schema.json)", json}},
          .values = {{"--interval", "TIME", "Between two looks, 0.2 or more", interval}}};
}

}  // namespace

runtime::ManualCommand TopManual() {
  std::string text;
  bool json = false;
  return ManualOf(TopLine(&text, &text, &json));
}

int RunTopCommand(const std::vector<std::string>& arguments) {
  std::string job, seconds;
  bool json = false;
  const absl::Status read = ReadSubcommandLine(arguments, TopLine(&job, &seconds, &json));
  if (!read.ok()) return Refuse(read, kExitUsage);
  std::optional<milliseconds> interval;
  if (!seconds.empty()) {
    const absl::StatusOr<milliseconds> parsed = ReadTime("--interval", seconds);
    if (!parsed.ok()) return Refuse(parsed.status(), kExitUsage);
    interval = std::max(*parsed, kLeastInterval);
  }
  const absl::StatusOr<std::string> id = FindRunningJob(job);
  if (!id.ok()) return Refuse(id.status(), kExitNoSuchJob);
  return Watch(*id, interval, json);
}

}  // namespace cohort::launcher
