// The native stacks of the ranks' threads, for `dlaunch stacks`. See thread_snapshot.h and unwinder.h.
#pragma once

#include <cstddef>
#include <string>
#include <utility>

#include "cohort/launcher/agent/evidence/evidence_source.h"
#include "cohort/launcher/agent/evidence/slow_answer.h"
#include "cohort/launcher/base/event_loop.h"

namespace cohort::launcher {

class NativeStacks : public EvidenceSource {
 public:
  static constexpr size_t kMaxAnswer = 1u << 20;  // of all ranks of a node

  NativeStacks(std::string name, EventLoop* loop) : name_(std::move(name)), answer_(loop, kMaxAnswer) {}

  // Says nothing at the end: the report has the ranks' places already, and the stacks of all would hide it.
  bool Ask(const EvidenceQuestion& question, Done done) override;

 private:
  const std::string name_;
  SlowAnswer answer_;
};

}  // namespace cohort::launcher
