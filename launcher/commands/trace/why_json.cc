#include <algorithm>
#include <chrono>
#include <cstddef>

#include "cohort/launcher/commands/trace/why_command.h"
#include "cohort/launcher/report/json_parts.h"
#include "cohort/launcher/trace/rank_activity.h"
#include "cohort/launcher/verdict/verdict_words.h"

namespace cohort::launcher {
namespace {

double InSeconds(uint64_t ns) { return static_cast<double>(ns) / 1e9; }

// Two digits behind the point.
double Rounded(double share) { return static_cast<double>(static_cast<int>(share * 100 + 0.5)) / 100; }

Json ReasonJson(const Reason& reason) {
  Json described = {{"activity", ActivityName(reason.activity)}};
  if (!reason.object.empty()) described["object"] = reason.object;
  if (!reason.place.empty()) described["place"] = reason.place;
  described["seconds"] = reason.ns / 1e9;
  described["seen"] = Rounded(std::min(reason.seen, 1.0));
  described["sure"] = Rounded(reason.sure);
  return described;
}

Json UnjoinedJson(const std::vector<UnjoinedRank>& ranks) {
  Json described = Json::array();
  for (const UnjoinedRank& its : ranks) {
    described.push_back({{"rank", its.rank}, {"node", its.node}, {"pid", its.pid}, {"doing", its.doing}});
  }
  return described;
}

Json CulpritJson(const Culprit& culprit) {
  Json described = {{"ranks", culprit.ranks},     {"nodes", culprit.nodes},
                    {"in_call", culprit.in_call}, {"lost_seconds", InSeconds(culprit.lost_ns)},
                    {"waiting", culprit.waiting}, {"waited_seconds", InSeconds(culprit.waited_ns)}};
  if (!culprit.call.empty()) described["call"] = culprit.call;
  if (!culprit.site.empty()) described["site"] = culprit.site;
  if (!culprit.after.empty()) described["after"] = culprit.after;
  if (!culprit.unjoined.empty()) described["unjoined"] = UnjoinedJson(culprit.unjoined);
  if (culprit.unseen > 0) described["unseen"] = culprit.unseen;
  described["reason"] = ReasonJson(culprit.reason);
  described["sure"] = Rounded(culprit.sure);
  return described;
}

Json StepJson(const Verdict::StepTime& step) {
  Json described = {{"number", step.number}, {"seconds", InSeconds(step.ns)}};
  if (step.rank) described["rank"] = *step.rank;
  return described;
}

Json StepsJson(const Verdict& verdict) {
  const char* const source = verdict.source == Steps::Source::kMarks   ? "marks"
                             : verdict.source == Steps::Source::kCalls ? "calls"
                                                                       : "none";
  Json described = {{"count", verdict.steps}, {"source", source}};
  if (verdict.steps == 0) return described;
  described["first"] = verdict.first_step;
  described["last"] = verdict.last_step;
  described["usual_seconds"] = InSeconds(verdict.usual_ns);
  described["in_calls"] = Rounded(verdict.in_calls);
  described["slow_count"] = verdict.slow_steps;
  described["slow_lost_seconds"] = InSeconds(verdict.slow_lost_ns);
  described["slow"] = Json::array();
  for (const Verdict::StepTime& step : verdict.slow) described["slow"].push_back(StepJson(step));
  return described;
}

}  // namespace

std::string WhyJson(const Verdict& verdict, const WhySource& source) {
  Json document = {{"format", kJsonFormat}};
  if (!source.job.empty()) document["job"] = source.job;
  if (!source.trace.empty()) document["trace"] = source.trace;
  document["ranks"] = verdict.ranks;
  document["calls"] = verdict.calls;
  document["missed"] = source.missed;
  document["cut"] = source.cut;
  document["seconds"] = InSeconds(verdict.length_ns);
  if (source.short_look) {
    document["look_seconds"] = std::chrono::duration<double>(source.short_look->seen).count();
    document["asked_seconds"] = std::chrono::duration<double>(source.short_look->asked).count();
  }
  document["verdict"] = KindName(verdict.kind);
  if (verdict.step) document["step"] = StepJson(*verdict.step);
  if (verdict.culprit) document["culprit"] = CulpritJson(*verdict.culprit);
  document["steps"] = StepsJson(verdict);
  document["lines"] = VerdictLines(verdict);
  return JsonText(document);
}

}  // namespace cohort::launcher
