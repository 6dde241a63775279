#include "cohort/launcher/verdict/verdict_words.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <iterator>
#include <optional>
#include <utility>

#include "cohort/launcher/base/printable.h"
#include "cohort/runtime/segment/call_compare.h"

namespace cohort::launcher {
namespace {

constexpr size_t kMostText = 200;
constexpr size_t kMostUnjoined = 4;  // whose processes are described
constexpr const char* kUntilFailed = ", until the call failed";

std::string Shown(const std::string& text) { return Printable(text, kMostText); }

std::string Ranks(std::vector<uint32_t> ranks) {
  std::sort(ranks.begin(), ranks.end());
  const std::vector<int> numbers(ranks.begin(), ranks.end());
  return runtime::DescribeRanks(numbers);
}

std::string Percent(double share) { return std::to_string(std::lround(100 * std::clamp(share, 0.0, 1.0))) + " %"; }

std::string Nodes(const Culprit& culprit) {
  std::string text;
  for (const std::string& node : culprit.nodes) text += (text.empty() ? "" : " and ") + Shown(node);
  return text;
}

std::string Named(const Culprit& culprit) {
  const std::string nodes = Nodes(culprit);
  return Ranks(culprit.ranks) + (nodes.empty() ? "" : " (" + nodes + ")");
}

std::string CallAndSite(const Culprit& culprit) {
  if (culprit.call.empty()) return "";
  return Shown(culprit.call) + (culprit.site.empty() ? "" : " at " + Shown(culprit.site));
}

// "ranks 0,1,3 waited 290 ms for rank 2 (node1)", or that a call took it.
std::string Waits(const Verdict& verdict, const Culprit& culprit) {
  const bool now = verdict.kind == Verdict::Kind::kWaitsNow;
  const std::string failed = verdict.until_failure ? kUntilFailed : "";
  const bool always = verdict.kind == Verdict::Kind::kEveryStep && !verdict.step;
  if (culprit.ranks.empty()) {
    const std::string call = culprit.call.empty() ? "a call" : CallAndSite(culprit);
    const std::string between = culprit.nodes.size() > 1 ? ", between " + Nodes(culprit) : "";
    if (now) {
      return call + (verdict.until_failure ? " went on for " : " has gone on for ") + TimeText(culprit.lost_ns) +
             " since all of its ranks came" + between + failed;
    }
    return call + " itself took " + TimeText(culprit.lost_ns) + " longer" + between;
  }
  const std::string whom = culprit.in_call ? Named(culprit) + ", which was held up in the call" : Named(culprit);
  if (culprit.waiting.empty()) return Named(culprit) + " took " + TimeText(culprit.lost_ns) + " longer";
  const bool one = culprit.waiting.size() == 1;
  const std::string verb = now && !verdict.until_failure ? (one ? " has waited " : " have waited ")
                           : always                      ? (one ? " waits " : " wait ")
                                                         : " waited ";
  return Ranks(culprit.waiting) + verb + TimeText(culprit.waited_ns) + " for " + whom + failed;
}

// "waiting: ranks 0-2, for 12.0 s, in all_reduce(sum, float32, 1024) at train.cc:88"; empty: nobody waits.
// `failed`: the call has failed since.
std::string WhoWaits(const Culprit& culprit, bool failed) {
  if (culprit.waiting.empty()) return "";
  const std::string call = CallAndSite(culprit);
  return std::string(failed ? "  waited: " : "  waiting: ") + Ranks(culprit.waiting) + ", for " +
         TimeText(culprit.waited_ns) + (call.empty() ? "" : ", in " + call) + (failed ? kUntilFailed : "");
}

// The processes of the ranks that have not joined: the first few with what they do.
std::vector<std::string> ProcessLines(const std::vector<UnjoinedRank>& unjoined) {
  std::vector<std::string> lines;
  for (size_t i = 0; i < std::min(unjoined.size(), kMostUnjoined); ++i) {
    const UnjoinedRank& its = unjoined[i];
    lines.push_back("  rank " + std::to_string(its.rank) + " (" + (its.node.empty() ? "" : Shown(its.node) + ", ") +
                    "pid " + std::to_string(its.pid) + "):");
    for (const std::string& line : its.doing) lines.push_back("    " + Shown(line));
    if (its.doing.empty()) lines.push_back("    nothing is known of what it does");
  }
  if (unjoined.size() > kMostUnjoined) {
    lines.push_back("  and " + std::to_string(unjoined.size() - kMostUnjoined) + " more: dlaunch stacks");
  }
  return lines;
}

// The ranks that have not joined, and nothing else: all that follows from them says nothing. They have not joined now
// either, even if the calls have failed.
std::vector<std::string> UnjoinedLines(const Culprit& culprit, bool failed) {
  const bool one = culprit.unjoined.size() == 1;
  std::vector<std::string> lines = {Ranks(culprit.ranks) + (one ? " has" : " have") +
                                    " not joined the job yet: " + (one ? "its process has" : "their processes have") +
                                    " not come to Runtime::Init (dlaunch.init() in Python)"};
  if (const std::string who = WhoWaits(culprit, failed); !who.empty()) lines.push_back(who);
  const std::vector<std::string> processes = ProcessLines(culprit.unjoined);
  lines.insert(lines.end(), processes.begin(), processes.end());
  return lines;
}

// A call that lacks ranks which nobody can name. The causes are told only if they are the only ones.
std::vector<std::string> UnseenLines(const Culprit& culprit, bool failed) {
  const bool one = culprit.unseen == 1;
  std::string text = std::to_string(culprit.unseen) + " of the " + std::to_string(culprit.members) + " ranks of " +
                     (culprit.call.empty() ? "a call" : CallAndSite(culprit)) +
                     (failed ? " had"
                      : one  ? " has"
                             : " have");
  if (culprit.unknown) {
    text += std::string(" made no call that is known: not joined ") + (failed ? "by then" : "yet") + ", or " +
            (one ? "its" : "their") + " calls are missing";
  } else {
    text += " made no known call of its group in this time";
  }
  std::vector<std::string> lines = {text};
  if (const std::string who = WhoWaits(culprit, failed); !who.empty()) lines.push_back(who);
  if (culprit.unjoined.empty()) return lines;
  std::vector<uint32_t> unjoined;
  for (const UnjoinedRank& its : culprit.unjoined) unjoined.push_back(its.rank);
  lines.push_back("  " + Ranks(unjoined) + (unjoined.size() == 1 ? " has" : " have") +
                  " not joined the job yet and may be missing there");
  const std::vector<std::string> processes = ProcessLines(culprit.unjoined);
  lines.insert(lines.end(), processes.begin(), processes.end());
  return lines;
}

std::string Headline(const Verdict& verdict) {
  const std::string waits = verdict.culprit ? Waits(verdict, *verdict.culprit) : "no rank stands out";
  if (verdict.step) {
    const std::string took = "step " + std::to_string(verdict.step->number) + " took " + TimeText(verdict.step->ns);
    return took + ", usually " + TimeText(verdict.usual_ns) + ": " + waits;
  }
  switch (verdict.kind) {
    case Verdict::Kind::kWaitsNow:
      return waits;
    case Verdict::Kind::kAllOfIt:
      return waits + " in " + TimeText(verdict.length_ns);
    default:
      break;
  }
  if (verdict.steps == 0) return waits + " in " + TimeText(verdict.length_ns);
  return "a step takes " + TimeText(verdict.usual_ns) + ": " + waits;
}

// Index: the activity. What a rank did, behind "it".
constexpr std::string_view kDid[] = {"did something that nobody saw",
                                     "computed",
                                     "collected garbage in Python",
                                     "read or waited for input",
                                     "wrote",
                                     "waited for a lock or another thread",
                                     "waited for a process that it had started",
                                     "slept",
                                     "was in the kernel",
                                     "was stopped by a signal",
                                     "was stopped by a debugger",
                                     "waited for memory that was swapped out",
                                     "was throttled: its control group had used up its CPU time",
                                     "was ready to run and got no CPU"};
static_assert(std::size(kDid) == kActivities);

// Index: the activity.
constexpr std::string_view kRemedies[] = {
    "dlaunch why JOB while it is slow, or a trace from the start (--trace FILE), sees what the rank does",
    "give all ranks equally much work (batches of one size); dlaunch stacks --rank N shows where it computes",
    "gc.freeze() after the set-up, or gc.disable() and gc.collect() at the same step on all ranks",
    "faster storage, a copy on a local disk, or more workers that read ahead",
    "write from another thread, or to a local disk",
    "dlaunch stacks --rank N shows the threads that hold and await it",
    "dlaunch stacks --rank N shows the process",
    "the program itself asks for it: look at the line above",
    "dlaunch stacks --rank N shows the system call; dmesg shows errors of disks and networks",
    "kill -CONT lets it go on; look for what sent SIGSTOP",
    "the debugger lets it go on",
    "fewer ranks on the node, or less memory for each",
    "raise the group's CPU limit (cpu.max; in Kubernetes resources.limits.cpu)",
    "fewer ranks or other programs on the node; dlaunch --dry-run shows the CPUs of each rank"};
static_assert(std::size(kRemedies) == kActivities);

std::string Meanwhile(const Culprit& culprit) {
  const Reason& reason = culprit.reason;
  if (reason.activity == Activity::kUnknown) return "";
  std::string text = "it " + std::string(kDid[static_cast<size_t>(reason.activity)]);
  if (!reason.object.empty()) text += " (" + Shown(reason.object) + ")";
  if (!reason.place.empty()) text += ", at " + Shown(reason.place);
  return text;
}

std::string HowSure(const Culprit& culprit) {
  if (culprit.ranks.empty()) return Percent(culprit.sure) + " of the network";
  std::string text = Percent(culprit.sure) + " of the rank";
  if (culprit.reason.activity != Activity::kUnknown) text += ", " + Percent(culprit.reason.sure) + " of the reason";
  return text;
}

std::string ToDo(const Culprit& culprit) {
  if (!culprit.ranks.empty()) return std::string(RemedyFor(culprit.reason.activity));
  if (culprit.nodes.size() < 2) return "";
  return "collperf all_reduce under dlaunch on these nodes measures the network; the job's line on standard error that "
         "begins with cohort: names the interface";
}

// "rank 2 in 12, 37; no rank for sure in 44": by rank, that with the slowest step first.
std::string SlowSteps(const Verdict& verdict) {
  std::vector<std::pair<std::optional<uint32_t>, std::vector<uint64_t>>> of_ranks;
  for (const Verdict::StepTime& step : verdict.slow) {
    auto its =
        std::find_if(of_ranks.begin(), of_ranks.end(), [&step](const auto& one) { return one.first == step.rank; });
    if (its == of_ranks.end()) its = of_ranks.insert(of_ranks.end(), {step.rank, {}});
    its->second.push_back(step.number);
  }
  std::string text;
  for (auto& [rank, numbers] : of_ranks) {
    std::sort(numbers.begin(), numbers.end());
    text += (text.empty() ? "" : "; ") + (rank ? "rank " + std::to_string(*rank) : "no rank for sure") + " in ";
    for (size_t i = 0; i < numbers.size(); ++i) text += (i == 0 ? "" : ", ") + std::to_string(numbers[i]);
  }
  return text + (verdict.slow_steps > verdict.slow.size() && !text.empty() ? ", ..." : "");
}

std::string StepsLine(const Verdict& verdict) {
  if (verdict.steps == 0) {
    return std::to_string(verdict.calls) + " calls of " + std::to_string(verdict.ranks) + " ranks in " +
           TimeText(verdict.length_ns) + "; no steps are known, since too few calls repeat";
  }
  std::string text =
      std::to_string(verdict.steps) + " steps, " +
      (verdict.source == Steps::Source::kMarks ? "marked by the program" : "found by the calls that repeat");
  if (verdict.in_calls > 0) text += "; " + Percent(verdict.in_calls) + " of a usual one is in the calls themselves";
  if (verdict.slow_steps == 0) return text;
  text += "; " + std::to_string(verdict.slow_steps) + " slow, by " + TimeText(verdict.slow_lost_ns) + " together";
  const std::string which = SlowSteps(verdict);
  return which.empty() ? text : text + ": " + which;
}

}  // namespace

std::string TimeText(uint64_t ns) {
  const auto value = static_cast<double>(ns);
  char text[32];
  if (ns < 1'000'000) {
    std::snprintf(text, sizeof text, "%.0f us", value / 1e3);
  } else if (ns < 10'000'000) {
    std::snprintf(text, sizeof text, "%.1f ms", value / 1e6);
  } else if (ns < 1'000'000'000) {
    std::snprintf(text, sizeof text, "%.0f ms", value / 1e6);
  } else {
    std::snprintf(text, sizeof text, ns < 100'000'000'000 ? "%.2f s" : "%.0f s", value / 1e9);
  }
  return text;
}

std::string_view KindName(Verdict::Kind kind) {
  switch (kind) {
    case Verdict::Kind::kWaitsNow:
      return "waits now";
    case Verdict::Kind::kSlowStep:
      return "slow step";
    case Verdict::Kind::kEveryStep:
      return "every step";
    case Verdict::Kind::kAllOfIt:
      return "all of it";
    default:
      return "nothing";
  }
}

std::string_view RemedyFor(Activity activity) { return kRemedies[static_cast<size_t>(activity)]; }

std::vector<std::string> VerdictLines(const Verdict& verdict) {
  if (verdict.culprit && verdict.culprit->unseen > 0) return UnseenLines(*verdict.culprit, verdict.until_failure);
  if (verdict.culprit && !verdict.culprit->unjoined.empty()) {
    return UnjoinedLines(*verdict.culprit, verdict.until_failure);
  }
  std::vector<std::string> lines = {Headline(verdict)};
  if (verdict.culprit) {
    const Culprit& culprit = *verdict.culprit;
    const std::string call = CallAndSite(culprit);
    const auto add = [&lines](const std::string& head, const std::string& text) {
      if (!text.empty()) lines.push_back("  " + head + ": " + text);
    };
    if (!culprit.ranks.empty() && !call.empty()) {
      const std::string after = culprit.after.empty() || culprit.in_call ? "" : ", after " + Shown(culprit.after);
      add("where", (culprit.in_call ? "in " : "before ") + call + after);
    }
    add("meanwhile", Meanwhile(culprit));
    add("sure", HowSure(culprit));
    add("to do", ToDo(culprit));
  }
  lines.push_back(StepsLine(verdict));
  return lines;
}

}  // namespace cohort::launcher
