// Gives the calls of a group their numbers, signatures and records: what its members must agree on, and what a rank's
// black box shows of the call.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <source_location>
#include <vector>

#include "cohort/comm/provider/provider.h"
#include "cohort/comm/request.h"
#include "cohort/runtime/segment/black_box.h"
#include "cohort/runtime/segment/call_record.h"

namespace cohort::comm {

// One thread at a time.
class CallRecorder {
 public:
  // `group` outlives it.
  explicit CallRecorder(const GroupContext& group) : group_(group) {}

  // Fills in the signature of a call that has no number yet.
  void Sign(const CollectiveRequest& request, const ServicePlan& service, runtime::CallRecord* record);
  // Gives a signed call another tag. Number then gives it its number and hash.
  static void Retag(uint64_t tag, runtime::CallRecord* record);
  // Gives a call its number, and the hash that travels with its messages. The rest of the signature is there;
  // `beyond_sequence` is runtime::HashBeyondSequence of it.
  void Number(const CollectiveRequest& request, uint64_t beyond_sequence, runtime::CallRecord* record);
  // Fills in all the rest.
  void Describe(const CollectiveRequest& request, runtime::CallRecord* record);
  // How `provider` serves a call by `plan`. With engine ownership.
  runtime::CallService ServiceOf(const CollectiveRequest& request, const Provider& provider, const ServicePlan& plan);
  // Writes the site of a call into its record: "train.cc:88".
  void NameSite(const std::source_location& site, runtime::CallRecord* record);

 private:
  // The text of a call site, made once per place.
  struct SiteMemo {
    const char* file = nullptr;
    uint32_t line = 0;
    std::array<char, sizeof(runtime::CallRecord::site)> text{};
  };
  static constexpr size_t kSites = 64;  // a power of two

  // World ranks of a member on this node and of one on another node, the caller aside; -1: there is none. Transports
  // reach all members of either kind alike.
  struct Neighbours {
    int near = -1;
    int far = -1;
  };

  const Neighbours& FindNeighbours();
  void NumberMessage(const CollectiveRequest& request, runtime::CallRecord* record);
  const SiteMemo& SiteOf(const std::source_location& site);

  const GroupContext& group_;
  uint64_t sequence_ = 0;
  uint64_t chain_ = 0;          // ChainSignature of all collectives so far
  std::vector<uint64_t> sent_;  // by peer; empty before the first send or receive
  std::vector<uint64_t> received_;
  std::vector<SiteMemo> sites_;           // made when first needed
  std::optional<Neighbours> neighbours_;  // the same
};

}  // namespace cohort::comm
