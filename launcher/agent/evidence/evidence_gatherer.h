// Asks all sources of evidence for a node's ranks.
#pragma once

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "cohort/launcher/agent/evidence/evidence_source.h"
#include "cohort/launcher/base/event_loop.h"

namespace cohort::launcher {

class EvidenceGatherer {
 public:
  using Done = std::function<void(std::vector<Evidence> evidence)>;

  // With the sources of evidence_sources.def.
  explicit EvidenceGatherer(EventLoop* loop);
  // For tests.
  explicit EvidenceGatherer(std::vector<std::unique_ptr<EvidenceSource>> sources) : sources_(std::move(sources)) {}

  // Asks all sources. Returns false where none has anything to ask. Otherwise `done` is called once with what came, by
  // the end of the limit, never from within this call, unless this object goes before. One call at a time.
  bool Gather(const EvidenceQuestion& question, Done done);

  // Whether a call of Gather has yet to answer.
  bool busy() const { return missing_ > 0; }

 private:
  std::vector<std::unique_ptr<EvidenceSource>> sources_;
  std::vector<Evidence> found_;
  size_t missing_ = 0;  // sources that have not answered
  Done done_;
};

}  // namespace cohort::launcher
