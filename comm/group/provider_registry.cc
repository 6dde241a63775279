#include "cohort/comm/group/provider_registry.h"

#include <algorithm>
#include <string>

#include "cohort/comm/nccl/nccl_provider.h"
#include "cohort/comm/run/plan_provider.h"
#include "cohort/comm/run/point_to_point.h"
#include "cohort/runtime/base/status_macros.h"
#include "cohort/runtime/env.h"

namespace cohort::comm {
namespace {

using MadeProvider = absl::StatusOr<std::unique_ptr<Provider>>;

bool OnCuda(const CollectiveRequest& request) { return request.memory == MemoryKind::kCuda; }
bool IsMessage(const CollectiveRequest& request) { return IsPointToPoint(request.kind); }
bool IsCollective(const CollectiveRequest&) { return true; }

// The links of calls on CUDA memory that go through host memory: apart from those of calls on host memory, since the
// members may start the two in different orders; and from those of other devices, whose providers are others.
//
// Lanes: 0... are of host memory, 01kkkkkk'kkllllll of the k-th device's collectives, 10 and the rest inverted of its
// messages, and kPointToPointLane of messages of host memory.
class StagedLinks : public LinkSource {
 public:
  StagedLinks(LinkSource* links, int device_index) : links_(links), device_index_(device_index) {}
  absl::StatusOr<std::unique_ptr<Link>> MakeLink(int peer, uint16_t lane) override {
    COHORT_ASSIGN_OR_RETURN(const uint16_t apart, Apart(lane));
    return links_->MakeLink(peer, apart);
  }
  absl::StatusOr<std::unique_ptr<Fanout>> MakeFanout(uint16_t lane) override {
    COHORT_ASSIGN_OR_RETURN(const uint16_t apart, Apart(lane));
    return links_->MakeFanout(apart);
  }

 private:
  absl::StatusOr<uint16_t> Apart(uint16_t lane) const {
    constexpr int kLaneBits = 6, kMostDevices = 256;
    if (device_index_ >= kMostDevices || (lane != kPointToPointLane && lane >> kLaneBits != 0)) {
      return absl::ResourceExhaustedError("staging in host memory: no links for lane " + std::to_string(lane) +
                                          " of the group's device " + std::to_string(device_index_));
    }
    return static_cast<uint16_t>(lane ^ 0x4000 ^ (device_index_ << kLaneBits));
  }
  LinkSource* const links_;
  const int device_index_;
};

// A provider of host memory with links of its own.
template <typename Hosted>
class Apart : private StagedLinks, public Hosted {
 public:
  Apart(const GroupContext* group, LinkSource* links, int device_index)
      : StagedLinks(links, device_index), Hosted(group, this) {}
};

bool SpansNodes(const GroupContext& group) {
  const auto node = [&group](int member) { return group.runtime->node_of(member); };
  return std::any_of(group.members.begin(), group.members.end(),
                     [&](int member) { return node(member) != node(group.members.front()); });
}

MadeProvider MakeNccl(const GroupContext* group, LinkSource* links) {
  COHORT_ASSIGN_OR_RETURN(const runtime::Environment environment, runtime::Environment::Read());
  NcclOptions options;
  options.nccl_library = environment.nccl_library;
  options.cuda_library = environment.cuda_library;
  options.settings = environment.nccl_settings;
  if (environment.encrypt_data && SpansNodes(*group)) {
    options.forbidden =
        "NCCL does not encrypt what it sends to other nodes, as --encrypt-data (COHORT_ENCRYPT_DATA=1) asks";
  }
  options.make_host_provider = [group, links](bool messages, int device_index) -> std::unique_ptr<Provider> {
    if (messages) return std::make_unique<Apart<PointToPoint>>(group, links, device_index);
    return std::make_unique<Apart<PlanProvider>>(group, links, device_index);
  };
  return MakeNcclProvider(group, options);
}

MadeProvider MakePointToPoint(const GroupContext* group, LinkSource* links) {
  return std::make_unique<PointToPoint>(group, links);
}

MadeProvider MakePlan(const GroupContext* group, LinkSource* links) {
  return std::make_unique<PlanProvider>(group, links);
}

constexpr ProviderEntry kEntries[] = {
#define COHORT_PROVIDER(name, serves, factory) {&serves, &factory},
#include "cohort/comm/group/providers.def"
#undef COHORT_PROVIDER
};

}  // namespace

std::span<const ProviderEntry, kProviders> RegisteredProviders() { return kEntries; }

}  // namespace cohort::comm
