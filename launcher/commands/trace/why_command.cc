#include "cohort/launcher/commands/trace/why_command.h"

#include <sys/types.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cohort/launcher/base/printable.h"
#include "cohort/launcher/base/say.h"
#include "cohort/launcher/commands/trace/trace_command.h"
#include "cohort/launcher/commands/trace/trace_folder.h"
#include "cohort/launcher/commands/trace/unjoined_ranks.h"
#include "cohort/launcher/jobs/job_words.h"
#include "cohort/launcher/jobs/running_jobs.h"
#include "cohort/launcher/options/option_values.h"
#include "cohort/launcher/options/options.h"
#include "cohort/launcher/options/subcommand_line.h"
#include "cohort/launcher/remedies/remedies.h"
#include "cohort/launcher/trace/trace_reader.h"
#include "cohort/launcher/verdict/verdict_words.h"
#include "cohort/runtime/base/deadline.h"
#include "cohort/runtime/base/status_macros.h"

namespace cohort::launcher {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kUsualLength{3000};
constexpr milliseconds kLookPause{100};
constexpr milliseconds kOthersEndWithin{10'000};

struct Wish {
  std::string operand, step, length;
  bool json = false;
};

SubcommandLine WhyLine(Wish* wish) {
  return {
      .name = "why",
      .summary =
          "Says why a job is slow, or was: for which rank the others waited, how long, and what it did meanwhile:\n"
          "the call site, the Python line; whether it computed, read, waited for a lock, was stopped, throttled or\n"
          "swapped. Looks at a running job for some seconds, at the calls before too, or reads a trace.",
      .notes =
          "Examples:\n"
          "  dlaunch why                         the only job that runs\n"
          "  dlaunch why --for 20s 4e            job-4e0c53a1f2b98d67, where steps take several seconds\n"
          "  dlaunch why --step 12 job.pftrace   the twelfth whole step of a trace of dlaunch --trace\n",
      .hint = "dlaunch status lists the jobs of this machine",
      .operand = {"JOB|FILE", "The beginning of a job's digits, none where one runs; or a trace", &wish->operand},
      .flags = {{"--json", "Print JSON (schemas/why.schema.json)", &wish->json}},
      .values = {{"--step", "N", "This step alone, as the answer without it counts them", &wish->step},
                 {"--for", "TIME", "How long to look at a running job (3)", &wish->length}}};
}

// The result of a look.
struct Look {
  TraceContents contents;
  // How long it was, where the end of the job, or of another's trace, came before its time was over.
  std::optional<milliseconds> cut_to = {};
};

// The trace that is being taken: all of it, at once; or what comes in a time that the user has given. The end of the
// job, or of its trace, ends that time.
absl::StatusOr<Look> ReadRunning(const std::string& job_id, const v1::TraceState& trace,
                                 std::optional<milliseconds> length) {
  if (length) {
    const auto begun = runtime::Deadline::Clock::now();
    COHORT_RETURN_IF_ERROR(AwaitTrace(job_id, trace, *length));
    const auto looked = std::chrono::ceil<milliseconds>(runtime::Deadline::Clock::now() - begun);
    COHORT_ASSIGN_OR_RETURN(TraceContents contents, ReadTraceFile(trace.file()));
    KeepLatest(*length, &contents);
    // The trace was being taken all that time, also where its calls ended earlier.
    const auto seen = std::max(looked, std::chrono::ceil<milliseconds>(contents.length()));
    Look look{.contents = std::move(contents)};
    if (seen < *length) look.cut_to = seen;
    return look;
  }
  const runtime::Deadline looked = runtime::Deadline::After(kUsualLength);
  while (true) {
    absl::StatusOr<TraceContents> contents = ReadTraceFile(trace.file());  // an error as long as it is empty
    if (contents.ok() && (looked.passed() || !contents->calls.empty())) return Look{.contents = *std::move(contents)};
    if (looked.passed()) return contents.status();
    std::this_thread::sleep_for(kLookPause);
  }
}

// A trace for this process alone, with the calls that the rings of the ranks hold.
absl::StatusOr<Look> TakeOwn(const std::string& job_id, std::optional<milliseconds> length) {
  pid_t owner = 0;
  {
    COHORT_ASSIGN_OR_RETURN(const JobConnection connection, JobConnection::Open(job_id));
    owner = connection.pid();
  }
  COHORT_ASSIGN_OR_RETURN(TraceFolder folder, TraceFolder::Make(owner));
  const milliseconds wanted = length.value_or(kUsualLength);
  v1::TraceRequest request;
  request.set_file(folder.file());
  request.set_milliseconds(static_cast<uint64_t>(wanted.count()));
  request.set_past(true);
  request.set_while_asked(true);
  request.set_quiet(true);
  const auto begun = std::chrono::steady_clock::now();
  COHORT_ASSIGN_OR_RETURN(const v1::TraceState state, TakeTrace(job_id, request, [&] { folder.TakeNameAway(); }));
  const auto looked = std::chrono::ceil<milliseconds>(std::chrono::steady_clock::now() - begun);
  if (!state.problem().empty()) return absl::UnavailableError(state.problem());
  COHORT_ASSIGN_OR_RETURN(TraceContents contents, folder.Read());
  Look look{.contents = std::move(contents)};
  if (looked < wanted) look.cut_to = looked;
  return look;
}

// The trace that is being taken anyway, or one of its own. Another `dlaunch why` is waited for as long as a short one
// takes, or one that was killed: nobody else can read its file.
absl::StatusOr<Look> LookAt(const std::string& job_id, std::optional<milliseconds> length) {
  const runtime::Deadline deadline = runtime::Deadline::After(kOthersEndWithin);
  while (true) {
    COHORT_ASSIGN_OR_RETURN(v1::TraceState latest, LatestTrace(job_id));
    if (!latest.running()) {
      absl::StatusOr<Look> look = TakeOwn(job_id, length);
      if (!absl::IsFailedPrecondition(look.status())) return look;
      COHORT_ASSIGN_OR_RETURN(latest, LatestTrace(job_id));
      if (!latest.running()) return look;  // no other trace was the reason
    }
    if (!TraceFolder::Holds(latest.file())) return ReadRunning(job_id, latest, length);
    if (deadline.passed()) {
      return WithRemedy(Remedy::kTraceTaken,
                        absl::FailedPreconditionError("another dlaunch why looks at this job, which has one trace at "
                                                      "a time; ask again when that one has ended"));
    }
    std::this_thread::sleep_for(kLookPause);
  }
}

uint64_t InNanoseconds(milliseconds time) { return static_cast<uint64_t>(std::chrono::nanoseconds(time).count()); }

std::string NoCalls(const WhySource& source, milliseconds length) {
  if (!source.trace.empty()) {
    return Printable(source.trace) + " holds no calls that Cohort sees; take a longer trace, of a job whose ranks call";
  }
  return source.job + " has made no calls that Cohort sees, neither before nor in " +
         Age(static_cast<uint64_t>(length.count())) + "; dlaunch top and dlaunch stacks show what its ranks do";
}

int Judge(const Look& look, std::optional<uint64_t> step, WhySource source, milliseconds length, bool json) {
  const TraceContents& contents = look.contents;
  source.missed = contents.missed_calls();
  source.cut = contents.cut;
  if (look.cut_to) source.short_look = WhySource::ShortLook{.seen = *look.cut_to, .asked = length};
  std::vector<UnjoinedRank> unjoined;
  if (!source.job.empty()) unjoined = FindUnjoinedRanks(source.job, contents.calls);
  if (contents.calls.empty() && unjoined.empty())
    return Refuse(WithRemedy(Remedy::kNoCalls, absl::NotFoundError(NoCalls(source, length))), kExitNoSuchJob);
  History history;
  history.nodes = contents.nodes;
  history.calls = contents.calls;
  history.states = contents.states;
  history.marks = contents.marks;
  history.unjoined = std::move(unjoined);
  const absl::StatusOr<Verdict> verdict = FindVerdict(history, step);
  if (!verdict.ok()) return Refuse(verdict.status(), kExitNoSuchJob);
  if (json) return Answer(WhyJson(*verdict, source));
  std::string text;
  for (const std::string& line : VerdictLines(*verdict)) text += line + "\n";
  if (source.short_look) {
    text += "the look was " + TimeText(InNanoseconds(source.short_look->seen)) + " long, not " +
            TimeText(InNanoseconds(length)) + ": the trace that was being taken, or the job, has ended\n";
  }
  if (source.missed > 0) text += "the trace lacks " + std::to_string(source.missed) + " calls\n";
  if (contents.left_out > 0) text += "the trace is long: only its latest part was read\n";
  return Answer(text);
}

bool IsFile(const std::string& operand) {
  std::error_code error;
  return operand.find('/') != std::string::npos || operand.ends_with(".pftrace") ||
         std::filesystem::is_regular_file(operand, error);
}

absl::StatusOr<std::optional<uint64_t>> ReadStep(const std::string& text) {
  if (text.empty()) return std::optional<uint64_t>();
  uint64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error == std::errc() && end == text.data() + text.size()) return std::optional<uint64_t>(number);
  return InvalidArgumentError(Remedy::kWrongValue, "--step '" + Printable(text, 100) + "': give the number of a step");
}

}  // namespace

runtime::ManualCommand WhyManual() {
  Wish wish;
  return ManualOf(WhyLine(&wish));
}

int RunWhyCommand(const std::vector<std::string>& arguments) {
  Wish wish;
  const SubcommandLine line = WhyLine(&wish);
  const absl::Status read = ReadSubcommandLine(arguments, line);
  if (!read.ok()) return Refuse(read, kExitUsage);
  const absl::StatusOr<std::optional<uint64_t>> step = ReadStep(wish.step);
  if (!step.ok()) return Refuse(step.status(), kExitUsage);
  std::optional<milliseconds> length;
  if (!wish.length.empty()) {
    const absl::StatusOr<milliseconds> time = ReadTime("--for", wish.length);
    if (!time.ok()) return Refuse(time.status(), kExitUsage);
    if (time->count() == 0)
      return Refuse(InvalidArgumentError(Remedy::kLookTime, "--for 0: a look takes time; give one such as 3s"),
                    kExitUsage);
    length = *time;
  }
  if (IsFile(wish.operand)) {
    if (!wish.length.empty())
      return Refuse(InvalidArgumentError(Remedy::kUsage, "--for is for a job that runs; use: " + UseOf(line)),
                    kExitUsage);
    absl::StatusOr<TraceContents> contents = ReadTraceFile(wish.operand);
    if (!contents.ok()) return Refuse(contents.status(), kExitNoSuchJob);
    return Judge({.contents = *std::move(contents)}, *step, {.job = "", .trace = wish.operand}, kUsualLength,
                 wish.json);
  }
  const absl::StatusOr<std::string> id = FindRunningJob(wish.operand);
  if (!id.ok()) return Refuse(id.status(), kExitNoSuchJob);
  const absl::StatusOr<Look> look = LookAt(*id, length);
  if (!look.ok()) return Refuse(Prefixed(*id + ": ", look.status()), kExitNoSuchJob);
  return Judge(*look, *step, {.job = *id, .trace = ""}, length.value_or(kUsualLength), wish.json);
}

}  // namespace cohort::launcher
