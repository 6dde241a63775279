// Makes the links and fan-outs of a group, over the first transport that reaches the peer.
#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "cohort/comm/provider/provider.h"
#include "cohort/comm/run/runner.h"

namespace cohort::comm {

class GroupLinks final : public LinkSource {
 public:
  // `group` outlives it.
  explicit GroupLinks(const GroupContext& group) : group_(group) {}

  absl::StatusOr<std::unique_ptr<Link>> MakeLink(int peer, uint16_t lane) override;
  absl::StatusOr<std::unique_ptr<Fanout>> MakeFanout(uint16_t lane) override;
  // Tells the transports that the group has ended or failed: they need not keep what comes for links never made.
  void TellEnd();

 private:
  const GroupContext& group_;
};

}  // namespace cohort::comm
