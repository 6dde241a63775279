#include "comm/provider_registry.h"

#include "comm/nccl/nccl_provider.h"
#include "comm/plan_provider.h"
#include "comm/point_to_point.h"
#include "runtime/base/status_macros.h"
#include "runtime/env.h"

namespace cohort::comm {
namespace {

using MadeProvider = absl::StatusOr<std::unique_ptr<Provider>>;

bool OnCuda(const CollectiveRequest& request) { return request.memory == MemoryKind::kCuda; }
bool IsMessage(const CollectiveRequest& request) { return IsPointToPoint(request.kind); }
bool IsCollective(const CollectiveRequest&) { return true; }

// The links of calls on CUDA memory that go through host memory: apart from those of calls on host memory, since the
// members may start the two in different orders.
class StagedLinks : public LinkSource {
 public:
  explicit StagedLinks(LinkSource* links) : links_(links) {}
  absl::StatusOr<std::unique_ptr<Link>> MakeLink(int peer, uint16_t lane) override {
    return links_->MakeLink(peer, Apart(lane));
  }
  absl::StatusOr<std::unique_ptr<Fanout>> MakeFanout(uint16_t lane) override { return links_->MakeFanout(Apart(lane)); }

 private:
  static uint16_t Apart(uint16_t lane) { return static_cast<uint16_t>(lane ^ 0x4000); }
  LinkSource* const links_;
};

// A provider of host memory with links of its own.
template <typename HostProvider>
class Apart : private StagedLinks, public HostProvider {
 public:
  Apart(const GroupContext* group, LinkSource* links) : StagedLinks(links), HostProvider(group, this) {}
};

MadeProvider MakeNccl(const GroupContext* group, LinkSource* links) {
  COHORT_ASSIGN_OR_RETURN(const runtime::Environment environment, runtime::Environment::Read());
  NcclOptions options;
  options.nccl_library = environment.nccl_library;
  options.cuda_library = environment.cuda_library;
  options.settings = environment.nccl_settings;
  options.make_host_provider = [group, links](bool messages) -> std::unique_ptr<Provider> {
    if (messages) return std::make_unique<Apart<PointToPoint>>(group, links);
    return std::make_unique<Apart<PlanProvider>>(group, links);
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
#define COHORT_PROVIDER(name, serves, factory) {#name, &serves, &factory},
#include "comm/providers.def"
#undef COHORT_PROVIDER
};

}  // namespace

std::span<const ProviderEntry, kProviders> RegisteredProviders() { return kEntries; }

}  // namespace cohort::comm
