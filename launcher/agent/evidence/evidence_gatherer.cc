#include "cohort/launcher/agent/evidence/evidence_gatherer.h"

#include <algorithm>
#include <iterator>
#include <sstream>
#include <utility>

#include "cohort/launcher/agent/evidence/flight_recorder.h"
#include "cohort/launcher/agent/evidence/native_stacks.h"
#include "cohort/launcher/agent/evidence/nccl_ras.h"

namespace cohort::launcher {

std::string ValueIn(const std::vector<std::string>& environment, const std::string& name) {
  const std::string begin = name + "=";
  const auto found = std::find_if(environment.begin(), environment.end(),
                                  [&](const std::string& variable) { return variable.starts_with(begin); });
  return found == environment.end() ? "" : found->substr(begin.size());
}

std::vector<std::string> LinesOf(const Evidence& evidence, const std::string& words, size_t most) {
  std::vector<std::string> lines = {(evidence.heading.empty() ? evidence.source + " " + words : evidence.heading) +
                                    ":"};
  std::istringstream text(evidence.text);
  size_t count = 0;
  for (std::string line; std::getline(text, line);) {
    if (count++ < most) lines.push_back("  | " + line);
  }
  if (count > most) lines.push_back("  and " + std::to_string(count - most) + " more lines");
  return lines;
}

EvidenceGatherer::EvidenceGatherer(EventLoop* loop) {
#define COHORT_EVIDENCE(name, class) sources_.push_back(std::make_unique<class>(name, loop));
#include "cohort/launcher/agent/evidence/evidence_sources.def"
#undef COHORT_EVIDENCE
}

bool EvidenceGatherer::Gather(const EvidenceQuestion& question, Done done) {
  found_.clear();
  missing_ = 0;
  done_ = std::move(done);
  for (const std::unique_ptr<EvidenceSource>& source : sources_) {
    const bool asks = source->Ask(question, [this](std::vector<Evidence> evidence) {
      std::move(evidence.begin(), evidence.end(), std::back_inserter(found_));
      if (--missing_ == 0) std::exchange(done_, nullptr)(std::move(found_));
    });
    if (asks) ++missing_;
  }
  return missing_ > 0;
}

}  // namespace cohort::launcher
